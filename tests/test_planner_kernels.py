"""The kernels behind the candidates: a sample of them compiles, and tiles that no rung has by default are exact."""

from __future__ import annotations

import random

import pytest
from check_plan_space import OK, check_run

import tilewright
from tilewright import ladder, nvrtc
from tilewright.backends.emulator import EmulatorBackend
from tilewright.checked import check
from tilewright.dtypes import BF16, FP32, DType
from tilewright.operands import random_operands
from tilewright.planner.families import simt
from tilewright.planner.planning import Planning
from tilewright.problem import Problem
from tilewright.run import make_operands

LAYOUTS = ("rr", "rc", "cr", "cc")


def a_planning(seed: int) -> Planning:
    """Of a problem drawn with the seed; rows are aligned in three of four."""
    rng = random.Random(seed)
    m, n, k = (8 * rng.randint(1, 1000) for _ in range(3))
    dtype, layout = ("bf16", "fp16")[seed % 2], LAYOUTS[seed % 4]
    return tilewright.plan(m, n, k + (seed % 4 == 0), layout=layout, dtype=dtype, gpu="h200")


@pytest.mark.skipif(not nvrtc.available(), reason="cuda-core or NVRTC is not installed")
@pytest.mark.parametrize("seed", range(6))
def test_a_candidate_compiles(seed: int) -> None:
    planning = a_planning(seed)
    candidate = random.Random(seed).choice(planning.ranked)
    for each in (candidate, planning.pick):
        assert each.plan is not None
        compiled = nvrtc.compile_kernel(ladder.rung(each.plan.rung).source(each.plan, "gpu", "sm_90a"))
        registers = compiled.report.registers
        assert registers is not None
        assert registers <= 255
        assert not compiled.report.warnings


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
@pytest.mark.parametrize("which", range(1, len(simt.TILES)))
def test_smaller_tiles_of_the_cuda_cores_are_exact(which: int, dtype: DType) -> None:
    plan = simt.plans(dtype, "row", "row", True)[which]
    emulator = EmulatorBackend("eager")
    problem = Problem(plan.bm + 24, plan.bn + 8, 2 * plan.bk + 8, dtype)
    operands = make_operands(emulator, problem, *random_operands(problem, fill="integers"))
    assert check_run(emulator, plan, problem) == OK
    check(emulator, ladder.rung(simt.RUNG), plan, operands)
