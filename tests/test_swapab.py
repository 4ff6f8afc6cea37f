"""The swap-AB branch: its products on both backends, what its cluster does to them, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ladder_cases import LAYOUTS, padded, part, product

import tilewright
from tilewright import nvrtc
from tilewright.backends.base import Backend
from tilewright.backends.emulator import EmulatorBackend
from tilewright.backends.emulator_checks import check_races
from tilewright.backends.emulator_runtime import POLICIES, Policy
from tilewright.branches import LAYOUTS as BRANCH_LAYOUTS
from tilewright.branches import branch
from tilewright.checked import check
from tilewright.count import count
from tilewright.dtypes import BF16, FP16, FP32, DType
from tilewright.epilogue.compose import compose
from tilewright.errors import EmulatorFault, UsageError
from tilewright.operands import random_operands
from tilewright.plan_base import Plan
from tilewright.plan_swapab import REACHED_SMS, SwapAbPlan, choose
from tilewright.problem import Layout, Problem
from tilewright.run import Operands, default_plan, launch_arguments, make_operands, prepare, run

(KERNEL,) = branch("swapab").kernels
Layouts = tuple[Layout, Layout]
each_dtype = pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
each_policy = pytest.mark.parametrize("policy", POLICIES)
each_cluster = pytest.mark.parametrize("cluster", [1, 2, 4, 8])


def small_plan(dtype: DType = BF16, layouts: Layouts = BRANCH_LAYOUTS, **changes: Any) -> SwapAbPlan:
    """A ring so short that it goes round, and a grid so small that a cluster has several tiles."""
    cluster = changes.get("cluster_k", 1)
    values = {"bm": 64 if layouts[0] == "column" else 8, "bn": 64, "bk": 64, "stages": 2, "blocks": 2 * cluster}
    return SwapAbPlan(dtype=dtype, a_layout=layouts[0], b_layout=layouts[1], **{**values, **changes})


def tight(m: int, n: int, k: int, dtype: DType = BF16, layouts: Layouts = BRANCH_LAYOUTS) -> Problem:
    return Problem(m, n, k, dtype, None, *layouts).padded()


# ---- products --------------------------------------------------------------------------------------------------------

SHAPES = [(1, 1, 1), (8, 64, 64), (7, 200, 72), (13, 328, 520), (20, 70, 1544), (64, 136, 193), (65, 72, 264)]


@each_dtype
@each_cluster
def test_any_shape(backend: Backend, dtype: DType, cluster: int) -> None:
    for bm, bk in ((8, 64), (24, 128), (64, 64)):
        plan = small_plan(dtype, cluster_k=cluster, bm=bm, bk=bk)
        for shape in SHAPES if dtype == BF16 else SHAPES[2::2]:  # of another dtype the text differs by a type
            found = product(backend, KERNEL, tight(*shape, dtype), plan, fill="integers")
            loose = padded(*shape, dtype, aligned=True, layouts=BRANCH_LAYOUTS)
            again = product(backend, KERNEL, loose, plan, fill="integers")
            np.testing.assert_array_equal(again, found, err_msg=f"{shape} by {bm}x{bk}")


@pytest.mark.parametrize("shape", [(1, 64, 64), (16, 256, 1024), (13, 200, 1544), (40, 8512, 64), (3, 5504, 200)])
def test_default_plans(backend: Backend, shape: tuple[int, int, int]) -> None:
    product(backend, KERNEL, tight(*shape))


@pytest.mark.cuda
@pytest.mark.parametrize("n", [256, 2112, 4096, 7168, 28672])
@pytest.mark.parametrize("m", [3, 8, 16, 32, 64, 128])
def test_large(cuda: Backend, m: int, n: int) -> None:
    product(cuda, KERNEL, tight(m, n, 4104))


@each_cluster
@pytest.mark.parametrize("layouts", LAYOUTS, ids=lambda pair: f"{pair[0][0]}{pair[1][0]}")
def test_every_layout(backend: Backend, layouts: Layouts, cluster: int) -> None:
    for shape in SHAPES[1::2]:
        product(backend, KERNEL, tight(*shape, BF16, layouts), small_plan(BF16, layouts, cluster_k=cluster))


@each_cluster
def test_two_warpgroups(backend: Backend, cluster: int) -> None:
    for bm in (8, 64, 128):
        plan = small_plan(bn=128, bm=bm, cluster_k=cluster)
        for shape in SHAPES[1::2]:
            product(backend, KERNEL, tight(*shape), plan)


@each_cluster
def test_c_may_lie_anywhere(backend: Backend, cluster: int) -> None:
    for shape in SHAPES[2:4]:
        problem = replace(tight(*shape), ldc=shape[1] + 3)
        plan = small_plan(cluster_k=cluster, bm=16)
        with pytest.raises(UsageError, match="aligned=False"):
            product(backend, KERNEL, problem, plan)
        found = product(backend, KERNEL, problem, plan.with_(aligned=False))
        np.testing.assert_array_equal(found, product(backend, KERNEL, tight(*shape), plan))


@each_cluster
def test_ones_add_up_to_k(backend: Backend, cluster: int) -> None:
    for k in (1, 63, 64, 65, 200, 257, 1031):
        ones = np.ones((9, k), BF16.numpy), np.ones((k, 70), BF16.numpy)
        for out in (BF16, FP32):
            plan = small_plan(cluster_k=cluster, bm=16, out_dtype=out)
            c = product(backend, KERNEL, tight(9, 70, k).changed(out_dtype=out), plan, pair=ones)
            np.testing.assert_array_equal(c, np.full((9, 70), k, np.float32).astype(out.numpy))


@each_cluster
def test_fp32_out(backend: Backend, cluster: int) -> None:
    for bm, bk in ((8, 64), (24, 128), (64, 64)):
        plan = small_plan(cluster_k=cluster, bm=bm, bk=bk, out_dtype=FP32)
        for shape in SHAPES:
            product(backend, KERNEL, tight(*shape).changed(out_dtype=FP32), plan)
            product(backend, KERNEL, tight(*shape).changed(out_dtype=FP32))  # by rule


@each_cluster
def test_sums_are_kept_in_fp32(backend: Backend, cluster: int) -> None:
    product(backend, KERNEL, tight(10, 72, 200), small_plan(cluster_k=cluster), fill="probe")


@each_cluster
@each_dtype
def test_a_sum_of_nothing_is_zero(backend: Backend, dtype: DType, cluster: int) -> None:
    for m, n in ((9, 130), (1, 1)):
        c = product(backend, KERNEL, tight(m, n, 0, dtype), small_plan(dtype, cluster_k=cluster))
        np.testing.assert_array_equal(c.view(np.uint8), 0)


def test_an_empty_c_launches_nothing(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(*_: object, **__: object) -> None:
        raise AssertionError("launched")

    monkeypatch.setattr(backend, "launch", launch)
    for m, n, k in ((0, 12, 5), (7, 0, 5), (0, 0, 0)):
        problem = tight(m, n, k)
        run(backend, KERNEL, make_operands(backend, problem, *random_operands(problem)), small_plan())


@each_cluster
def test_a_row_does_not_depend_on_the_others(backend: Backend, cluster: int) -> None:
    plan = small_plan(cluster_k=cluster)
    a, b = random_operands(Problem(30, 140, 600, BF16))
    whole = product(backend, KERNEL, tight(30, 140, 600), plan, pair=(a, b))
    for m, n in ((1, 1), (7, 129), (29, 64)):
        fewer = np.ascontiguousarray(a[-m:]), np.ascontiguousarray(b[:, :n])
        np.testing.assert_array_equal(product(backend, KERNEL, tight(m, n, 600), plan, pair=fewer), whole[-m:, :n])


# ---- order -----------------------------------------------------------------------------------------------------------


@each_cluster
def test_the_bits_depend_on_no_schedule(cluster: int) -> None:
    plan = small_plan(cluster_k=cluster, bm=16, dependent_launch=True)
    problem, pair = tight(30, 200, 1000), random_operands(Problem(30, 200, 1000, BF16))
    schedules: list[tuple[Policy, int]] = [("eager", 0), ("lazy", 0), *(("random", seed) for seed in range(5))]
    found = [
        product(EmulatorBackend(policy, seed=seed), KERNEL, problem, plan, pair=pair) for policy, seed in schedules
    ]
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@each_policy
@pytest.mark.parametrize("bn", [64, 128])
@each_cluster
def test_nothing_races(policy: Policy, cluster: int, bn: int) -> None:
    for bm in (8, 64):
        emulator, problem = EmulatorBackend(policy, seed=2), tight(bm + 1, 3 * bn + 8, 400)
        plan = small_plan(cluster_k=cluster, bm=bm, bn=bn, blocks=cluster)
        operands = make_operands(emulator, problem, *random_operands(problem))
        assert check(emulator, KERNEL, plan, operands) == cluster


SYNC, READ = (
    "    __syncwarp();\n",
    "#pragma unroll\n      for (int j = first; j < first + TokenPatch::GROUPS && j < GROUPS; j += 2)",
)
MUTANTS = {  # what is taken out of the kernel, what stands there instead, and what is found
    "reads before the peers have written": (
        "mbarrier_wait_cluster(full[set][warp], u32(round / 2 % 2));",
        "if (round < 0) mbarrier_wait_cluster(full[set][warp], 0);",
        "race",
    ),
    "one set of slots": ("set = round % 2;", "set = 0;", "race"),
    "never tells the peers": ("if (lane < BLOCKS && lane != rank)", "if (lane >= 32)", "deadlock"),
    "the first lane speaks for others": (SYNC + "    if (lane < BLOCKS", "    if (lane < BLOCKS", "race"),
    "peers that have not started": ("if (round == 0) tw::cluster_wait();", "", "race"),
    "a stage is released while it is read": ("wgmma_wait<1>();", "", "race"),
    "transposed lines are read before they are written": ("  " + SYNC + READ, READ, "race"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_kernel_is_found(name: str) -> None:
    there, instead, kind = MUTANTS[name]
    emulator, problem = EmulatorBackend(), tight(16, 8 * 64, 400)
    plan = small_plan(cluster_k=2, blocks=2, bm=16)
    operands = make_operands(emulator, problem, *random_operands(problem))
    source = KERNEL.source(plan, "host")
    assert source.text.count(there) == 1
    broken = replace(source, text=source.text.replace(there, instead))
    rest = (plan.grid(problem), plan.block, launch_arguments(emulator, plan, operands), plan.shared_bytes)
    check_races(emulator, source, *rest, cluster=plan.cluster)
    with pytest.raises(EmulatorFault) as caught:
        check_races(emulator, broken, *rest, cluster=plan.cluster)
    assert caught.value.kind == kind, caught.value


@pytest.mark.parametrize("shape", [(8, 4096, 4096), (16, 7168, 2048), (8, 256, 7168), (64, 28672, 4096)])
def test_what_is_counted(shape: tuple[int, int, int]) -> None:
    problem = tight(*shape)
    plan = choose(problem).plan
    counts = count(EmulatorBackend(), KERNEL, plan, problem)
    assert counts is not None
    assert counts.blocks == plan.cluster_k
    assert counts.useful == counts.multiply_adds
    for requests in (counts.operands["c"].stores, counts.shared_loads, counts.shared_stores):
        assert requests.cost == requests.ideal > 0  # whole sectors; no two lanes want one bank
    weights = plan.bn * problem.k * 2
    assert counts.operands["b"].copied_in.global_bytes == weights  # once


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_operands_that_tma_cannot_move(backend: Backend) -> None:
    whole = backend.upload(np.ones((9, 80), BF16.numpy))
    a, b = part(whole, 8, 64, col=1), backend.upload(np.ones((64, 64), BF16.numpy), 64, "column")
    operands = Operands(a, b, backend.empty(8, 64, BF16))
    with pytest.raises(UsageError, match="TMA"):
        prepare(backend, KERNEL, small_plan(), operands)
    with pytest.raises(UsageError, match="TMA"):
        default_plan(KERNEL, operands)


COMPLAINTS: list[tuple[dict[str, Any], str]] = [
    ({"bm": 12}, "bm is 12; a tile has 8 to 128 tokens, in eights"),
    ({"bm": 136}, "bm is 136"),
    ({"bn": 96}, "bn is 96; a tile has 64 weights, or 128 for two warpgroups"),
    ({"bk": 96}, "bk is 96; a stage is whole slices of 64 k"),
    ({"bk": 0}, "bk is 0"),
    ({"stages": 1}, "stages is 1; one is read while another is filled"),
    ({"cluster_k": 3, "blocks": 3}, "cluster_k is 3; 1, 2, 4, 8 blocks can share K"),
    ({"cluster_k": 2, "blocks": 3}, "blocks is 3; it must be a multiple of the 2 blocks a cluster has"),
    ({"blocks": 0}, "blocks is 0"),
    ({"stages": 30}, "shared memory is 277984 bytes with 30 stages; a block has 232448"),
    ({"a_layout": "column"}, "bm is 8; column-major A lies in slabs of 64 tokens: it must be a multiple"),
    ({"a_layout": "diagonal"}, "a_layout is 'diagonal'"),
    ({"dependent_launch": 1}, "dependent_launch is 1"),
]


@pytest.mark.parametrize(("changes", "says"), COMPLAINTS)
def test_plans_that_no_kernel_has(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        small_plan().with_(**changes)
    assert str(caught.value).startswith(f"swapab swap-ab: {says}")


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(UsageError, match="dtype is fp32; bf16 and fp16 are possible"):
        small_plan(FP32)


def test_more_tiles_than_are_counted() -> None:
    with pytest.raises(UsageError, match="the kernel counts up to 2147483647"):
        small_plan().grid(Problem(2**30, 1024 * 64, 1, BF16))


# ---- the rule --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "plan", "because"),
    [  # bm, bn, bk, stages, cluster, blocks
        ((8, 4096, 4096), (8, 64, 128, 12, 2, 132), "64 tiles of 64 weights are too few"),
        ((16, 7168, 2048), (16, 64, 128, 11, 1, 132), "112 SMs with a whole tile each are enough"),
        ((33, 2112, 7168), (64, 64, 64, 12, 2, 132), "33 tiles of 64 weights are too few"),
        ((8, 256, 7168), (8, 64, 128, 12, 8, 120), "clusters of 8, the largest"),
        ((16, 1024, 7168), (16, 64, 128, 10, 4, 120), "16 tiles of 64 weights become 64 blocks"),
        ((16, 2048, 7168), (16, 64, 128, 11, 2, 132), "32 tiles of 64 weights are too few"),
        ((1, 28672, 4096), (8, 64, 256, 6, 1, 132), "fewer barriers pass"),
        ((32, 28672, 4096), (32, 64, 128, 3, 1, 264), "two blocks share an SM"),
        ((64, 28672, 4096), (64, 128, 64, 9, 1, 132), "tokens are read half as often"),
        ((100, 4096, 4096), (64, 64, 64, 12, 2, 132), "M = 100 takes 2, all but one with weights from L2"),
        ((8, 256, 200), (8, 64, 128, 12, 4, 120), "K shared by 4: there are 4 slices"),
        ((8, 256, 0), (8, 64, 128, 12, 1, 132), "K shared by 1: there are 0 slices"),
    ],
)
def test_the_rule(shape: tuple[int, int, int], plan: tuple[int, ...], because: str) -> None:
    chosen = choose(tight(*shape))
    p = chosen.plan
    assert (p.bm, p.bn, p.bk, p.stages, p.cluster_k, p.blocks) == plan
    assert because in chosen.reason
    assert not p.dependent_launch
    assert p.weights_evict_first


def test_every_default_plan_is_one() -> None:
    for n in range(64, 20000, 64 * 7):
        for m in (1, 9, 17, 33, 65):
            for layouts in LAYOUTS:
                plan = choose(tight(m, n, 4096, BF16, layouts)).plan
                clusters = plan.grid(tight(m, n, 4096))[0] // plan.cluster_k
                assert clusters * plan.cluster_k <= 2 * REACHED_SMS[plan.cluster_k]
                assert Plan.from_dict(plan.to_dict()) == plan


# ---- the compiler ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not nvrtc.available(), reason=str(nvrtc.unavailable_reason()))
def test_it_compiles_without_spills() -> None:
    """Between the sizes of check_kernels.py; and the largest tile, its rows off 16-byte boundaries."""
    plans = {choose(tight(m, n, 4096)).plan for m, n in ((16, 1024), (32, 7168), (32, 256))}
    plans |= {small_plan(FP16, bm=128, bn=128, cluster_k=8, dependent_launch=True, aligned=False)}
    made = [nvrtc.compile_kernel(KERNEL.source(plan, "gpu", "sm_90a")) for plan in plans]
    for plan, kernel in zip(plans, made, strict=True):
        assert kernel.report.spill_bytes == kernel.report.stack_bytes == 0, plan
        assert not kernel.report.warnings, plan


@pytest.mark.skipif(not nvrtc.available(), reason=str(nvrtc.unavailable_reason()))
@pytest.mark.parametrize("first", [True, False])
def test_accumulators_may_be_stored_as_they_are_beside_something_else(first: bool) -> None:
    """Rounded late they made ptxas run wgmmas one after another, which is a ``CompileError``."""
    fn = (lambda acc: (acc, tilewright.relu(acc))) if first else (lambda acc: (tilewright.relu(acc), acc))
    code = compose(fn=fn, out_dtypes=[BF16, BF16]).code
    made = nvrtc.compile_kernel(KERNEL.source(choose(tight(24, 16, 40)).plan, "gpu", "sm_90a", code))
    assert made.report.spill_bytes == made.report.stack_bytes == 0


@pytest.mark.skipif(not nvrtc.available(), reason=str(nvrtc.unavailable_reason()))
def test_hints_and_dependence_are_in_the_code() -> None:
    with_hint, without = (KERNEL.source(small_plan(weights_evict_first=e), "gpu", "sm_90a") for e in (True, False))
    assert nvrtc.compile_kernel(with_hint).cubin != nvrtc.compile_kernel(without).cubin
    dependent = nvrtc.compile_kernel(KERNEL.source(small_plan(dependent_launch=True), "gpu", "sm_90a"))
    assert dependent.cubin != nvrtc.compile_kernel(with_hint).cubin
