"""The plans of the tensor-core rungs: what they compute, which of them exist, and why the others do not."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from tilewright.dtypes import BF16, FP16, FP32
from tilewright.errors import UsageError
from tilewright.plan_base import TensorBox
from tilewright.plan_tensor import TensorPlan
from tilewright.problem import Problem

WARPGROUPS: dict[str, Any] = {"bm": 128, "bn": 256, "bk": 64, "consumers": 2}
SPLIT: dict[str, Any] = {**WARPGROUPS, "producer_registers": 40, "consumer_registers": 232}
MAIN = TensorPlan(
    11, BF16, **SPLIT, blocks=132, group=8, cluster_m=2, epilogue_columns=64, epilogue_slabs=2, b_layout="column"
)  # fmt: skip
PLANS = {
    5: TensorPlan(5, BF16, 128, 256, 64, stages=3, warps_m=2, warps_n=4),
    6: TensorPlan(6, BF16, **WARPGROUPS),
    7: TensorPlan(7, BF16, **WARPGROUPS),
    8: TensorPlan(8, BF16, **SPLIT),
    9: TensorPlan(9, BF16, **SPLIT, blocks=132),
    10: TensorPlan(10, BF16, **SPLIT, blocks=132, cluster_m=2),
    11: MAIN,
}


HEADER = """\
namespace tw { struct bf16; }
namespace plan {
using T = tw::bf16;
using Out = tw::bf16;
constexpr int BM = 128;
constexpr int BN = 256;
constexpr int BK = 64;
constexpr int STAGES = 4;
constexpr int THREADS = 384;
constexpr int SHARED_BYTES = 229440;
constexpr bool A_K_MAJOR = true;
constexpr bool B_K_MAJOR = true;
constexpr bool ALIGNED = true;
constexpr int WARPS_M = 0;
constexpr int WARPS_N = 0;
constexpr int CONSUMERS = 2;
constexpr int PRODUCER_REGISTERS = 40;
constexpr int CONSUMER_REGISTERS = 232;
constexpr int GROUP = 8;
constexpr bool ALONG_N = false;
constexpr int CLUSTER_M = 2;
constexpr int CLUSTER_N = 1;
constexpr bool PINGPONG = false;
constexpr bool HALF_TAIL = false;
constexpr bool ALTERNATE_K = false;
constexpr bool STORE_EVICT_FIRST = false;
constexpr int EPILOGUE_COLUMNS = 64;
constexpr int EPILOGUE_SLABS = 2;
constexpr bool DEPENDENT_LAUNCH = false;
constexpr bool BATCHED = false;
constexpr bool PAIRED = false;
}  // namespace plan
"""


def test_the_header_is_the_plan() -> None:
    assert MAIN.header() == HEADER
    other = MAIN.with_(a_layout="column", b_layout="row", dtype=FP16)
    expected = HEADER.replace("bf16", "fp16").replace("K_MAJOR = true", "K_MAJOR = false")
    assert other.header() == expected
    values = MAIN.to_dict()
    assert json.loads(json.dumps(values)) == values
    assert (values["dtype"], values["threads"], values["shared_bytes"], values["b_layout"]) == (
        "bf16", 384, 229440, "column",
    )  # fmt: skip


def test_every_value_that_matters_is_in_the_header() -> None:
    changes: list[dict[str, Any]] = [
        {"dtype": FP16}, {"bm": 256, "bn": 128}, {"bn": 128}, {"stages": 3}, {"a_layout": "column"},
        {"b_layout": "row"}, {"consumers": 1, "consumer_registers": 248, "bm": 64}, {"producer_registers": 32},
        {"consumer_registers": 224}, {"group": 4}, {"along_n": True}, {"cluster_m": 1}, {"cluster_n": 2},
        {"pingpong": True, "bm": 64}, {"half_tail": True, "bm": 256, "bn": 128}, {"alternate_k": True},
        {"store_evict_first": True}, {"epilogue_columns": 32}, {"epilogue_slabs": 1}, {"dependent_launch": True},
    ]  # fmt: skip
    headers = {MAIN.with_(**change).header() for change in changes}
    assert len(headers | {MAIN.header()}) == len(changes) + 1
    assert MAIN.with_(blocks=4).header() == MAIN.header(), "how many blocks there are is the grid's to say"


def test_threads_follow_from_the_rest() -> None:
    assert {number: plan.threads for number, plan in PLANS.items()} == {
        5: 256, 6: 256, 7: 256, 8: 384, 9: 384, 10: 384, 11: 384,
    }  # fmt: skip
    assert PLANS[5].with_(bn=128, warps_n=2).threads == 128


def test_shared_bytes_by_hand() -> None:
    tile = (128 + 256) * 64 * 2
    assert [plan.shared_bytes for plan in PLANS.values()] == [
        3 * tile, 4 * tile, *(4 * tile + 4 * 16,) * 4, 4 * tile + 4 * 16 + 2 * 2 * 64 * 64 * 2,
    ]  # fmt: skip


def test_accumulators_of_a_thread() -> None:
    assert [plan.accumulators for plan in PLANS.values()] == [128] * 7
    assert MAIN.with_(pingpong=True, bm=64).accumulators == 128
    wide = MAIN.with_(bm=256, bn=192, stages=3, producer_registers=32)
    assert wide.accumulators == 192


# ---- tensor maps -----------------------------------------------------------------------------------------------------


def test_rungs_without_tma_take_pointers() -> None:
    assert PLANS[5].tensor_boxes == PLANS[6].tensor_boxes == ()


@pytest.mark.parametrize(
    ("changes", "a", "b"),
    [
        ({}, 128, 128),
        ({"cluster_m": 1}, 128, 256),
        ({"cluster_m": 1, "cluster_n": 2}, 64, 256),
        ({"bm": 256, "bn": 128, "half_tail": True}, 128, 64),
        ({"a_layout": "column"}, 64, 128),
        ({"a_layout": "column", "cluster_n": 2}, 32, 128),
        ({"b_layout": "row"}, 128, 32),
        ({"b_layout": "row", "cluster_m": 4}, 128, 16),
    ],
)
def test_a_block_loads_its_share_of_a_tile(changes: dict[str, Any], a: int, b: int) -> None:
    boxes = MAIN.with_(**changes).tensor_boxes
    assert boxes == (TensorBox("a", (64, a), 128), TensorBox("b", (64, b), 128), TensorBox("c", (64, 64), 128))


def test_c_is_stored_a_slab_at_a_time() -> None:
    assert [len(PLANS[number].tensor_boxes) for number in (7, 8, 9, 10, 11)] == [2, 2, 2, 2, 3]
    assert MAIN.with_(epilogue_columns=32).tensor_boxes[2] == TensorBox("c", (32, 64), 64)
    assert MAIN.with_(epilogue_columns=16).tensor_boxes[2] == TensorBox("c", (16, 64), 32)


# ---- the grid --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "shape", "blocks"),
    [
        (8, (129, 257, 1), 4),
        (9, (129, 257, 1), 4),
        (9, (4096, 4096, 1), 132),
        (9, (1, 1, 0), 1),
        (10, (1, 1, 0), 2),  # a cluster is whole, whatever there is to do
        (10, (257, 256, 1), 4),
        (10, (4096, 4096, 1), 132),
        (11, (0, 5, 5), 0),
    ],
)
def test_blocks_of_a_grid(number: int, shape: tuple[int, int, int], blocks: int) -> None:
    assert PLANS[number].grid(Problem(*shape, BF16)) == (blocks, 1, 1)


def test_blocks_of_a_persistent_grid() -> None:
    problem = Problem(4096, 4096, 64, BF16)
    few = MAIN.with_(blocks=4)
    assert few.grid(problem) == (4, 1, 1)
    assert few.edge_blocks(problem) == [0, 1, 2, 3]
    assert few.interior_block(problem) == 2
    assert MAIN.with_(cluster_n=2, blocks=8).cluster_tiles(Problem(257, 513, 1, BF16)) == (2, 2)
    with pytest.raises(UsageError, match=r"needs 35184372088832 blocks of 128x256; a grid has at most 2147483647"):
        PLANS[9].grid(Problem(2**30, 2**30, 1, BF16))


# ---- what no kernel has ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "changes", "complaint"),
    [
        (11, {"group": 1.5}, r"rung 11: group is 1\.5; it must be an int of 32 bits"),
        (11, {"bm": "128"}, "bm is '128'; it must be an int of 32 bits"),
        (11, {"stages": True}, "stages is True; it must be an int of 32 bits"),
        (11, {"blocks": 2**31}, "blocks is 2147483648; it must be an int of 32 bits"),
        (11, {"consumers": None}, "consumers is None; it must be an int of 32 bits"),
        (9, {"aligned": None}, "aligned is None; True and False are possible"),
        (11, {"alternate_k": 2}, "alternate_k is 2; True and False are possible"),
        (5, {"rung": 4}, "rung 4: rungs 5 to 11 multiply on tensor cores"),
        (6, {"dtype": FP32}, "rung 6: dtype is fp32; tensor cores multiply bf16 or fp16"),
        (6, {"a_layout": "diagonal"}, "a_layout is 'diagonal'; row and column are possible"),
        (6, {"bk": 32}, "bk is 32; it must be 64, a 128-byte row of 16-bit elements"),
        (7, {"stages": 1}, "stages is 1; one is read while another is filled: 2 are the least"),
        (6, {"stages": 2}, "stages is 2; one is read .* a third by the wgmmas still in flight: 3 are the least"),
        (5, {"warps_m": 1, "warps_n": 1, "bm": 64, "bn": 64}, "1x1 warps; 1x2, 2x1, 2x2, 2x4, 4x2, .* are"),
        (6, {"consumers": 3, "bm": 192, "bn": 192}, "192x192; 384 threads copy 48 lines .*, in slabs of 64"),
        (6, {"bn": 176}, "the tile is 128x176; 256 threads copy 32 lines of A or B at a time"),
        (5, {"consumers": 2}, "rung 5: consumers is 2; rungs 6 and up have it"),
        (9, {"cluster_m": 2}, "rung 9: cluster_m is 2; rungs 10 and up have it"),
        (10, {"pingpong": True}, "rung 10: pingpong is True; rungs 11 and up have it"),
        (5, {"warps_m": 0}, "0x4 warps; 1x2, 2x1, .* are possible"),
        (5, {"bn": 80}, r"the tile is 128x80; it must be a multiple of 32x64 \(2x4 warps of 16x16\)"),
        (6, {"warps_m": 2, "warps_n": 2}, "2x2 warps; from rung 6 on whole warpgroups multiply"),
        (6, {"consumers": 4}, "consumers is 4; 1 to 3 warpgroups can multiply"),
        (11, {"bm": 192}, "the tile is 192x256; it must be a multiple of 128x16"),
        (11, {"bn": 264}, "the tile is 128x264; it must be a multiple of 128x16"),
        (6, {"bn": 320}, "bn is 320; a tile has at most 256 columns, as many as one wgmma"),
        (5, {"bm": 96}, "bm is 96; tiles have 64, 128, 192, 256 or 384 rows"),
        (6, {"b_layout": "row", "bn": 96}, "bn is 96; row-major B lies in slabs of 64 columns"),
        (11, {"cluster_m": 4, "cluster_n": 4}, "the cluster is 4x4; 1x1, 2x1, 1x2, 2x2, 4x1 are possible"),
        (11, {"group": 0}, "group is 0; a super-row has at least 1 cluster tile"),
        (11, {"blocks": 131}, "blocks is 131; it must be a multiple of the 2 blocks of a cluster, and not 0"),
        (11, {"blocks": 0}, "blocks is 0; it must be a multiple of the 2 blocks of a cluster, and not 0"),
        (11, {"bn": 168 + 8, "cluster_m": 4}, "cluster_m is 4; it cuts 176 lines of B's tile, which must give whole"),
        (11, {"cluster_m": 3, "blocks": 3}, "the cluster is 3x1; 1x1, 2x1, 1x2, 2x2, 4x1 are possible"),
        (11, {"aligned": False}, "aligned is False; it stores C by TMA"),
        (11, {"pingpong": True, "consumers": 1}, "consumers is 1; 2 take turns in ping-pong"),
        (11, {"half_tail": True}, r"half_tail cuts .* in two; this is 128x256 for 2"),
        (11, {"half_tail": True, "pingpong": True, "bm": 256}, "this is 256x256 for 2 in ping-pong"),
        (11, {"epilogue_columns": 48}, "epilogue_columns is 48; 16, 32 and 64 are possible where they divide bn"),
        (11, {"bn": 176}, "epilogue_columns is 64; 16, 32 and 64 are possible where they divide bn, which is 176"),
        (11, {"epilogue_slabs": 0}, "epilogue_slabs is 0; a consumer needs at least 1"),
        (8, {"producer_registers": 44}, "producer_registers is 44; setmaxnreg takes multiples of 8 from 24 to 256"),
        (8, {"producer_registers": 24}, "producer_registers is 24; a thread that loads needs 32"),
        (8, {"consumer_registers": 264}, "consumer_registers is 264; setmaxnreg takes multiples of 8 from 24 to 256"),
        (8, {"consumers": 1}, "registers go from 248 at entry down to 40 and up to 232"),
        (8, {"consumer_registers": 240}, r"40 \+ 2 x 240 registers are 520; the block starts with 3 x 168 = 504"),
        (8, {"bm": 192, "consumers": 3, "producer_registers": 32, "consumer_registers": 160},
         "bn is 256, whose wgmma needs 154 registers at entry; 512 threads leave 128"),
        (8, {"bm": 256}, "a tile of 256x256 takes 256 accumulators and about 40 other registers; a consumer thread"),
        (5, {"bm": 256}, "takes 256 accumulators and about 136 other registers; a thread of the block has 248"),
        (11, {"stages": 5}, "shared memory is 278608 bytes with 5 stages; a block has 232448"),
        (7, {"bm": 384, "bn": 64, "consumers": 3}, "a TMA box of A has 384 lines; at most 256 are possible"),
    ],
)  # fmt: skip
def test_what_no_kernel_has(number: int, changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        dataclasses.replace(PLANS[number], **changes)


@pytest.mark.parametrize(("name", "value"), [("threads", 256), ("shared_bytes", 1), ("stage", 3)])
def test_what_follows_from_the_rest_or_is_unknown_cannot_be_changed(name: str, value: int) -> None:
    with pytest.raises(UsageError, match=f"plan value '{name}' is not one of rung, dtype, bm, "):
        PLANS[11].with_(**{name: value})
