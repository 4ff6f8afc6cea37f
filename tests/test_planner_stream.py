"""The kernels that stream the weights, as the planner sees them: floors, what slows them, where each is picked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright
from tilewright.dtypes import BF16
from tilewright.errors import UsageError
from tilewright.plan_decode import GemvPlan, MmaPlan
from tilewright.plan_parts import PartsPlan
from tilewright.plan_splitk import SplitKPlan
from tilewright.plan_streamk import parts_of
from tilewright.plan_swapab import SwapAbPlan
from tilewright.planner import partial_sums
from tilewright.planner import stream_constraints as limits
from tilewright.planner.candidate import Candidate
from tilewright.planner.choice import of_family
from tilewright.planner.family import families, family_of, priced
from tilewright.planner.plan import machine_of
from tilewright.planner.reasons import reasons
from tilewright.planner.supply import together
from tilewright.problem import Problem

H200 = machine_of("h200", None, None)[0]
BRANCHES = ("decode_gemv", "decode_mma", "swapab")
PARTS = ("splitk", "streamk")
# The decode group of the suite that the targets are of.
DECODE = (
    (1, 4096, 4096), (1, 28672, 4096), (1, 4096, 14336), (1, 128256, 4096), (8, 4096, 4096), (8, 28672, 4096),
    (8, 4096, 14336), (16, 8192, 8192), (16, 7168, 2048), (32, 6144, 4096), (32, 28672, 4096), (64, 2112, 7168),
    (64, 24576, 1536), (64, 7168, 16384), (64, 4096, 7168), (64, 7168, 2048),
)  # fmt: skip
sizes = st.integers(1, 1024).map(lambda each: 8 * each)


def problem(m: int, n: int, k: int) -> Problem:
    return Problem(m, n, k, "bf16", b_layout="column")


def us(candidate: Candidate) -> float:
    assert candidate.predicted_us is not None
    return candidate.predicted_us.sustained


def plans(m: int) -> list[GemvPlan | MmaPlan | SwapAbPlan]:
    """One of each kernel that takes M."""
    shape = problem(m, 4096, 4096)
    found: list[GemvPlan | MmaPlan | SwapAbPlan] = [SwapAbPlan.default(shape, aligned=True)]
    found += [MmaPlan.default(shape, aligned=True)] if m <= 16 else []
    return found + ([GemvPlan.default(shape, aligned=True)] if m <= 4 else [])


@given(m=st.integers(1, 200), n=sizes, k=sizes, more=st.sampled_from([(0, 1024, 0), (0, 0, 1024), (0, 512, 512)]))
@settings(max_examples=40, deadline=None)
def test_more_bytes_are_never_faster_and_nothing_beats_hbm(m: int, n: int, k: int, more: tuple[int, int, int]) -> None:
    larger = problem(m, n + more[1], k + more[2])
    for plan in plans(m):
        small, large = (priced(plan, each, H200) for each in (problem(m, n, k), larger))
        if not isinstance(plan, GemvPlan) or k % plan.bk == 0:  # it ends slowly within a step of K
            assert us(small) <= us(large) * 1.01  # tiles at an edge are taken as the mean of all
        floor = larger.bytes_moved / H200.gpu.hbm_bytes_per_s * 1e6
        assert us(large) >= floor
        dependent = priced(plan.with_(dependent_launch=True), larger, H200)
        assert floor <= us(dependent) < 1.5 * us(large)  # unevenly on the SMs, or out of step: L2 gives 1.4 times less


def test_less_bandwidth_and_fewer_sms_take_longer() -> None:
    c = H200.calibration
    slow = replace(H200, calibration=replace(c, hbm_read_bytes_per_s=c.hbm_read_bytes_per_s / 2))
    few = replace(H200, sms=33)
    shape = problem(1, 28672, 4096)
    for plan in plans(1):
        here = us(priced(plan, shape, H200))
        assert us(priced(plan, shape, slow)) > 1.7 * here
        assert us(priced(plan, shape, few)) > 1.3 * here


def test_a_shallow_ring_does_not_draw_the_bandwidth() -> None:
    shape = problem(16, 8192, 8192)
    full = SwapAbPlan.default(shape, aligned=True)
    times = [us(priced(full.with_(stages=stages), shape, H200)) for stages in (2, 3, 4, 6, full.stages)]
    assert times == sorted(times, reverse=True)
    assert times[0] > 1.45 * times[-1]
    assert times[3] < 1.1 * times[-1]


def test_two_that_go_on_at_once_delay_each_other_where_they_come_near() -> None:
    one, other = np.array([1.0, 1.0, 0.0]), np.array([1.0, 0.1, 0.0])
    assert together([one, other]) == pytest.approx([2 ** (1 / 4), 1.0, 0.0], abs=1e-4)


@pytest.mark.parametrize("shape", DECODE)
def test_the_pick_of_a_decode_step(shape: tuple[int, int, int]) -> None:
    """Under a dependent launch a branch wins where the fixed cost counts; elsewhere it is close."""
    planning = tilewright.plan(*shape, layout="rc", gpu="h200", pdl=True)
    best = next(each for each in planning.ranked if each.family in BRANCHES)
    assert best.plan is not None
    large = planning.problem.bytes_moved > 200e6 and shape[0] > 2  # gains nothing by it, but for the launch behind
    launch = machine_of("h200", None, None)[0].calibration.launch_us if large else 0.0
    assert best.plan.dependent or large
    assert best.swap_ab is (best.family == "swapab")
    assert us(best) < 1.1 * us(planning.pick)
    split_too = ((64, 2112, 7168), (64, 4096, 7168))  # is as good there
    if shape[0] <= 2 or (planning.problem.bytes_moved < 70e6 and shape not in split_too):
        assert best == planning.pick
    if shape[0] > 16:
        assert best.family == "swapab"
    alone = tilewright.plan(*shape, layout="rc", gpu="h200")
    slower = next(each for each in alone.ranked if each.family in BRANCHES)
    assert us(best) < us(slower) + launch
    assert us(slower) < 1.12 * us(alone.pick)


@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (8192, 8192, 512), (2048, 2048, 2048), (8192, 8192, 8192)])
def test_square_problems_stay_with_the_square_kernel(shape: tuple[int, int, int]) -> None:
    for dependent, more in ((True, 1.01), (False, 1.03)):  # a dependent launch hides some of it
        planning = tilewright.plan(*shape, layout="rc", gpu="h200", pdl=dependent)
        assert planning.pick.family == "wgmma"
        best = next(each for each in planning.ranked if each.family == "swapab")
        assert us(best) > more * us(planning.pick)


def test_few_tiles_share_k_and_many_do_not() -> None:
    """As a study of such kernels measured it: clusters of 8 for a few tiles, none where there are SMs enough."""
    for n in (256, 576):
        best = next(
            each for each in tilewright.plan(16, n, 7168, layout="rc", gpu="h200").ranked if each.family == "swapab"
        )
        assert best.split == 8
    for n in (6144, 7168, 8192, 28672):
        best = next(
            each for each in tilewright.plan(16, n, 4096, layout="rc", gpu="h200").ranked if each.family == "swapab"
        )
        assert best.split == 1


def test_each_plan_is_what_its_candidate_says_and_its_time_is_its_own() -> None:
    for m, pdl in ((1, False), (3, True), (16, False), (64, True)):
        planning = tilewright.plan(m, 4096, 7168, layout="rc", gpu="h200", pdl=pdl)
        labels = [each.label for each in planning.ranked]
        assert len(set(labels)) == len(labels)
        machine = machine_of("h200", None, None, pdl)[0]
        for name in BRANCHES:
            for each in [each for each in planning.ranked if each.family == name][:40:13]:
                plan = each.plan
                assert plan is not None
                assert (plan.bm, plan.bn, plan.bk) == each.tile
                again = priced(plan, planning.problem, replace(machine, dependent_launch=plan.dependent))
                assert (again.family, again.label, again.split) == (each.family, each.label, each.split)
                assert us(again) == pytest.approx(us(each))
                family = family_of(each)
                assert family is not None
                assert [other.name for other in families() if other.prices(plan)] == [family.name]


@pytest.mark.parametrize("shape", [(512, 512, 65536), (1024, 1024, 8192), (640, 7168, 7168), (100, 2000, 4096)])
def test_each_cut_is_what_its_candidate_says(shape: tuple[int, int, int]) -> None:
    planning = tilewright.plan(*shape, layout="rc", gpu="h200")
    for name in PARTS:
        own = [each for each in planning.ranked if each.family == name]
        assert len({each.label for each in own}) == len(own) > 20
        for each in own[::7]:
            plan = each.plan
            assert isinstance(plan, PartsPlan)
            assert each.split == (plan.splits if isinstance(plan, SplitKPlan) else 1)
            assert 0 < each.wave_efficiency <= 1
            assert us(priced(plan, planning.problem, H200)) == pytest.approx(us(each))
            said = [finding.sentence for finding in of_family(each, planning.problem, H200)]
            assert said[0] == plan.said(planning.problem)
            assert said[1].startswith("partial sums and counters take a workspace of ")


def test_where_cuts_of_k_pay() -> None:
    """Few tiles with a long K; a last wave that is nearly empty; and not where tiles fill their waves."""
    few = tilewright.plan(512, 512, 65536, layout="rc", gpu="h200")
    assert few.pick.family in PARTS
    square = next(each for each in few.ranked if each.family == "wgmma")
    assert us(square) > 1.5 * us(few.pick)
    for shape, clearly in (((640, 7168, 7168), False), ((4096, 4096, 8192), True)):
        ranked = tilewright.plan(*shape, layout="rc", gpu="h200").ranked
        best = {name: us(next(each for each in ranked if each.family == name)) for name in ("wgmma", *PARTS)}
        assert best["streamk"] < best["splitk"] or clearly
        assert best["streamk"] < 1.12 * best["wgmma"]
        assert (best["splitk"] > 1.03 * best["wgmma"] and best["streamk"] > best["wgmma"]) or not clearly


def test_more_parts_cost_sums_and_fewer_leave_sms_idle() -> None:
    shape = problem(512, 512, 65536)
    plan = SplitKPlan.default(shape, aligned=True)
    times = {splits: us(priced(plan.with_(splits=splits), shape, H200)) for splits in (2, 4, 16, 64, 256)}
    assert times[2] > times[4] > times[16] < times[64] < times[256]
    whole = priced(plan.with_(splits=1), shape, H200)
    assert us(whole) > times[2]
    assert whole.terms_us["epilogue"] < priced(plan.with_(splits=2), shape, H200).terms_us["epilogue"]


def test_each_block_of_a_cluster_leaves_its_own_sums() -> None:
    """Four parts of 16 tiles by clusters of two: as many bytes, written by as many blocks, as by lone ones."""
    plan = SplitKPlan(BF16, 128, 128, 64, b_layout="column", splits=4, consumers=2)
    problem = Problem(512, 512, 65536, "bf16", b_layout="column")
    two = plan.with_(cluster_m=2)
    lone, pairs = (priced(each, problem, H200, "burst").terms_us["epilogue"] for each in (plan, two))
    assert pairs == pytest.approx(lone)


def test_a_dependent_launch_of_few_blocks_a_line_loses_what_it_gains() -> None:
    """Of 43.7 us it makes 52.2 (docs/notebook/2026-11-30-ranking.md); where L2 has little to give it gains."""
    plan = SplitKPlan(BF16, 128, 64, 64, b_layout="column", splits=16, fan_in=4, stages=8, consumers=2)
    deep = Problem(256, 256, 131072, "bf16", b_layout="column")
    thin = Problem(64, 2112, 7168, "bf16", b_layout="column")
    small = SplitKPlan(BF16, 64, 64, 64, b_layout="column", splits=4, stages=13, consumers=1, consumer_registers=248)
    for each, problem, faster in ((plan, deep, False), (small, thin, True)):
        times = [priced(each.with_(dependent_launch=on), problem, H200).predicted_us for on in (False, True)]
        assert times[0] is not None
        assert times[1] is not None
        assert (times[1].sustained < times[0].sustained) == faster
    both = tilewright.plan(problem=deep, gpu="h200", pdl=True)
    assert both.pick.plan is not None
    assert not both.pick.plan.dependent


def test_one_block_an_sm_waits_between_two() -> None:
    """The same warps and loads in flight an SM: four times the blocks ask while one's last loads come."""
    problem = Problem(1, 9216, 3072, "bf16", b_layout="column")
    wide = GemvPlan(BF16, aligned=True, bm=1, rw=4, un=2, wk=4, wr=4, blocks_per_sm=1)
    narrow = wide.with_(wr=1, blocks_per_sm=4)
    slow, fast = (priced(each, problem, H200).terms_us["epilogue"] for each in (wide, narrow))
    assert slow > fast + 1.0


