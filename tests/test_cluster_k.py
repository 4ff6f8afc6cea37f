"""Split-K whose parts are shared by the blocks of a cluster: their exchange, and what is found when that is broken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ladder_cases import product
from part_cases import FP32_OUT, SPLIT, fresh, launched, small_plan, tight, workspace_for

import tilewright
from tilewright import nvrtc
from tilewright.backends.base import Backend
from tilewright.backends.cuda import CudaBackend
from tilewright.backends.emulator import EmulatorBackend
from tilewright.backends.emulator_checks import check_races
from tilewright.backends.emulator_runtime import POLICIES, Policy
from tilewright.checked import check
from tilewright.dtypes import BF16, FP16, FP32
from tilewright.errors import EmulatorFault, UsageError
from tilewright.operands import random_operands
from tilewright.plan_base import Plan
from tilewright.plan_splitk import LEAST_STAGES, SplitKPlan
from tilewright.planner import partial_sums
from tilewright.planner.plan import machine_of
from tilewright.problem import Problem
from tilewright.run import launch_arguments, prepare

each_cluster = pytest.mark.parametrize("cluster", [2, 4, 8])


def plan_of(**changes: Any) -> SplitKPlan:
    plan = small_plan("splitk", **changes)
    assert isinstance(plan, SplitKPlan)
    return plan


# ---- products --------------------------------------------------------------------------------------------------------


@each_cluster
def test_any_shape(backend: Backend, cluster: int) -> None:
    """Also fewer K blocks than blocks of a cluster, shares that are not even, and several tiles one after another."""
    one: dict[str, Any] = {"splits": 1}
    several: dict[str, Any] = {"splits": 3, "interleave_k": True, "fan_in": 2, "dtype": FP16}
    for changes in {2: (one, several), 4: (several,), 8: (one,)}[cluster]:
        plan = plan_of(cluster_k=cluster, blocks=2 * cluster, **changes)
        for shape in ((1, 1, 1), (65, 70, 200), (130, 136, 1352), (7, 330, 1544), (9, 130, 0)):
            product(backend, SPLIT, tight(*shape, plan.dtype), plan, fill="integers")


def test_with_shared_loads_and_in_fp32(backend: Backend) -> None:
    for cluster in ({"cluster_m": 2, "group": 1}, {"cluster_n": 2}, {"cluster_m": 2, "cluster_n": 2}):
        plan = plan_of(cluster_k=2, **cluster)
        product(backend, SPLIT, tight(130, 200, 1096), plan, fill="integers")
    wide = plan_of(bm=256, bn=128, consumers=2, consumer_registers=232, cluster_k=2, **FP32_OUT)
    for k in (1, 65, 1000):
        ones = np.ones((66, k), BF16.numpy), np.ones((k, 70), BF16.numpy)
        for plan in (wide, plan_of(cluster_k=4, **FP32_OUT)):
            c = product(backend, SPLIT, tight(66, 70, k, out=FP32), plan, pair=ones)
            np.testing.assert_array_equal(c, np.float32(k))


@pytest.mark.parametrize("cluster", [4, 8])
def test_a_sum_is_the_same_in_every_column(emulator: EmulatorBackend, cluster: int) -> None:
    """Whichever block adds it up."""
    a, b = random_operands(tight(64, 128, 1032))
    b[:] = b[:, :1]
    plan = plan_of(cluster_k=cluster, splits=1 if cluster == 4 else 2, **FP32_OUT)
    c = product(emulator, SPLIT, tight(64, 128, 1032, out=FP32), plan, pair=(a, b))
    np.testing.assert_array_equal(c, np.broadcast_to(c[:, :1], c.shape))


@pytest.mark.cuda
@pytest.mark.timeout(300)
@each_cluster
def test_a_thousand_launches_give_the_same_bits(cuda: Any, cluster: int) -> None:
    assert isinstance(cuda, CudaBackend)
    problem = tight(520, 1032, 4104)
    for splits, changes in ((1, {}), (3, {"dependent_launch": True})):
        plan = plan_of(bm=128, bn=128, stages=3, consumers=2, consumer_registers=232, cluster_k=cluster, blocks=120,
                       splits=splits, epilogue_columns=16, **changes)  # fmt: skip
        product(cuda, SPLIT, problem, plan, fill="integers")
        operands = fresh(cuda, problem)
        launch = prepare(cuda, SPLIT, plan, operands)
        launch(cuda)
        first = cuda.download(operands.c).view(np.uint16)
        for number in range(1, 1000):
            if number % 10 == 0:
                cuda.poison(operands.c)
            launch(cuda)
            assert np.array_equal(cuda.download(operands.c).view(np.uint16), first), number


# ---- who comes when --------------------------------------------------------------------------------------------------


def test_the_bits_depend_on_no_order_of_blocks() -> None:
    """Whichever cluster is last, also of each block's columns, and whatever TMA and wgmma do meanwhile."""
    plan, problem = plan_of(cluster_k=4, splits=5, fan_in=2, blocks=12), tight(70, 72, 1600)
    expected = None
    schedules: list[tuple[Policy, int]] = [("eager", 0), ("lazy", 0), ("random", 1), ("random", 2)]
    for policy, seed in schedules:
        place = EmulatorBackend(policy, seed=seed)
        workspace = workspace_for(place, plan, problem=problem)
        for order in (range(12), (*range(8, 12), *range(4, 8), *range(4))):
            found = launched(place, plan, fresh(place, problem), workspace, blocks=order)
            expected = found if expected is None else expected
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_races(policy: Policy) -> None:
    for changes in (
        {"cluster_k": 4, "splits": 1, "blocks": 4},
        {"cluster_k": 2, "cluster_m": 2, "fan_in": 2, "blocks": 8},
    ):
        plan, problem = plan_of(**changes), tight(130, 136, 712)
        place = EmulatorBackend(policy, seed=2)
        assert check(place, SPLIT, plan, fresh(place, problem)) == plan.grid(problem)[0]


