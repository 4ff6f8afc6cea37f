"""What the tests of the ladder have in common: its rungs, plans beyond the defaults, and a product that is checked."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.backends.base import Backend, Matrix
from tilewright.dtypes import BF16, FP32, DType
from tilewright.ladder import Rung, rungs
from tilewright.operands import Fill, random_operands
from tilewright.plan import Plan
from tilewright.plan_simt import SimtPlan
from tilewright.plan_tensor import FIRST
from tilewright.problem import Problem
from tilewright.run import make_operands, run
from tilewright.verify import verify

Array = np.ndarray[Any, Any]
CASES = [(rung, dtype) for rung in rungs().values() for dtype in rung.dtypes]
IDS = [f"{rung.number}-{dtype}" for rung, dtype in CASES]
SIMT_CASES = [case for case in CASES if case[0].number < FIRST]
SIMT_IDS = [f"{rung.number}-{dtype}" for rung, dtype in SIMT_CASES]
TENSOR_RUNGS = [rung for rung in rungs().values() if rung.number >= FIRST]

# Tiles so small that a problem of a hundred rows has several, and blocks at every place of the grid.
SMALL: dict[int, dict[str, int]] = {
    0: {"bm": 4, "bn": 32, "threads": 128},
    1: {"bm": 32, "bn": 32, "bk": 16, "threads": 256},
    2: {"bm": 64, "bn": 64, "bk": 16, "threads": 64},
    3: {"bm": 64, "bn": 64, "bk": 16, "threads": 64},
    4: {"bm": 64, "bn": 64, "bk": 16, "threads": 64, "tm": 8, "tn": 8, "warps_m": 2, "warps_n": 1},
}

# Rung 4's tile, micro-tile, threads and the warps' places are plan values: (bm, bn, tm, tn, warps_m, warps_n).
TILES = [
    (128, 128, 8, 8, 2, 4),
    (128, 128, 8, 8, 8, 1),
    (256, 128, 8, 16, 4, 2),
    (256, 128, 8, 16, 2, 4),
    (128, 128, 16, 8, 2, 2),
    (128, 128, 16, 8, 1, 4),
    (128, 256, 16, 8, 4, 2),
    (64, 128, 4, 8, 4, 2),
]
DEPTHS = {FP32: (8, 16, 32), BF16: (16, 32)}


def simt_plan(number: int, dtype: DType, *, aligned: bool = True) -> SimtPlan:
    """The default plan of a CUDA-core rung."""
    plan = rungs()[number].plan(dtype, aligned=aligned)
    assert isinstance(plan, SimtPlan)
    return plan


def rung_4_plans(dtype: DType) -> list[SimtPlan]:
    """Every tile at one depth, and each depth with some tile."""
    depths = DEPTHS[dtype]
    plans = []
    for number, (bm, bn, tm, tn, warps_m, warps_n) in enumerate(TILES):
        plan = simt_plan(4, dtype).with_(bm=bm, bn=bn, bk=depths[number % len(depths)])
        plans.append(plan.with_(tm=tm, tn=tn, warps_m=warps_m, warps_n=warps_n, threads=32 * warps_m * warps_n))
    return plans


def padded(m: int, n: int, k: int, dtype: DType, *, aligned: bool) -> Problem:
    """A problem with padding after each row: up to a multiple of 16 bytes beyond it, or an odd count of elements."""
    step = 16 // dtype.itemsize
    lengths = [-(-(row + 1) // step) * step if aligned else (row + 3) // 2 * 2 + 1 for row in (k, n, n)]
    return Problem(m, n, k, dtype, lda=lengths[0], ldb=lengths[1], ldc=lengths[2])


def product(
    backend: Backend,
    rung: Rung,
    problem: Problem,
    plan: Plan | None = None,
    *,
    fill: Fill = "normal",
    seed: int = 0,
    pair: tuple[Array, Array] | None = None,
) -> Array:
    """C of a rung, every element checked against its bound and the padding of all three against being written."""
    a, b = pair or random_operands(problem, seed, fill)
    operands = make_operands(backend, problem, a, b)
    run(backend, rung, operands, plan)
    c = backend.download(operands.c)
    verify(c, a, b, dtype=problem.dtype, out_dtype=problem.out_dtype).require()
    assert all(backend.padding_intact(matrix) for matrix in (operands.a, operands.b, operands.c))
    return c


def part(whole: Matrix, rows: int, cols: int, *, row: int = 0, col: int = 0) -> Matrix:
    """A view of ``rows`` x ``cols`` elements that starts at ``(row, col)``; its padding is what lies around it."""
    start = whole.pointer + (row * whole.ld + col) * whole.dtype.itemsize
    return Matrix(start, rows, cols, whole.ld, whole.dtype, whole.owner)
