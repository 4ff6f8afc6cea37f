"""The decode branch: both kernels on any size and stride, in any plan; and what must not be in them."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ladder_cases import check_far_lines, part, product

from tilewright import branches
from tilewright.backends.base import Backend
from tilewright.backends.emulator import EmulatorBackend
from tilewright.backends.emulator_checks import check_bounds, check_races
from tilewright.backends.emulator_runtime import Policy
from tilewright.branches import BranchKernel
from tilewright.checked import check
from tilewright.dtypes import BF16, FP16, FP32, DType
from tilewright.errors import EmulatorFault, UsageError
from tilewright.operands import random_operands
from tilewright.plan_decode import DecodePlan, GemvPlan, MmaPlan
from tilewright.problem import Problem
from tilewright.run import Operands, default_plan, launch_arguments, make_operands, prepare, run, source_for

GEMV, MMA = branches.branch("decode").kernels
KERNELS = (GEMV, MMA)
each_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
each_dtype = pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)

# Values that differ in one thing from the rest, and tiles so small that a C of a hundred columns has several.
PLANS: dict[str, DecodePlan] = {
    "row by row": GemvPlan(dtype=BF16, bm=1, rw=1, wk=1, wr=1, un=1),
    "K over 8 warps": GemvPlan(dtype=BF16, bm=2, rw=1, wk=8, wr=1, un=4),
    "warps along the rows": GemvPlan(dtype=BF16, bm=2, rw=4, wk=1, wr=4, un=2),
    "both": GemvPlan(dtype=FP16, bm=4, rw=2, wk=4, wr=2, un=1, blocks_per_sm=2),
    "dependent": GemvPlan(dtype=BF16, bm=1, rw=4, wk=2, wr=2, un=2, dependent_launch=True),
    "three tokens, by elements": GemvPlan(dtype=FP16, bm=3, rw=3, wk=3, wr=1, un=2, aligned=False),
    "one batch": MmaPlan(dtype=BF16, nt=1, rb=1, wk=2, wr=1, un=1, batches=1),
    "two batches": MmaPlan(dtype=BF16, nt=1, rb=1, wk=4, wr=1, un=2, batches=2),
    "three batches": MmaPlan(dtype=FP16, nt=2, rb=1, wk=2, wr=2, un=1, batches=3, dependent_launch=True),
    "two blocks each way": MmaPlan(dtype=BF16, nt=2, rb=2, wk=3, wr=2, un=1, batches=1),
    "fragments by elements": MmaPlan(dtype=FP16, nt=1, rb=2, wk=2, wr=1, un=2, batches=2, aligned=False),
}
each_plan = pytest.mark.parametrize("plan", PLANS.values(), ids=list(PLANS))
POLICIES: list[tuple[Policy, int]] = [("eager", 0), ("lazy", 0), ("random", 1), ("random", 2)]


def kernel_of(plan: DecodePlan) -> BranchKernel:
    return branches.kernel(plan.branch, plan.kernel)


def posed(m: int, n: int, k: int, dtype: DType, *, lda: int | None = None, ldb: int | None = None) -> Problem:
    """Row-major A and column-major B, with lines on 16-byte boundaries unless given."""
    tight = Problem(m, n, k, dtype, None, "row", "column").padded()
    return tight.changed(lda=lda or tight.lda, ldb=ldb or tight.ldb)


# ---- sizes -----------------------------------------------------------------------------------------------------------

SIZES = [(1, 1, 1), (1, 70, 2056), (2, 33, 1031), (3, 129, 512), (4, 16, 4096), (2, 600, 264), (1, 5, 7)]


@each_dtype
@each_kernel
@pytest.mark.parametrize("size", SIZES, ids=lambda size: "x".join(map(str, size)))
def test_any_size(backend: Backend, kernel: BranchKernel, dtype: DType, size: tuple[int, int, int]) -> None:
    problem = posed(*size, dtype)
    found = product(backend, kernel, problem, kernel.plan_for(problem, aligned=True))
    loose = posed(*size, dtype, lda=problem.lda + 8, ldb=problem.ldb + 16).changed(ldc=size[1] + 3)
    np.testing.assert_array_equal(product(backend, kernel, loose, kernel.plan_for(loose, aligned=True)), found)
    # Lines anywhere are read by elements, in the same order.
    odd = posed(*size, dtype, lda=size[2] + 1, ldb=size[2] + 3)
    np.testing.assert_array_equal(product(backend, kernel, odd, kernel.plan_for(odd, aligned=False)), found)


@each_dtype
@pytest.mark.parametrize("m", [5, 8, 9, 16])
def test_more_tokens_on_tensor_cores(backend: Backend, dtype: DType, m: int) -> None:
    product(backend, MMA, posed(m, 70, 840, dtype))


@each_plan
def test_plans_are_exact(backend: Backend, plan: DecodePlan) -> None:
    # More rows than a tile, so that each block has another one; and every share of the last step of K.
    for k in (0, 1, plan.bk - 1, plan.bk, plan.bk * plan.wk + 40, 3 * plan.bk * plan.wk + 8, 5 * plan.bk + 3):
        problem = posed(plan.bm + 1, 2 * plan.bn + 3, k, plan.dtype)
        a, b = random_operands(problem, fill="integers")
        found = product(backend, kernel_of(plan), problem, plan, pair=(a, b))
        exact = (a.astype(np.float32) @ b.astype(np.float32)).astype(plan.dtype.numpy)
        np.testing.assert_array_equal(found, exact, err_msg=f"k {k}")


@each_plan
def test_ones_sum_to_k(backend: Backend, plan: DecodePlan) -> None:
    for k in (1, 31, 257, 1024, plan.bk * plan.wk + 9):
        for out in (plan.dtype, FP32):
            problem = posed(plan.bm, plan.bn, k, plan.dtype).changed(out_dtype=out)
            a, b = np.ones((plan.bm, k), plan.dtype.numpy), np.ones((k, plan.bn), plan.dtype.numpy)
            found = product(backend, kernel_of(plan), problem, plan.with_(out_dtype=out), pair=(a, b))
            np.testing.assert_array_equal(found, np.full((plan.bm, plan.bn), k, np.float32).astype(out.numpy))


@each_kernel
def test_an_empty_c_launches_nothing(backend: Backend, kernel: BranchKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(*_: object, **__: object) -> None:
        raise AssertionError("launched")

    monkeypatch.setattr(backend, "launch", launch)
    for m, n, k in ((0, 12, 5), (2, 0, 5), (0, 0, 0)):
        problem = posed(m, n, k, BF16)
        run(backend, kernel, make_operands(backend, problem, *random_operands(problem)))


@pytest.mark.parametrize("plan", [PLANS["both"], PLANS["two batches"]], ids=lambda plan: plan.kernel)
def test_offsets_have_64_bits(backend: Backend, plan: DecodePlan) -> None:
    check_far_lines(backend, kernel_of(plan), plan)


def sample(count: int, seed: int) -> list[DecodePlan]:
    """Legal plans of both kernels, ``count`` of each, drawn with ``seed``."""
    draw = random.Random(seed).choice
    found: dict[type[DecodePlan], list[DecodePlan]] = {GemvPlan: [], MmaPlan: []}
    while min(map(len, found.values())) < count:
        common: dict[str, Any] = {
            "dtype": draw((BF16, FP16)), "wk": draw((1, 2, 3, 5, 8)), "wr": draw((1, 2, 3)), "un": draw((1, 2, 3)),
            "aligned": draw((True, False)), "blocks_per_sm": draw((1, 2)), "dependent_launch": draw((True, False)),
        }  # fmt: skip
        own: dict[type[DecodePlan], dict[str, Any]] = {
            GemvPlan: {"bm": draw((1, 2, 3, 4)), "rw": draw((1, 2, 3, 4, 8))},
            MmaPlan: {"nt": draw((1, 2)), "rb": draw((1, 2, 3)), "batches": draw((1, 2, 3))},
        }
        for kind, plans in found.items():
            with suppress(UsageError):
                plans.append(kind(**common, **own[kind]))
    return [plan for plans in found.values() for plan in plans[:count]]


def said(plan: DecodePlan) -> str:
    return f"{plan.kernel}-{plan.threads}-{plan.bk}-{plan.bn}"


def check_sampled(backend: Backend, plan: DecodePlan) -> None:
    """Small integers, of which every sum is exact, at three sizes that depend on the plan."""
    for m, n, k in ((1, 1, plan.bk * plan.wk), (plan.bm, plan.bn + 1, 2 * plan.bk - 5), (plan.bm + 2, plan.bn, 999)):
        problem = posed(m, n, k, plan.dtype)
        a, b = random_operands(problem, fill="integers")
        found = product(backend, kernel_of(plan), problem, plan, pair=(a, b))
        np.testing.assert_array_equal(found, (a.astype(np.float32) @ b.astype(np.float32)).astype(plan.dtype.numpy))


@pytest.mark.parametrize(
    "plan", sample(5, seed=1), ids=lambda plan: f"{plan.kernel}-{plan.threads}-{plan.bk}-{plan.bn}"
)
def test_sampled_plans_are_exact_in_the_emulator(plan: DecodePlan) -> None:
    check_sampled(EmulatorBackend("random", seed=plan.bn), plan)


@pytest.mark.cuda
@pytest.mark.parametrize(
    "plan", sample(100, seed=2), ids=lambda plan: f"{plan.kernel}-{plan.threads}-{plan.bk}-{plan.bn}"
)
def test_sampled_plans_are_exact_on_a_gpu(cuda: Backend, plan: DecodePlan) -> None:
    check_sampled(cuda, plan)


# ---- values ----------------------------------------------------------------------------------------------------------


@each_plan
def test_sums_are_kept_in_fp32(backend: Backend, plan: DecodePlan) -> None:
    product(backend, kernel_of(plan), posed(plan.bm, plan.bn + 5, 1030, plan.dtype), plan, fill="probe")


@each_plan
def test_a_token_does_not_depend_on_the_others(backend: Backend, plan: DecodePlan) -> None:
    kernel, (m, n, k) = kernel_of(plan), (plan.bm + 2, plan.bn + 3, 700)
    a, b = random_operands(posed(m, n, k, plan.dtype))
    whole = product(backend, kernel, posed(m, n, k, plan.dtype), plan, pair=(a, b))
    np.testing.assert_array_equal(product(backend, kernel, posed(m, n, k, plan.dtype), plan, pair=(a, b)), whole)
    last = product(backend, kernel, posed(1, n, k, plan.dtype), plan, pair=(np.ascontiguousarray(a[-1:]), b))
    np.testing.assert_array_equal(last, whole[-1:])


@each_plan
def test_what_is_not_finite_stays_in_its_row_or_column(backend: Backend, plan: DecodePlan) -> None:
    kernel, (m, n, k) = kernel_of(plan), (plan.bm + 1, plan.bn + 3, 77)
    a, b = random_operands(posed(m, n, k, plan.dtype), fill="positive")
    clean = product(backend, kernel, posed(m, n, k, plan.dtype), plan, pair=(a, b))
    for value in (np.nan, np.inf):
        poisoned = a.copy()
        poisoned[m - 1, k - 1] = value
        found = product(backend, kernel, posed(m, n, k, plan.dtype), plan, pair=(poisoned, b))
        np.testing.assert_array_equal(found[m - 1].astype(np.float32), np.full(n, value, np.float32))
        np.testing.assert_array_equal(found[: m - 1], clean[: m - 1])
        poisoned = b.copy()
        poisoned[k - 1, n - 1] = value
        found = product(backend, kernel, posed(m, n, k, plan.dtype), plan, pair=(a, poisoned))
        np.testing.assert_array_equal(found[:, n - 1].astype(np.float32), np.full(m, value, np.float32))
        np.testing.assert_array_equal(found[:, : n - 1], clean[:, : n - 1])


# ---- where the operands lie ------------------------------------------------------------------------------------------


@each_kernel
@pytest.mark.parametrize("odd", ["a", "b", "c"])
def test_only_lines_that_are_read_wide_must_be_aligned(backend: Backend, kernel: BranchKernel, odd: str) -> None:
    m, n, k = 2, 37, 300
    a, b = random_operands(posed(m, n, k, BF16))
    wide = make_operands(
        backend, posed(m, n + 1, k + 1, BF16), np.pad(a, ((0, 0), (1, 0))), np.pad(b, ((1, 0), (0, 1)))
    )
    shifted: dict[str, Any] = {
        "a": part(wide.a, m, k, col=1),
        "b": part(wide.b, k, n, row=1),
        "c": part(wide.c, m, n, col=1),
    }
    operands = replace(make_operands(backend, posed(m, n, k, BF16), a, b), **{odd: shifted[odd]})
    plan = default_plan(kernel, operands)
    assert plan.aligned is (odd == "c")
    if odd != "c":
        with pytest.raises(UsageError, match="rows on 16-byte boundaries and an operand's rows are not"):
            prepare(backend, kernel, plan.with_(aligned=True), operands)
    run(backend, kernel, operands, plan)
    whole = product(backend, kernel, posed(m, n, k, BF16), plan.with_(aligned=True), pair=(a, b))
    np.testing.assert_array_equal(backend.download(operands.c), whole)


# ---- what no result shows --------------------------------------------------------------------------------------------


@each_plan
def test_no_races_and_no_access_out_of_bounds(plan: DecodePlan) -> None:
    emulator, problem = (
        EmulatorBackend("lazy"),
        posed(plan.bm + 1, 2 * plan.bn + 3, 2 * plan.bk * plan.wk + 9, plan.dtype),
    )
    check(emulator, kernel_of(plan), plan, make_operands(emulator, problem, *random_operands(problem)))


@pytest.mark.parametrize(("policy", "seed"), POLICIES)
@each_kernel
def test_any_order_of_threads(kernel: BranchKernel, policy: Policy, seed: int) -> None:
    problem = posed(2, 70, 2100, BF16)
    plan = kernel.plan_for(problem, aligned=True).with_(dependent_launch=True)
    expected = product(EmulatorBackend(), kernel, problem, plan)
    np.testing.assert_array_equal(product(EmulatorBackend(policy, seed=seed), kernel, problem, plan), expected)


BREAKS = {
    "no barrier before the sums": ("    __syncthreads();\n", "", "race"),
    "all warps in one place": ("sums[part]", "sums[0]", "race"),
    "a step too many": ("mine = (whole + WARPS - 1 - warp)", "mine = (whole + WARPS - warp)", "out-of-bounds"),
    "past the last column": (" ? col0 + first + r : n - 1", " ? col0 + first + r : n", "out-of-bounds"),
}


@pytest.mark.parametrize("what", BREAKS)
def test_a_broken_kernel_is_caught(what: str) -> None:
    right, wrong, kind = BREAKS[what]
    emulator, problem = EmulatorBackend("lazy"), posed(2, 6, 1024, BF16)
    plan = GemvPlan(dtype=BF16, bm=2, rw=4, wk=2, wr=1, un=2)
    operands = make_operands(emulator, problem, *random_operands(problem))
    good = source_for(emulator, GEMV, plan)
    assert right in good.text
    bad = replace(good, text=good.text.replace(right, wrong))
    for source, fails in ((good, False), (bad, True)):
        grid, args = plan.grid(problem), launch_arguments(emulator, plan, operands)
        found = ""
        try:
            check_bounds(emulator, source, grid, plan.block, args, plan.shared_bytes, [0, 1])
            check_races(emulator, source, grid, plan.block, args, plan.shared_bytes, [0, 1])
        except EmulatorFault as fault:
            found = fault.kind
        assert found == (kind if fails else "")


@pytest.mark.parametrize("plan", [PLANS["both"], PLANS["two batches"]], ids=lambda plan: plan.kernel)
def test_c_may_not_lie_where_an_operand_does(backend: Backend, plan: DecodePlan) -> None:
    problem = posed(2, 32, 32, plan.dtype)
    operands = make_operands(backend, problem, *random_operands(problem))
    with pytest.raises(UsageError, match="C shares memory with A"):
        prepare(backend, kernel_of(plan), plan, Operands(operands.a, operands.b, operands.a))
