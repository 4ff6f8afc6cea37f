#!/usr/bin/env python3
"""What the planner's pick costs against the best that was measured, replayed from a sweep's file with no GPU.

    python scripts/sweep_report.py                          # the third of the shapes to develop on
    python scripts/sweep_report.py --open 'why'             # opens the held-out two thirds, and notes that it did
    python scripts/sweep_report.py --held-out --check       # both, once opened; 1 when a must of the held-out is missed
    python scripts/sweep_report.py --fresh --check          # the last of the shapes added after that, which judge now

Regret is t(pick) / t(best) - 1 on the medians of one interleaved measurement; inside the shape's noise band, the same
configuration against itself (at most 2%), it is none. Times are predicted by the planner as it is now, for the
configurations that were measured: the pick is the first of its ranked candidates that was. Openings of the held-out
shapes are lines of the notebook.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import sweep_file
from planner_report import Point, spearman
from sweep_plans import planning_of
from sweep_rules import RULES
from sweep_shapes import FRESH, Part, Shape, part_of, shapes

from tilewright import results
from tilewright.errors import TilewrightError, UsageError
from tilewright.plan_base import Plan
from tilewright.planner.calibration import Calibration
from tilewright.planner.candidate import Candidate
from tilewright.planner.contenders import contenders
from tilewright.planner.family import priced
from tilewright.planner.machine import Machine
from tilewright.planner.plan import machine_of
from tilewright.problem import Problem
from tilewright.roofline import peak_tflops, roof_of

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "results" / "sweep_h200.jsonl"
NOTEBOOK = ROOT / "docs" / "notebook" / "2026-11-30-sweep.md"
OPENED = "- opened "
WIDEST_BAND = 0.02  # no noise excuses more
TOP = 4
PLANNER = "the planner"


@dataclass(frozen=True)
class Entry:
    """A configuration of a shape: its median time, its SM clock and, where a family has a model, what is predicted."""

    plan: Plan
    us: float
    clock_mhz: float | None
    candidate: Candidate | None

    @property
    def predicted_us(self) -> float | None:
        """At the sustained clock."""
        time = None if self.candidate is None else self.candidate.predicted_us
        return None if time is None else time.sustained


@dataclass(frozen=True)
class Row:
    """What the figures need of a shape.

    ``picked`` has the time of each way to pick, ``top_us`` the best of the first ``TOP``; ``predicted_us`` is of the
    pick, at the clock that it was measured at. ``pick_measured``: the planner's first candidate is among the measured.
    """

    shape: Shape
    best_us: float
    band: float
    picked: Mapping[str, float | None]
    top_us: float
    predicted_us: float
    spearman: float | None
    below_floor: tuple[str, ...]
    configurations: int
    pick_measured: bool
    cublas_us: float | None

    def regret(self, us: float) -> float:
        """Of a time, 0 inside the noise band."""
        return regret(us, self.best_us, self.band)

    @property
    def error(self) -> float:
        """Of the pick's predicted time at the measured clock, relative."""
        us = self.picked[PLANNER]
        assert us is not None
        return self.predicted_us / us - 1


def regret(us: float, best_us: float, band: float) -> float:
    """How much longer than the best, relative; 0 where that is inside the noise band, of which 2% count at most."""
    more = us / best_us - 1
    return 0.0 if more <= min(band, WIDEST_BAND) else more


def geometric_mean(regrets: Sequence[float]) -> float:
    """Of 1 + regret, less 1."""
    return math.exp(statistics.fmean(math.log1p(each) for each in regrets)) - 1


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent of the values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def floor_us(problem: Problem, machine: Machine) -> float:
    """What no kernel can beat: the FLOPs at their peak, A, B and C once at HBM's rate."""
    peak = peak_tflops(machine.gpu, roof_of(problem.dtype, tensor_cores=True)) * 1e12
    return 1e6 * max(problem.flops / peak, problem.bytes_moved / machine.gpu.hbm_bytes_per_s)


def at_clock(plan: Plan, problem: Problem, machine: Machine, mhz: float | None) -> float:
    """The predicted time of a plan at a clock, whatever power it would take; at the sustained one where it is None."""
    if mhz is None:
        time = priced(plan, problem, machine).predicted_us
        assert time is not None
        return time.sustained
    clocked = replace(machine.calibration, burst_clock_mhz=min(mhz, machine.calibration.boost_clock_mhz))
    time = priced(plan, problem, replace(machine, calibration=clocked), "burst").predicted_us
    assert time is not None
    return time.burst


