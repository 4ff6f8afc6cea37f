"""From readings to constants: on readings of a GPU whose constants are known."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from calibration_cases import (
    BOOST_MHZ,
    EXPONENT,
    FLOP_PJ,
    HBM_PJ,
    IDLE_W,
    L2_PJ,
    LIMIT_W,
    LOWEST_MHZ,
    SMS,
    TENSOR_SHARE,
    MiB,
    beside,
    readings,
)
from hypothesis import given
from hypothesis import strategies as st

from tilewright import results
from tilewright.calibrate import fit
from tilewright.calibrate import readings as raw
from tilewright.calibrate.fit_power import Steady, fit_power
from tilewright.calibrate.rates import TILES
from tilewright.calibrate.readings import Reading
from tilewright.errors import UsageError
from tilewright.gpu import get_gpu
from tilewright.planner.calibration import constant_names, shipped

FITTED = fit.calibrate(readings(), get_gpu("h200"), "a GPU", 700.0)


def test_medians_under_the_right_conditions() -> None:
    it = FITTED.calibration
    assert (it.launch_us, it.cluster_launch_us) == pytest.approx((1.5, 2.2))
    assert (it.tma_latency_l2_clk, it.tma_latency_hbm_clk) == (640.0, 1010.0)
    assert (it.l2_bytes_per_clk_per_sm, it.l2_multicast_bytes_per_clk_per_sm, it.l2_alone_bytes_per_clk) == (36, 55, 61)
    assert (it.hbm_read_bytes_per_s, it.hbm_write_bytes_per_s, it.hbm_copy_bytes_per_s) == (4.2e12, 4.0e12, 3.9e12)
    assert [size for size, _ in it.l2_curve] == [mib * MiB for mib in (8, 16, 40, 64)]
    assert it.l2_curve[-1][1] == pytest.approx(20 * SMS * 1.98e9)
    assert (it.mma_sync_share, it.fma_share) == (0.625, 124 / 128)
    assert it.wgmma_clk[8] == 18.0, "that of two warpgroups"
    assert it.wgmma_clk[256] == 128.0


def test_the_burst_is_the_fastest_launch_of_the_first_25_ms() -> None:
    assert FITTED.calibration.burst_clock_mhz == 1735.0


def test_what_comes_from_the_device() -> None:
    assert FITTED.calibration.boost_clock_mhz == 1980.0
    assert FITTED.calibration.measured


def test_each_source_names_its_microbenchmark() -> None:
    names = {reading.microbenchmark for reading in readings()}
    apart = {"boost_clock_mhz", "power_limit_w"}
    for name in set(constant_names()) - apart:
        assert re.match(rf"({'|'.join(names)}):", FITTED.calibration.sources[name]), name


def test_spreads_are_quartiles() -> None:
    assert FITTED.calibration.spreads["launch_us"] == pytest.approx((1.45, 1.55))


@pytest.mark.parametrize("missing", sorted({reading.microbenchmark for reading in readings()} - {"l2_read"}))
def test_a_microbenchmark_that_is_missing_is_named(missing: str) -> None:
    left = [reading for reading in readings() if reading.microbenchmark != missing]
    with pytest.raises(UsageError, match=f"there are no readings of {missing}"):
        fit.calibrate(left, get_gpu("h200"), "a GPU", 700.0)


def test_without_any_readings() -> None:
    with pytest.raises(UsageError, match="there are no readings of l2_read"):
        fit.calibrate([], get_gpu("h200"), "a GPU", 700.0)


# ---- power ---------------------------------------------------------------------------------------------------------


def test_the_energies_that_the_states_were_made_from() -> None:
    it = FITTED.calibration
    scale = (it.energy_clock_mhz / (LOWEST_MHZ * TENSOR_SHARE)) ** EXPONENT
    assert it.energy_clock_mhz == min(state.clock_mhz for state in FITTED.states)
    assert it.power_clock_exponent == pytest.approx(EXPONENT, abs=0.01)
    assert it.idle_power_w == pytest.approx(IDLE_W, rel=0.01)
    assert it.energy_pj_per_flop == pytest.approx(FLOP_PJ * scale, rel=0.01)
    assert it.energy_pj_per_l2_byte == pytest.approx(L2_PJ * scale, rel=0.02)
    assert it.energy_pj_per_hbm_byte == pytest.approx(HBM_PJ, rel=0.03)
    assert max(map(abs, FITTED.power.residuals_w)) < 1.0


def test_residuals_are_of_the_model_that_the_planner_uses() -> None:
    for state, missed in zip(FITTED.states, FITTED.power.residuals_w, strict=True):
        model = FITTED.calibration.power_w(
            state.clock_mhz, state.flop_per_s, state.l2_bytes_per_s, state.hbm_bytes_per_s
        )
        assert model - state.power_w == pytest.approx(missed, abs=1e-6)


@given(
    st.floats(60, 200), st.floats(0.2, 1.0), st.floats(5, 30), st.floats(20, 90),
    st.integers(0, 250).map(lambda hundredths: hundredths / 100),
)  # fmt: skip
def test_any_gpu_of_the_model_is_found(idle: float, flop: float, l2: float, hbm: float, exponent: float) -> None:
    work = [(1980, 0, 0, 0), (1980, 3e14, 0, 0), (1600, 7e14, 0, 0), (1300, 7e14, 0, 0), (1980, 0, 9e12, 0),
            (1980, 0, 4e12, 4e12), (1400, 7e14, 6e12, 0)]  # fmt: skip
    states = []
    for clock, flops, l2_bytes, hbm_bytes in work:
        growth = (clock / 1300) ** exponent
        watts = idle + growth * (flop * flops + l2 * l2_bytes) * 1e-12 + hbm * hbm_bytes * 1e-12
        states.append(Steady("s", watts, clock, flops, l2_bytes, hbm_bytes))
    found = fit_power(states)
    assert found.power_clock_exponent == pytest.approx(exponent, abs=0.011)
    assert (found.idle_power_w, found.energy_pj_per_flop) == pytest.approx((idle, flop), rel=0.02)
    assert (found.energy_pj_per_l2_byte, found.energy_pj_per_hbm_byte) == pytest.approx((l2, hbm), rel=0.05)


def test_states_without_wgmma_count_as_at_the_clock_that_wgmmas_would_have() -> None:
    clocks = {state.state: state.clock_mhz for state in FITTED.states}
    assert clocks["spin"] == clocks["hbm"] == clocks["wgmma 1/4"] == pytest.approx(BOOST_MHZ * TENSOR_SHARE)
    alone = [reading for reading in readings() if not reading.values.get("flop_per_s")]
    assert {state.clock_mhz for state in fit.steady_states(fit.Readings(alone))} == {BOOST_MHZ}


def test_the_limit_is_what_held_states_draw() -> None:
    """1.4% under the one that NVML tells: it is kept below, not met. Where none is held it is that one."""
    held = [each.values["power_w"] for each in readings() if each.values.get("nvml_clock_mhz", 2000) < 1960]
    assert FITTED.calibration.power_limit_w == pytest.approx(float(np.median(held)))
    assert LIMIT_W - 5 < FITTED.calibration.power_limit_w <= LIMIT_W
    free = [
        replace(each, values={**each.values, "nvml_clock_mhz": BOOST_MHZ}) if each.microbenchmark == "power" else each
        for each in readings()
    ]
    found = fit.calibrate(free, get_gpu("h200"), "a GPU", 700.0).calibration
    assert (found.power_limit_w, "no state was held" in found.sources["power_limit_w"]) == (700.0, True)


def test_states_that_cannot_tell() -> None:
    states = list(FITTED.states)
    with pytest.raises(UsageError, match="3 steady states of power; 5 constants need 5 or more"):
        fit_power(states[:3])
    with pytest.raises(UsageError, match="do not tell FLOPs, L2 bytes and HBM bytes apart"):
        fit_power([replace(state, hbm_bytes_per_s=0.0) for state in states])


# ---- the port ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.12, 0.8, 1.0])
def test_contention_is_what_writes_delay_of_their_own_time(share: float) -> None:
    port = fit.port_contention([beside(*tile, share) for tile in TILES])
    assert (port.low, port.value, port.high) == pytest.approx((share,) * 3)


def test_a_run_that_is_faster_beside_loads_is_no_contention() -> None:
    assert fit.port_contention([{**beside(128, 128, 0.0), "k_block_clk": 510.0}]).value == 0.0


def test_runs_without_loads_say_nothing_of_contention() -> None:
    with pytest.raises(UsageError, match="in which TMA wrote anything"):
        fit.port_contention([{**beside(128, 128, 1.0), "loaded_bytes_per_clk": 0.0}])


# ---- files ---------------------------------------------------------------------------------------------------------


def test_readings_round_trip_beside_records(tmp_path: Path) -> None:
    path = tmp_path / "calibration_gpu.jsonl"
    raw.append(path, readings()[:5])
    raw.append(path, readings()[5:])
    assert raw.load(path) == readings()
    assert results.load(tmp_path) == [], "readings are no records, and no mistake among them"


def test_what_is_no_reading(tmp_path: Path) -> None:
    path = tmp_path / "it.jsonl"
    path.write_text(raw.line(readings()[0]) + '\n{"schema": "other"}\n')
    with pytest.raises(UsageError, match=r"it\.jsonl:2: a reading has schema 'other'"):
        raw.load(path)
    path.write_text("[1]\n")
    with pytest.raises(UsageError, match=r"it\.jsonl:1"):
        raw.load(path)
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        raw.load(tmp_path / "none")
    with pytest.raises(UsageError, match="cannot be written to"):
        raw.append(tmp_path / "none" / "it.jsonl", [])


def test_the_newest_calibration_of_a_file() -> None:
    new = readings()
    assert new[0].provenance is not None
    old = [reading.of(replace(new[0].provenance, date="2026-01-01T00:00:00Z")) for reading in new[:3]]
    assert raw.latest([*old, *new]) == new
    assert raw.latest([Reading("a", {}, {})]) == [Reading("a", {}, {})]


def test_the_shipped_h200_is_what_its_readings_give() -> None:
    calibration, folder = shipped("h200"), results.recorded_results_dir()
    assert folder is not None
    found = raw.latest(raw.load(folder / "calibration_h200.jsonl"))
    before = found[0].provenance and found[0].provenance.before
    assert before
    fitted = fit.calibrate(found, get_gpu("h200"), calibration.label, before["power_limit_w"]).calibration
    # What least squares gives differs between processors in the last digits, with the instructions of their BLAS.
    powers = ("idle_power_w", "energy_pj_per_flop", "energy_pj_per_l2_byte", "energy_pj_per_hbm_byte")
    solved = {name: getattr(fitted, name) for name in powers}
    assert solved == pytest.approx({name: getattr(calibration, name) for name in powers}, rel=1e-9)
    others = replace(fitted, **{name: getattr(calibration, name) for name in powers})
    assert replace(calibration, residuals=()) == others
    assert calibration.sources == fitted.sources
    assert calibration.spreads == fitted.spreads
    assert calibration.measured
    assert "measured" in calibration.label
