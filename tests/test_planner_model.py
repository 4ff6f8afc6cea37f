"""What the model says must be true of any GPU: floors, waves, the power limit, and the order of the answer."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright
from tilewright.dtypes import BF16
from tilewright.planner.calibration import Calibration, shipped
from tilewright.planner.candidate import Candidate
from tilewright.planner.family import Offer, families
from tilewright.planner.machine import Machine
from tilewright.planner.persistent import persistent_work
from tilewright.planner.plan import machine_of
from tilewright.planner.planning import Planning
from tilewright.planner.power import Energy, sustained_clock_hz
from tilewright.planner.rank import TIE, ranking
from tilewright.planner.raster import Ints, Order, columns_of
from tilewright.planner.supply import askew
from tilewright.planner.terms import TERMS
from tilewright.problem import Problem

sizes = st.integers(1, 1500).map(lambda each: 8 * each)
H200 = machine_of("h200", None, None)[0]


def of_tile(planning: Planning, bm: int, bn: int, schedule: str = "cooperative") -> Candidate:
    """The candidate of the main kernel with the tile, no cluster and no half tail."""
    return next(
        each
        for each in planning.ranked
        if (each.family, each.tile[:2], each.cluster, each.tail, each.schedule)
        == ("wgmma", (bm, bn), (1, 1), "whole", schedule)
    )


@given(m=sizes, n=sizes, k=sizes, sms=st.integers(4, 132))
@settings(max_examples=20, deadline=None)
def test_no_prediction_is_below_what_the_tensor_cores_and_hbm_allow(m: int, n: int, k: int, sms: int) -> None:
    problem = Problem(m, n, k, "bf16", b_layout="column")
    machine = Machine(H200.gpu, H200.calibration, sms)
    c = machine.calibration
    flop_per_clk = H200.gpu.bf16_tensor_flop_per_clock
    assert flop_per_clk is not None
    hbm_us = problem.bytes_moved / max(c.hbm_read_bytes_per_s, c.hbm_write_bytes_per_s) * 1e6
    for family in families():
        if family.refusal(problem) is not None:
            continue
        offer = family.offer(problem, machine)
        for times in (offer.sustained, offer.burst):
            tensor_us = problem.flops / (sms * flop_per_clk * times.mhz)
            assert np.all(times.us >= tensor_us)
            assert np.all(times.us >= hbm_us * (1 - 1e-9))
            parts = sum(times.terms_us[name] for name in ("launch", "first_load", "main_loop", "epilogue"))
            np.testing.assert_allclose(times.us, parts)
            for name in TERMS:
                assert np.all(times.terms_us[name] >= 0)
            for name in ("tensor", "shared_port", "l2", "hbm", "issue"):
                assert np.all(times.terms_us[name] <= times.terms_us["main_loop"] * (1 + 1e-9))
        assert np.all(offer.sustained.us >= offer.burst.us * (1 - 1e-9))
        assert np.all(offer.sustained.mhz <= offer.burst.mhz)
        assert np.all((offer.useful > 0) & (offer.useful <= 1 + 1e-9))


@pytest.mark.parametrize(("bm", "bn"), [(128, 256), (256, 128), (128, 128), (256, 192), (128, 192)])
def test_a_tile_more_than_a_wave_holds_costs_a_wave(bm: int, bn: int) -> None:
    """By as much as a wave is where L2 and HBM set no limit; elsewhere it goes up all the same."""
    base = shipped("h200")
    plenty = replace(base, hbm_read_bytes_per_s=1e15, hbm_write_bytes_per_s=1e15, l2_bytes_per_clk_per_sm=1e4,
                     l2_alone_bytes_per_clk=1e4)  # fmt: skip

    def times(calibration: Calibration) -> dict[int, float]:
        found = {}
        for tiles in (131, 132, 133, 264, 265):
            planning = tilewright.plan(bm, bn * tiles, 4096, layout="rc", gpu="h200", calibration=calibration)
            predicted = of_tile(planning, bm, bn).predicted_us
            assert predicted is not None
            found[tiles] = predicted.burst
        return found

    real = times(base)
    assert real[131] <= real[132] < real[133] <= real[264] < real[265]
    assert real[133] > 1.2 * real[132]
    free = times(plenty)
    assert free[132] == pytest.approx(free[131], rel=0.01)
    assert 1.8 < free[133] / free[132] < 2.05
    assert free[264] == pytest.approx(free[133], rel=0.01)
    assert 1.4 < free[265] / free[264] < 1.55


@given(m=sizes, n=sizes, k=sizes)
@settings(max_examples=15, deadline=None)
def test_more_of_k_never_takes_less_time(m: int, n: int, k: int) -> None:
    """The same tiles, each with more to multiply."""
    short, long = (tilewright.plan(m, n, depth, layout="rc", gpu="h200") for depth in (k, k + 512))
    assert of_tile(short, 128, 256).predicted_us.burst < of_tile(long, 128, 256).predicted_us.burst  # type: ignore[union-attr]
    best = [planning.pick.predicted_us.burst for planning in (short, long)]  # type: ignore[union-attr]
    assert best[0] < best[1]


def test_a_half_tail_multiplies_half_a_tile_in_the_last_wave() -> None:
    """66 tiles of 256x128 leave half of 132 SMs empty: cut in two they take all, for half as long."""
    ranked = tilewright.plan(256 * 66, 128, 4096, layout="rc", gpu="h200").ranked
    tensor: dict[str, float] = {}
    for each in ranked:
        if (each.family, each.tile[:2], each.cluster) == (
            "wgmma",
            (256, 128),
            (1, 1),
        ) and each.schedule == "cooperative":
            assert each.predicted_us is not None
            clocks = each.terms_us["tensor"] / each.terms_us["issue"]  # at whatever clock: both are counted in clocks
            tensor.setdefault(each.tail, clocks)
    assert tensor["half"] == pytest.approx(tensor["whole"] / 2)


def test_rows_that_begin_within_a_sector_are_loaded_as_two_lines() -> None:
    """What a lone block loads of an operand whose lines lie 16 bytes amid a sector counts twice, and of no other."""
    plain = Problem(4096, 4096, 4096, "bf16", b_layout="column")
    assert askew(plain) == (1, 1)
    assert askew(plain.changed(lda=4104)) == (2, 1)  # 8,208 B a line, 16 amid a sector
    assert askew(plain.changed(lda=4112, ldb=4104)) == (1, 2)  # 8,224 B: with a sector, though not with a line
    times = [
        of_tile(tilewright.plan(4096, 4096, 4096, layout="rc", gpu="h200", lda=lda, ldb=lda), 128, 256).terms_us["l2"]
        for lda in (4112, 4104)
    ]
    assert times[1] == pytest.approx(2 * times[0], rel=0.05)


def test_writes_delay_the_wgmmas_by_a_share_of_their_time() -> None:
    """A K block of 128x256 writes 48 KB, 384 clocks at 128 bytes each, beside 8 instructions of m64n256k16."""
    calm = replace(shipped("h200"), port_contention=0.0, residuals=())
    for share in (0.0, 0.25):
        planning = tilewright.plan(
            8192, 8192, 8192, gpu="h200", clock="burst", calibration=replace(calm, port_contention=share)
        )
        terms = of_tile(planning, 128, 256).terms_us
        blocks = 8 * calm.wgmma_clocks(256)
        assert terms["shared_port"] / terms["tensor"] == pytest.approx((blocks + share * 384) / blocks)


def test_warpgroups_that_share_a_tile_leave_a_ring_less_time() -> None:
    """A stage is free when the last of them is done, the next one needed when the first is."""
    machine = machine_of("h200", None, None)[0]
    problem = Problem(8192, 8192, 4096, BF16)
    t = {"bm": [192] * 4, "bn": [128] * 4, "cluster_m": [1] * 4, "cluster_n": [1] * 4, "half": [0] * 4}
    t |= {"columns": [64] * 4, "slabs": [2] * 4, "through_slabs": [1] * 4}
    t |= {"consumers": [1, 2, 3, 2], "pingpong": [0, 0, 0, 1], "stages": [3, 3, 3, 3]}
    columns = columns_of(t)
    one = np.ones(4, dtype=np.int64)
    order = Order(8192, 8192, columns["bm"], columns["bn"], one, one < 0)
    work = persistent_work(problem, machine, columns, order, 132 * one, 64.0 * np.ones(4), one < 0)
    assert 64 / work.chain == pytest.approx([2, 1.5, 4 / 3, 2])


def test_what_l2_still_holds_follows_its_curve() -> None:
    """9 TB/s up to 40 MB; at 60 6 TB/s, of which HBM can have read 4.5; at 80 as much as HBM."""
    curve = ((30e6, 9e12), (40e6, 9e12), (60e6, 6e12), (80e6, 4.5e12))
    calibration = replace(shipped("h200"), l2_curve=curve, hbm_read_bytes_per_s=4.5e12)
    machine = Machine(H200.gpu, calibration, 132)
    hits = machine.l2_hits(np.array([0.0, 40e6, 50e6, 60e6, 80e6, 1e9]))
    assert hits.tolist() == pytest.approx([1.0, 1.0, 0.4, 0.25, 0.0, 0.0])


def test_fewer_sms_take_longer() -> None:
    times = [tilewright.plan(8192, 8192, 4096, gpu="h200", sms=sms, clock="burst").pick for sms in (33, 66, 132)]
    bursts = [each.predicted_us.burst for each in times if each.predicted_us is not None]
    assert bursts[0] > 1.9 * bursts[1] > 3.4 * bursts[2]


def test_the_clock_is_where_power_meets_the_limit() -> None:
    c = shipped("h200")
    joules = Energy(np.array([0.5, 1e-6, 50.0]), np.array([0.05, 0.0, 0.0]))
    clocks = 1.3e6

    most = c.burst_clock_mhz * 1e6
    fastest = np.full(3, clocks / most)
    found = sustained_clock_hz(joules, fastest, lambda chosen: lambda hertz: clocks / hertz, most, c)
    growth = c.energy_growth(found[0] / 1e6)
    power = c.idle_power_w + (joules.sm[0] * growth + joules.hbm[0]) / (clocks / found[0])
    assert power == pytest.approx(c.power_limit_w, rel=1e-3)
    assert found[1] == most, "far from the limit it runs as fast as it can"
    assert found[2] < 0.4e9, "far above it, as slowly"


def test_below_the_clock_of_the_energies_an_operation_costs_no_less() -> None:
    c = shipped("h200")
    assert c.energy_clock_mhz > 600
    clocks, most = 1.3e6, c.burst_clock_mhz * 1e6
    room = (c.power_limit_w - c.idle_power_w) * clocks / 600e6  # J that leave 600 MHz, grown by nothing
    energy = Energy(np.array([room]), np.array([0.0]))
    found = sustained_clock_hz(energy, np.array([clocks / most]), lambda chosen: lambda hertz: clocks / hertz, most, c)
    assert found[0] == pytest.approx(600e6, abs=1e6)


def test_a_higher_limit_gives_more_clock_and_a_cool_card_has_none() -> None:
    base = shipped("h200")
    clock = [
        tilewright.plan(8192, 8192, 8192, gpu="h200", calibration=replace(base, power_limit_w=watts)).clock_mhz
        for watts in (400.0, 550.0, 700.0)
    ]
    assert clock[0] < clock[1] < clock[2] < base.burst_clock_mhz
    assert tilewright.plan(8192, 8192, 8192, gpu="h200", clock="burst").clock_mhz == base.burst_clock_mhz


def test_ranks_are_by_time_and_ties_by_the_rule() -> None:
    for clock in ("sustained", "burst"):
        planning = tilewright.plan(4096, 7168, 2048, layout="rc", gpu="h200", clock=clock)
        times = [getattr(each.predicted_us, clock) for each in planning.ranked]
        steps = [math.floor(math.log(time) / TIE) for time in times]
        assert steps == sorted(steps)
        assert all(later >= earlier * (1 - 0.001) for earlier, later in itertools.pairwise(times))
    # Without a half wave to cut the two are one kernel's time; the plain one is first.
    same = [each.tail for each in planning.ranked if each.tile[:2] == (128, 256) and each.cluster == (1, 1)][:2]
    assert same[0] == "whole"


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=10, deadline=None)
def test_the_order_in_which_candidates_come_changes_nothing(seed: int) -> None:
    problem = Problem(2048, 3072, 1024, "bf16", b_layout="column")
    offers = [family.offer(problem, H200) for family in families() if family.refusal(problem) is None]
    shuffled, orders = [], []
    rng = np.random.default_rng(seed)
    for offer in offers:
        order = rng.permutation(len(offer.useful))
        orders.append(order)
        shuffled.append(_taken(offer, order))
    rows = ranking(shuffled, "sustained")
    back = [(which, int(orders[which][index])) for which, index in rows.tolist()]
    assert back == [tuple(row) for row in ranking(offers, "sustained").tolist()]


def _taken(offer: Offer, order: Ints) -> Offer:
    times = replace(offer.sustained, us=offer.sustained.us[order], mhz=offer.sustained.mhz[order])
    return replace(offer, sustained=times, ties=offer.ties[order], useful=offer.useful[order])


def test_every_regime_has_its_problem() -> None:
    def regime(*shape: int, clock: str = "sustained") -> str:
        return tilewright.plan(*shape, layout="rc", gpu="h200", clock=clock).regime  # type: ignore[arg-type]

    assert regime(8192, 8192, 8192) == "power"
    assert regime(8192, 8192, 8192, clock="burst") == "compute"
    assert regime(64, 64, 64) == "latency"
    assert regime(16, 16384, 16384) == "HBM"
    assert regime(2560, 2560, 16384, clock="burst") == "wave"  # a wave with places idle, and no share of K for them
