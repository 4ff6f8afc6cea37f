"""Rungs 5 to 11 on both backends: every layout, dtype and kind of plan; and what those that use TMA refuse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ladder_cases import (
    LAYOUTS,
    SMALL,
    TENSOR_CASES,
    TENSOR_RUNGS,
    check_far_lines,
    few_blocks,
    named,
    padded,
    part,
    product,
)

from tilewright.backends.base import Backend, Matrix
from tilewright.backends.emulator import EmulatorBackend
from tilewright.backends.emulator_runtime import Policy
from tilewright.checked import check
from tilewright.dtypes import BF16, FP16, FP32, DType
from tilewright.errors import UsageError
from tilewright.ladder import Rung, rungs
from tilewright.operands import random_operands
from tilewright.plan_base import Plan
from tilewright.plan_space import sample_plans
from tilewright.plan_tensor import TensorPlan
from tilewright.problem import Layout, Problem
from tilewright.run import Operands, default_plan, make_operands, prepare, run

Layouts = tuple[Layout, Layout]
TMA_RUNGS = [rung for rung in TENSOR_RUNGS if rung.uses_tma]
each_tensor_rung = pytest.mark.parametrize(("rung", "dtype"), TENSOR_CASES, ids=named(TENSOR_CASES))
each_tma_rung = pytest.mark.parametrize("rung", TMA_RUNGS, ids=lambda rung: str(rung.number))
each_layout = pytest.mark.parametrize("layouts", LAYOUTS, ids=lambda pair: f"{pair[0][0]}{pair[1][0]}")


def small_plan(rung: Rung, dtype: DType, layouts: Layouts = ("row", "row"), **changes: Any) -> TensorPlan:
    """A plan whose tiles are so small that a C of a hundred rows has several, and whose blocks have several of them."""
    plan = rung.plan(dtype, a_layout=layouts[0], b_layout=layouts[1]).with_(**{**SMALL[rung.number], **changes})
    assert isinstance(plan, TensorPlan)
    return plan


def tight(m: int, n: int, k: int, dtype: DType, layouts: Layouts = ("row", "row")) -> Problem:
    """A problem whose lines are padded as little as TMA allows."""
    return Problem(m, n, k, dtype, None, *layouts).padded()


# ---- shapes and layouts ----------------------------------------------------------------------------------------------

SHAPES = [(1, 1, 1), (200, 264, 72), (129, 257, 193), (64, 520, 64), (259, 70, 130), (7, 300, 520)]


@each_layout
@each_tensor_rung
def test_any_shape(backend: Backend, rung: Rung, dtype: DType, layouts: Layouts) -> None:
    # Default tiles in one dtype, small ones in the other: what they compile to does not depend on it otherwise.
    plan = few_blocks(rung.plan(dtype, a_layout=layouts[0], b_layout=layouts[1]))
    plan = plan if dtype is BF16 else small_plan(rung, dtype, layouts)
    for shape in SHAPES if dtype is BF16 else SHAPES[1::2]:
        found = product(backend, rung, tight(*shape, dtype, layouts), plan)
        loose = padded(*shape, dtype, aligned=True, layouts=layouts)
        np.testing.assert_array_equal(product(backend, rung, loose, plan), found, err_msg=f"{shape}")


@pytest.mark.cuda
@each_tensor_rung
@pytest.mark.parametrize(
    ("shape", "layouts"),
    list(zip([(4096, 4096, 1024), (4095, 4097, 1023), (655361, 10, 10), (10, 655361, 10)], LAYOUTS, strict=True)),
)
def test_large(cuda: Backend, rung: Rung, dtype: DType, shape: tuple[int, int, int], layouts: Layouts) -> None:
    product(cuda, rung, tight(*shape, dtype, layouts))


@pytest.mark.parametrize(
    ("number", "dtype", "out"), [(5, BF16, FP16), (5, FP16, FP32), (11, FP16, BF16), (11, BF16, FP32)]
)
def test_every_type_of_c(backend: Backend, number: int, dtype: DType, out: DType) -> None:
    rung = rungs()[number]
    for aligned in (True, False):
        if aligned or not rung.uses_tma:
            plan = small_plan(rung, dtype, aligned=aligned).storing(out)
            for shape in SHAPES[:2]:
                problem = padded(*shape, dtype, aligned=aligned, layouts=("row", "row")).changed(out_dtype=out)
                product(backend, rung, problem.padded() if aligned else problem, plan)


def test_a_type_of_c_that_no_kernel_writes() -> None:
    for rung in TENSOR_RUNGS:
        plan = rung.plan(BF16)
        assert plan.storing(BF16) == plan
        if rung.number in (5, 11):
            stored = plan.storing(FP32)
            assert (stored.c_dtype, stored.to_dict()["out_dtype"]) == (FP32, "fp32")
            assert Plan.from_dict(stored.to_dict()) == stored
            assert "out_dtype" not in plan.to_dict()
            continue
        with pytest.raises(UsageError, match=f"out_dtype is fp32; rung {rung.number} writes what it reads, bf16"):
            rung.plan_for(Problem(8, 8, 8, BF16, FP32), aligned=True)
        with pytest.raises(UsageError, match="out_dtype is fp32; rungs 5 and 11 write another than they read"):
            plan.with_(out_dtype=FP32)
    with pytest.raises(UsageError, match="epilogue_columns is 64; of fp32 a line of 128 bytes has 32"):
        rungs()[11].plan(BF16).with_(out_dtype=FP32)


@each_tensor_rung
def test_a_sum_of_nothing_is_zero(backend: Backend, rung: Rung, dtype: DType) -> None:
    for layouts in LAYOUTS[::3]:
        for m, n in ((130, 260), (1, 1)):
            c = product(backend, rung, tight(m, n, 0, dtype, layouts), small_plan(rung, dtype, layouts))
            np.testing.assert_array_equal(c.view(np.uint8), 0)


@each_tensor_rung
def test_operands_without_elements_lie_anywhere(backend: Backend, rung: Rung, dtype: DType) -> None:
    none = np.empty((0, 0), dtype.numpy)
    whole = backend.upload(np.ones((3, 24), dtype.numpy))
    for layout in LAYOUTS:
        a, b = (
            backend.upload(none.reshape(shape), None, kind)
            for shape, kind in zip(((5, 0), (0, 9)), layout, strict=True)
        )
        for first in (a, replace(part(whole, 5, 0, col=1), layout=layout[0])):
            c = backend.empty(5, 9, dtype, 16)
            run(backend, rung, Operands(first, b, c), small_plan(rung, dtype, layout))
            np.testing.assert_array_equal(backend.download(c).view(np.uint8), 0)


@each_tensor_rung
def test_an_empty_c_launches_nothing(
    backend: Backend, rung: Rung, dtype: DType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def launch(*_: object, **__: object) -> None:
        raise AssertionError("launched")

    monkeypatch.setattr(backend, "launch", launch)
    for layouts in LAYOUTS[::3]:
        for m, n, k in ((0, 12, 5), (7, 0, 5), (0, 0, 0)):
            problem = tight(m, n, k, dtype, layouts)
            operands = make_operands(backend, problem, *random_operands(problem))
            run(backend, rung, operands, small_plan(rung, dtype, layouts))


@each_tensor_rung
def test_a_row_does_not_depend_on_the_others(backend: Backend, rung: Rung, dtype: DType) -> None:
    plan = small_plan(rung, dtype)
    a, b = random_operands(Problem(140, 270, 150, dtype))
    whole = product(backend, rung, tight(140, 270, 150, dtype), plan, pair=(a, b))
    for m, n in ((1, 1), (7, 129), (129, 64)):
        fewer = np.ascontiguousarray(a[-m:]), np.ascontiguousarray(b[:, :n])
        found = product(backend, rung, tight(m, n, 150, dtype), plan, pair=fewer)
        np.testing.assert_array_equal(found, whole[-m:, :n], err_msg=f"{m}x{n}")


# ---- values ----------------------------------------------------------------------------------------------------------


@each_tensor_rung
@pytest.mark.parametrize("k", [2, 65, 200])
def test_sums_are_kept_in_fp32(backend: Backend, rung: Rung, dtype: DType, k: int) -> None:
    product(backend, rung, tight(70, 72, k, dtype), small_plan(rung, dtype), fill="probe")


@each_tensor_rung
def test_what_is_not_finite_stays_in_its_row_or_column(backend: Backend, rung: Rung, dtype: DType) -> None:
    # What lies beyond K is zero and not what the memory holds: 0 x NaN would show.
    plan, (m, n, k) = small_plan(rung, dtype), (70, 75, 72)
    problem = padded(m, n, k, dtype, aligned=True)
    a, b = random_operands(problem, fill="positive")
    clean = product(backend, rung, problem, plan, pair=(a, b))
    for value in (np.nan, np.inf, -np.inf):
        poisoned = a.copy()
        poisoned[69, 71] = value
        found = product(backend, rung, problem, plan, pair=(poisoned, b))
        np.testing.assert_array_equal(found[69].astype(np.float32), np.full(n, value, np.float32))
        np.testing.assert_array_equal(found[:69], clean[:69])
        poisoned = b.copy()
        poisoned[71, 74] = value
        found = product(backend, rung, problem, plan, pair=(a, poisoned))
        np.testing.assert_array_equal(found[:, 74].astype(np.float32), np.full(m, value, np.float32))
        np.testing.assert_array_equal(found[:, :74], clean[:, :74])


@pytest.mark.parametrize("rung", TENSOR_RUNGS, ids=lambda rung: str(rung.number))
def test_overflow_of_the_output_is_infinite(backend: Backend, rung: Rung) -> None:
    a, b = np.full((3, 16), 240, np.float16), np.full((16, 8), 17, np.float16)
    a[1] = -240
    a[2] = 239  # 65,008: the largest of fp16 is 65,504
    found = product(backend, rung, tight(3, 8, 16, FP16), small_plan(rung, FP16), pair=(a, b))
    np.testing.assert_array_equal(found[:, 0], np.array([65280, -65280, 65008], np.float16))
    b[0] = 19
    found = product(backend, rung, tight(3, 8, 16, FP16), small_plan(rung, FP16), pair=(a, b))
    np.testing.assert_array_equal(found[:, 0], np.array([np.inf, -np.inf, 65486], np.float16))


# ---- plans -----------------------------------------------------------------------------------------------------------


def legal(count: int, seed: int) -> list[tuple[Rung, TensorPlan]]:
    """A seeded sample of the legal plans of each rung but the last, which tests/test_plan_space.py is about."""
    return [(rung, plan) for rung in TENSOR_RUNGS[:-1] for plan in sample_plans(rung.number, count, seed)]


def check_exact(backend: Backend, rung: Rung, plan: TensorPlan) -> None:
    """Small integers, of which every sum is exact: whole tiles and ragged ones, more of them than blocks."""
    across = 2 if plan.cluster_n == 1 and plan.bn < 128 else 1
    m, n = 2 * plan.cluster_m * plan.bm + 25, across * plan.cluster_n * plan.bn + 11
    problem = padded(m, n, 3 * plan.bk + 24, plan.dtype, aligned=True, layouts=(plan.a_layout, plan.b_layout))
    a, b = random_operands(problem, fill="integers")
    found = product(backend, rung, problem, plan, pair=(a, b))
    exact = (a.astype(np.float32) @ b.astype(np.float32)).astype(plan.dtype.numpy)
    np.testing.assert_array_equal(found, exact)


def said(case: tuple[Rung, TensorPlan]) -> str:
    plan = case[1]
    words = [f"{plan.rung}-{plan.dtype}-{plan.a_layout[0]}{plan.b_layout[0]}-{plan.bm}x{plan.bn}-{plan.stages}st"]
    words += [f"{plan.cluster_m}x{plan.cluster_n}"] if plan.cluster > 1 else []
    words += ["along_n"] if plan.along_n else []
    return "-".join(words)


@pytest.mark.parametrize("case", legal(4, seed=1), ids=said)
def test_legal_plans_are_exact_in_the_emulator(case: tuple[Rung, TensorPlan]) -> None:
    rung, plan = case
    few = plan.with_(blocks=plan.cluster) if plan.persistent else plan
    check_exact(EmulatorBackend("random", seed=plan.bn), rung, few)


@pytest.mark.cuda
@pytest.mark.parametrize("case", legal(50, seed=2), ids=said)
def test_legal_plans_are_exact_on_a_gpu(cuda: Backend, case: tuple[Rung, TensorPlan]) -> None:
    rung, plan = case
    check_exact(cuda, rung, plan)
    if plan.persistent:
        check_exact(cuda, rung, plan.with_(blocks=plan.cluster))


SCHEDULES: dict[str, dict[str, Any]] = {
    "cooperative": {"bm": 128, "consumers": 2, "consumer_registers": 232},
    "pingpong": {"pingpong": True, "consumers": 2, "consumer_registers": 232},
    "half tail": {"bm": 256, "consumers": 2, "consumer_registers": 232, "half_tail": True, "cluster_m": 1, "blocks": 4},
    "alternating": {"alternate_k": True, "along_n": True, "cluster_m": 1, "cluster_n": 2, "dependent_launch": True},
    "four blocks": {"cluster_m": 2, "cluster_n": 2, "store_evict_first": True},
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("policy", "seed"), [("eager", 0), ("lazy", 0), *(("random", seed) for seed in range(3))])
def test_schedules_wait_for_what_they_use(schedule: str, policy: Policy, seed: int) -> None:
    rung = rungs()[11]
    plan = small_plan(rung, BF16, ("row", "column"), **SCHEDULES[schedule])
    m, n = 6 * plan.cluster_m * plan.bm - 3, 3 * plan.cluster_n * plan.bn - 5
    assert not plan.half_tail or 0 < 18 % plan.blocks <= plan.blocks // 2  # or no tile is cut
    product(EmulatorBackend(policy, seed=seed), rung, tight(m, n, 200, BF16, ("row", "column")), plan)


@pytest.mark.parametrize(("policy", "seed"), [("lazy", 0), ("random", 1), ("random", 2)])
@pytest.mark.parametrize("rung", TENSOR_RUNGS, ids=lambda rung: str(rung.number))
def test_rungs_wait_for_what_they_use(rung: Rung, policy: Policy, seed: int) -> None:
    product(EmulatorBackend(policy, seed=seed), rung, tight(130, 260, 330, FP16), small_plan(rung, FP16))


@pytest.mark.cuda
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_thousand_launches_give_the_same_bits(cuda: Backend, schedule: str) -> None:
    rung = rungs()[11]
    plan = small_plan(rung, BF16, **{**SCHEDULES[schedule], "blocks": 132})
    problem = tight(2000, 1000, 1000, BF16)
    a, b = random_operands(problem)
    operands = make_operands(cuda, problem, a, b)
    launch = prepare(cuda, rung, plan, operands)
    launch(cuda)
    first = cuda.download(operands.c)
    for _ in range(10):
        for _ in range(100):
            launch(cuda)
        np.testing.assert_array_equal(cuda.download(operands.c), first)


# ---- what no GPU run shows -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rung", TENSOR_RUNGS, ids=lambda rung: str(rung.number))
def test_no_races_and_no_access_out_of_bounds(rung: Rung) -> None:
    emulator, plan = EmulatorBackend("lazy"), small_plan(rung, BF16)
    problem = padded(130, 140, 200, BF16, aligned=True)
    check(emulator, rung, plan, make_operands(emulator, problem, *random_operands(problem)))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_races_in_any_schedule(schedule: str) -> None:
    emulator, rung = EmulatorBackend("lazy"), rungs()[11]
    plan = small_plan(rung, BF16, ("column", "row"), **SCHEDULES[schedule])
    problem = tight(2 * plan.cluster_m * plan.bm + 8, plan.cluster_n * plan.bn + 8, 200, BF16, ("column", "row"))
    check(emulator, rung, plan, make_operands(emulator, problem, *random_operands(problem)))


# ---- strides and alignment -------------------------------------------------------------------------------------------


def shifted(backend: Backend, values: np.ndarray[Any, Any], layout: Layout, *, pointer: bool, stride: bool) -> Matrix:
    """The values as a matrix that starts one element off a 16-byte boundary, or whose lines do not all start on one."""
    lines = values if layout == "row" else values.T
    shift = int(pointer)
    canvas = np.full((lines.shape[0], lines.shape[1] + shift), np.nan, values.dtype)
    canvas[:, shift:] = lines
    ld = -(-canvas.shape[1] // 8) * 8 + int(stride)
    whole = backend.upload(canvas if layout == "row" else canvas.T, ld, layout)
    at = {"col": shift} if layout == "row" else {"row": shift}
    return part(whole, *values.shape, **at)


@each_layout
@pytest.mark.parametrize("how", ["pointer", "stride"])
@pytest.mark.parametrize("odd", ["a", "b", "c"])
@each_tma_rung
def test_what_tma_cannot_move_is_refused(backend: Backend, rung: Rung, odd: str, how: str, layouts: Layouts) -> None:
    problem = Problem(40, 72, 24, BF16, None, *layouts)
    a, b = random_operands(problem)
    values = {"a": a, "b": b, "c": np.full((40, 72), np.nan, BF16.numpy)}
    of = dict(zip("abc", (*layouts, "row"), strict=True))
    matrices: dict[str, Any] = {
        name: shifted(backend, each, of[name], pointer=name == odd and how == "pointer",
                      stride=name == odd and how == "stride")
        for name, each in values.items()
    }  # fmt: skip
    operands = Operands(**matrices)
    if odd == "c" and rung.number < 11:  # threads store it
        plan = small_plan(rung, BF16, layouts, aligned=False)
        assert default_plan(rung, operands).aligned is False
        run(backend, rung, operands, plan)
        reference = product(backend, rung, problem.padded(), small_plan(rung, BF16, layouts), pair=(a, b))
        np.testing.assert_array_equal(backend.download(operands.c), reference)
        return
    words = (
        rf"rung {rung.number} moves {odd.upper()} by TMA, whose lines start on 16-byte boundaries; it lies at 0x\w+ "
        rf"with \w+ \d+ bytes apart, which rungs up to {10 if odd == 'c' else 6} take"
    )
    with pytest.raises(UsageError, match=words):
        default_plan(rung, operands)
    with pytest.raises(UsageError, match=words):
        run(backend, rung, operands, small_plan(rung, BF16, layouts))


@each_tma_rung
def test_the_stride_of_a_single_line_does_not_matter(backend: Backend, rung: Rung) -> None:
    rows = Problem(1, 8, 72, BF16, lda=75, ldb=8, ldc=9)
    columns = Problem(72, 1, 1, BF16, None, "column", "column", 75, 3, 8)
    for problem in (rows, columns):
        product(backend, rung, problem, small_plan(rung, BF16, (problem.a_layout, problem.b_layout)))


def test_layouts_of_plan_and_operands_are_the_same(emulator: Backend) -> None:
    problem = Problem(8, 8, 8, BF16, None, "column", "row")
    operands = make_operands(emulator, problem, *random_operands(problem))
    with pytest.raises(UsageError, match="plan is for row-major A and the operand is column-major"):
        prepare(emulator, rungs()[5], rungs()[5].plan(BF16), operands)
    with pytest.raises(UsageError, match="rung 3 reads row-major operands and A is column-major; rungs 5 and up"):
        run(emulator, rungs()[3], operands)


def test_c_is_row_major(emulator: Backend) -> None:
    a, b = (emulator.empty(8, 8, FP32) for _ in "ab")
    operands = Operands(a, b, emulator.empty(8, 8, FP32, layout="column"))
    with pytest.raises(UsageError, match="C is column-major and every rung writes rows: compute its transpose"):
        run(emulator, rungs()[0], operands)


@each_layout
@pytest.mark.parametrize("rung", TENSOR_RUNGS, ids=lambda rung: str(rung.number))
def test_offsets_beyond_32_bits(backend: Backend, rung: Rung, layouts: Layouts) -> None:
    check_far_lines(backend, rung, small_plan(rung, BF16, layouts))
