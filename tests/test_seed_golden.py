"""Every figure that the text this project began with derives, held by the tool, the GPU named.

The text is "Take a GEMM from naive to 70% of peak". It works on an H100 SXM, rounds freely and counts 32 MB
where it means MiB; where its figure and the exact one differ, both stand here with the reason. Its measured
expectations (speeds "in fp32", speedups) are no arithmetic: where arithmetic explains one, the limit is held.
"""

from __future__ import annotations

import dataclasses

import pytest

from tilewright.gpu import get_gpu
from tilewright.problem import Problem
from tilewright.roofline import (
    bandwidth_needed,
    bottleneck,
    bound,
    flops,
    k_step_bytes,
    k_step_flops,
    minimum_traffic,
    naive_intensity,
    peak_tflops,
    percent_of_roof,
    problem_intensity,
    ridge,
    roof_of,
    shared_bandwidth,
    shared_load_bytes_per_mac,
    shared_loads_per_mac,
    shared_port_demand,
    threads_per_tile,
    tile_intensity,
)
from tilewright.roofline_tensor import (
    accumulator_registers,
    l2_demand,
    operand_bytes_per_mac,
    port_demand,
)

H100, H200 = get_gpu("h100"), get_gpu("h200")
CUBE = Problem(4096, 4096, 4096, "bf16")
FP32_BYTES, BF16_BYTES = 4, 2


def test_peaks_of_the_h100() -> None:
    # "~990 TFLOPS dense": the datasheet's 1,979 is with sparsity; the dense figure is 989.4.
    assert peak_tflops(H100, "bf16_tensor") == 989.4
    assert round(peak_tflops(H100, "bf16_tensor"), -1) == 990
    assert peak_tflops(H100, "fp32") == 67
    assert H100.hbm_bytes_per_s == 3.35e12


def test_ridges_of_the_h100() -> None:
    tensor, fp32 = ridge(H100, "bf16_tensor"), ridge(H100, "fp32")
    assert round(tensor.value) == 295
    # From the text's rounded peak it is 295.5, of which it keeps the whole.
    rounded = ridge(dataclasses.replace(H100, bf16_tensor_tflops=990.0), "bf16_tensor")
    assert rounded.value == pytest.approx(295.5, abs=0.05)
    assert int(rounded.value) == int(tensor.value) == 295
    assert fp32.value == pytest.approx(20)
    assert str(tensor) == "989.4 TFLOPS / 3.35 TB/s = 295.3 FLOP/B"
    assert str(fp32) == "67 TFLOPS / 3.35 TB/s = 20 FLOP/B"


def test_ridges_of_the_h200() -> None:
    # Not in the text: the H200 has the same peaks and more bandwidth.
    assert round(ridge(H200, "bf16_tensor").value) == 206
    assert round(ridge(H200, "fp32").value) == 14


def test_the_problem() -> None:
    assert CUBE.flops == 137_438_953_472
    assert f"{CUBE.flops:.3g}" == "1.37e+11"
    assert str(flops(CUBE)) == "2 x 4096 x 4096 x 4096 = 137,438,953,472 FLOP"


def test_minimum_traffic() -> None:
    # "32 MB each" and "~96 MB" are MiB: in the decimal bytes that bandwidths are quoted in, 33.6 and 100.7 MB.
    assert {CUBE.bytes_a, CUBE.bytes_b, CUBE.bytes_c} == {32 * 2**20}
    assert CUBE.bytes_a == pytest.approx(33.6e6, rel=2e-3)
    assert minimum_traffic(CUBE).value == 96 * 2**20 == 100_663_296
    assert minimum_traffic(CUBE).formula.endswith("= 100,663,296 B")


def test_intensity_of_the_whole_problem() -> None:
    derived = problem_intensity(CUBE)
    assert derived is not None
    assert derived.value == CUBE.intensity == pytest.approx(4096 / 3)
    assert str(derived) == "137,438,953,472 FLOP / 100,663,296 B = 1,365.33 FLOP/B"
    # The text's 1,430 divides decimal FLOP by 96 decimal megabytes, which are really 96 MiB: 4.9% too high.
    assert round(CUBE.flops / 96e6, -1) == 1430
    # Either way "far above the ridge; compute-bound in principle".
    limit = bound(H100, "bf16_tensor", intensity=derived.value)
    assert (limit.limit_tflops, limit.limited_by) == (989.4, "tensor cores")


def test_naive_intensity() -> None:
    assert naive_intensity(FP32_BYTES).value == 0.25
    assert naive_intensity(BF16_BYTES).value == 0.5
    assert str(naive_intensity(BF16_BYTES)) == "2 / (2 x 2 B) = 0.5 FLOP/B"


