"""Every figure that the second of the project's two texts derives, held by the planner's own constraints.

That text chooses tiles for a tensor-core GEMM on an H100 SXM. It assumes two consumer warpgroups that share a tile, and
reckons stages without the epilogue's buffers; what a kernel adds to that stands beside. Its KB are KiB, its GB and TB
decimal.
"""

from __future__ import annotations

import pytest

import tilewright
from tilewright.errors import UsageError
from tilewright.gpu import get_gpu
from tilewright.planner import constraints
from tilewright.planner.judgement import Finding, Judgement
from tilewright.problem import Problem
from tilewright.roofline import (
    bandwidth_needed,
    k_step_bytes,
    k_step_flops,
    peak_tflops,
    ridge,
    tile_intensity,
    tiled_traffic,
    time_at_roof,
)
from tilewright.roofline_tensor import (
    WARPGROUP_ROWS,
    WARPGROUP_THREADS,
    accumulator_port_demand,
    accumulator_registers,
    bytes_in_flight,
    tensor_clocks,
)

H100 = get_gpu("h100")
CUBE = Problem(8192, 8192, 8192, "bf16")
BF16, FP8 = 2, 1  # bytes
TWO = (2, "cooperative")  # consumers and how they share
# The table: tile, FLOP/B, KB a stage, stages, accumulator registers of a consumer thread.
TABLE = (
    ((64, 64), 32, 16, 14, 16),
    ((128, 128), 64, 32, 7, 64),
    ((128, 256), 85, 48, 4, 128),
    ((256, 256), 128, 64, 3, 256),
)


def judged(*shape: int, **choices: object) -> tuple[Judgement, dict[str, Finding]]:
    """The judgement on an H100, and its findings by name."""
    judgement = tilewright.judge(*shape, gpu="h100", **choices)  # type: ignore[arg-type]
    return judgement, {each.name: each for each in judgement.findings}


# ---- why the tile is large in M and N


def test_intensity() -> None:
    for (bm, bn), flop_per_byte, *_ in TABLE:
        found = constraints.intensity(bm, bn, BF16)
        assert round(found.value) == flop_per_byte
        assert found.value == pytest.approx(bm * bn / (bm + bn))  # of two-byte elements
        for bk in (16, 64, 128):  # K cancels
            step = k_step_flops(bm, bn, bk).value / k_step_bytes(bm, bn, bk, BF16).value
            assert step == pytest.approx(found.value)
    assert [round(constraints.intensity(*tile, BF16).value, 1) for tile, *_ in TABLE] == [32.0, 64.0, 85.3, 128.0]


@pytest.mark.parametrize(("bn", "gigabytes", "terabytes_per_s"), [(128, 17.2, 15.5), (256, 12.9, 11.6)])
def test_operand_traffic_and_the_bandwidth_it_needs(bn: int, gigabytes: float, terabytes_per_s: float) -> None:
    traffic = constraints.operand_traffic(CUBE, 128, bn)
    assert traffic.value == 2 * 8192 * 8192 * (8192 / bn) + 2 * 8192 * 8192 * (8192 / 128)
    assert traffic.value / 1e9 == pytest.approx(gigabytes, abs=0.05)
    needed = constraints.l2_bandwidth(CUBE, 128, bn, (1, 1), H100, 9e12, "assumed")
    assert needed.value == pytest.approx(terabytes_per_s, abs=0.05)
    assert needed.ok is False
    assert not needed.hard
    assert needed.value > 3 * H100.hbm_bytes_per_s / 1e12
    # the same from the intensity
    assert needed.value == pytest.approx(bandwidth_needed(989.4, tile_intensity(128, bn, BF16).value).value)


def test_the_time_at_the_roof() -> None:
    assert CUBE.flops / 1e12 == pytest.approx(1.10, abs=0.005)
    assert round(peak_tflops(H100, "bf16_tensor")) == 989
    assert time_at_roof(CUBE, H100, "bf16_tensor").value / 1e3 == pytest.approx(1.11, abs=0.005)
    assert str(time_at_roof(CUBE, H100, "bf16_tensor")) == "1,099.51 GFLOP / 989.4 TFLOPS = 1,111.29 us"