def test_a_planning_says_whether_launches_are_dependent() -> None:
    asked = tilewright.plan(8, 4096, 4096, layout="rc", gpu="h200", pdl=True)
    assert asked.pdl
    assert asked.to_dict(1)["pdl"] is True
    assert not tilewright.plan(8, 4096, 4096, layout="rc", gpu="h200").pdl
    square = next(each for each in asked.ranked if each.family == "wgmma")
    assert us(square) == us(next(each for each in tilewright.plan(8, 4096, 4096, layout="rc", gpu="h200").ranked
                                 if each.label == square.label))  # fmt: skip
    with pytest.raises(UsageError, match="pdl is 1; it must be True or False"):
        tilewright.plan(8, 4096, 4096, pdl=1)  # type: ignore[arg-type]


def test_what_the_branches_do_not_take_has_its_reason() -> None:
    rows = {each.family: each.rejected for each in tilewright.plan(8, 4096, 4096, gpu="h200").rejected}
    assert rows["decode_mma"] == (
        "decode mma: A is row-major and B row-major; it reads lines along K, those of row-major A and column-major B"
    )
    odd = {each.family: each.rejected for each in tilewright.plan(8, 100, 777, layout="rc", gpu="h200").rejected}
    assert odd["swapab"] == "lda makes lines of A 1,554 B apart; TMA steps multiples of 16 B below 2^40"