def test_naive_speed() -> None:
    # "A few hundred GFLOPS", "~0.5 to 2 TFLOPS": were every request served by HBM, 0.84 (fp32) and 1.7 (bf16).
    fp32 = bound(H100, "fp32", intensity=naive_intensity(FP32_BYTES).value)
    bf16 = bound(H100, "fp32", intensity=naive_intensity(BF16_BYTES).value)
    assert fp32.limit_tflops == pytest.approx(0.8375)
    assert fp32.limited_by == "HBM bandwidth"
    assert bf16.limit_tflops == pytest.approx(1.675)
    # "~1% of peak", "a few percent of even the CUDA-core peak"
    assert percent_of_roof(fp32.limit_tflops, H100, "fp32").value == pytest.approx(1.25)
    assert percent_of_roof(bf16.limit_tflops, H100, "fp32").value == pytest.approx(2.5)
    # "a bandwidth- and latency-bound kernel"
    assert bottleneck(0.25, None, FP32_BYTES, H100) == (
        "L1/L2 bandwidth and latency: 0.25 FLOP/B against a ridge of 20 FLOP/B"
    )


def test_shared_memory_tile() -> None:
    assert k_step_bytes(128, 128, 32, BF16_BYTES).value == 16 * 1024  # "16 KB" are KiB
    assert k_step_flops(128, 128, 32).value == 2 * 128 * 128 * 32
    assert tile_intensity(128, 128, BF16_BYTES).value == 64
    assert tile_intensity(128, 128, FP32_BYTES).value == 32
    # The text's own way to 64: a K-step's work over its bytes. BK cancels.
    for bk in (8, 32, 64):
        per_step = k_step_flops(128, 128, bk).value / k_step_bytes(128, 128, bk, BF16_BYTES).value
        assert per_step == tile_intensity(128, 128, BF16_BYTES).value
    assert tile_intensity(128, 128, BF16_BYTES).value > ridge(H100, "fp32").value
    assert str(tile_intensity(128, 128, BF16_BYTES)) == "2 x 128 x 128 / ((128 + 128) x 2 B) = 64 FLOP/B"
    # The design's 1,024 threads have 16 outputs each.
    assert threads_per_tile(128, 128, 4, 4).value == 1024


def test_tile_speed_without_register_blocking() -> None:
    # "Bounded by shared-memory bandwidth", "measured ~8 to 12 TFLOPS", "at 10 TFLOPS": two 4-byte loads a MAC ask
    # eight times what the port gives, an eighth of the peak.
    bytes_per_mac = shared_load_bytes_per_mac(1, 1, FP32_BYTES).value
    assert bytes_per_mac == 8
    limit = bound(H100, "fp32", intensity=32, shared_bytes_per_mac=bytes_per_mac)
    assert limit.limit_tflops == pytest.approx(8.375)
    assert limit.limited_by == "shared-memory port"
    assert bottleneck(32, 8, FP32_BYTES, H100) == "shared-memory port: 8 B/MAC against 1 B/MAC"


def test_register_block() -> None:
    assert threads_per_tile(128, 128, 8, 8).value == 256
    # "From 2 loads per MAC to 16 loads per 64 MACs": 8 times fewer, in loads and in bytes.
    assert shared_loads_per_mac(1, 1).value == 2
    assert shared_loads_per_mac(8, 8).value == 16 / 64
    before = shared_load_bytes_per_mac(1, 1, FP32_BYTES).value
    after = shared_load_bytes_per_mac(8, 8, FP32_BYTES).value
    assert (before, after, before / after) == (8, 1, 8)
    assert str(shared_load_bytes_per_mac(8, 8, 4)) == "(8 + 8) x 4 B / (8 x 8) = 1 B/MAC"
    # "Shared-memory bandwidth is no longer the limit": to be exact, it is as much of a limit as the FMAs are.
    assert shared_port_demand(after, H100).value == H100.shared_bytes_per_clock == 128
    assert bottleneck(32, after, FP32_BYTES, H100).startswith(
        "tie by bytes requested: shared-memory port and FP32 issue"
    )
    # A 16 x 8 micro-tile breaks the tie.
    wider = shared_load_bytes_per_mac(16, 8, FP32_BYTES).value
    assert shared_port_demand(wider, H100).value == 96
    assert bottleneck(tile_intensity(128, 256, 4).value, wider, FP32_BYTES, H100) == (
        "FP32 issue: the shared-memory port carries 96 of 128 B/clk"
    )


def test_fp32_expectations() -> None:
    # "~15 to 20 TFLOPS fp32, near the CUDA-core ceiling" is 22 to 30% of 67; "60 to 70%" of it is 40 to 47.
    assert percent_of_roof(15, H100, "fp32").value == pytest.approx(22.4, abs=0.05)
    assert percent_of_roof(20, H100, "fp32").value == pytest.approx(29.9, abs=0.05)
    assert (0.6 * peak_tflops(H100, "fp32"), 0.7 * peak_tflops(H100, "fp32")) == pytest.approx((40.2, 46.9))


