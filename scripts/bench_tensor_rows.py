#!/usr/bin/env python3
"""Measure the tensor-core kernels against cuBLAS and the best of cublasLt, row by row of tensor_rows.json.

    python scripts/bench_tensor_rows.py --out results/tensor_h200.jsonl --runs 3
    python scripts/bench_tensor_rows.py --rows '8192x8192x8192 bf16, B'        # rows whose description has this in it

Each row's plan and the vendor run interleaved in one measurement by ``measure.SUSTAINED``, on verified data. Every run
appends a record an implementation to ``--out``. At the end stands, for each row, the median over the runs and whether
it is what the row asks for; the exit code is 1 when one is not. ``--sweep`` looks for better plans instead: see
tensor_sweep.py. Needs a GPU and PyTorch.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import tensor_bench
import tensor_sweep
from tensor_bench import CUBLAS, LT_BEST, Bench, Outcome, Row

from tilewright import measure, results
from tilewright.errors import TilewrightError, UsageError


def verdict(row: Row, outcomes: Sequence[Outcome]) -> tuple[bool, str]:
    """Whether the medians over the runs are what the row asks for, and a line that says so."""
    name = row.candidate.name
    asked = {CUBLAS: row.must, LT_BEST: row.must_lt}
    ok, said = True, []
    for rival, least in asked.items():
        ratios = [ratio.median for outcome in outcomes if (ratio := outcome.measurement.ratio(name, rival))]
        if ratios:
            said.append(f"{statistics.median(ratios):.3f} of {rival} ({min(ratios):.3f} to {max(ratios):.3f})")
        if least is not None:
            ok &= bool(ratios) and statistics.median(ratios) >= least
            said.append(f"at least {least:g} asked")
    timings = [outcome.measurement.timings.get(name) for outcome in outcomes]
    speeds = [speed for timing in timings if timing and (speed := timing.tflops(row.problem.flops))]
    if speeds:
        said.append(f"{statistics.median(speeds):.0f} TFLOPS")
    if row.must_tflops is not None:
        ok &= bool(speeds) and statistics.median(speeds) >= row.must_tflops
        said.append(f"at least {row.must_tflops:g} asked")
    return ok, f"{'meets' if ok else 'MISSES'}  {row}: {', '.join(said) or 'no figure'}"


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--table", type=Path, default=tensor_bench.ROWS, help="rows and plans (default: %(default)s)")
    parser.add_argument("--rows", default="", metavar="TEXT", help="only rows whose description has this in it")
    parser.add_argument("--runs", type=int, default=1, help="measurements of each row (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=measure.SUSTAINED.rounds, help="(default: %(default)s)")
    parser.add_argument("--slot-ms", type=float, default=measure.SUSTAINED.slot_ms, help="(default: %(default)s)")
    parser.add_argument("--out", type=Path, help="append records to this file")
    parser.add_argument("--list", action="store_true", help="only list the rows and their plans; needs no GPU")
    parser.add_argument("--sweep", action="store_true", help="search for the best plan of each row instead")
    parser.add_argument("--sweep-seconds", type=float, default=120, help="about as long a row (default: %(default)s)")
    return parser.parse_args(argv)


def main() -> int:
    """Measure or search; 1 when a row misses what it asks for."""
    given = arguments()
    try:
        rows = [row for row in tensor_bench.read_rows(given.table) if given.rows in str(row)]
        if not rows:
            raise UsageError(f"no row of {given.table} has {given.rows!r} in its description; --list shows them")
        if given.list:
            for row in rows:
                print(f"{row}: {tensor_sweep.differences(row.candidate)}")
            return 0
        bench = Bench()
        if given.sweep:
            for row in rows:
                tensor_sweep.sweep(bench, row, given.sweep_seconds)
            return 0
        schedule = replace(measure.SUSTAINED, rounds=given.rounds, slot_ms=given.slot_ms)
        outcomes: dict[str, list[Outcome]] = {str(row): [] for row in rows}
        for run in range(given.runs):
            for row in rows:
                seeded = replace(schedule, seed=run)
                outcome = tensor_bench.compete(bench, row.problem, [row.candidate], seeded, seed=run)
                outcomes[str(row)].append(outcome)
                print(tensor_bench.table(outcome, bench.sm_count), flush=True)
                if given.out is not None:
                    results.append(given.out, outcome.records)
    except TilewrightError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    verdicts = [verdict(row, outcomes[str(row)]) for row in rows]
    print("\n".join(line for _, line in verdicts))
    return 0 if all(ok for ok, _ in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