def test_limits_of_a_pick_are_its_reasons_and_its_judgement() -> None:
    for m in (1, 8, 32):
        planning = tilewright.plan(m, 4096, 7168, layout="rc", gpu="h200", pdl=True)
        own = [each.name for each in of_family(planning.pick, planning.problem, H200)]
        assert set(own) <= {each.name for each in reasons(planning)}
        judgement = tilewright.judge(
            m, 4096, 7168, layout="rc", gpu="h200", pdl=True, tile=planning.pick.tile, stages=planning.pick.stages
        )
        assert judgement.fits
        assert judgement.candidate == planning.pick
        assert set(own) <= {each.name for each in judgement.findings}


def test_the_limits_say_their_numbers() -> None:
    said = limits.tokens(100, 64, 128, "the N of its wgmma")
    assert said.ok is False
    assert said.sentence.startswith("M is 100; a tile has 64 tokens, the N of its wgmma, of at most 128: 2 passes over")
    said = limits.lane_registers(40, 50, 96, 5, 128)
    assert (said.ok, said.hard) == (True, True)
    assert said.sentence == (
        "loads and sums are 40 registers a thread, the rest about 50: 90; 5 blocks of 128 threads on an SM leave 96"
    )
    said = limits.in_flight(1, 32 * 1024, 64, 132, 1.0, 4e12)
    assert (said.ok, said.value, said.limit) == (False, 64 * 32 * 1024, 4e6)
    assert said.sentence == (
        "64 SMs x 1 block x 32,768 B of weights = 2.097 MB in flight; 4 TB/s over the 1 us until a load is replaced "
        "ask for 4 MB"
    )
    said = limits.in_flight(2, 16 * 1024, 200, 132, 1.0, 4e12)
    assert said.value == 200 * 16 * 1024
    assert said.sentence.startswith("200 blocks on 132 SMs x 16,384 B of weights = 3.277 MB in flight"), "not of 264"
    said = limits.tokens_read(problem(8, 4096, 1024), 8, 16, "a warp")
    assert (said.ok, said.value) == (True, 0.5)
    assert "tokens come 256 times from L2, 4.194 MB beside 8.389 MB of weights: 50%" in said.sentence
    said = limits.k_shares(1024, 128, 3, "warps")
    assert said.sentence == "K = 1,024 is 8 steps of 128, over 3 warps at most 3 each: 89% of that has work"
    said = limits.ring(20480, 12, 11, 16384, 1)
    assert (said.ok, said.sentence) == (
        False, "12 stages of 20 KB, 16 KB of them weights; 11 fit a block; one is multiplied while 11 load"
    )  # fmt: skip
    said = limits.workspace(34_668_800, 40 * 2**20)
    assert said.sentence == "partial sums and counters take a workspace of 34.67 MB; L2 keeps 41.94 MB"
    assert "34.67 MB for partial sums" in parts_said(2560, 1280, 16384), "the same bytes in the same unit"
    said = limits.reach(8, 15, 132, 4)
    assert (said.ok, said.value) == (False, 32)
    assert said.sentence == (
        "4 tiles, K of each shared by 8: clusters of 8 find 15 places; 32 of 132 SMs have work at a time"
    )


