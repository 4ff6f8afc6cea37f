"""The judgement of a tile: each constraint with its numbers, the mistakes, and agreement with the plans there are."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright
from tilewright.errors import UsageError
from tilewright.gpu import get_gpu
from tilewright.plan_simt32 import Simt32Plan
from tilewright.plan_tensor import TensorPlan
from tilewright.planner import constraints
from tilewright.planner.judgement import Finding, Judgement
from tilewright.planner.planning import Planning
from tilewright.planner.why import time_us
from tilewright.problem import Problem

H200 = get_gpu("h200")
CUBE = (8192, 8192, 8192)


def judged(*shape: int, **choices: Any) -> Judgement:
    return tilewright.judge(*shape, **{"gpu": "h200", **choices})


def found(judgement: Judgement) -> dict[str, Finding]:
    return {each.name: each for each in judgement.findings}


def names(judgement: Judgement) -> list[str]:
    return [each.name for each in judgement.mistakes]


# ---- agreement with the plans there are


tiles = st.tuples(
    st.sampled_from((16, 64, 100, 128, 192, 256, 320, 384, 512)),
    st.sampled_from((8, 16, 24, 64, 100, 128, 160, 176, 192, 256, 264)),
    st.sampled_from((32, 64, 64, 64, 128)),
)
clusters = st.sampled_from(((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (8, 2), (3, 1)))
layouts = st.sampled_from(("rr", "rc", "cr", "cc"))
sizes = st.integers(1, 9000)


@settings(max_examples=30, deadline=None)
@given(
    shape=st.tuples(sizes, sizes, sizes), tile=tiles, stages=st.none() | st.integers(1, 15), cluster=clusters,
    consumers=st.none() | st.integers(1, 4), schedule=st.sampled_from((None, "cooperative", "pingpong")),
    layout=layouts,
)  # fmt: skip
def test_any_choice(
    shape: Any, tile: Any, stages: Any, cluster: Any, consumers: Any, schedule: Any, layout: str
) -> None:
    m, n, k = shape
    rows = ["row" if letter == "r" else "column" for letter in layout]
    problem = Problem(m, n, k, "bf16", a_layout=rows[0], b_layout=rows[1]).padded()  # type: ignore[arg-type]
    judgement = tilewright.judge(
        problem=problem, tile=tile, stages=stages, cluster=cluster, consumers=consumers, schedule=schedule, gpu="h200"
    )
    by_name = found(judgement)
    assert len(by_name) == len(judgement.findings)
    # One verdict: whatever constraint is broken, the plan refuses it too, and only what is not refused has a time.
    broken = [each.name for each in judgement.findings if each.hard and each.ok is False]
    assert ("kernel" in broken) is bool(broken)
    assert judgement.fits is not bool(broken)
    assert (judgement.candidate is not None) is judgement.fits
    assert all(each.sentence and each.source for each in judgement.findings)
    assert all(each.sentence and each.instead for each in judgement.mistakes)
    if judgement.candidate is not None:
        own = judgement.candidate
        assert (own.tile, own.stages, own.cluster) == (tile, judgement.stages, cluster)
        assert (own.consumers, own.schedule) == (judgement.consumers, judgement.schedule)
        assert stages in (None, own.stages)
        assert consumers in (None, own.consumers)
        assert own.operand_traffic_bytes_multicast == by_name["operand traffic"].value
        if own.family == "wgmma":
            assert own.accumulator_registers_per_thread == by_name["accumulators"].value
            assert isinstance(own.plan, TensorPlan)
        else:
            assert own.plan is not None
        assert all((judgement.gain(each) or 0) > 1 for each in judgement.better)
    assert Judgement.from_dict(json.loads(json.dumps(judgement.to_dict()))) == judgement


def test_every_kind_of_the_planner_fits_and_has_its_time() -> None:
    planning = tilewright.plan(4096, 7168, 2048, gpu="h200", layout="rc")
    seen: set[Any] = set()
    for each in planning.ranked:
        kind = (each.tile, each.cluster, each.consumers, each.schedule)
        if each.family != "wgmma" or kind in seen:
            continue
        seen.add(kind)
        judgement = tilewright.judge(
            problem=planning.problem, gpu="h200", tile=each.tile, stages=each.stages, cluster=each.cluster,
            consumers=each.consumers, schedule=each.schedule,
        )  # fmt: skip
        assert judgement.fits
        assert judgement.candidate == each
    assert len(seen) > 150


def test_the_best_is_not_bettered() -> None:
    pick = tilewright.plan(*CUBE, gpu="h200").pick
    judgement = judged(*CUBE, tile=pick.tile, cluster=pick.cluster)
    assert judgement.candidate == pick
    assert judgement.better == ()


def test_what_is_better_is_faster_by_the_gain() -> None:
    judgement = judged(*CUBE, tile=(128, 128, 64), top=5)
    assert judgement.candidate is not None
    assert len(judgement.better) == 5
    for each in judgement.better:
        gain = judgement.gain(each)
        assert gain == time_us(judgement.candidate, "sustained") / time_us(each, "sustained")
        assert gain is not None
        assert gain > 1.001
    burst = judged(*CUBE, tile=(128, 128, 64), clock="burst")
    assert burst.candidate is not None
    assert burst.gain(burst.better[0]) == time_us(burst.candidate, "burst") / time_us(burst.better[0], "burst")


def test_other_stages_have_another_time() -> None:
    times = {}
    for stages in (2, 3, 4):
        judgement = judged(*CUBE, tile=(128, 128, 64), stages=stages, clock="burst")
        assert judgement.candidate is not None
        assert judgement.candidate.stages == stages
        assert judgement.candidate.shared_bytes <= H200.shared_bytes_per_block
        times[stages] = time_us(judgement.candidate, "sustained")
    known = 1.003  # beside more stages there are fewer slabs for C, and the clock is known to 1 MHz
    assert times[2] * known >= times[3] >= times[4] / known
    five = judged(*CUBE, tile=(128, 256, 64), stages=5)
    assert not five.fits
    assert found(five)["stages"].sentence.endswith("5 asked for")


@pytest.mark.parametrize(
    ("layout", "choices", "reason"),
    [
        ("cc", {"tile": (320, 16, 64), "schedule": "pingpong"}, "bm is 320; tiles have 64, 128, 192, 256 or 384 rows"),
        ("rc", {"tile": (128, 192, 64), "cluster": (3, 1)}, "the cluster is 3x1; 1x1, 2x1, 1x2, 2x2, 4x1 are possible"),
        ("rc", {"tile": (128, 192, 64), "cluster": (1, 4)}, "the cluster is 1x4; 1x1, 2x1, 1x2, 2x2, 4x1 are possible"),
    ],
)
def test_what_is_outside_the_planners_space_is_no_kernel(layout: str, choices: Any, reason: str) -> None:
    judgement = judged(4096, 4096, 4096, layout=layout, **choices)
    assert not judgement.fits
    assert judgement.candidate is None
    assert judgement.findings[-1].sentence == f"rung 11: {reason}"
    assert len(judgement.better) == 3


# ---- constraints


def test_stages_beside_the_epilogue() -> None:
    both = constraints.stages(128, 128, 64, 2, 7, H200, 4096)
    assert (both.ok, both.limit) == (False, 6)
    assert both.sentence == (
        "a stage is 32 KB: (128 + 128) x 64 x 2 B = 32,768 B; 227 KB a block hold 7, 6 beside 4 KB for the epilogue; "
        "7 asked for"
    )
    one = constraints.stages(128, 128, 64, 2, 1, H200)
    assert one.ok is False
    assert one.sentence.endswith("1 asked for, and 2 are the least: one is read while another is filled")
    exact = H200.shared_bytes_per_block - 6 * (32 * 1024 + 16)
    assert constraints.stages_that_fit(32 * 1024, H200, exact) == 6
    assert constraints.stages_that_fit(32 * 1024, H200, exact + 1) == 5


def test_clusters_that_really_fit() -> None:
    four = constraints.clusters((2, 2), H200, 132)
    assert (four.ok, four.value, four.limit, four.hard) == (False, 30, 33, False)
    assert four.sentence == (
        "30 clusters of 4 run at a time on 132 SMs, not 132 // 4 = 33: a cluster lies in one GPC, and 12 SMs stay empty"
    )
    assert [constraints.clusters(size, H200, 132).ok for size in ((1, 1), (2, 1), (1, 2))] == [True] * 3
    none = constraints.clusters((4, 4), H200, 132)
    assert (none.ok, none.value, none.hard) == (False, 0, True)
    few = constraints.clusters((2, 1), H200, 1)
    assert (few.ok, few.value, few.hard) == (False, 0, True)


def test_multicast_counts_a_shared_byte_once() -> None:
    problem = Problem(*CUBE, "bf16")
    alone, pair = (constraints.operand_traffic(problem, 128, 256, each).value for each in ((1, 1), (2, 1)))
    assert (alone / 1e9, pair / 1e9) == pytest.approx((12.88, 8.59), abs=0.01)
    assert constraints.intensity(128, 256, 2, (2, 1)).value == 128
    supply = constraints.l2_bandwidth(problem, 128, 256, (2, 1), H200, 9.7e12, "x")
    assert (supply.ok, supply.limit) == (True, 9.7)
    assert supply.value == pytest.approx(7.73, abs=0.005)


@pytest.mark.parametrize(
    ("changes", "ok", "pitch"),
    [({}, True, 128), ({"lda": 65}, False, 130), ({"ldc": 68}, False, 136), ({"ldb": 2**39}, False, 2**40)],
)
def test_lines_that_tma_can_step_over(changes: Any, ok: bool, pitch: int) -> None:
    problem = Problem(64, 64, 64, "bf16", **changes)
    line = constraints.tma_lines(problem)
    assert (line.ok, line.value) == (ok, pitch)
    if not ok:
        judgement = tilewright.judge(problem=problem, tile=(256, 192, 64), gpu="h200")
        assert found(judgement)["TMA lines"].ok is False
        assert not judgement.fits
        assert "TMA" in found(judgement)["kernel"].sentence
        other = tilewright.judge(problem=problem, tile=(64, 64, 64), gpu="h200")  # which threads load
        assert found(other)["TMA lines"].ok is False
        assert other.fits
        assert other.candidate is not None
        family = other.candidate.family
        assert family in (("swapab", "mma_sync") if "ldc" in changes else ("mma_sync",))  # one's TMA loads all the same
        assert family in found(other)["kernel"].sentence


def test_the_planners_own_pick_fits_whatever_its_family() -> None:
    for problem in (Problem(*CUBE, "fp32"), Problem(*CUBE, "bf16", lda=8193), Problem(100, 100, 100, "fp16")):
        pick = tilewright.plan(problem=problem, gpu="h200").pick
        judgement = tilewright.judge(problem=problem, tile=pick.tile, gpu="h200")
        assert judgement.fits
        assert judgement.candidate == pick
        assert judgement.better == ()
        assert type(judgement).from_dict(judgement.to_dict()) == judgement


def test_of_fewer_sms_the_roof_is_lower() -> None:
    whole, one = (tilewright.judge(*CUBE, tile=(128, 256, 64), gpu="h200", sms=sms) for sms in (132, 1))
    asked = [found(each)["L2 bandwidth"].value for each in (whole, one)]
    assert asked[0] == pytest.approx(132 * asked[1])


def test_half_tiles_fill_the_last_round_in_the_finding_as_in_the_candidate() -> None:
    judgement = tilewright.judge(640, 7168, 2048, tile=(128, 192, 64), gpu="h200")
    assert judgement.candidate is not None
    assert judgement.candidate.tail == "half"
    assert found(judgement)["waves"].value == pytest.approx(judgement.candidate.wave_efficiency)


@pytest.mark.parametrize(
    ("tile", "cluster", "layouts", "lines"),
    [
        ((384, 128, 64), (1, 1), ("row", "row"), 384),
        ((384, 128, 64), (1, 2), ("row", "row"), 192),
        ((384, 128, 64), (1, 1), ("column", "row"), 64),
        ((128, 256, 64), (1, 1), ("row", "column"), 256),
        ((128, 256, 64), (2, 1), ("row", "column"), 128),
    ],
)
def test_boxes(tile: Any, cluster: Any, layouts: Any, lines: int) -> None:
    box = constraints.tma_box(tile[0], tile[1], tile[2], cluster, layouts)
    assert (box.value, box.ok) == (lines, lines <= 256)


def test_edges_and_rows() -> None:
    waste = constraints.edge_waste(Problem(1000, 1000, 64, "bf16"), 128, 256)
    assert waste.value == pytest.approx(1 - 1000 * 1000 / (1024 * 1024))
    assert waste.ok
    assert constraints.edge_waste(Problem(129, 256, 64, "bf16"), 128, 256).ok is False
    for m, bm, ok in ((64, 128, False), (65, 128, True), (1, 64, True), (128, 256, False), (5000, 256, True)):
        assert constraints.rows_of_m(Problem(m, 256, 64, "bf16"), bm).ok is ok, (m, bm)


# ---- mistakes


@pytest.mark.parametrize(
    ("shape", "choices", "mistake"),
    [
        (CUBE, {"tile": (256, 256, 64)}, "sized by shared memory alone"),
        (CUBE, {"tile": (256, 256, 64), "stages": 3}, "sized by shared memory alone"),
        (CUBE, {"tile": (128, 128, 64), "stages": 7, "consumers": 2}, "all shared memory for stages"),
        (CUBE, {"tile": (128, 256, 128)}, "BK for reuse"),
        (CUBE, {"tile": (256, 128, 32)}, "BK for reuse"),
        ((16, 4096, 4096), {"tile": (128, 128, 64)}, "a tall tile for few rows"),
        ((640, 7168, 7168), {"tile": (128, 256, 64)}, "a tile too large for the waves"),
        (CUBE, {"tile": (64, 64, 64), "stages": 2}, "too few stages"),
        (CUBE, {"tile": (64, 64, 64)}, "a tile too small for L2"),
        ((128, 8192, 4096), {"tile": (256, 128, 64)}, "the long side of the tile on the short one of C"),
        (CUBE, {"tile": (128, 256, 64), "cluster": (2, 2)}, "clusters counted by division"),
    ],
)
def test_each_mistake_is_found(shape: tuple[int, int, int], choices: Any, mistake: str) -> None:
    judgement = judged(*shape, **choices)
    assert mistake in names(judgement)
    # and what the planner itself takes makes none; that K is shared in the last wave no tile says, though
    ranked = tilewright.plan(*shape, gpu="h200").ranked
    pick = next(each for each in ranked if each.family not in ("splitk", "streamk"))
    taken = judged(
        *shape, tile=pick.tile, stages=pick.stages, cluster=pick.cluster, consumers=pick.consumers,
        schedule=pick.schedule,
    )  # fmt: skip
    assert mistake not in names(taken)


@pytest.mark.parametrize("layout", ["rr", "rc"])
def test_advice_names_a_tile_that_a_kernel_has(layout: str) -> None:
    """Three warpgroups have too few registers at entry for what their accumulators leave; row-major B lies in 64s."""
    shape = (4096, 4096, 4096)
    has = {(each.tile[:2], each.consumers) for each in tilewright.plan(*shape, gpu="h200", layout=layout).ranked}
    for tile, consumers in (((192, 256), 3), ((256, 208), 2), ((256, 256), 2), ((128, 256), 1), ((384, 224), 3)):
        judgement = judged(*shape, layout=layout, tile=(*tile, 64), consumers=consumers)
        assert "a tile too small for L2" not in names(judgement)  # no kernel has it
        for mistake in judgement.mistakes:
            if mistake.name != "sized by shared memory alone":
                continue
            *_, told = re.findall(r"(?:rows|has) (\d+)", mistake.instead)
            assert ((tile[0], int(told)), consumers) in has
    assert constraints.rows_of_m(Problem(300, 256, 64, "bf16"), 384).ok  # of 320 rows there is no tile
    turned = judged(128, 8192, 4096, tile=(320, 128, 64))
    assert all("128 x 320" not in each.instead for each in turned.mistakes)


# ---- bad input, and problems with nothing to do


@pytest.mark.parametrize(
    ("choices", "sentence"),
    [
        ({"tile": (128, 256)}, r"tile is \(128, 256\); it must be 3 whole numbers \(BM, BN and BK\) from 1 to 65536"),
        ({"tile": (128, 256, 0)}, "tile is"),
        ({"tile": (128, 256, True)}, "tile is"),
        ({"tile": (128, 2.5, 64)}, "tile is"),
        ({"tile": "128x256x64"}, "tile is '128x256x64'; it must be 3 whole numbers"),
        ({"tile": None}, "tile is None"),
        ({"tile": (2**17, 256, 64)}, "from 1 to 65536"),
        ({"cluster": (2,)}, r"cluster is \(2,\); it must be 2 whole numbers \(blocks along M and along N\)"),
        ({"cluster": 2}, "cluster is 2; it must be 2 whole numbers"),
        ({"stages": 0}, "stages is 0; it must be a whole number from 1 to 65536"),
        ({"stages": "4"}, "stages is '4'; it must be a whole number"),
        ({"consumers": -1}, "consumers is -1; it must be a whole number"),
        ({"schedule": "simt"}, "schedule is 'simt'; cooperative and pingpong are possible"),
        ({"top": -1}, "top is -1; it must be a whole number, 0 or more"),
        ({"gpu": "b200"}, "GPU 'b200' is not one of h100"),
        ({"dtype": "fp8"}, "dtype 'fp8' is not one of fp32, bf16, fp16"),
    ],
)
def test_what_is_no_question(choices: Any, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        judged(*CUBE, **{"tile": (128, 256, 64), **choices})


@pytest.mark.parametrize("shape", [(0, 64, 64), (64, 0, 64), (64, 64, 0), (0, 0, 0)])
def test_nothing_to_multiply(shape: tuple[int, int, int]) -> None:
    judgement = judged(*shape, tile=(128, 256, 64))
    assert "L2 bandwidth" not in found(judgement)
    assert ("waves" in found(judgement)) is (0 not in shape[:2])
    assert names(judgement) == [] or shape[2] == 0
    assert Judgement.from_dict(judgement.to_dict()) == judgement


def test_tensor_cores_take_no_fp32() -> None:
    judgement = judged(*CUBE, tile=(128, 256, 64), dtype="fp32")
    assert not judgement.fits
    assert "dtype is fp32; tensor cores multiply bf16 or fp16" in found(judgement)["kernel"].sentence
    assert {each.family for each in judgement.better} == {"simt"}


def test_an_assumed_gpu_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    planning: Planning = tilewright.plan(*CUBE)
    judgement = tilewright.judge(*CUBE, tile=(128, 256, 64))
    assert (judgement.gpu, judgement.assumed_gpu) == (planning.gpu, planning.assumed_gpu)
    assert judgement.to_dict()["assumed_gpu"] is planning.assumed_gpu
    few = tilewright.judge(*CUBE, tile=(128, 256, 64), gpu="h200", sms=64)
    assert few.sms == 64
    assert "/ 64 at a time" in found(few)["waves"].sentence


def test_blocks_that_share_an_sm_have_places_at_the_same_time() -> None:
    """Of rung 5 an SM holds four blocks with 48 KB each, of the CUDA-core kernels as many as the plan says."""
    odd = judged(1024, 1024, 1025, tile=(64, 64, 64))
    assert "256 tiles / 528 at a time = 0.4848 waves: 1 to run" in found(odd)["waves"].sentence
    assert odd.candidate is not None
    assert (odd.candidate.waves, odd.candidate.wave_efficiency) == (1, 256 / 528)
    for each in tilewright.plan(2048, 2048, 512, dtype="fp32", gpu="h200").ranked:
        assert isinstance(each.plan, Simt32Plan)
        places = 132 * each.plan.blocks_per_sm
        assert each.waves == -(-each.tiles // places)
        assert each.wave_efficiency == each.tiles / (each.waves * places)
