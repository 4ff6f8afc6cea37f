#!/usr/bin/env python3
"""The planner's pick against cuBLAS on every shape of the suite, by group, and a decoder layer's chain: with musts.

    python scripts/bench_groups.py --list                                     # shapes and picks; needs no GPU
    python scripts/bench_groups.py --out results/groups_h200.jsonl --seconds 280    # until nothing is left
    python scripts/bench_groups.py --out results/groups_h200.jsonl --report   # the tables; needs no GPU

Each shape is one interleaved run of the pick, nothing tuned, without and with dependent launch (PDL), of cuBLAS and of
the best of cublasLt; a record an implementation is appended. What the file has of the same pick is not measured again.
``--report``, and a run that leaves nothing, prints the groups of benchmarks/sweep_shapes.json with their musts; 1 when
one is missed. Needs a GPU and PyTorch.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import decode_chain
import tensor_bench
from decode_chain import DEPENDENT, OURS
from sweep_plans import LEAST_BYTES, planned, values_of
from sweep_shapes import Shape, groups, shapes
from tensor_bench import CUBLAS, LT_BEST, Bench, Entrant

from tilewright import measure, results
from tilewright.errors import TilewrightError
from tilewright.gpu import get_gpu
from tilewright.roofline import ridge
from tilewright.selection import kernel_of

# Memory-bound shapes repeat within 1% in short slots; at the power limit the clock takes longer to settle
# (measure.SUSTAINED).
BY_MEMORY = measure.Schedule(slot_ms=20.0, rounds=7, graph_ms=2.5, warm_slots=5)
BY_POWER = measure.Schedule(slot_ms=200.0, rounds=4, graph_ms=8.0, warm_slots=4)
RIDGE = ridge(get_gpu("h200"), "bf16_tensor").value
MOST_ERRORS = 3  # one after another: then the GPU is gone


@dataclass(frozen=True)
class Group:
    """Shapes with what is asked of their ratios to cuBLAS: geometric mean and least, with PDL and without it."""

    name: str
    has: Callable[[str, int], bool]
    mean: float | None = None
    least: float | None = None
    mean_without: float | None = None
    least_without: float | None = None
    aim: float | None = None

    @property
    def shapes(self) -> list[Shape]:
        """Its shapes, each once. ``has`` is asked for a group of the suite and M."""
        sizes = {each for name, some in groups().items() for each in some if self.has(name, each[0])}
        return [shape for shape in shapes() if shape.sizes in sizes]


GROUPS = (
    Group("decode, M = 1..2", lambda name, m: name == "decode" and m <= 2, 1.20, 1.03, 1.12, 1.02, 1.35),
    Group("decode, M = 8..64", lambda name, m: name == "decode" and m > 2, 1.12, 0.99, 1.01, 0.94, 1.25),
    Group("small", lambda name, m: name == "small", 1.03, 0.95, 0.97, 0.88, 1.12),
    Group("deepk", lambda name, m: name == "deepk", 1.00, 0.84, aim=1.15),
    Group("wave", lambda name, m: name == "wave", 1.02, 0.97, aim=1.08),
    Group("square, prefill", lambda name, m: name in ("square", "prefill"), 1.00, 0.96, aim=1.04),
    Group("odd", lambda name, m: name == "odd"),
)


@dataclass(frozen=True)
class Figures:
    """What the newest records of a shape say: ratios to cuBLAS by implementation, and cuBLAS's and our best time."""

    ratios: Mapping[str, float]
    cublas_us: float
    refused: Mapping[str, str]
    outside: str | None = None
    """Where cuBLAS's results are outside the bound of ``verify``."""

    def ratio(self, dependent: bool) -> float | None:
        """Ours, with PDL or without it."""
        return self.ratios.get(DEPENDENT if dependent else OURS)


def entrants_of(shape: Shape) -> list[Entrant]:
    """The pick without dependent launch and with it."""
    plans = ((OURS, planned(shape.problem)), (DEPENDENT, planned(shape.problem, pdl=True)))
    return [Entrant(name, kernel_of(plan), plan) for name, plan in plans]


def schedule_of(shape: Shape) -> measure.Schedule:
    """By which side of the ridge it lies on."""
    return BY_POWER if (shape.problem.intensity or 0.0) > RIDGE else BY_MEMORY