def test_tensor_cores_raise_the_roof() -> None:
    ratio = peak_tflops(H100, "bf16_tensor") / peak_tflops(H100, "fp32")
    assert ratio == pytest.approx(14.77, abs=0.005)
    assert round(ratio) == 15
    # "50 to 70% of peak", "500 to 700 TFLOPS": of 990 it is 495 to 693, of the exact peak 494.7 to 692.6.
    rounded = dataclasses.replace(H100, bf16_tensor_tflops=990.0)
    shares = [percent_of_roof(tflops, rounded, "bf16_tensor").value for tflops in (495, 693)]
    assert shares == pytest.approx([50, 70])
    assert percent_of_roof(494.7, H100, "bf16_tensor").value == pytest.approx(50)
    assert percent_of_roof(692.58, H100, "bf16_tensor").value == pytest.approx(70)
    # "300 to 400 TFLOPS" for a first wgmma kernel, "at peak at 300" as a mistake: 30 to 40%.
    assert percent_of_roof(300, H100, "bf16_tensor").value == pytest.approx(30.3, abs=0.05)
    assert percent_of_roof(400, H100, "bf16_tensor").value == pytest.approx(40.4, abs=0.05)


def test_what_the_tensor_cores_draw_from_shared_memory() -> None:
    # "2 x 128 x 128 x 64 / (2 x 128 x 64 x 2 B)"
    assert k_step_flops(128, 128, 64).value / k_step_bytes(128, 128, 64, BF16_BYTES).value == 64
    needed = bandwidth_needed(peak_tflops(H100, "bf16_tensor"), 64)
    assert needed.value == pytest.approx(15.46, abs=0.005)
    assert str(needed) == "989.4 TFLOPS / 64 FLOP/B = 15.46 TB/s"
    assert bandwidth_needed(990, 64).value == pytest.approx(15, rel=0.04)  # "~15 TB/s"
    # "Delivers on the order of that": 33.5 TB/s from all SMs at boost clock, of which the operands take half.
    assert shared_bandwidth(H100).value == pytest.approx(33.45, abs=0.005)


def test_bf16_on_cuda_cores_keeps_the_fp32_roof() -> None:
    # "The FMAs are fp32; the traffic halves; the ceiling is still 67 TFLOPS until tensor cores are used."
    assert roof_of(CUBE.dtype) == "fp32"
    assert peak_tflops(H100, roof_of(CUBE.dtype)) == 67
    assert peak_tflops(H100, roof_of(CUBE.dtype, tensor_cores=True)) == 989.4
    fp32_cube = CUBE.changed(dtype="fp32")
    assert minimum_traffic(CUBE).value * 2 == minimum_traffic(fp32_cube).value


def test_decode_is_bound_by_the_weights() -> None:
    # "For small or skinny GEMMs (M = 8 at decode time), the kernel is bandwidth-bound on the weight read".
    decode = Problem(8, 4096, 4096, "bf16")
    assert decode.intensity is not None
    assert decode.intensity == pytest.approx(8, rel=0.01)
    assert bound(H100, "bf16_tensor", intensity=decode.intensity).limited_by == "HBM bandwidth"
    assert decode.bytes_b / decode.bytes_moved > 0.99


def test_why_the_tensor_cores_read_operands_from_shared_memory() -> None:
    # "~15 TB/s from shared, ... only with wgmma reading operands directly". The text counts each operand byte of a
    # 128 x 128 tile once. An m64n128k16 reads 96 B/clk, 23 TB/s on all SMs, and m64n256k16 80: both below the port's
    # 128. A warp that had to load its 64 x 32 part of that tile by ldmatrix would ask 192.
    once = port_demand(operand_bytes_per_mac(128, 128, BF16_BYTES).value, H100).value
    assert once == l2_demand(64, H100).value == 64
    clocks_per_s = peak_tflops(H100, "bf16_tensor") * 1e12 / 4096  # of all SMs together
    assert once * clocks_per_s / 1e12 == pytest.approx(15.46, abs=0.005)
    asked = [port_demand(operand_bytes_per_mac(*piece, BF16_BYTES).value, H100).value
             for piece in ((64, 128), (64, 256), (64, 32))]  # fmt: skip
    assert asked == [96, 80, 192]
    assert asked[0] * clocks_per_s / 1e12 == pytest.approx(23.2, abs=0.05)


def test_larger_tiles_raise_intensity_and_cost_registers() -> None:
    # "Why 128 x 128 and not 256 x 256?" The figures that answer it are those of the second text (test_seed2_golden.py).
    tiles = ((128, 128), (128, 256), (256, 256))
    assert [tile_intensity(bm, bn, BF16_BYTES).value for bm, bn in tiles] == pytest.approx([64, 256 / 3, 128])
    assert [k_step_bytes(bm, bn, 64, BF16_BYTES).value // 1024 for bm, bn in tiles] == [32, 48, 64]
    assert [accumulator_registers(bm, bn, 2).value for bm, bn in tiles] == [64, 128, 256]
