"""Split-K and stream-K: what holds of both, on both backends. Their cuts have tests of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ladder_cases import LAYOUTS, padded, part, product
from part_cases import (
    FP32_OUT,
    KINDS,
    Layouts,
    counters,
    fresh,
    kernel_of,
    launched,
    small_plan,
    tight,
    workspace_for,
)

from tilewright import nvrtc
from tilewright.backends.base import Backend
from tilewright.backends.cuda import CudaBackend
from tilewright.backends.emulator import EmulatorBackend
from tilewright.backends.emulator_checks import check_races
from tilewright.backends.emulator_runtime import POLICIES, Policy
from tilewright.branches import LAYOUTS as BRANCH_LAYOUTS
from tilewright.checked import check
from tilewright.dtypes import BF16, FP16, FP32, DType
from tilewright.errors import EmulatorFault, UsageError
from tilewright.operands import random_operands
from tilewright.problem import Problem
from tilewright.run import Operands, arguments, launch_arguments, make_operands, prepare, run
from tilewright.workspace import make

each_branch = pytest.mark.parametrize("branch", KINDS)
each_policy = pytest.mark.parametrize("policy", POLICIES)
SHAPES = [(1, 1, 1), (64, 64, 64), (65, 70, 200), (130, 136, 520), (7, 330, 1544)]

# ---- products --------------------------------------------------------------------------------------------------------


@each_branch
@pytest.mark.parametrize(
    ("dtype", "changes"),
    [(BF16, {}), (FP16, {"fan_in": 2, "dependent_launch": True})],
    ids=["bf16 at once", "fp16 in groups"],
)
def test_any_shape(backend: Backend, branch: str, dtype: DType, changes: dict[str, Any]) -> None:
    plan = small_plan(branch, dtype, **changes)
    for shape in SHAPES:
        found = product(backend, kernel_of(plan), tight(*shape, dtype), plan, fill="integers")
        loose = padded(*shape, dtype, aligned=True, layouts=BRANCH_LAYOUTS)
        np.testing.assert_array_equal(product(backend, kernel_of(plan), loose, plan, fill="integers"), found)


@each_branch
@pytest.mark.parametrize("layouts", LAYOUTS, ids=lambda pair: f"{pair[0][0]}{pair[1][0]}")
def test_every_layout_and_cluster(backend: Backend, branch: str, layouts: Layouts) -> None:
    cluster: dict[str, Any] = {"cluster_m": 2} if layouts[0] == "row" else {"cluster_n": 2}
    plan = small_plan(branch, BF16, layouts, **cluster, group=1, along_n=layouts[1] == "row")
    for shape in SHAPES[2:]:
        product(backend, kernel_of(plan), tight(*shape, BF16, layouts), plan)


@each_branch
def test_wide_tiles(backend: Backend, branch: str) -> None:
    tiles: list[dict[str, Any]] = [{"bm": 128, "bn": 256}, {"bm": 256, "bn": 128, "fan_in": 2}]
    for changes in tiles:
        plan = small_plan(branch, consumers=2, consumer_registers=232, blocks=4, **changes)
        product(backend, kernel_of(plan), tight(200, 264, 520), plan)


@each_branch
@pytest.mark.cuda
@pytest.mark.parametrize(
    "shape", [(1024, 1024, 8192), (256, 256, 16384), (1160, 1416, 1096), (2304, 2304, 1032), (640, 7168, 2048)]
)
def test_default_plans(cuda: Backend, branch: str, shape: tuple[int, int, int]) -> None:
    kernel, kind = KINDS[branch]
    problem = tight(*shape)
    for dependent in (False, True):
        product(cuda, kernel, problem, kind.default(problem, aligned=True).with_(dependent_launch=dependent))


@each_branch
def test_ones_add_up_to_k_in_fp32(backend: Backend, branch: str) -> None:
    cuts: dict[str, list[dict[str, Any]]] = {
        "splitk": [{"splits": 1}, {"splits": 2}, {"splits": 7, "fan_in": 3}, {"splits": 5, "interleave_k": True}],
        "streamk": [{}, {"two_tiles": True}, {"blocks": 7, "fan_in": 2}],
    }
    for cut in cuts[branch]:
        plan = small_plan(branch, **{**FP32_OUT, **cut})
        for k in (1, 63, 64, 65, 255, 449, 1000, 4097):
            ones = np.ones((66, k), BF16.numpy), np.ones((k, 70), BF16.numpy)
            c = product(backend, kernel_of(plan), tight(66, 70, k, out=FP32), plan, pair=ones)
            np.testing.assert_array_equal(c, np.float32(k))


@each_branch
def test_sums_are_kept_in_fp32(backend: Backend, branch: str) -> None:
    plan = small_plan(branch)
    product(backend, kernel_of(plan), tight(10, 72, 520), plan, fill="probe")


@each_branch
def test_a_sum_of_nothing_is_zero(backend: Backend, branch: str) -> None:
    plan = small_plan(branch)
    for m, n in ((9, 130), (1, 1)):
        c = product(backend, kernel_of(plan), tight(m, n, 0), plan)
        np.testing.assert_array_equal(c.view(np.uint8), 0)


@each_branch
def test_an_empty_c_launches_nothing(backend: Backend, branch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(*_: object, **__: object) -> None:
        raise AssertionError("launched")

    monkeypatch.setattr(backend, "launch", launch)
    plan = small_plan(branch)
    for m, n, k in ((0, 16, 5), (7, 0, 5), (0, 0, 0)):
        run(backend, kernel_of(plan), fresh(backend, tight(m, n, k)), plan)


# ---- who comes last --------------------------------------------------------------------------------------------------


@each_branch
@pytest.mark.parametrize("fan_in", [0, 2])
def test_the_bits_depend_on_no_order_of_blocks(emulator: EmulatorBackend, branch: str, fan_in: int) -> None:
    """Any block may be last: forwards, backwards, all at once in turns, and whatever TMA and wgmma do meanwhile."""
    cut: dict[str, Any] = {"splits": 7} if branch == "splitk" else {}
    plan = small_plan(branch, fan_in=fan_in, blocks=7, **cut)
    problem = tight(130, 72, 1000)
    expected = None
    schedules: list[tuple[Policy, int]] = [("eager", 0), ("lazy", 0), ("random", 1), ("random", 2)]
    for policy, seed in schedules:
        place = EmulatorBackend(policy, seed=seed)
        workspace = workspace_for(place, plan, problem=problem)
        for backwards in (False, True):
            for together in (1, 3, 8):
                operands = fresh(place, problem)
                found = launched(place, plan, operands, workspace, backwards=backwards, together=together)
                expected = found if expected is None else expected
                np.testing.assert_array_equal(found, expected)


@each_branch
@each_policy
def test_nothing_races(branch: str, policy: Policy) -> None:
    changed: list[dict[str, Any]] = [{}, {"fan_in": 2, "cluster_m": 2, "group": 1}]
    for changes in changed:
        plan, problem = small_plan(branch, **changes), tight(130, 72, 520)
        place = EmulatorBackend(policy, seed=2)
        assert check(place, kernel_of(plan), plan, fresh(place, problem)) == plan.grid(problem)[0]


@each_branch
@pytest.mark.cuda
@pytest.mark.timeout(300)
@pytest.mark.parametrize("changes", [{}, {"fan_in": 2}, {"dependent_launch": True}], ids=str)
def test_a_thousand_launches_give_the_same_bits(cuda: Any, branch: str, changes: dict[str, Any]) -> None:
    assert isinstance(cuda, CudaBackend)
    kernel, kind = KINDS[branch]
    problem = tight(520, 1032, 4104)
    plan = kind.default(problem, aligned=True).with_(**changes)
    operands = fresh(cuda, problem)
    launch = prepare(cuda, kernel, plan, operands)
    launch(cuda)
    first = cuda.download(operands.c).view(np.uint16)
    for number in range(1, 1000):
        if number % 10 == 0:
            cuda.poison(operands.c)
        launch(cuda)
        assert np.array_equal(cuda.download(operands.c).view(np.uint16), first), number


@each_branch
@pytest.mark.cuda
def test_in_a_graph_and_one_under_the_other(cuda: Any, branch: str) -> None:
    """Launches that share a workspace and start under each other, replayed: no memset is between them."""
    assert isinstance(cuda, CudaBackend)
    kernel, kind = KINDS[branch]
    problem = tight(520, 1032, 4104)
    plan = kind.default(problem, aligned=True).with_(dependent_launch=True)
    workspace = workspace_for(cuda, plan, problem=problem)
    sets = [fresh(cuda, problem, seed) for seed in range(8)]
    launches = [prepare(cuda, kernel, plan, operands, workspace=workspace) for operands in sets]
    expected = []
    for launch, operands in zip(launches, sets, strict=True):
        launch(cuda)
        expected.append(cuda.download(operands.c).view(np.uint16))
    builder = cuda.stream.create_graph_builder()
    builder.begin_building("relaxed")
    for launch in launches:
        launch(cuda, builder)
    builder.end_building()
    graph = builder.complete()
    for _ in range(50):
        for operands in sets:
            cuda.poison(operands.c)
        with cuda.current():
            graph.launch(cuda.stream)
        for operands, bits in zip(sets, expected, strict=True):
            np.testing.assert_array_equal(cuda.download(operands.c).view(np.uint16), bits)


# ---- what is found when it is broken ---------------------------------------------------------------------------------

ORDER = "atomic_add<Order::kAcquireRelease>(counter, 1)"
MUTANTS = {  # what is taken out of the kernel, and what stands there instead
    "nothing is released": (ORDER, "atomic_add<Order::kAcquire>(counter, 1)"),
    "nothing is acquired": (ORDER, "atomic_add<Order::kRelease>(counter, 1)"),
    "an atomic without an order": (ORDER, "atomic_add<Order::kRelaxed>(counter, 1)"),
    "counted before all have written": (
        "    barrier_sync(barrier, 128);\n    if (threadIdx.x % 128 == 0) seen",
        "    if (threadIdx.x % 128 == 0) seen",
    ),
    "looked at before it is known": ("    barrier_sync(barrier, 128);\n    if (seen", "    if (seen"),
    "read without waiting for the others": (
        "if (seen != u32(count - 1)) return false;",
        "if (self != 0) return false;",
    ),
}


@each_branch
@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_kernel_is_found(emulator: EmulatorBackend, branch: str, name: str) -> None:
    plan, problem = small_plan(branch), tight(64, 70, 520)
    operands = fresh(emulator, problem)
    there, instead = MUTANTS[name]
    source = kernel_of(plan).source(plan, "host")
    assert source.text.count(there) == 1
    for text in (source.text, source.text.replace(there, instead)):
        args = launch_arguments(emulator, plan, operands)
        rest = (plan.grid(problem), plan.block, args, plan.shared_bytes)
        if text == source.text:
            check_races(emulator, source, *rest, together=8)
            continue
        with pytest.raises(EmulatorFault) as caught:
            check_races(emulator, replace(source, text=text), *rest, together=8)
        assert caught.value.kind == "race", caught.value
        assert "seen" in name or "looked" in name or "matrix 3" in str(caught.value)


@each_branch
def test_a_counter_that_is_not_put_back(emulator: EmulatorBackend, branch: str) -> None:
    plan, problem = small_plan(branch), tight(64, 70, 520)
    source = kernel_of(plan).source(plan, "host")
    there = "if (threadIdx.x % 128 == 0) *counter = 0;"
    assert source.text.count(there) == 1
    broken = emulator.compile(replace(source, text=source.text.replace(there, "")))
    operands, workspace = fresh(emulator, problem), workspace_for(emulator, plan, problem=problem)
    launch = replace(prepare(emulator, kernel_of(plan), plan, operands, workspace=workspace), kernel=broken)
    launch(emulator)
    assert np.isfinite(emulator.download(operands.c).astype(np.float32)).all()
    assert counters(emulator, workspace).any()
    again = fresh(emulator, problem)
    replace(launch, args=[*arguments(plan, again), *launch.args[len(arguments(plan, again)) :]])(emulator)
    assert np.isnan(emulator.download(again.c).astype(np.float32)).any()  # nobody was last


# ---- workspaces ------------------------------------------------------------------------------------------------------


def test_a_workspace_is_of_whoever_made_it(backend: Backend) -> None:
    """One for several plans, one launch after another, with no memset between them."""
    problem = tight(130, 136, 520)
    changed: list[dict[str, Any]] = [{}, {"fan_in": 2}, {"blocks": 3}]
    plans = [small_plan(branch, **changes) for branch in KINDS for changes in changed]
    workspace = workspace_for(backend, *plans, problem=problem)
    a, b = random_operands(problem)
    for plan in [*plans, *plans[::-1]]:
        expected = product(backend, kernel_of(plan), problem, plan, pair=(a, b))
        operands = make_operands(backend, problem, a, b)
        run(backend, kernel_of(plan), operands, plan, workspace=workspace)
        np.testing.assert_array_equal(backend.download(operands.c), expected)
        assert not counters(backend, workspace).any()


@pytest.mark.parametrize("name", ["a", "b", "c"])
@pytest.mark.parametrize("after", [0, 2**16])
def test_no_operand_lies_in_the_workspace(emulator: EmulatorBackend, name: str, after: int) -> None:
    plan, problem = small_plan("streamk"), tight(64, 72, 520)
    operands, workspace = fresh(emulator, problem), make(emulator, 2**18)
    inside = replace(getattr(operands, name), pointer=workspace.pointer + after)  # in the counters, and in the sums
    with pytest.raises(UsageError, match=f"{name.upper()} shares memory with the workspace"):
        prepare(emulator, kernel_of(plan), plan, replace(operands, **{name: inside}), workspace=workspace)


def test_what_is_no_workspace(emulator: EmulatorBackend) -> None:
    plan, problem = small_plan("splitk"), tight(64, 70, 520)
    operands, needed = fresh(emulator, problem), plan.workspace_bytes(problem)
    assert needed == 4 * (2**14 + 3 * 2 * 64 * 64)
    small = make(emulator, needed - 4)
    with pytest.raises(
        UsageError, match=rf"the workspace is 1x{needed // 4 - 1} of fp32; the plan needs a row of {needed}"
    ):
        prepare(emulator, kernel_of(plan), plan, operands, workspace=small)
    shifted = part(make(emulator, needed + 4), 1, needed // 4, col=1)
    with pytest.raises(UsageError, match="it must be on a 16-byte boundary"):
        prepare(emulator, kernel_of(plan), plan, operands, workspace=shifted)
    with pytest.raises(UsageError, match="the workspace is a int; it must be a row of a matrix"):
        prepare(emulator, kernel_of(plan), plan, operands, workspace=5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="so many tiles need no cut"):
        plan.workspace_bytes(Problem(64 * 80, 64 * 80, 520, BF16))


# ---- what is refused -------------------------------------------------------------------------------------------------


@each_branch
def test_operands_that_do_not_fit(emulator: EmulatorBackend, branch: str) -> None:
    plan = small_plan(branch)
    fp32 = fresh(emulator, tight(64, 70, 65, out=FP32))
    with pytest.raises(UsageError, match="writes C in bf16 by this plan, and C is fp32"):
        prepare(emulator, kernel_of(plan), plan, fp32)
    assert KINDS[branch][0].plan_for(fp32.problem, aligned=True).out_dtype is FP32
    whole = emulator.upload(np.ones((9, 80), BF16.numpy))
    a, b = part(whole, 8, 64, col=1), emulator.upload(np.ones((64, 64), BF16.numpy), 64, "column")
    with pytest.raises(UsageError, match="TMA"):
        prepare(emulator, kernel_of(plan), plan, Operands(a, b, emulator.empty(8, 64, BF16)))


COMPLAINTS: list[tuple[dict[str, Any], str]] = [
    ({"bm": 32}, "the tile is 32x64; it must be a multiple of 64x16"),
    ({"stages": 1}, "stages is 1; one is read while another is filled"),
    ({"stages": 15}, "shared memory is 254192 bytes with 15 stages; a block has 232448"),
    ({"blocks": 0}, "blocks is 0"),
    ({"cluster_m": 2, "blocks": 3}, "blocks is 3; it must be a multiple of the 2 blocks of a cluster"),
    ({"aligned": False}, "aligned is False; it stores C by TMA"),
    ({"a_layout": "diagonal"}, "a_layout is 'diagonal'"),
    ({"fan_in": 1}, "fan_in is 1; 0 (all parts at once) and 2 to 32768 are possible"),
    ({"out_dtype": FP32, "epilogue_columns": 64}, "epilogue_columns is 64; of fp32 a line of 128 bytes has 32"),
    (
        {"bm": 256, "bn": 192, "consumers": 2, "consumer_registers": 232},
        "a tile of 256x192 takes 192 accumulators, and adding up partial sums about 56 other registers",
    ),
    (
        {"consumers": 2, "bm": 128, "producer_registers": 48, "consumer_registers": 240},
        "48 + 2 x 240 registers are 528; the block starts with 3 x 168 = 504",
    ),
]


@each_branch
@pytest.mark.parametrize(("changes", "says"), COMPLAINTS, ids=lambda value: str(value)[:30])
def test_plans_that_no_kernel_has(branch: str, changes: dict[str, Any], says: str) -> None:
    plan = small_plan(branch)
    with pytest.raises(UsageError) as caught:
        plan.with_(**changes)
    assert str(caught.value).startswith(f"{plan.of}: {says}")


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(UsageError, match="dtype is fp32; bf16 and fp16 are possible"):
        small_plan("splitk", FP32)


# ---- the compiler ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not nvrtc.available(), reason=str(nvrtc.unavailable_reason()))
@each_branch
def test_it_compiles_without_spills(branch: str) -> None:
    """The tiles with the most accumulators; check_kernels.py has those of the rules."""
    kernel, kind = KINDS[branch]
    tiles: list[dict[str, Any]] = [
        {"bm": 128, "bn": 256, "fan_in": 4, "cluster_m": 2, "dependent_launch": True},
        {"bm": 256, "bn": 128, "fan_in": 4, **FP32_OUT},
    ]
    for values in tiles:
        plan = kind(BF16, bk=64, b_layout="column", **values).full()
        report = nvrtc.compile_kernel(kernel.source(plan, "gpu", "sm_90a")).report
        assert report.spill_bytes == report.stack_bytes == 0, plan
        assert not report.warnings, plan