def row_of(shape: Shape, seen: sweep_file.Seen, plans: Mapping[str, Plan], machine: Machine) -> Row | None:
    """The figures of a shape; None where the planner has no candidate among what was measured."""
    problem = shape.problem
    ranked = planning_of(shape).ranked
    by_plan = {each.plan: each for each in ranked if each.plan is not None}
    entries = []
    for name, timed in seen.times.items():
        plan = plans[name]
        entries.append(
            Entry(plan, timed.us.median, timed.clock_mhz, by_plan.get(plan) or _priced(plan, problem, machine))
        )
    measured = {entry.plan: entry for entry in entries}
    listed = [each for plan, each in by_plan.items() if plan in measured]  # in the planner's order
    if not listed:
        return None
    first = [measured[each.plan] for each in contenders(listed, TOP) if each.plan is not None]
    known = [entry for entry in entries if entry.candidate is not None and entry.predicted_us is not None]
    candidates = [entry.candidate for entry in known if entry.candidate is not None]
    picked: dict[str, float | None] = {PLANNER: first[0].us}
    for name, rule in RULES.items():
        choice = rule(candidates, problem, machine.gpu)
        picked[name] = next((entry.us for entry in known if entry.candidate is choice), None)
    least = floor_us(problem, machine)
    below = [each.label for each in candidates if each.predicted_us and each.predicted_us.burst < least * (1 - 1e-9)]
    cublas = seen.vendor.get(sweep_file.CUBLAS)
    return Row(
        shape=shape,
        best_us=min(entry.us for entry in entries),
        band=seen.band,
        picked=picked,
        top_us=min(entry.us for entry in first),
        predicted_us=at_clock(first[0].plan, problem, machine, first[0].clock_mhz),
        spearman=_spearman(known),
        below_floor=tuple(below),
        configurations=len(entries),
        pick_measured=ranked[0].plan in measured,
        cublas_us=None if cublas is None else cublas.us.median,
    )


def _priced(plan: Plan, problem: Problem, machine: Machine) -> Candidate | None:
    """A configuration that the planner no longer lists, with its predicted time; None where no family has a model."""
    try:
        return priced(plan, problem, machine)
    except UsageError:
        return None


def _spearman(known: Sequence[Entry]) -> float | None:
    """Of measured and predicted times; None of fewer than three, and where all are predicted the same."""
    points = [Point("", 0, "", "", entry.us, entry.predicted_us or 0.0, 0, 0) for entry in known]
    if len(points) < 3 or len({point.predicted_us for point in points}) == 1:
        return None
    return spearman(points)


def rows_of(sweep: sweep_file.Sweep, calibration: Calibration | None = None) -> list[Row]:
    """Every shape of the sweep that was measured, in the order of the list."""
    machine, _ = machine_of("h200", None, calibration)
    every = [(shape, sweep.shapes.get(shape.sizes)) for shape in shapes()]
    made = [row_of(shape, seen, sweep.plans, machine) for shape, seen in every if seen is not None and seen.times]
    return [row for row in made if row is not None]


@dataclass(frozen=True)
class Must:
    """A figure with what it has to be, and what it should: ``at_least`` or at most."""

    name: str
    of: Callable[[Sequence[Row]], float]
    must: float
    aim: float | None = None
    at_least: bool = False
    form: str = ".2%"

    def met(self, value: float) -> bool:
        """Whether a value is good enough."""
        return value >= self.must if self.at_least else value <= self.must


def _regrets(rows: Sequence[Row], way: str = PLANNER) -> list[float]:
    return [row.regret(us) for row in rows if (us := row.picked[way]) is not None]


def _ranks(rows: Sequence[Row]) -> float:
    found = [row.spearman for row in rows if row.spearman is not None]
    return statistics.median(found) if found else math.nan


MUSTS = (
    Must("geometric-mean regret of the pick", lambda rows: geometric_mean(_regrets(rows)), 0.03, 0.015),
    Must("95th percentile of its regret", lambda rows: percentile(_regrets(rows), 95), 0.10),
    Must(
        f"geometric-mean regret of the best of the top {TOP}",
        lambda rows: geometric_mean([row.regret(row.top_us) for row in rows]),
        0.005,
    ),
    Must(
        "mean absolute error of the pick's predicted time, at the measured clock",
        lambda rows: statistics.fmean(abs(row.error) for row in rows),
        0.10,
        0.05,
    ),
    Must("median Spearman of predicted and measured times", _ranks, 0.85, at_least=True, form=".3f"),
    Must("predictions below the physical floor", lambda rows: sum(len(row.below_floor) for row in rows), 0, form=".0f"),
)