def test_two_blocks_an_sm_are_two_places_of_a_cluster_on_the_same_sms() -> None:
    """30 clusters of 4 leave 12 of 132 SMs empty, whatever room there is on each."""
    planning = tilewright.plan(200, 3000, 8000, gpu="h200")
    twos = [
        each for each in planning.ranked if each.family == "swapab" and each.split == 4
        and each.tiles > 60 and round(each.tiles / each.waves / each.wave_efficiency) == 60
    ]  # fmt: skip
    assert twos
    for each in twos:
        said = {found.name: found for found in of_family(each, planning.problem, H200)}
        assert isinstance(each.plan, SwapAbPlan)
        loads = (each.plan.stages - 1) * each.plan.bn * each.plan.bk * 2
        assert said["bytes in flight"].value == 240 * loads
        assert said["bytes in flight"].sentence.startswith(f"120 SMs x 2 blocks x {loads:,} B of weights = ")
        assert said["SMs with work"].sentence.endswith(
            "clusters of 4 find 60 places, 2 blocks an SM; 120 of 132 SMs have work at a time"
        )


@pytest.mark.parametrize(("k", "family"), [(64, "swapab"), (256, "swapab"), (512, "swapab"), (64, "decode_mma")])
def test_no_more_is_in_flight_than_there_is_of_k(k: int, family: str) -> None:
    """A ring of 25 stages has one K block of 64 to load where K is 64."""
    planning = tilewright.plan(8, 1024, k, layout="rc", gpu="h200")
    each = next(each for each in planning.ranked if each.family == family)
    said = next(each for each in of_family(each, planning.problem, H200) if each.name == "bytes in flight")
    assert 0 < said.value <= 1024 * k * 2