def test_the_ridge_of_hbm_belongs_to_the_whole_problem() -> None:
    # Every tile of the table lies below the ridge of 295; the problem lies nine times above it.
    assert round(ridge(H100, "bf16_tensor").value) == 295
    assert all(constraints.intensity(*tile, BF16).value < 295 for tile, *_ in TABLE)
    found = constraints.hbm_bandwidth(CUBE, H100)
    assert found.ok
    assert found.value == pytest.approx(0.362, abs=0.0005)
    assert "2,730.67 FLOP/B stand against a ridge of 295, no tile's do" in found.sentence
    decode = constraints.hbm_bandwidth(Problem(16, 8192, 8192, "bf16"), H100)
    assert decode.ok is False


# ---- BK and the instruction


def test_bk_is_a_row_of_the_swizzle() -> None:
    bf16, fp8 = constraints.swizzle_row(64, BF16), constraints.swizzle_row(128, FP8)
    assert (bf16.ok, bf16.limit, fp8.ok, fp8.limit) == (True, 64, True, 128)
    assert "64 x 2 B = 128 B" in bf16.sentence
    assert "4 instructions of K = 16 a stage" in bf16.sentence
    assert [constraints.swizzle_row(bk, BF16).ok for bk in (32, 128)] == [False, False]
    assert constraints.swizzle_row(64, FP8).ok is False


def test_the_instruction() -> None:
    # 64 rows a warpgroup of four warps, N a multiple of 8 up to 256; m64n256k16 takes 128 clocks.
    assert WARPGROUP_ROWS == 64
    assert WARPGROUP_THREADS == 4 * 32
    assert tensor_clocks(64 * 256 * 16, H100).value == 128
    for bn, ok in ((8, True), (12, False), (248, True), (256, True), (264, False)):
        assert constraints.instruction(128, bn, *TWO).ok is ok


# ---- what stops it


@pytest.mark.parametrize(("tile", "flop_per_byte", "kilobytes", "most", "registers"), TABLE)
def test_the_table(tile: tuple[int, int], flop_per_byte: int, kilobytes: int, most: int, registers: int) -> None:
    stage = k_step_bytes(*tile, 64, BF16)
    assert stage.value == kilobytes * 1024
    stages = constraints.stages(*tile, 64, BF16, most, H100)
    assert (stages.ok, stages.limit) == (True, most)
    assert constraints.stages(*tile, 64, BF16, most + 1, H100).ok is False
    assert H100.shared_bytes_per_block // int(stage.value) == most  # two 8-byte barriers a stage cost none of them
    held = constraints.accumulators(*tile, *TWO, H100)
    assert held.value == registers
    assert held.ok is (registers <= 255)


def test_beside_an_epilogue_fewer_stages_fit() -> None:
    # With the least buffer for C, 64 rows by 16 columns a consumer, the two smaller tiles lose a stage.
    least = 2 * 64 * 16 * BF16
    fit = [constraints.stages_that_fit(int(k_step_bytes(*tile, 64, BF16).value), H100, least) for tile, *_ in TABLE]
    assert fit == [13, 6, 4, 3]


def test_the_sixteen_registers_of_a_64x64_tile_belong_to_no_kernel() -> None:
    # Every instruction has 64 rows, so only one warpgroup can have a share of 64: it holds 32 registers a thread.
    judgement, found = judged(8192, 8192, 8192, tile=(64, 64, 64), consumers=2, schedule="cooperative", stages=13)
    assert found["accumulators"].value == 16
    assert [name for name in found if found[name].ok is False and found[name].hard] == ["instruction", "kernel"]
    assert found["kernel"].sentence.startswith("rung 11: the tile is 64x64; it must be a multiple of 128x16")
    assert not judgement.fits
    alone, found = judged(8192, 8192, 8192, tile=(64, 64, 64), consumers=1)
    assert alone.fits
    assert found["accumulators"].value == 32
    each, found = judged(8192, 8192, 8192, tile=(64, 64, 64), schedule="pingpong")
    assert each.fits
    assert found["accumulators"].value == 32


