"""A planning as text for a terminal: the pick with its reasons, the ranked candidates, those rejected, two compared.

A table's cell has two lines by one rule: above what ranks, below (dim) what explains it. Tables fit 80 columns; from
``WIDE`` on what explains has columns of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tilewright.planner.candidate import Candidate
from tilewright.planner.judgement import Finding, Judgement
from tilewright.planner.planning import Planning
from tilewright.planner.why import Why, time_us, words
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
from tilewright.report.table import WIDE, number
from tilewright.roofline import amount, held

INDENT = 2


def pick_text(planning: Planning, reasons: Sequence[Finding] = ()) -> RenderableType:
    """The answer in words: what was asked, what to take, its time, what limits it, and its ``reasons``.

    The first line says whose GPU it is, and whether that was assumed.
    """
    if not planning.ranked:
        return Group(Text(asked(planning), "bold"), Text(nothing(planning.problem)))
    pick = planning.pick
    return Group(
        heading(planning),
        Text.assemble("take ", (pick.label, "bold green"), f" ({pick.family})"),
        _set_in(predicted(planning)),
        _set_in(REGIMES[planning.regime]),
        _set_in(time_goes(pick)),
        named(explained(pick, reasons)),
    )


def heading(planning: Planning) -> RenderableType:
    """What was asked of which GPU, and what the times rest on."""
    return Group(Text(asked(planning), "bold"), Text(basis(planning), "dim"))


def named(rows: Iterable[tuple[str, str]]) -> RenderableType:
    """Sentences by name, in two columns."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, says in rows:
        table.add_row(name, Text(says))
    return Padding(table, (0, 0, 0, INDENT))


def _set_in(text: str) -> RenderableType:
    return Padding(Text(text), (0, 0, 0, INDENT), expand=False)


def candidate_table(planning: Planning, top: int, width: int) -> RenderableType:
    """The first ``top`` candidates by predicted time."""
    wide = width >= WIDE
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column(_heading("candidate", "family, raster" if wide else "family, raster, operands read"))
    if wide:
        table.add_column(_heading("FLOP/B", "operands read"), justify="right", no_wrap=True)
        table.add_column(_heading("stages", "shared memory"), justify="right", no_wrap=True)
    table.add_column(_heading("waves", "busy"), justify="right", no_wrap=True)
    table.add_column(_heading(f"us {planning.clock}", "assumed range"), justify="right", no_wrap=True)
    table.add_column(_heading("TFLOPS", "to 1"), justify="right", no_wrap=True)
    best = time_us(planning.pick, planning.clock)
    for rank, each in enumerate(planning.ranked[:top], 1):
        table.add_row(*_row(planning, rank, each, best, wide), style="bold" if rank == 1 else "")
    return table


def _heading(above: str, below: str) -> Text:
    return Text.assemble(f"{above}\n", (below, "dim"))


def _row(planning: Planning, rank: int, each: Candidate, best: float, wide: bool) -> Iterator[Text]:
    times, read = each.predicted_us, amount(each.operand_traffic_bytes_multicast)
    us = time_us(each, planning.clock)
    intensity = number(each.intensity_flop_per_byte)
    yield Text(str(rank))
    below = f"{each.family}, {each.raster}" + ("" if wide else f", {read}")
    yield _cell(each.label, below)
    if wide:
        yield _cell(intensity, read)
        yield _cell(f"{each.stages} of {each.max_stages}", f"{held(each.shared_bytes)}")
    yield _cell(f"{each.waves:,}", f"{each.wave_efficiency:.1%}")
    interval = f"{microseconds(times.low)}-{microseconds(times.high)}" if times else ""
    yield _cell(microseconds(us), interval)
    behind = f"+{us / best - 1:.1%}" if rank > 1 and best else ""
    yield _cell(speed(tflops(each, planning.problem, planning.clock)), behind)


def _cell(above: str, below: str) -> Text:
    return Text.assemble(above, "\n", (below, "not bold dim"))


def rejected_list(rejected: Sequence[Candidate]) -> Iterator[RenderableType]:
    """Each rejected candidate with its reason; those that share a reason stand together."""
    yield Text(f"{len(rejected):,} rejected", "bold")
    for reason, labels in by_reason(rejected):
        yield _set_in(reason)
        yield Padding(Text(", ".join(labels), "dim"), (0, 0, 0, 2 * INDENT), expand=False)


def judgement_text(judgement: Judgement) -> Iterator[RenderableType]:
    """What is said of a tile: whether it fits, every limit, the mistakes it shows, and what would be better."""
    yield Text(asked(judgement), "bold")
    yield Text(basis(judgement), "dim")
    fits = "bold green" if judgement.fits else "bold red"
    yield Text.assemble((judgement.label, "bold"), " ", (verdict(judgement), fits))
    limits = Table.grid(padding=(0, 2, 0, 0))
    limits.add_column(no_wrap=True)
    limits.add_column(style="dim", max_width=16)
    limits.add_column()
    for finding in judgement.findings:
        word = mark(finding)
        limits.add_row(Text(word, _MARKS[word]), finding.name, Text(finding.sentence))
    yield Padding(limits, (0, 0, 0, INDENT))
    for mistake in judgement.mistakes:
        yield Text.assemble(("mistake: ", "bold red"), (mistake.name, "bold"))
        yield _set_in(mistake.sentence)
        yield _set_in(f"instead: {mistake.instead}")
    if judgement.better:
        yield Text("better" if judgement.candidate else "what fits", "bold")
        yield _better_table(judgement)


_MARKS = {"ok": "green", "NO": "bold red", "slow": "yellow", "-": "dim"}


def _better_table(judgement: Judgement) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    for justify in ("left", "left", "right", "right"):
        table.add_column(justify=justify, no_wrap=justify == "right")
    for each in judgement.better:
        us = f"{microseconds(time_us(each, judgement.clock))} us"
        table.add_row(each.label, f"{each.family}, {each.raster}", us, gain(judgement, each))
    return Padding(table, (0, 0, 0, INDENT))


def why_table(found: Why) -> RenderableType:
    """Two candidates term by term: what adds up, the parts of the main loop set in, and where each comes from."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("us", no_wrap=True)
    for name in ("A", "B", "B - A"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("from")
    for term in found.terms:
        table.add_row(
            words(term.name) if term.adds else f"  {words(term.name)}",
            f"{term.a_us:,.2f}",
            f"{term.b_us:,.2f}",
            f"{term.difference_us:+,.2f}",
            Text(term.source.replace("; B: ", "\nB: ")),
            style="" if term.adds else "dim",
        )
    a, b = (time_us(each, found.clock) for each in (found.a, found.b))
    table.add_section()
    table.add_row(found.clock, f"{a:,.2f}", f"{b:,.2f}", f"{found.difference_us:+,.2f}", "", style="bold")
    heads = [Text.assemble((f"{name}  ", "bold"), each.label) for name, each in (("A", found.a), ("B", found.b))]
    note = "set in: what the main loop is made of, wave by wave, mostly the largest"
    return Group(*heads, Text(str(found)), Text(), table, Text(note, "dim italic"))