def parts_said(m: int, n: int, k: int) -> str:
    planning = tilewright.plan(m, n, k, gpu="h200")
    first = next(each for each in planning.ranked if each.family == "streamk")
    return next(each.sentence for each in of_family(first, planning.problem, H200) if each.name == "parts")


def test_partial_sums_of_plain_numbers() -> None:
    one = np.array([1])
    assert partial_sums.splitk_items(33 * one, 4 * one).tolist() == [132]
    assert partial_sums.balance(33 * one, 4 * one, 132 * one).tolist() == [1.0]
    assert partial_sums.balance(140 * one, one, 132 * one) == pytest.approx([140 / 264])
    tiles, places = np.array([140, 132, 264, 33, 512]), np.array([132] * 5)
    shared = partial_sums.streamk_tiles(tiles, places, places > 0)
    assert partial_sums.streamk_tiles(tiles, places, places < 0).tolist() == [8, 0, 0, 33, 116]
    assert shared.tolist() == [140, 0, 0, 33, 248]
    # 33 tiles of 64 steps over 132 blocks: 16 steps each, 4 parts a tile. Of 140 tiles 116 blocks have 68 steps and 16
    # have 67: each 16th of the first ends with a tile, 7 in all.
    assert parts_of(shared, np.array([64] * 5), places).tolist() == [264, 0, 0, 132, 367]
    assert parts_of(one, 3 * one, 132 * one).tolist() == [3], "no more parts than steps"
    elements = np.array([128 * 128])
    write, last = partial_sums.reduction_us(132 * one, 33 * one, elements, H200)
    more = partial_sums.reduction_us(264 * one, 33 * one, elements, H200)
    assert 0 < write[0] < more[0][0]
    assert partial_sums.ARRIVE_US < last[0] < more[1][0]
    whole = partial_sums.reduction_us(33 * one, 33 * one, elements, H200)
    assert (whole[0][0], whole[1][0]) == (0, 0), "a tile in one part needs no reduction"
    assert partial_sums.workspace_bytes(132 * one, elements).tolist() == [132 * 65536]


@given(tiles=st.integers(1, 2000), places=st.integers(1, 132), steps=st.integers(1, 40), two=st.booleans())
def test_parts_of_stream_k_are_those_of_a_walk(tiles: int, places: int, steps: int, two: bool) -> None:
    shared = int(partial_sums.streamk_tiles(np.array([tiles]), np.array([places]), np.array([two]))[0])
    assert (tiles - shared) % places == 0
    even, more = divmod(shared * steps, places)
    parts = set()
    for worker in range(places):  # as the kernel has it: the first have a step more
        first, last = (each * even + min(each, more) for each in (worker, worker + 1))
        parts |= {(worker, step // steps) for step in range(first, last)}
    assert parts_of(np.array([shared]), np.array([steps]), np.array([places])).tolist() == [len(parts)]


def test_lone_blocks_of_one_wave_share_lines_until_they_end() -> None:
    """31.4 us were measured (docs/notebook/2026-11-30-ranking.md): 24 KB a step of 256 clocks, at 65 bytes a clock."""
    problem = Problem(1024, 1024, 8192, "bf16", b_layout="column")
    lone = next(
        each.plan
        for each in tilewright.plan(problem=problem, gpu="h200").ranked
        if each.family == "wgmma" and each.tile[:2] == (64, 128) and each.cluster == (1, 1)
    )
    assert lone is not None
    assert us(priced(lone, problem, H200)) == pytest.approx(31.4, rel=0.06)
    twice = Problem(2048, 1024, 8192, "bf16", b_layout="column")
    assert us(priced(lone, twice, H200)) > 2.05 * us(priced(lone, problem, H200))
