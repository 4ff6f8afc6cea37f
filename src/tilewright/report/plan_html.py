"""A planning as HTML: a page that needs nothing else, and the pieces that a notebook shows.

Text reaches the templates as text and is escaped there; only drawings, which ``svg`` escapes itself, pass as markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tilewright.planner.candidate import Candidate
from tilewright.planner.judgement import Finding, Judgement
from tilewright.planner.planning import Planning
from tilewright.planner.why import Why, time_us, words
from tilewright.report import plan_svg
from tilewright.report.plan_figures import TileMap, register_budget, shared_budget, tiles_of
from tilewright.report.plan_words import (
    REGIMES,
    asked,
    basis,
    by_reason,
    explained,
    gain,
    mark,
    microseconds,
    nothing,
    predicted,
    speed,
    tflops,
    time_goes,
    verdict,
)
from tilewright.report.table import number
from tilewright.roofline import amount

MOST_ROWS = 10
MOST_BARS = 5


def page(body: str, title: str) -> str:
    """A whole page around what a ``_repr_html_`` gives."""
    return _environment().get_template("page.html.jinja").render(title=title, body=Markup(body))


def planning_html(
    planning: Planning,
    *,
    top: int = MOST_ROWS,
    rejected: bool = False,
    reasons: Sequence[Finding] = (),
    why: Why | None = None,
) -> str:
    """The pick with its reasons, the pictures, the ``top`` candidates, and if wanted the rejected and a comparison."""
    template = _environment().get_template("planning.html.jinja")
    shown: dict[str, Any] = {"css": _css(), "asked": asked(planning), "nothing": None}
    if not planning.ranked:
        return template.render(**shown | {"nothing": nothing(planning.problem)})
    pick = planning.pick
    grid = tiles_of(pick, planning.problem, planning.sms, most=plan_svg.MOST_CELLS)
    first = planning.ranked[:top]
    return template.render(
        **shown,
        basis=basis(planning),
        pick=_candidate(pick, reasons),
        predicted=predicted(planning),
        regime=REGIMES[planning.regime],
        grid=_grid(grid, pick),
        times=Markup(plan_svg.times_svg(first[:MOST_BARS], planning.clock)),
        rows=[_row(planning, each, rank) for rank, each in enumerate(first)],
        ranked=f"{len(planning.ranked):,}",
        clock=planning.clock,
        other_clock=planning.other_clock,
        why=None if why is None else _why(why),
        rejected=by_reason(planning.rejected) if rejected else (),
        rejected_count=f"{len(planning.rejected):,}",
    )


def judgement_html(judgement: Judgement) -> str:
    """A tile that somebody brought: its limits, its mistakes, what fills an SM, what would be better."""
    candidate = judgement.candidate
    better = [
        {
            "label": each.label,
            "family": each.family,
            "us": microseconds(time_us(each, judgement.clock)),
            "gain": gain(judgement, each),
        }
        for each in judgement.better
    ]
    return (
        _environment()
        .get_template("judgement.html.jinja")
        .render(
            css=_css(),
            asked=asked(judgement),
            basis=basis(judgement),
            label=judgement.label,
            verdict=verdict(judgement),
            fits=judgement.fits,
            findings=[(mark(each), each) for each in judgement.findings],
            mistakes=judgement.mistakes,
            pick=None if candidate is None else _candidate(candidate),
            better=better,
            clock=judgement.clock,
        )
    )


def candidate_html(candidate: Candidate) -> str:
    """One candidate: its figures and budgets, its time or the reason against it."""
    return _environment().get_template("candidate.html.jinja").render(css=_css(), pick=_candidate(candidate))


def why_html(why: Why) -> str:
    """Two candidates term by term."""
    return _environment().get_template("why.html.jinja").render(css=_css(), why=_why(why))


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("tilewright.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def _css() -> Markup:
    return Markup(_environment().get_template("plan.css").render())


def _candidate(candidate: Candidate, reasons: Sequence[Finding] = ()) -> dict[str, Any]:
    return {
        "label": candidate.label,
        "family": candidate.family,
        "rejected": candidate.rejected,
        "time": None if candidate.predicted_us is None else time_goes(candidate),
        "facts": explained(candidate, reasons),
        "shared": Markup(plan_svg.budget_svg(shared_budget(candidate))),
        "registers": Markup(plan_svg.budget_svg(register_budget(candidate))),
    }


def _grid(tiles: TileMap, pick: Candidate) -> dict[str, Any]:
    scale = (
        f"A square is {tiles.step_down:,} x {tiles.step_across:,} tiles and shows the one in its middle"
        if tiles.scaled
        else "A square is a tile"
    )
    return {
        "picture": Markup(plan_svg.tiles_svg(tiles, pick.label)),
        "waves": Markup(plan_svg.waves_svg(tiles)),
        "busy": "Time runs to the right, and what is filled of a wave has work.",
        "caption": f"{tiles.tiles:,} tiles of C, {tiles.at_once:,} blocks at a time, in super-rows of {pick.raster}. "
        f"{scale}; its colour is its wave, from dark (the first) to light (the last)."
        + (f" {tiles.said[0].upper()}{tiles.said[1:]}." if tiles.said else ""),
    }


def _row(planning: Planning, each: Candidate, rank: int) -> dict[str, str]:
    us, times = time_us(each, planning.clock), each.predicted_us
    best = time_us(planning.pick, planning.clock)
    return {
        "label": each.label,
        "family": each.family,
        "raster": str(each.raster),
        "intensity": number(each.intensity_flop_per_byte),
        "read": amount(each.operand_traffic_bytes_multicast),
        "waves": f"{each.waves:,}",
        "busy": f"{each.wave_efficiency:.1%}",
        "us": microseconds(us),
        "interval": "" if times is None else f"{microseconds(times.low)} to {microseconds(times.high)}",
        "other_us": microseconds(time_us(each, planning.other_clock)),
        "tflops": speed(tflops(each, planning.problem, planning.clock)),
        "behind": f"+{us / best - 1:.1%}" if rank and best else "",
    }


def _why(why: Why) -> dict[str, Any]:
    a, b = time_us(why.a, why.clock), time_us(why.b, why.clock)
    total = {"adds": True, "name": why.clock, "source": "", **_two(a, b, why.difference_us)}
    rows: Sequence[dict[str, Any]] = [
        {
            "name": words(term.name),
            "adds": term.adds,
            "source": term.source,
            **_two(term.a_us, term.b_us, term.difference_us),
        }
        for term in why.terms
    ]
    return {"a": why.a.label, "b": why.b.label, "says": str(why), "terms": [*rows, total]}


def _two(a: float, b: float, more: float) -> dict[str, str]:
    return {"a": f"{a:,.2f}", "b": f"{b:,.2f}", "more": f"{more:+,.2f}"}
