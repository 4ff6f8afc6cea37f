#!/usr/bin/env python3
"""What the planner predicts for every configuration that was measured, and how far off it is.

Reads the records of kernels in results/*.jsonl, prices the plan of each as it is, sustained, and compares with the
median time measured. The error is predicted / measured - 1. Nothing is fitted here.

    python scripts/planner_report.py [--calibration FILE] [FILE ...]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from tilewright.plan_base import Plan
from tilewright.planner.calibration import Calibration
from tilewright.planner.family import priced
from tilewright.planner.plan import machine_of
from tilewright.problem import Problem
from tilewright.results import load

ROOT = Path(__file__).resolve().parent.parent
WHAT = ("kernel", "rung", "counter-example")


@dataclass(frozen=True)
class Point:
    """One configuration: what was measured of it and what is predicted, in microseconds and MHz."""

    family: str
    rung: int
    problem: str
    label: str
    measured_us: float
    predicted_us: float
    low_us: float
    high_us: float
    burst_us: float

    @property
    def error(self) -> float:
        """Relative: above 0 where the prediction is too slow."""
        return self.predicted_us / self.measured_us - 1


def points(paths: Iterable[Path], calibration: Calibration | None = None) -> list[Point]:
    """Every record of a kernel with a plan and a time, in the order of the files."""
    machine, _ = machine_of("h200", None, calibration)
    found = []
    for path in paths:
        for record in load(path):
            if record.what not in WHAT or record.plan is None or record.time_us is None:
                continue
            problem = Problem.from_dict(record.problem)
            candidate = priced(Plan.from_dict(record.plan), problem, machine)
            time = candidate.predicted_us
            assert time is not None
            label = candidate.label if record.what == "kernel" else f"{record.name}: {candidate.label}"
            layouts = f"{problem.a_layout[0]}{problem.b_layout[0]}"
            name = f"{problem.m}x{problem.n}x{problem.k} {problem.dtype} {layouts}"
            number = int(record.plan["rung"])
            median = float(record.time_us["median"])
            found.append(
                Point(candidate.family, number, name, label, median, time.sustained, time.low, time.high, time.burst)
            )
    return found


def mape(some: Sequence[Point]) -> float:
    """Mean absolute percentage error."""
    return 100 * float(np.mean([abs(each.error) for each in some]))


def bias(some: Sequence[Point]) -> float:
    """Percent: of the geometric mean of predicted / measured."""
    return 100 * (math.exp(float(np.mean([math.log(each.predicted_us / each.measured_us) for each in some]))) - 1)


def covered(some: Sequence[Point]) -> float:
    """Percent of the measured times between ``low`` and ``high``."""
    return 100 * float(np.mean([each.low_us <= each.measured_us <= each.high_us for each in some]))


def spearman(some: Sequence[Point]) -> float:
    """Correlation of the ranks by measured and by predicted time; equal times share their mean rank."""
    ranks = [_ranks([pick(each) for each in some]) for pick in _TIMES]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def kendall(some: Sequence[Point]) -> float:
    """Pairs in the measured order less those in the other one, of all pairs."""
    signs = [
        math.copysign(1, a.measured_us - b.measured_us) * np.sign(a.predicted_us - b.predicted_us)
        for a, b in combinations(some, 2)
    ]
    return float(np.mean(signs))


_TIMES: tuple[Callable[[Point], float], ...] = (lambda each: each.measured_us, lambda each: each.predicted_us)


def _ranks(values: Sequence[float]) -> list[float]:
    return [sum(v < value for v in values) + (sum(v == value for v in values) - 1) / 2 for value in values]


def groups(found: Sequence[Point]) -> dict[str, list[Point]]:
    """All, by family (the main kernel apart from the rungs before it), and by problem where there are five or more."""
    made: dict[str, list[Point]] = {"all": list(found)}
    families = {
        "rung 11": lambda p: p.rung == 11,
        "rungs 6-10": lambda p: 6 <= p.rung <= 10,
        "rung 5": lambda p: p.rung == 5,
        "rung 4": lambda p: p.rung == 4,
        "rungs 0-3": lambda p: p.rung <= 3,
    }
    for name, belongs in families.items():
        made[name] = [point for point in found if belongs(point)]
    for problem in dict.fromkeys(point.problem for point in found):
        some = [point for point in found if point.problem == problem]
        if len({point.label for point in some}) >= 5:
            made[problem] = some
    return {name: some for name, some in made.items() if some}


def tables(found: Sequence[Point]) -> str:
    """Both tables as Markdown: each configuration, then the groups."""
    lines = ["| problem | configuration | measured us | predicted us | error |", "|---|---|---:|---:|---:|"]
    lines += [
        f"| {p.problem} | {p.label} | {p.measured_us:,.1f} | {p.predicted_us:,.1f} | {100 * p.error:+.1f}% |"
        for p in found
    ]
    lines += ["", "| group | configurations | MAPE | bias | in p10-p90 | Spearman | Kendall |", "|---|--:|--:|--:|--:|--:|--:|"]
    for name, some in groups(found).items():
        several = len({p.measured_us for p in some}) >= 4
        ranks = f"{spearman(some):.3f} | {kendall(some):.3f}" if several else "- | -"
        lines.append(
            f"| {name} | {len(some)} | {mape(some):.1f}% | {bias(some):+.1f}% | {covered(some):.0f}% | {ranks} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, help="records (default: results/*.jsonl)")
    parser.add_argument("--calibration", type=Path, help="constants other than those shipped for the H200")
    given = parser.parse_args()
    calibration = Calibration.load(given.calibration) if given.calibration else None
    files = given.files or sorted((ROOT / "results").glob("*_h200.jsonl"))
    label = machine_of("h200", None, calibration)[0].calibration.label
    print(f"Calibration: {label}\n\n{tables(points(files, calibration))}")


if __name__ == "__main__":
    main()
