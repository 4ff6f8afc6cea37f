#!/usr/bin/env python3
"""What the planner predicts for every configuration that was measured, and how far off it is.

Reads the records of kernels in results/*.jsonl, prices the plan of each as it is, sustained, and compares with the
median time measured. The error is predicted / measured - 1. ``--fit`` writes the calibration with the residuals of each
family, at most three, fitted to these times; what is measured in it stays as it is.

    python scripts/planner_report.py [--calibration FILE] [--fit OUT] [FILE ...]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np

from tilewright.plan_base import Plan
from tilewright.plan_branch import NO_RUNG
from tilewright.planner.calibration import Calibration
from tilewright.planner.family import Family, families, priced
from tilewright.planner.plan import machine_of
from tilewright.problem import Problem
from tilewright.results import Record, load

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

    @property
    def error(self) -> float:
        """Relative: above 0 where the prediction is too slow."""
        return self.predicted_us / self.measured_us - 1


def kernels(paths: Iterable[Path]) -> list[Record]:
    """Every record of a kernel with a plan and a time, in the order of the files."""
    every = [record for path in paths for record in load(path)]
    return [each for each in every if each.what in WHAT and each.plan is not None and each.time_us is not None]


def points(records: Iterable[Record], calibration: Calibration | None = None) -> list[Point]:
    """Each record of ``kernels`` with its prediction."""
    machine, _ = machine_of("h200", None, calibration)
    found = []
    for record in records:
        assert record.plan is not None
        assert record.time_us is not None
        problem = Problem.from_dict(record.problem)
        candidate = priced(Plan.from_dict(record.plan), problem, machine)
        time = candidate.predicted_us
        assert time is not None
        label = candidate.label if record.what == "kernel" else f"{record.name}: {candidate.label}"
        layouts = f"{problem.a_layout[0]}{problem.b_layout[0]}"
        name = f"{problem.m}x{problem.n}x{problem.k} {problem.dtype} {layouts}"
        number = int(record.plan.get("rung", NO_RUNG))
        median = float(record.time_us["median"])
        found.append(Point(candidate.family, number, name, label, median, time.sustained, time.low, time.high))
    return found


def fitted(records: Sequence[Record], calibration: Calibration) -> Calibration:
    """The calibration with each family's residuals fitted to the plans it chooses among, its last rung or branch.

    Each in turn, twice, from 0.5 to 4, to the least mean absolute error; one that gains less than 0.05% is left out.
    """
    for family in families():
        some = [each for each in records if _chosen(family, each)]

        def error(tried: Calibration, some: Sequence[Record] = some) -> float:
            return mape(points(some, tried))

        for name in 2 * family.residuals if some else ():
            others = tuple(each for each in calibration.residuals if each[:2] != (family.name, name))

            without = replace(calibration, residuals=others)

            def with_factor(
                factor: float, base: Calibration = without, one: tuple[str, str] = (family.name, name)
            ) -> Calibration:
                return replace(base, residuals=tuple(sorted((*base.residuals, (*one, factor)))))

            best = 1.0
            for step in (0.25, 0.05, 0.01):  # ever finer about the best so far
                factors = [round(best + step * number, 2) for number in range(-6, 13 if step == 0.25 else 7)]
                best = min((each for each in factors if each >= 0.5), key=lambda each: error(with_factor(each)))
            calibration = with_factor(best) if error(with_factor(best)) < error(without) - 0.05 else without
    return calibration


def _chosen(family: Family, record: Record) -> bool:
    """Whether the record is of a plan among which the family chooses."""
    assert record.plan is not None
    plan = Plan.from_dict(record.plan)
    return family.prices(plan) and plan.rung == max(family.rungs, default=plan.rung)


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
    parts: dict[str, Callable[[Point], bool]] = {
        "rung 11": lambda p: p.rung == 11,
        "rungs 6-10": lambda p: 6 <= p.rung <= 10,
        "rung 5": lambda p: p.rung == 5,
        "rung 4": lambda p: p.rung == 4,
        "rungs 0-3": lambda p: NO_RUNG < p.rung <= 3,
        "branches": lambda p: p.rung == NO_RUNG,
    }
    for name, belongs in parts.items():
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
    lines += [
        "",
        "| group | configurations | MAPE | bias | in the range | Spearman | Kendall |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
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
    parser.add_argument("--fit", type=Path, help="fit the residuals and write the calibration with them here")
    given = parser.parse_args()
    calibration = Calibration.load(given.calibration) if given.calibration else None
    records = kernels(given.files or sorted((ROOT / "results").glob("*_h200.jsonl")))
    if given.fit:
        unfitted = replace(machine_of("h200", None, calibration)[0].calibration, residuals=())
        calibration = fitted(records, unfitted)
        calibration.save(given.fit)
    label = machine_of("h200", None, calibration)[0].calibration.label
    print(f"Calibration: {label}")
    for family, name, factor in machine_of("h200", None, calibration)[0].calibration.residuals:
        print(f"fitted: {family} {name} x {factor:g}")
    print(f"\n{tables(points(records, calibration))}")


if __name__ == "__main__":
    main()