SYNC, TELL = (
    "    __syncwarp();\n",
    "    if (peer) mbarrier_arrive_remote_release(full[warp], u32(mate + lane * APART));",
)
MUTANTS = {  # what is taken out of the kernel, what stands there instead, the blocks along M, and what is found
    "reads before the others have written": (
        "    mbarrier_wait_cluster(full[warp], u32(round % 2));", "", 1, "race",
    ),
    "writes before the others have read": (
        "    if (round > 0) mbarrier_wait_cluster(empty[warp], u32((round - 1) % 2));", "", 1, "race",
    ),
    "never tells the others": (TELL, "", 1, "deadlock"),
    "the first lane speaks for others": (SYNC + TELL, TELL, 1, "race"),
    "never says that it has read": (
        "    if (peer) mbarrier_arrive_remote_release(empty[warp], u32(mate + lane * APART));", "", 1, "deadlock",
    ),
    "speaks to blocks that have returned": ("    if (!more) return;", "", 1, "misuse"),
    "peers that have not started": (
        "if (round == 0 && plan::CLUSTER_M * plan::CLUSTER_N == 1) cluster_wait();", "", 1, "race",
    ),
    "leaves while peers load into it": ("  if (MATES > 1) share.sync();", "", 2, "misuse"),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_kernel_is_found(name: str) -> None:
    there, instead, cluster_m, kind = MUTANTS[name]
    emulator, problem = EmulatorBackend(), tight(64 * cluster_m, 190, 520)
    plan = plan_of(cluster_k=2, cluster_m=cluster_m, blocks=2 * cluster_m, group=1, splits=1)
    operands = fresh(emulator, problem)
    source = SPLIT.source(plan, "host")
    assert source.text.count(there) == 1
    broken = replace(source, text=source.text.replace(there, instead))
    args = launch_arguments(emulator, plan, operands)
    rest = (plan.grid(problem), plan.block, args, plan.shared_bytes)
    check_races(emulator, source, *rest, cluster=plan.cluster)
    with pytest.raises(EmulatorFault) as caught:
        check_races(emulator, broken, *rest, cluster=plan.cluster)
    assert caught.value.kind == kind, caught.value


# ---- plans -----------------------------------------------------------------------------------------------------------


def test_one_cluster_to_a_tile_needs_no_workspace() -> None:
    problem = Problem(130, 72, 520, BF16)
    plan = plan_of(cluster_k=4, splits=1)
    assert plan.places(problem) == (0, 0)
    assert "in 1 part of 9 K blocks, each by 4 blocks of a cluster, on 20 blocks; no partial sums" in plan.said(problem)
    # A part of two: each of the four blocks leaves its quarter of the tile, and has its own counter.
    two = plan.with_(splits=2)
    needed = two.workspace(problem)
    assert needed is not None
    assert needed.partials == 6 * 2 * 64 * 64
    assert needed.counters == (6 * 2 + 6) * 4


def test_a_part_leaves_each_block_something() -> None:
    plan = plan_of(cluster_k=4, splits=5)
    assert [plan.parts(Problem(64, 64, 64 * blocks, BF16)) for blocks in (0, 3, 4, 11, 20, 99)] == [1, 1, 1, 2, 5, 5]


COMPLAINTS: list[tuple[dict[str, Any], str]] = [
    ({"cluster_k": 3}, "cluster_k is 3; 1, 2, 4, 8 blocks can share K"),
    ({"cluster_k": 4, "cluster_m": 4, "blocks": 16}, "the cluster is 4x1 and 4 along K; it has 1 to 8 blocks"),
    ({"blocks": 3}, "blocks is 3; it must be a multiple of the 2 blocks of a cluster"),
    (
        {"cluster_k": 4, "blocks": 4},
        "cluster_k is 4; it cuts 64 columns of a tile, which must give whole multiples of 32",
    ),
    ({"bn": 256, "stages": 5}, "shared memory is 245920 bytes with 5 stages"),
]


@pytest.mark.parametrize(("changes", "says"), COMPLAINTS)
def test_plans_that_no_kernel_has(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        plan_of(cluster_k=2).with_(**changes)
    assert str(caught.value).startswith(f"splitk split-k: {says}")


@pytest.mark.parametrize(("shape", "shared"), [((256, 256, 131072), True), ((512, 512, 64), False)])
def test_the_rule(shape: tuple[int, int, int], shared: bool) -> None:
    """Where a tile would have many parts a cluster adds up some of them; it is not asked to add up nothing."""
    problem = tight(*shape)
    plan = SplitKPlan.default(problem, aligned=True)
    assert (plan.cluster_k > 1) == shared
    assert plan.stages >= LEAST_STAGES
    assert plan.grid(problem)[0] <= (132 if plan.cluster < 4 else 120)
    assert Plan.from_dict(plan.to_dict()) == plan


def test_the_planner_offers_them_where_tiles_are_few() -> None:
    """With a time each; none for few tokens, for which swap-AB has clusters along K."""
    for shape, offered in (((256, 256, 131072), True), ((64, 4096, 7168), False), ((4096, 4096, 4096), False)):
        ranked = tilewright.plan(*shape, layout="rc", gpu="h200").ranked
        plans = [each.plan for each in ranked if isinstance(each.plan, SplitKPlan)]
        assert any(plan.cluster_k > 1 for plan in plans) == offered
        for plan in plans:
            if plan.cluster_k > 1:
                assert plan.blocks % plan.cluster == 0
                assert plan.work(tight(*shape)) <= plan.blocks // plan.cluster


def test_the_planner_counts_each_blocks_share() -> None:
    one, machine = np.ones(1, dtype=np.int64), machine_of("h200", None, None)[0]
    alone = partial_sums.exchange_us(one, 128 * 128 * one, machine)
    pair, four = (partial_sums.exchange_us(blocks * one, 128 * 128 * one, machine) for blocks in (2, 4))
    assert alone.tolist() == [0.0]
    moved = (four - 2 * partial_sums.EXCHANGE_US) / (pair - partial_sums.EXCHANGE_US)  # a wait for each doubling
    assert moved == pytest.approx(1.5)  # three quarters of a tile against a half


# ---- the compiler ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not nvrtc.available(), reason=str(nvrtc.unavailable_reason()))
def test_it_compiles_without_spills() -> None:
    """The tiles with the most accumulators, whose parts are a half and an eighth."""
    tiles: list[dict[str, Any]] = [
        {"bm": 128, "bn": 256, "cluster_k": 2, "fan_in": 4, "dependent_launch": True},
        {"bm": 256, "bn": 128, "cluster_k": 8, "epilogue_columns": 16},
        {"bm": 256, "bn": 128, "cluster_k": 2, "cluster_m": 2, **FP32_OUT},
    ]
    for values in tiles:
        plan = SplitKPlan(BF16, bk=64, b_layout="column", stages=2, blocks=120, **values).full()
        report = nvrtc.compile_kernel(SPLIT.source(plan, "gpu", "sm_90a")).report
        assert report.spill_bytes == report.stack_bytes == 0, plan
        assert not report.warnings, plan