def test_256x256_does_not_fit() -> None:
    judgement, found = judged(8192, 8192, 8192, tile=(256, 256, 64), stages=3)
    assert not judgement.fits
    assert found["stages"].ok
    assert (found["accumulators"].value, found["accumulators"].limit) == (256, 255)
    assert judgement.candidate is None
    assert [each.name for each in judgement.mistakes] == ["sized by shared memory alone"]
    assert judgement.mistakes[0].instead.endswith("at 256 rows 192 columns, not 256")
    # Neither does it with three consumers, nor with one.
    for consumers in (1, 3):
        assert not judged(8192, 8192, 8192, tile=(256, 256, 64), consumers=consumers)[0].fits


def test_the_accumulator_of_128x256() -> None:
    found = constraints.accumulators(128, 256, *TWO, H100)
    assert 128 * 256 == 32_768 == H100.registers_per_sm // 2
    assert 4 * H100.registers_per_sm == 256 * 1024
    assert found.limit == H100.max_registers_per_thread == 255
    assert found.sentence == (
        "C is held in 128 x 256 / 256 threads = 128 registers a thread, of at most 255; "
        "its 32,768 values are 128 KB of the 256 KB of an SM's registers"
    )
    # In ping-pong each warpgroup holds a whole tile: all of the file, and a thread more than it can have.
    pingpong = constraints.accumulators(128, 256, 2, "pingpong", H100)
    assert (pingpong.ok, pingpong.value) == (False, 256)
    assert pingpong.sentence.endswith("its 65,536 values are 256 KB of the 256 KB of an SM's registers")  # of two tiles
    assert constraints.accumulators(128, 192, 2, "pingpong", H100).value == 192


def test_the_split_of_registers() -> None:
    found = constraints.register_file(2, 40, 232, H100)
    assert found.value == 64_512
    assert found.ok
    assert found.sentence == ("128 threads x 40 + 256 threads x 232 = 5,120 + 59,392 = 64,512 of 65,536 registers")
    assert constraints.register_file(2, 56, 232, H100).ok is False
    # An even split leaves a thread 168: with about 40 for the rest, 128 accumulators fill it.
    assert H100.registers_per_sm // 384 // 8 * 8 == 168
    assert constraints.thread_registers(128, 256, *TWO, 168).ok
    assert constraints.thread_registers(256, 192, *TWO, 168).ok is False
    assert constraints.thread_registers(256, 192, *TWO, 232).ok


def test_a_stage_in_use_and_three_in_flight() -> None:
    assert bytes_in_flight(4, 48 * 1024).value == 3 * 48 * 1024
    found = constraints.pipeline(128, 256, 64, 4, H100, 761, "assumed")
    assert (found.ok, found.value) == (True, 3 * 1024)
    assert constraints.pipeline(64, 64, 64, 4, H100, 761, "assumed").ok is False


def test_sums_in_shared_memory_would_ask_eight_times_its_port() -> None:
    demand = accumulator_port_demand(H100)
    assert demand.value == 1024 == 8 * H100.shared_bytes_per_clock
    assert str(demand) == "(4 + 4) B x 2,048 MAC/clk/SM / 16 = 1,024 B/clk/SM"


# ---- the shape decides


def test_a_tile_too_large_for_the_waves() -> None:
    # 640 x 7168 in tiles of 128x256: 140 of them, two waves on 132 SMs with 8 in the second.
    judgement, found = judged(640, 7168, 7168, tile=(128, 256, 64), stages=4)
    assert judgement.candidate is not None
    assert (judgement.candidate.tiles, judgement.candidate.waves) == (140, 2)
    assert found["waves"].value == pytest.approx(140 / 264)
    assert "140 tiles / 132 at a time = 1.061 waves: 2 to run, with 8 of 132 in the last" in found["waves"].sentence
    assert [each.name for each in judgement.mistakes] == ["a tile too large for the waves"]
    # Smaller tiles recover it, or the same ones whose K is shared in the last wave.
    assert judgement.better
    for better in judgement.better:
        gain = judgement.gain(better)
        assert gain is not None
        assert gain > 1.1
        assert better.tile[0] * better.tile[1] < 128 * 256 or better.family == "streamk"