def done(shape: Shape, records: Sequence[results.Record]) -> bool:
    """Whether the newest records of both are of the pick of now: of a time, or of why there is none."""
    newest = {record.name: record.plan for record in results.select(records, problem=shape.problem)}
    return all(newest.get(entrant.name) == entrant.plan.to_dict() for entrant in entrants_of(shape))


def measured(bench: Bench, shape: Shape, schedule: measure.Schedule) -> list[results.Record]:
    """The records of one interleaved run; of what was refused too, with the reason."""
    entrants = entrants_of(shape)
    outcome = tensor_bench.compete(bench, shape.problem, entrants, schedule, least_bytes=LEAST_BYTES)
    print(tensor_bench.table(outcome, bench.sm_count), flush=True)
    source = outcome.records[0].provenance
    refused = [
        results.Record(
            what="kernel",
            name=each.name,
            problem=shape.problem.to_dict(),
            provenance=source,
            plan=each.plan.to_dict(),
            error=outcome.refused[each.name],
        )
        for each in entrants
        if each.name in outcome.refused
    ]
    return [*outcome.records, *refused]


def figures_of(shape: Shape, records: Sequence[results.Record]) -> Figures | None:
    """The newest of a shape; None where it was not measured."""
    newest: dict[str, results.Record] = {}
    for record in results.select(records, problem=shape.problem):
        newest[record.name] = record
    vendor = newest.get(CUBLAS)
    if vendor is None or vendor.time_us is None:
        return None
    ratios = {
        name: record.ratios[CUBLAS]["median"]
        for name, record in newest.items()
        if record.time_us is not None and CUBLAS in record.ratios
    }
    refused = {name: record.error for name, record in newest.items() if record.error is not None}
    return Figures(ratios, vendor.time_us["median"], refused, vendor.outside)


def geometric_mean(ratios: Sequence[float]) -> float:
    """Of ratios."""
    return math.exp(statistics.fmean(map(math.log, ratios)))


def verdict(group: Group, found: Mapping[Shape, Figures | None]) -> tuple[bool, str]:
    """Whether a group is what is asked for, and its line of the table; a shape without a figure is a miss."""
    every = [found[shape] for shape in group.shapes]
    cells, ok = [], True
    for dependent, mean, least in ((True, group.mean, group.least), (False, group.mean_without, group.least_without)):
        ratios = [None if figures is None else figures.ratio(dependent) for figures in every]
        there = [ratio for ratio in ratios if ratio is not None]
        cells.append(f"{geometric_mean(there):.3f}, least {min(there):.3f}" if there else "-")
        asked = mean is not None and least is not None
        cells.append(f"{mean:.2f}, {least:.2f}" if asked else "-")
        if mean is not None and least is not None:
            ok &= len(there) == len(ratios) and geometric_mean(there) >= mean and min(there) >= least
    lt = [figures.ratios[LT_BEST] for figures in every if figures is not None and LT_BEST in figures.ratios]
    cells.append(f"{geometric_mean(lt):.3f}" if lt else "-")
    missing = sum(figures is None for figures in every)
    said = "MISSED" if not ok else "met" if group.mean is not None else "-"
    also = f", {missing} not measured" if missing else ""
    aim = "-" if group.aim is None else f"{group.aim:.2f}"
    return ok, f"| {group.name} ({len(every)}) | {' | '.join(cells)} | {aim} | {said}{also} |"


def report(records: Sequence[results.Record], chains: Sequence[Mapping[str, Any]]) -> tuple[bool, str]:
    """Whether all is what is asked for, and the tables as Markdown: groups, the chain, each shape."""
    found = {shape: figures_of(shape, records) for shape in shapes() if shape.in_suite}
    verdicts = [verdict(group, found) for group in GROUPS]
    chain_ok, chain = decode_chain.verdict(chains)
    lines = [
        "| group | with PDL | must | without | must | Lt best | aim, with | |",
        "|---|--:|--:|--:|--:|--:|--:|---|",
        *(line for _, line in verdicts), "", chain, "",
        "| shape | cuBLAS us | with PDL | without | Lt best | TB/s | TFLOPS | pick |",
        "|---|--:|--:|--:|--:|--:|--:|---|",
    ]  # fmt: skip
    for shape, figures in found.items():
        if figures is None:
            continue
        ours = max((ratio for name in (OURS, DEPENDENT) if (ratio := figures.ratios.get(name))), default=None)
        us = None if ours is None else figures.cublas_us / ours
        moved, flops = shape.problem.bytes_moved, shape.problem.flops
        rates = "- | -" if us is None else f"{moved / us / 1e6:.2f} | {flops / us / 1e6:.0f}"
        ratios = " | ".join(
            f"{figures.ratios[name]:.3f}" if name in figures.ratios else "-" for name in (DEPENDENT, OURS, LT_BEST)
        )
        also = {} if figures.outside is None else {f"{CUBLAS} is outside the bound": figures.outside}
        why = "; ".join(f"{name}: {reason}" for name, reason in {**figures.refused, **also}.items())
        lines.append(f"| {shape} | {figures.cublas_us:.2f} | {ratios} | {rates} | {planned(shape.problem).of} {why}|")
    return all(ok for ok, _ in verdicts) and chain_ok, "\n".join(lines)


