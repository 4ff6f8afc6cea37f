"""The arithmetic of tensor-core kernels, and what it says of the ladder's plans."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright import ladder
from tilewright.derive import derived
from tilewright.derive_tensor import waves_of
from tilewright.dtypes import BF16, FP16
from tilewright.errors import UsageError
from tilewright.gpu import get_gpu
from tilewright.plan_tensor import TensorPlan
from tilewright.problem import Problem
from tilewright.roofline import peak_tflops, tile_intensity
from tilewright.roofline_tensor import (
    bytes_in_flight,
    cluster_intensity,
    l2_demand,
    l2_supply,
    macs_per_clock,
    mma_sync_tflops,
    operand_bytes_per_mac,
    port_demand,
    tensor_clocks,
    waves,
)

H100, H200 = get_gpu("h100"), get_gpu("h200")
CUBE = Problem(4096, 4096, 4096, "bf16")


def test_the_rate_is_that_of_the_roof() -> None:
    clock = 1.83e9  # of the datasheet's tensor figures
    assert 2 * macs_per_clock(H200) * H200.sm_count * clock / 1e12 == pytest.approx(
        peak_tflops(H200, "bf16_tensor"), rel=1e-4
    )
    assert str(mma_sync_tflops(H200)) == "0.63 x 989.4 TFLOPS = 623.3 TFLOPS"


@pytest.mark.parametrize("n", [8, 64, 128, 256])
def test_a_wgmma_takes_half_its_columns_in_clocks(n: int) -> None:
    assert tensor_clocks(64 * n * 16, H200).value == n / 2


@pytest.mark.parametrize(("n", "asked"), [(256, 80), (192, 85.33), (128, 96), (96, 106.67), (64, 128), (32, 192)])
def test_what_wgmma_reads_a_clock(n: int, asked: float) -> None:
    # Its own way to the figure: 2 KB of A and 32 N bytes of B in N / 2 clocks.
    assert (2048 + 32 * n) / (n / 2) == pytest.approx(asked, abs=0.005)
    assert port_demand(operand_bytes_per_mac(64, n, 2).value, H200).value == pytest.approx(asked, abs=0.005)


def test_what_a_warp_tile_reads() -> None:
    per_mac = operand_bytes_per_mac(64, 64, 2)
    assert str(per_mac) == "(64 + 64) x 2 B / (64 x 64) = 0.0625 B/MAC"
    assert port_demand(per_mac.value, H200).value == 128  # at the roof the port would be full
    assert port_demand(per_mac.value, H200, share=0.5).value == 64
    with pytest.raises(UsageError, match="share is 0"):
        port_demand(1, H200, share=0)


def test_multicast_makes_one_tile_of_a_cluster() -> None:
    alone = cluster_intensity(128, 256, 1, 1, 2)
    assert alone == tile_intensity(128, 256, 2)
    shared = cluster_intensity(128, 256, 2, 1, 2)
    assert shared.value == 2 * (2 * 128) * 256 / ((2 * 128 + 256) * 2) == 128
    assert (l2_demand(alone.value, H200).value, l2_demand(shared.value, H200).value) == (48, 32)
    with pytest.raises(UsageError, match="cluster_m is 0"):
        cluster_intensity(128, 256, 0, 1, 2)


def test_what_l2_delivers() -> None:
    supply = l2_supply(H200)
    assert supply is not None
    assert str(supply) == "9.67 TB/s / (132 SMs x 1.83 GHz) = 40.03 B/clk/SM"
    assert l2_supply(H100) is None  # nobody is known to have measured the SXM board


def test_bytes_in_flight() -> None:
    assert str(bytes_in_flight(4, 48 << 10)) == "(4 - 1) stages x 49,152 B = 147,456 B"
    assert [derived(plan(rung), H200)["bytes_in_flight"] >> 10 for rung in (5, 6, 7)] == [96, 96, 144]


@given(st.integers(0, 5000), st.integers(0, 5000), st.integers(1, 200))
def test_waves_hold_all_tiles(m: int, n: int, places: int) -> None:
    found = waves(Problem(m, n, 64, "bf16"), 128, 256, places)
    assert found.tiles == math.ceil(m / 128) * math.ceil(n / 256)
    assert 0 <= found.use <= 1
    whole = max(found.waves - 1, 0) * places
    assert whole + found.last * places == pytest.approx(found.tiles)


# ---- the ladder's plans


def plan(rung: int, **changes: Any) -> TensorPlan:
    """The default plan of a rung, row-major A and column-major B, its kernel file present or not."""
    return TensorPlan(rung=rung, dtype=BF16, **{**ladder._PLANS[rung], **changes})


def test_waves_of_plans() -> None:
    for rung in (6, 9, 10):
        found = waves_of(plan(rung), CUBE, H200)
        assert found.waves == 4
        assert found.use == pytest.approx(512 / 528)
    assert str(waves_of(plan(10), CUBE, H200)) == "256 tiles / 66 at a time = 3.879 waves"
    # Without a persistent grid an SM may hold more than one block.
    small = plan(6, bm=64, bn=64, consumers=1)
    assert waves_of(small, CUBE, H200).places == 3 * 132


def test_what_is_derived_of_a_plan() -> None:
    clustered = derived(plan(10), H200)
    assert clustered["flop_per_byte"] == 128
    assert clustered["flop_per_byte_without_multicast"] == pytest.approx(256 / 3)
    assert clustered["shared_bytes_per_clock"] == 80
    assert clustered["stage_bytes"] == 48 << 10
    assert clustered["bytes_in_flight"] == 144 << 10
    assert clustered["accumulator_registers"] == 128
    assert clustered["roof_tflops"] == 989.4
    assert clustered["formula"] == (
        "2 x 256 x 256 / ((256 + 256) x 2 B) = 128 FLOP/B; (64 + 256) x 2 B / (64 x 256) = 0.03906 B/MAC"
    )
    assert derived(plan(5), H200)["roof_tflops"] == pytest.approx(0.63 * 989.4)
    half = TensorPlan(rung=10, dtype=FP16, **ladder._PLANS[10])
    assert derived(half, H200) == clustered


@pytest.mark.parametrize(
    ("rung", "said"),
    [
        (5, "mma.sync: about 63% of the tensor roof, 623 TFLOPS; ldmatrix reads 80.6 of 128 B/clk"),
        (
            6,
            "the warps that multiply also load, 12 copies a thread and K-step; wgmma reads 80 of 128 B/clk",
        ),
        (7, "a thread that multiplies loads, once all 8 warps have read; 144 KB in flight"),
        (8, "one tile a block: nothing hides first loads and epilogue, 1,637 clk or more after 65,536"),
        (9, "L2 bandwidth: the tile asks 48 of about 40 B/clk, so 83% of the roof"),
        (10, "epilogue: nothing multiplies meanwhile; 1,637 clk or more after 65,536 (K = 4096)"),
        (11, "tensor cores and their power: L2 gives 32 of about 40 B/clk, shared memory 80 of 128 B/clk"),
    ],
)
def test_each_rung_names_what_the_next_removes(rung: int, said: str) -> None:
    found = derived(plan(rung), H200)["bottleneck"]
    assert found.startswith(said)
    assert len(found) <= 100  # a line of a terminal


def test_bottlenecks_of_other_plans() -> None:
    narrow = plan(9, bn=32, b_layout="column")
    assert derived(narrow, H200)["bottleneck"] == "shared-memory port: wgmma of n32 reads 192 of 128 B/clk"
    thin = plan(5, bm=64, bn=64, warps_m=2, warps_n=4)
    assert derived(thin, H200)["bottleneck"].startswith("shared-memory port: ldmatrix reads")
    assert derived(plan(9), H100)["bottleneck"].startswith("epilogue: nothing multiplies meanwhile; 64 KB of C a tile")
    assert derived(plan(11, cluster_m=1), H200)["bottleneck"].startswith("L2 bandwidth")


def test_a_gpu_whose_tensor_cores_are_unknown() -> None:
    unknown = replace(H200, name="NVIDIA X", bf16_tensor_tflops=None)
    found = derived(plan(9), unknown)
    assert found["bottleneck"] == "the tensor cores of NVIDIA X are not known"
    assert (found["roof_tflops"], found["shared_bytes_per_clock"]) == (None, None)
    assert found["flop_per_byte"] == pytest.approx(256 / 3)