@pytest.mark.parametrize("m", [1, 16, 64])
def test_a_tall_tile_at_decode(m: int) -> None:
    judgement, found = judged(m, 8192, 8192, tile=(128, 256, 64))
    assert "a tall tile for few rows" in [each.name for each in judgement.mistakes]
    assert (found["rows of C"].ok, found["rows of C"].limit) == (False, 64)
    assert found["edge waste"].value == pytest.approx(1 - m / 128)
    assert found["HBM bandwidth"].ok is False
    shorter, found = judged(m, 8192, 8192, tile=(64, 256, 64))
    assert "a tall tile for few rows" not in [each.name for each in shorter.mistakes]
    assert found["rows of C"].ok


def test_a_tall_tile_at_prefill_is_none() -> None:
    names = [each.name for each in judged(4096, 8192, 8192, tile=(128, 256, 64))[0].mistakes]
    assert "a tall tile for few rows" not in names


def test_fp8_needs_the_same_bandwidth() -> None:
    assert round(peak_tflops(H100, "fp8_tensor")) == 1979
    assert k_step_bytes(128, 256, 128, FP8).value == k_step_bytes(128, 256, 64, BF16).value == 48 * 1024
    assert constraints.stages(128, 256, 128, FP8, 4, H100).limit == 4
    fp8, bf16 = constraints.intensity(128, 256, FP8).value, constraints.intensity(128, 256, BF16).value
    assert fp8 == 2 * bf16
    needed = [bandwidth_needed(peak_tflops(H100, roof), each).value  # type: ignore[arg-type]
              for roof, each in (("fp8_tensor", fp8), ("bf16_tensor", bf16))]  # fmt: skip
    assert needed[0] == pytest.approx(needed[1], rel=1e-4)  # the peaks are rounded to a tenth
    with pytest.raises(UsageError, match="dtype 'fp8' is not one of fp32, bf16, fp16"):
        tilewright.judge(8192, 8192, 8192, tile=(128, 256, 128), dtype="fp8")  # no kernel yet


def test_the_long_side_of_the_tile_on_the_long_side_of_c() -> None:
    tall, wide = (Problem(*shape, 4096, "bf16") for shape in ((8192, 128), (128, 8192)))
    assert [constraints.edge_waste(tall, *tile).value for tile in ((256, 128), (128, 256))] == [0, 0.5]
    assert [constraints.edge_waste(wide, *tile).value for tile in ((256, 128), (128, 256))] == [0.5, 0]
    judgement, _ = judged(8192, 128, 4096, tile=(128, 256, 64))
    assert "the long side of the tile on the short one of C" in [each.name for each in judgement.mistakes]
    judgement, _ = judged(8192, 128, 4096, tile=(256, 128, 64))
    assert "the long side of the tile on the short one of C" not in [each.name for each in judgement.mistakes]


def test_bk_for_reuse() -> None:
    judgement, found = judged(8192, 8192, 8192, tile=(256, 128, 128))
    assert not judgement.fits
    assert [name for name in found if found[name].ok is False and found[name].hard] == ["swizzle row", "kernel"]
    mistake = next(each for each in judgement.mistakes if each.name == "BK for reuse")
    assert "changes no byte that is loaded" in mistake.sentence
    assert "96 KB and not 48" in mistake.sentence


def test_bk_for_reuse_of_a_tile_that_swap_ab_has() -> None:
    judgement, _ = judged(8192, 8192, 8192, tile=(128, 128, 128))
    assert judgement.candidate is not None
    assert judgement.candidate.swap_ab
    mistake = next(each for each in judgement.mistakes if each.name == "BK for reuse")
    assert "64 KB and not 32" in mistake.sentence
    assert mistake.instead.startswith("128x128x64 ")
    # Deep stages pay for few tokens: they are more bytes in flight.
    judgement, _ = judged(64, 7168, 7168, tile=(64, 64, 256))
    assert judgement.candidate is not None
    assert "BK for reuse" not in [each.name for each in judgement.mistakes]


def test_traffic_at_edges_counts_whole_tiles() -> None:
    # ceil(N / BN) reads of A, ceil(M / BM) of B.
    ragged = Problem(129, 257, 64, "bf16")
    assert tiled_traffic(ragged, 128, 256).value == 2 * (129 * 64 * 2 + 257 * 64 * 2)
    assert accumulator_registers(128, 256, 1).value == 256