def read_chains(path: Path) -> list[dict[str, Any]]:
    """The lines of chains in a file of records."""
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    found = [json.loads(line) for line in lines if line.strip()]
    return [each for each in found if each.get("schema") == results.CHAIN_SCHEMA]


def chain_done(m: int, lines: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the chain of ``m`` tokens was measured with the plans that the planner picks now."""
    newest = {line["m"]: line["plans"] for line in lines}
    picked = {name: decode_chain.plans_for(m, pdl=pdl) for name, pdl in ((OURS, False), (DEPENDENT, True))}
    return newest.get(m) == {name: [values_of(plan) for plan in plans] for name, plans in picked.items()}


def run(bench: Bench, given: argparse.Namespace) -> None:
    """Measure what is left until the time is over."""
    until = time.monotonic() + given.seconds
    records = results.load(given.out) if given.out.exists() else []
    left = [shape for shape in wanted(given) if not done(shape, records)]
    kernels = [Entrant(f"{shape} {each.name}", each.rung, each.plan) for shape in left for each in entrants_of(shape)]
    tensor_bench.compile_all(kernels)  # side by side, where one shape after another would wait for its own
    errors = 0
    for m in () if given.only else decode_chain.MUSTS:
        if time.monotonic() < until and not chain_done(m, read_chains(given.out)):
            errors = _tried(f"chain of {m}", partial(_chain, bench, m, given.out), errors)
    for shape in left:
        if time.monotonic() < until and errors < MOST_ERRORS:
            errors = _tried(str(shape), partial(_shape, bench, shape, given.out), errors)


def _tried(what: str, act: Callable[[], None], errors: int) -> int:
    """Errors one after another, after one more act."""
    try:
        act()
    except Exception as error:  # whatever it is, the other shapes are measured
        print(f"{what}: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}", flush=True)
        return errors + 1
    return 0


def _chain(bench: Bench, m: int, out: Path) -> None:
    line = decode_chain.measure_chain(bench, m)
    results.append_lines(out, [line])
    print(decode_chain.verdict([line])[1], flush=True)


def _shape(bench: Bench, shape: Shape, out: Path) -> None:
    results.append(out, measured(bench, shape, schedule_of(shape)))


def wanted(given: argparse.Namespace) -> list[Shape]:
    """The shapes of the suite whose name or stratum is asked for; all where none is."""
    return [s for s in shapes() if s.in_suite and (not given.only or {str(s), s.stratum} & set(given.only))]


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("results/groups_h200.jsonl"), help="(default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=280.0, help="begin nothing after that (default: %(default)s)")
    parser.add_argument("--only", nargs="*", default=(), metavar="NAME", help="strata or shapes; then no chain")
    parser.add_argument("--list", action="store_true", help="only list shapes and picks")
    parser.add_argument("--report", action="store_true", help="only print the tables of what the file has")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None, bench: Bench | None = None) -> int:
    """Measure what is left and report; 1 when a must is missed."""
    given = arguments(argv)
    try:
        if given.list:
            for shape in wanted(given):
                plan = planned(shape.problem)
                print(f"{shape!s:>18} {shape.stratum:8} {plan.of}: {json.dumps(values_of(plan))}")
            return 0
        if not given.report:
            run(bench or Bench(), given)
        ok, text = report(results.load(given.out) if given.out.exists() else [], read_chains(given.out))
    except TilewrightError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(text)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
