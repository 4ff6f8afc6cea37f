#!/usr/bin/env python3
"""The configurations that a sweep's file has of each shape, the fastest first, beside cuBLAS and the planner's prices.

    python scripts/sweep_list.py results/sweep_h200.jsonl --only 640x7168x7168 --show 8
    python scripts/sweep_list.py near.jsonl --show 20

"of cuBLAS" is cuBLAS's time over the configuration's; "of its price" is over the time that the planner predicts for it
now, at the sustained clock, and over the shape's middle of that, which takes out the clock that all had: what is priced
too low has more than 1. The pick, the first of the planner's ranked candidates that was measured, is marked.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import sweep_file
from sweep_plans import planning_of
from sweep_shapes import Shape, select

from tilewright.errors import TilewrightError, UsageError
from tilewright.plan_base import Plan
from tilewright.planner.candidate import Candidate
from tilewright.planner.family import priced
from tilewright.planner.plan import machine_of

HEAD = "| us | of cuBLAS | of its price | |"


@dataclass(frozen=True)
class Listing:
    """A shape's table, and cuBLAS's time over that of the pick and that of the best; None where one is not known."""

    lines: Sequence[str]
    ratios: tuple[float, float] | None


def listing(shape: Shape, seen: sweep_file.Seen, plans: Mapping[str, Plan], show: int) -> Listing:
    """Of a shape its ``show`` fastest, and the pick."""
    machine, _ = machine_of("h200", None, None)
    cublas = seen.vendor.get(sweep_file.CUBLAS)
    rows: list[tuple[float, Plan, Candidate | None]] = []
    for name, timed in seen.times.items():
        try:
            candidate: Candidate | None = priced(plans[name], shape.problem, machine)
        except UsageError:  # a kind that no family has any more
            candidate = None
        rows.append((timed.us.median, plans[name], candidate))
    rows.sort(key=lambda row: row[0])
    measured = {plan for _, plan, _ in rows}
    dependent = any(plan.dependent for plan in measured)
    ranked = (each.plan for each in planning_of(shape, pdl=dependent).ranked)
    pick = next((plan for plan in ranked if plan in measured), None)
    ratios = [us / _predicted(candidate) for us, _, candidate in rows if candidate is not None]
    middle = statistics.median(ratios) if ratios else 1.0
    vendor = "" if cublas is None else f", cuBLAS {cublas.us.median:.2f} us"
    band = f"noise band {seen.band:.2%}{vendor}, price x {middle:.3f} in the middle"
    lines = [f"## {shape}: {len(rows)} configurations, {band}", "", HEAD, "|--:|--:|--:|---|"]
    for place, (us, plan, candidate) in enumerate(rows):
        if place >= show and plan != pick:
            continue
        ratio = "-" if cublas is None else f"{cublas.us.median / us:.3f}"
        over = "-" if candidate is None else f"{us / _predicted(candidate) / middle:.3f}"
        label = plan.of if candidate is None else f"{candidate.family} {candidate.label}"
        marks = ", dependent launch" * plan.dependent + f", **the pick, number {place + 1}**" * (plan == pick)
        lines.append(f"| {us:.2f} | {ratio} | {over} | {label}{marks} |")
    picked = next((us for us, plan, _ in rows if plan == pick), None)
    if cublas is None or picked is None:
        return Listing([*lines, ""], None)
    return Listing([*lines, ""], (cublas.us.median / picked, cublas.us.median / rows[0][0]))


def _predicted(candidate: Candidate) -> float:
    assert candidate.predicted_us is not None
    return candidate.predicted_us.sustained


def summary(ratios: Sequence[tuple[float, float]]) -> str:
    """Of each shape the ratio to cuBLAS of its pick and of its best: their geometric means."""
    pick, best = (math.exp(statistics.fmean(math.log(pair[which]) for pair in ratios)) for which in (0, 1))
    return f"{len(ratios)} shapes: the picks {pick:.3f} of cuBLAS, the best of each {best:.3f}"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", nargs="*", default=(), metavar="NAME", help="strata or shapes such as 1x4096x4096")
    parser.add_argument("--show", type=int, default=10, help="configurations of each shape (default: %(default)s)")
    given = parser.parse_args(argv)
    try:
        sweep = sweep_file.read(given.file)
        ratios = []
        for shape in select("all", given.only):
            seen = sweep.shapes.get(shape.sizes)
            if seen is not None and seen.times:
                found = listing(shape, seen, sweep.plans, given.show)
                print("\n".join(found.lines))
                ratios += [found.ratios] if found.ratios else []
        if ratios:
            print(summary(ratios))
    except TilewrightError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
