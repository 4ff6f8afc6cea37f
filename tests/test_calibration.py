"""Calibrations: what ships, the JSON round trip, the model's look-ups in them, and what is no calibration."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.errors import UsageError
from tilewright.gpu import known_gpus
from tilewright.planner.calibration import WGMMA_WIDTHS, Calibration, constant_names, shipped, shipped_keys

H200 = shipped("h200")


def test_every_known_gpu_has_a_calibration() -> None:
    assert set(shipped_keys()) == set(known_gpus())
    assert {shipped(key).key for key in known_gpus()} == set(known_gpus())


@pytest.mark.parametrize("key", shipped_keys())
def test_each_constant_names_its_source(key: str) -> None:
    calibration = shipped(key)
    assert set(calibration.sources) == set(constant_names())
    assert all(len(source) > 6 for source in calibration.sources.values())


def test_published_figures_are_labelled_so() -> None:
    h100 = shipped("h100")
    assert not h100.measured
    assert "published" in h100.label


@pytest.mark.parametrize("key", shipped_keys())
def test_round_trip(key: str, tmp_path: Path) -> None:
    calibration = replace(shipped(key), spreads={"launch_us": (1.0, 1.25)})
    calibration.save(tmp_path / "it.json")
    again = Calibration.load(tmp_path / "it.json")
    assert again == calibration
    assert hash(again) == hash(calibration)
    assert (again.sources, again.spreads) == (calibration.sources, calibration.spreads)


@pytest.mark.parametrize("key", shipped_keys())
def test_wgmma_takes_at_least_the_tensor_cores_time_and_never_less_when_wider(key: str) -> None:
    clocks = [shipped(key).wgmma_clocks(n) for n in range(8, 257, 8)]
    assert all(c >= 0.97 * n / 2 for n, c in zip(range(8, 257, 8), clocks, strict=True))
    assert all(b >= a - 0.5 for a, b in itertools.pairwise(clocks))
    assert tuple(shipped(key).wgmma_clk) == WGMMA_WIDTHS


def test_wgmma_between_measured_widths() -> None:
    calibration = replace(H200, wgmma_clk={8: 10.0, 16: 20.0, 256: 260.0})
    assert [calibration.wgmma_clocks(n) for n in (8, 16, 136, 256)] == [10.0, 20.0, 140.0, 260.0]
    with pytest.raises(UsageError, match="n is 264; wgmma has widths 8 to 256"):
        calibration.wgmma_clocks(264)


def test_l2_between_measured_working_sets() -> None:
    calibration = replace(H200, l2_curve=((40e6, 9e12), (60e6, 5e12)))
    rates = [calibration.l2_bytes_per_s(size) for size in (1e6, 40e6, 50e6, 60e6, 9e9)]
    assert rates == pytest.approx([9e12, 9e12, 7e12, 5e12, 5e12])


@given(st.floats(300, 2000), st.floats(300, 2000), st.floats(0, 1e15), st.floats(0, 1e13), st.floats(0, 5e12))
def test_power_grows_with_the_clock_and_with_work(slow: float, fast: float, flop: float, l2: float, hbm: float) -> None:
    slow, fast = sorted((slow, fast))
    assert H200.power_w(slow, 0) == H200.idle_power_w
    assert H200.power_w(slow, flop, l2, hbm) <= H200.power_w(fast, flop, l2, hbm)
    assert H200.power_w(slow, flop, l2, hbm) <= H200.power_w(slow, flop * 2, l2, hbm)


def test_power_by_hand() -> None:
    calibration = replace(
        H200, idle_power_w=100.0, energy_clock_mhz=1000.0, power_clock_exponent=2.0,
        energy_pj_per_flop=0.5, energy_pj_per_l2_byte=10.0, energy_pj_per_hbm_byte=50.0,
    )  # fmt: skip
    assert calibration.power_w(800, 4e14, 5e12, 2e12) == pytest.approx(100 + 200 + 50 + 100)
    assert calibration.power_w(1500, 4e14, 5e12, 2e12) == pytest.approx(100 + 2.25 * (200 + 50) + 100)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"launch_us": 0.0}, "launch_us is 0.0; it must be above 0"),
        ({"idle_power_w": float("nan")}, "idle_power_w is nan"),
        ({"port_contention": -0.1}, "port_contention is -0.1; it must be at least 0"),
        ({"wgmma_clk": {64: 0.0}}, "wgmma_clk is {64: 0.0}; it has clocks above 0"),
        ({"wgmma_clk": {8: 18.0, 128: 64.0}}, "for some widths, multiples of 8, 8 and 256 among them"),
        ({"wgmma_clk": {8: 18.0, 256: float("inf")}}, "wgmma_clk is {8: 18.0, 256: inf}; it has clocks above 0"),
        ({"mma_sync_share": 0.0}, "mma_sync_share is 0.0; it must be above 0"),
        ({"idle_power_w": 700.0}, "idle_power_w is 700.0; it must be below power_limit_w, 695"),
        ({"l2_curve": ((1.0, float("inf")),)}, "l2_curve must have ascending working sets"),
        ({"l2_curve": ((2.0, 1.0), (1.0, 1.0))}, "l2_curve must have ascending working sets"),
        ({"sources": {}}, "boost_clock_mhz has no source"),
    ],
)
def test_what_is_no_constant_is_named(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=re.escape(complaint)):
        replace(H200, **changes)


def damaged(**changes: Any) -> dict[str, Any]:
    return {**H200.to_dict(), **changes}


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        (damaged(schema="other/1"), "schema 'other/1'; this version reads 'tilewright.calibration/1'"),
        (damaged(constants={}), "lacks boost_clock_mhz, burst_clock_mhz"),
        (damaged(constants={**H200.to_dict()["constants"], "more": {}}), "has unknown more"),
        (damaged(constants=3), "is not of schema"),
        (damaged(key=None), "a calibration's key is None, which is no str"),
        (damaged(measured="no"), "a calibration's measured is 'no', which is no bool"),
        (damaged(residuals=[["simt", "issue", 10**400]]), "is not of schema"),
        ({k: v for k, v in H200.to_dict().items() if k != "key"}, "is not of schema"),
        ([1], "is no JSON object"),
    ],
)
def test_a_file_that_is_no_calibration(values: Any, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "it.json"
    path.write_text(json.dumps(values))
    with pytest.raises(UsageError, match=re.escape(complaint)) as raised:
        Calibration.load(path)
    assert str(path) in str(raised.value)


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"it\.json cannot be read: No such file"):
        Calibration.load(tmp_path / "it.json")
    (tmp_path / "it.json").write_bytes(b"\xff{")
    with pytest.raises(UsageError, match=r"it\.json cannot be read"):
        Calibration.load(tmp_path / "it.json")
    (tmp_path / "it.json").write_text("[" * 100_000)
    with pytest.raises(UsageError, match=r"it\.json cannot be read"):
        Calibration.load(tmp_path / "it.json")
    with pytest.raises(UsageError, match=r"cannot be written to .*none/it\.json: No such file"):
        H200.save(tmp_path / "none" / "it.json")


def test_an_unknown_gpu_lists_those_there_are() -> None:
    with pytest.raises(UsageError, match="no calibration of GPU 'b200' is shipped; there are h100, h200"):
        shipped("b200")
