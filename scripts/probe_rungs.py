"""Ask a GPU what the rungs move: the check of the emulator's counts and results against hardware.

Each rung runs once for each dtype, and for each mistake it is shown beside; ``ncu`` counts. In order:

    python scripts/probe_rungs.py metrics > metrics.txt              # those of METRICS that this ncu knows
    ncu --clock-control none --csv --log-file ncu.csv --metrics $(cat metrics.txt) \
        python scripts/probe_rungs.py run --out runs.json
    python scripts/probe_rungs.py join --runs runs.json --ncu ncu.csv --out tests/fixtures/rungs_h200.json

tests/test_hardware.py holds the emulator to the fixture.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ncu_counters
import numpy as np

from tilewright.dtypes import BF16, FP32, DType
from tilewright.errors import UsageError
from tilewright.ladder import Rung, rungs
from tilewright.operands import random_operands
from tilewright.plan_base import Plan
from tilewright.problem import Problem
from tilewright.run import make_operands, prepare

SCHEMA = "tilewright.rungs-on-hardware/1"
SHAPE = (256, 512, 64)  # whole tiles of every plan, several of each; K long enough for two K-steps
SAMPLES = 64  # elements of C kept to compare: full rows would be most of the file
SEED = 20
_GLOBAL = "l1tex__t_{}_pipe_lsu_mem_global_op_{}.sum"
METRICS = [
    *(_GLOBAL.format(what, op) for what in ("requests", "sectors") for op in ("ld", "st")),
    *(f"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{op}.sum" for op in ("ld", "st")),
    *(f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{op}.sum" for op in ("ld", "st")),
    *(
        f"smsp__inst_executed_op_{op}.sum"
        for op in ("shared_ld", "shared_st", "global_ld", "global_st", "ldgsts", "ldsm")
    ),
    *(f"smsp__sass_l1tex_t_{what}_pipe_lsu_mem_global_op_ldgsts.sum" for what in ("requests", "sectors")),
    "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ldgsts.sum",
    "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",
]


def cases() -> Iterator[tuple[str, Rung, Plan]]:
    """Every rung and mistake at every dtype it runs, with a name."""
    for rung in rungs().values():
        for dtype in (FP32, BF16):
            if dtype not in rung.dtypes:
                continue
            plan = rung.plan(dtype)
            yield f"{rung.path.stem} {dtype}", rung, plan
            for mistake in rung.counter_examples:
                if dtype in mistake.dtypes:
                    yield f"{rung.path.stem} {mistake.name} {dtype}", rung, plan.with_(**mistake.changes)


def sampled(c: np.ndarray[Any, Any]) -> list[float]:
    """The elements of C that the fixture keeps, as float64."""
    rng = np.random.default_rng(SEED)
    rows, columns = rng.integers(c.shape[0], size=SAMPLES), rng.integers(c.shape[1], size=SAMPLES)
    return [float(value) for value in c[rows, columns]]


def operands_of(dtype: DType) -> tuple[Problem, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """The problem and the same random data on every machine."""
    problem = Problem(*SHAPE, dtype)
    return problem, random_operands(problem, SEED)


def run(out: Path) -> None:
    """Launch every case once and write what came out."""
    from tilewright.backends.cuda import CudaBackend

    backend = CudaBackend()
    found = []
    for name, rung, plan in cases():
        problem, pair = operands_of(plan.dtype)
        operands = make_operands(backend, problem, *pair)
        prepare(backend, rung, plan, operands)(backend)
        found.append({"name": name, "plan": plan.to_dict(), "c": sampled(backend.download(operands.c))})
    values = {
        "schema": SCHEMA,
        **ncu_counters.machine(backend),
        "shape": SHAPE,
        "runs": found,
    }
    out.write_text(json.dumps(values, indent=1) + "\n")
    print(f"{len(found)} runs written to {out}", file=sys.stderr)


def join(values: dict[str, Any], counters: list[tuple[str, dict[str, float]]]) -> dict[str, Any]:
    """The runs with what was counted for each. Raises ``UsageError`` when the two do not belong together."""
    if len(counters) != len(values["runs"]):
        raise UsageError(f"ncu counted {len(counters)} kernels; there are {len(values['runs'])} runs")
    runs = [{**run, "counters": found} for run, (_, found) in zip(values["runs"], counters, strict=True)]
    return {**values, "runs": runs}


if __name__ == "__main__":
    ncu_counters.steps(__doc__, METRICS, run, join, "tw_gemm")
