from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import problems

from tilewright.dtypes import BF16, FP16, FP32
from tilewright.errors import UsageError
from tilewright.gpu import get_gpu
from tilewright.problem import Problem
from tilewright.roofline import (
    Derived,
    bandwidth_needed,
    bottleneck,
    bound,
    flops,
    k_step_bytes,
    k_step_flops,
    minimum_traffic,
    naive_intensity,
    number,
    peak_tflops,
    percent_of_roof,
    problem_intensity,
    ridge,
    roof_of,
    shared_load_bytes_per_mac,
    shared_loads_per_mac,
    shared_port_demand,
    threads_per_tile,
    tile_intensity,
    tiled_traffic,
)

H200 = get_gpu("h200")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (16384, "16,384"), (0.25, "0.25"), (295.343, "295.3"), (1365.333, "1,365.33"), (1.5e-7, "1.5e-07")],
)
def test_numbers_as_text(value: float, text: str) -> None:
    assert number(value) == text


def test_roofs() -> None:
    assert [roof_of(dtype) for dtype in (FP32, BF16, FP16)] == ["fp32"] * 3
    assert roof_of(FP16, tensor_cores=True) == roof_of(BF16, tensor_cores=True) == "bf16_tensor"
    with pytest.raises(UsageError, match="dtype fp32 has no tensor-core roof"):
        roof_of(FP32, tensor_cores=True)
    with pytest.raises(UsageError, match="roof 'fp64' is not one of fp32, bf16_tensor, fp8_tensor"):
        peak_tflops(H200, "fp64")  # type: ignore[arg-type]


def test_a_derived_number_is_a_number_with_its_formula() -> None:
    derived = ridge(H200, "fp32")
    assert float(derived) == derived.value
    assert str(derived) == derived.formula == "67 TFLOPS / 4.8 TB/s = 13.96 FLOP/B"


def test_bound_names_the_least_limit() -> None:
    peak = bound(H200, "fp32")
    assert (peak.limit_tflops, peak.limited_by, peak.formula) == (
        67.0,
        "FP32 issue",
        "peak 67 = 67 TFLOPS: FP32 issue",
    )
    tile = bound(H200, "fp32", intensity=32, shared_bytes_per_mac=8)
    assert tile.formula == (
        "min(peak 67, 32 FLOP/B x 4.8 TB/s = 153.6, 67 x 128 / 1,024 B/clk/SM = 8.375) "
        "= 8.375 TFLOPS: shared-memory port"
    )
    assert bound(H200, "fp32", intensity=4).limited_by == "HBM bandwidth"
    assert bound(H200, "fp32", intensity=0).limit_tflops == 0


def test_a_narrow_load_takes_a_whole_lane() -> None:
    # bf16 values loaded one by one move half the bytes in as many wavefronts as fp32 does.
    assert shared_port_demand(4, H200, load_bytes=2).value == shared_port_demand(8, H200).value == 1024
    assert shared_port_demand(0.5, H200, load_bytes=16).value == 64
    assert bottleneck(64, 4, 2, H200) == (
        "shared-memory port: 8 B/MAC (a 2-byte load takes a 4-byte lane) against 1 B/MAC"
    )
    assert bottleneck(64, 0.5, 2, H200, load_bytes=16).startswith("FP32 issue: the shared-memory port carries 64")


def test_a_tile_too_small_for_memory() -> None:
    assert bottleneck(4, 1, 4, H200) == "L2 and HBM bandwidth: 4 FLOP/B against a ridge of 14 FLOP/B"
    # The port is the worse of the two, although the tile is below the ridge.
    assert bottleneck(4, 8, 4, H200).startswith("shared-memory port")
    assert bottleneck(math.inf, None, 4, H200) == "FP32 issue"


TILES: list[tuple[Callable[..., Derived], tuple[str, ...]]] = [
    (naive_intensity, ("itemsize",)),
    (tile_intensity, ("bm", "bn", "itemsize")),
    (k_step_bytes, ("bm", "bn", "bk", "itemsize")),
    (k_step_flops, ("bm", "bn", "bk")),
    (threads_per_tile, ("bm", "bn", "tm", "tn")),
    (shared_loads_per_mac, ("tm", "tn")),
    (shared_load_bytes_per_mac, ("tm", "tn", "itemsize")),
    (partial(tiled_traffic, Problem(8, 8, 8)), ("bm", "bn")),
]
ODD = [(function, names, odd) for function, names in TILES for odd in names]


@pytest.mark.parametrize("wrong", [0, -8, math.nan, math.inf])
@pytest.mark.parametrize(("function", "names", "odd"), ODD)
def test_a_tile_has_a_size(function: Callable[..., Derived], names: tuple[str, ...], odd: str, wrong: float) -> None:
    with pytest.raises(UsageError, match=f"^{odd} is {wrong}; it must be above 0 and finite$"):
        function(**{name: wrong if name == odd else 4 for name in names})


@pytest.mark.parametrize("wrong", [-1.0, math.nan, -math.inf])
def test_no_rate_is_negative(wrong: float) -> None:
    calls: dict[str, Callable[[], object]] = {
        "intensity": lambda: bound(H200, "fp32", intensity=wrong),
        "shared_bytes_per_mac": lambda: bound(H200, "fp32", shared_bytes_per_mac=wrong),
        "bytes_per_mac": lambda: shared_port_demand(wrong, H200),
        "flop_per_byte": lambda: bottleneck(wrong, 1, 4, H200),
        "tflops": lambda: bandwidth_needed(wrong, 64),
    }
    for name, call in calls.items():
        with pytest.raises(UsageError, match=f"^{name} is {wrong}; it must be at least 0$"):
            call()
    with pytest.raises(UsageError, match="tflops is"):
        percent_of_roof(wrong, H200, "fp32")
    for none in (0.0, wrong):
        with pytest.raises(UsageError, match="intensity is"):
            bandwidth_needed(67, none)
        with pytest.raises(UsageError, match="load_bytes is"):
            shared_port_demand(4, H200, load_bytes=none)  # type: ignore[arg-type]


def test_nothing_a_byte_is_bound_by_memory() -> None:
    assert bottleneck(0, 1, 4, H200).startswith("L2 and HBM bandwidth: 0 FLOP/B")
    assert bottleneck(0, None, 4, H200).startswith("L1/L2 bandwidth")


@given(problems())
def test_whole_problem(problem: Problem) -> None:
    assert flops(problem).value == problem.flops
    assert minimum_traffic(problem).value == problem.bytes_moved
    intensity = problem_intensity(problem)
    assert (intensity and intensity.value) == problem.intensity


@given(*[st.sampled_from([8, 16, 64, 128, 256])] * 2, st.sampled_from([2, 4]))
def test_tiles_that_cover_a_problem_reach_the_tile_intensity(bm: int, bn: int, itemsize: int) -> None:
    problem = Problem(512, 1024, 96, {2: "bf16", 4: "fp32"}[itemsize])
    assert problem.flops / tiled_traffic(problem, bm, bn).value == pytest.approx(tile_intensity(bm, bn, itemsize).value)


@given(st.integers(1, 32), st.integers(1, 32))
def test_growing_a_micro_tile_never_adds_traffic(tm: int, tn: int) -> None:
    here = shared_load_bytes_per_mac(tm, tn, 4).value
    assert shared_load_bytes_per_mac(tm + 1, tn, 4).value < here
    assert shared_load_bytes_per_mac(tn, tm, 4).value == here
