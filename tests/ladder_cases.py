"""What the tests of the ladder have in common: its rungs, plans beyond the defaults, and a product that is checked."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tilewright.backends.base import Backend, Matrix
from tilewright.dtypes import BF16, FP32, DType
from tilewright.errors import UnavailableError
from tilewright.kernel_file import KernelFile
from tilewright.ladder import Rung, rungs
from tilewright.operands import Fill, random_operands
from tilewright.plan_base import Plan
from tilewright.plan_simt import SimtPlan
from tilewright.plan_tensor import FIRST, TensorPlan
from tilewright.problem import Layout, Problem
from tilewright.run import Operands, make_operands, run
from tilewright.verify import verify

Array = np.ndarray[Any, Any]


def named(cases: Sequence[tuple[Rung, DType]]) -> list[str]:
    """A test's name for each case: ``3-bf16``."""
    return [f"{rung.number}-{dtype}" for rung, dtype in cases]


CASES = [(rung, dtype) for rung in rungs().values() for dtype in rung.dtypes]
IDS = named(CASES)
SIMT_CASES = [case for case in CASES if case[0].number < FIRST]
SIMT_IDS = named(SIMT_CASES)
UNALIGNED_CASES = [case for case in CASES if not case[0].uses_tma]  # that take operands which start anywhere
TENSOR_CASES = [case for case in CASES if case[0].number >= FIRST]
TENSOR_RUNGS = [rung for rung in rungs().values() if rung.number >= FIRST]
LAYOUTS: list[tuple[Layout, Layout]] = [("row", "row"), ("row", "column"), ("column", "row"), ("column", "column")]

# Tiles so small that a problem of a hundred rows has several, and blocks at every place of the grid.
_SMALL_WARPGROUP = {"bm": 64, "bn": 64, "stages": 2, "consumers": 1}
_SMALL_SPECIALISED = {**_SMALL_WARPGROUP, "producer_registers": 40, "consumer_registers": 248}
SMALL: dict[int, dict[str, int]] = {
    0: {"bm": 4, "bn": 32, "threads": 128},
    1: {"bm": 32, "bn": 32, "bk": 16, "threads": 256},
    2: {"bm": 64, "bn": 64, "bk": 16, "threads": 64},
    3: {"bm": 64, "bn": 64, "bk": 16, "threads": 64},
    4: {"bm": 64, "bn": 64, "bk": 16, "threads": 64, "tm": 8, "tn": 8, "warps_m": 2, "warps_n": 1},
    5: {"bm": 64, "bn": 64, "stages": 2, "warps_m": 2, "warps_n": 2},
    6: {**_SMALL_WARPGROUP, "stages": 3},
    7: _SMALL_WARPGROUP,
    8: _SMALL_SPECIALISED,
    9: {**_SMALL_SPECIALISED, "group": 2, "blocks": 2},
    10: {**_SMALL_SPECIALISED, "group": 2, "blocks": 4},
    11: {**_SMALL_SPECIALISED, "group": 2, "blocks": 4, "epilogue_columns": 32},
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


def padded(
    m: int, n: int, k: int, dtype: DType, *, aligned: bool, layouts: tuple[Layout, Layout] = ("row", "row")
) -> Problem:
    """A problem with padding after each line: up to a multiple of 16 bytes beyond it, or an odd count of elements."""
    step = 16 // dtype.itemsize
    lines = (k if layouts[0] == "row" else m, n if layouts[1] == "row" else k, n)
    lda, ldb, ldc = (-(-(line + 1) // step) * step if aligned else (line + 3) // 2 * 2 + 1 for line in lines)
    return Problem(m, n, k, dtype, None, *layouts, lda, ldb, ldc)


def few_blocks(plan: Plan) -> Plan:
    """The plan with a persistent grid so small that its blocks have several tiles each in a small C."""
    return plan.with_(blocks=plan.cluster) if isinstance(plan, TensorPlan) and plan.persistent else plan


def product(
    backend: Backend,
    kernel: KernelFile,
    problem: Problem,
    plan: Plan | None = None,
    *,
    fill: Fill = "normal",
    seed: int = 0,
    pair: tuple[Array, Array] | None = None,
) -> Array:
    """C of a kernel, every element checked against its bound and the padding of all three against being written."""
    a, b = pair or random_operands(problem, seed, fill)
    operands = make_operands(backend, problem, a, b)
    run(backend, kernel, operands, plan)
    c = backend.download(operands.c)
    verify(c, a, b, dtype=problem.dtype, out_dtype=problem.out_dtype).require()
    assert all(backend.padding_intact(matrix) for matrix in (operands.a, operands.b, operands.c))
    return c


def part(whole: Matrix, rows: int, cols: int, *, row: int = 0, col: int = 0) -> Matrix:
    """A view of ``rows`` x ``cols`` elements that starts at ``(row, col)``; its padding is what lies around it."""
    at = row * whole.ld + col if whole.layout == "row" else col * whole.ld + row
    start = whole.pointer + at * whole.dtype.itemsize
    return Matrix(start, rows, cols, whole.ld, whole.dtype, whole.owner, whole.layout)


FAR = 2**30 + 8  # a leading dimension with which the third row starts beyond 2**31 elements


def vast(backend: Backend, rows: int, cols: int, dtype: DType, ld: int) -> Matrix:
    """A matrix over memory that is mostly never touched. Skips the test where there is no such memory."""
    if backend.name == "cuda":
        try:
            return backend.empty(rows, cols, dtype, ld)
        except UnavailableError as error:
            pytest.skip(str(error))
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (0x4000 if sys.platform == "linux" else 0)  # MAP_NORESERVE
    try:
        memory = mmap.mmap(-1, ((rows - 1) * ld + cols) * dtype.itemsize, flags=flags)
    except OSError as error:
        pytest.skip(f"this system does not give out memory before it is touched: {error}")
    return Matrix(np.frombuffer(memory, np.uint8).ctypes.data, rows, cols, ld, dtype, memory)


def check_far_lines(backend: Backend, kernel: KernelFile, plan: Plan) -> None:
    """C, then A, then B with lines so far apart that offsets of 32 bits do not reach them; the other is an identity."""
    values = np.random.default_rng(0).standard_normal((4, 20)).astype(plan.dtype.numpy)
    far = vast(backend, 4, 20, plan.dtype, FAR)

    def near(array: Array, layout: Layout) -> Matrix:
        return backend.upload(array.astype(plan.dtype.numpy), 24, layout)

    def checked(a: Matrix, b: Matrix, expected: Array) -> None:
        c = backend.empty(expected.shape[0], expected.shape[1], plan.dtype, 24)
        run(backend, kernel, Operands(a, b, c), plan)
        np.testing.assert_array_equal(backend.download(c), expected)

    run(backend, kernel, Operands(near(values, plan.a_layout), near(np.eye(20), plan.b_layout), far), plan)
    # The same memory by columns is the transpose.
    turned = Matrix(far.pointer, 20, 4, FAR, plan.dtype, far.owner, "column")
    far_a, a = (far, values) if plan.a_layout == "row" else (turned, values.T)
    far_b, b = (far, values) if plan.b_layout == "row" else (turned, values.T)
    checked(far_a, near(np.eye(a.shape[1]), plan.b_layout), a)
    checked(near(np.eye(b.shape[0]), plan.a_layout), far_b, b)