def part_table(part: Part, rows: Sequence[Row]) -> tuple[bool, str]:
    """Whether all musts are met, and the figures of a part as Markdown."""
    count = sum(row.configurations for row in rows)
    unmeasured = sum(not row.pick_measured for row in rows)
    band = statistics.median(row.band for row in rows)
    whole = sum(part_of(shape) == part for shape in shapes())
    head = f"## {part}: {len(rows)} of {whole} shapes, {count} measurements, noise band {band:.2%} (median)"
    lines = [head, ""]
    if unmeasured:
        lines += [f"The planner's first candidate was not measured on {unmeasured}: there its next one counts.", ""]
    lines += ["| figure | value | must | aim | |", "|---|---:|---:|---:|---|"]
    ok = True
    for must in MUSTS:
        value = must.of(rows)
        met = must.met(value)
        ok &= met
        sign = ">=" if must.at_least else "<="
        aim = "" if must.aim is None else f"{sign} {must.aim:{must.form}}"
        verdict = "met" if met else "MISSED"
        lines.append(f"| {must.name} | {value:{must.form}} | {sign} {must.must:{must.form}} | {aim} | {verdict} |")
    lines += [
        "", "| way to pick, on the same candidates | shapes | geometric mean | 95th percentile | worst | no regret |",
        "|---|--:|--:|--:|--:|--:|",
    ]  # fmt: skip
    for way in (PLANNER, *RULES):
        some = _regrets(rows, way)
        if not some:
            lines.append(f"| {way} | 0 | - | - | - | - |")
            continue
        none = sum(each == 0 for each in some) / len(some)
        lines.append(
            f"| {way} | {len(some)} | {geometric_mean(some):.1%} | {percentile(some, 95):.1%} | {max(some):.1%} "
            f"| {none:.0%} |"
        )
    return ok, "\n".join(lines)


def shapes_table(rows: Sequence[Row]) -> str:
    """Each shape, the largest regret first."""
    lines = [
        "| shape | stratum | pick us | best us | regret | top 4 | band | error | Spearman | cuBLAS / best |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in sorted(rows, key=lambda row: -_regrets([row])[0]):
        ranks = "-" if row.spearman is None else f"{row.spearman:.2f}"
        vendor = "-" if row.cublas_us is None else f"{row.cublas_us / row.best_us:.3f}"
        lines.append(
            f"| {row.shape} | {row.shape.stratum} | {row.picked[PLANNER]:.2f} | {row.best_us:.2f} | "
            f"{_regrets([row])[0]:.1%} | {row.regret(row.top_us):.1%} | {row.band:.2%} | {row.error:+.1%} | {ranks} | "
            f"{vendor} |"
        )
    return "\n".join(lines)


def openings(notebook: Path = NOTEBOOK) -> list[str]:
    """The notebook's lines about when the held-out shapes were looked at."""
    text = notebook.read_text("utf-8") if notebook.exists() else ""
    return [line for line in text.splitlines() if line.startswith(OPENED)]


def note_opening(reason: str, notebook: Path = NOTEBOOK) -> None:
    """Add such a line, at the end."""
    before = notebook.read_text("utf-8").rstrip("\n")
    notebook.write_text(f"{before}\n{OPENED}{results.now()} at {results.commit()}: {reason}\n", "utf-8")


def report(rows: Sequence[Row], parts: Sequence[Part], notebook: Path = NOTEBOOK) -> tuple[bool, str]:
    """Whether the musts are met, of all parts but the one to develop on, and all tables."""
    said = openings(notebook)
    opened = f"The held-out shapes have been opened {len(said)} times" + (":\n\n" + "\n".join(said) if said else ".")
    ok, sections = True, [opened]
    for part in parts:
        some = [row for row in rows if part_of(row.shape) == part]
        if not some:
            sections.append(f"## {part}: nothing was measured")
            ok &= part == "development"
            continue
        met, text = part_table(part, some)
        sections += [text, shapes_table(some)]
        ok &= met or part == "development"
    return ok, "\n\n".join(sections)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures; 1 where ``--check`` finds a must missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("file", nargs="?", type=Path, default=FILE, help="(default: results/sweep_h200.jsonl)")
    parser.add_argument("--calibration", type=Path, help="constants other than those shipped for the H200")
    parser.add_argument("--held-out", action="store_true", help="the held-out shapes too, once they were opened")
    parser.add_argument("--open", metavar="WHY", help="open them: a line is added to the notebook, to be committed")
    parser.add_argument(
        "--fresh", nargs="?", const=FRESH[-1], choices=FRESH, help="a list of fresh shapes alone (default: %(const)s)"
    )
    parser.add_argument("--check", action="store_true", help="1 when a must of held-out or fresh shapes is missed")
    given = parser.parse_args(argv)
    try:
        if given.open:
            note_opening(given.open, NOTEBOOK)
        if given.held_out and not openings(NOTEBOOK):
            raise UsageError("the held-out shapes were not opened yet: --open WHY does so, and notes it")
        parts: list[Part] = ["development", "held-out"] if given.held_out or given.open else ["development"]
        parts = [given.fresh] if given.fresh else parts
        rows = rows_of(sweep_file.read(given.file), Calibration.load(given.calibration) if given.calibration else None)
        ok, text = report(rows, parts, NOTEBOOK)
    except TilewrightError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(text)
    return 1 if given.check and not ok else 0


if __name__ == "__main__":
    sys.exit(main())
