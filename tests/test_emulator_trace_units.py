"""What the tracer counts of TMA, wgmma, mma.sync and mbarriers: by hand, and by the arithmetic on the ladder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from observed import kernel_source

from tilewright.backends.base import TensorMap
from tilewright.backends.emulator import EmulatorBackend
from tilewright.backends.emulator_counts import Copies, CopyLine, Counts, MatrixInstructions
from tilewright.backends.emulator_trace import trace
from tilewright.backends.host_compiler import available_compilers
from tilewright.count import count
from tilewright.derive import derived
from tilewright.dtypes import BF16
from tilewright.gpu import get_gpu
from tilewright.ladder import rungs
from tilewright.operands import random_operands
from tilewright.plan_tensor import TensorPlan
from tilewright.problem import Problem
from tilewright.run import launch_arguments, make_operands

ROW, BOX = 128, 64 * 128  # bytes: of 64 bf16, and of a box of as many rows
SHARED = 3 * BOX + 8  # three of them and an mbarrier


@pytest.fixture(params=available_compilers(), ids=lambda c: c.kind)
def emulator(request: pytest.FixtureRequest) -> EmulatorBackend:
    """One on each compiler found here."""
    return EmulatorBackend(compiler=request.param)


def units(emulator: EmulatorBackend, blocks: int) -> Counts:
    """The counts of ``observed/units.cu`` in a cluster of ``blocks``; A ends after 50 of 64 rows."""
    a = emulator.upload(np.zeros((50, 64), BF16.numpy))
    b = emulator.upload(np.zeros((64, 64), BF16.numpy))
    c = emulator.upload(np.zeros((64 * blocks, 64), BF16.numpy))
    maps = [TensorMap(a, (64, 64)), TensorMap(b, (64, 64 // blocks)), TensorMap(c, (64, 64))]
    source = kernel_source("observed/units.cu", BLOCKS=blocks, SHARED_BYTES=SHARED)
    return trace(emulator, source, (blocks, 1, 1), (128, 1, 1), maps, SHARED, cluster=blocks)


def only(counts: Counts, operand: str, kind: str) -> CopyLine:
    (found,) = (each for each in counts.copy_lines if (each.operand, each.kind) == (operand, kind))
    return found


def test_one_block_by_hand(emulator: EmulatorBackend) -> None:
    counts = units(emulator, 1)
    assert counts.blocks == 1
    # A's box reaches beyond its last row: zeros arrive that nobody read.
    assert only(counts, "a", "load").copies == Copies(1, 50 * ROW, 0, BOX)
    assert only(counts, "b", "load").copies == Copies(1, 64 * ROW, 0, BOX)
    assert only(counts, "c", "store").copies == Copies(1, 64 * ROW, 0, BOX)
    assert counts.operands["a"].loaded_bytes == 50 * ROW
    assert counts.operands["c"].stored_bytes == 64 * ROW
    assert counts.operands["b"].all.requests == 0
    # An mma.sync for each of four warps; four wgmmas of the warpgroup, each 2 KB of A and 32 N bytes of B.
    assert counts.matrix == (
        MatrixInstructions(16, 8, 16, 4),
        MatrixInstructions(64, 64, 16, 4, a_bytes=4 * 2048, b_bytes=4 * 32 * 64),
    )
    assert counts.multiply_adds == 4 * 16 * 8 * 16 + 64 * 64 * 64
    assert counts.wgmma_shared_bytes == 4 * (2048 + 2048)
    assert counts.waits.mbarrier == 128
    assert 0 < counts.waits.blocked <= 128
    assert counts.waits.proxy_fences == 128


def test_ldmatrix_and_stmatrix_count_rows_of_16_bytes(emulator: EmulatorBackend) -> None:
    lines = {
        (each.kind, each.requests.lanes // each.requests.requests): each.requests
        for each in units(emulator, 1).lines
        if each.memory == "shared" and each.bytes_per_lane == 16
    }
    x4, x2, stores = lines["load", 32], lines["load", 16], lines["store", 32]
    assert (x4.requests, x4.bytes, x4.cost, x4.ideal) == (4, 4 * 512, 16, 16)
    assert (x2.requests, x2.bytes, x2.cost, x2.ideal) == (4, 4 * 256, 4 * 16, 4 * 2)
    assert (stores.requests, stores.cost, stores.ideal) == (16, 64, 64)
    assert not any(each.approximate for each in lines.values())


def test_a_multicast_is_read_once(emulator: EmulatorBackend) -> None:
    counts = units(emulator, 2)
    assert counts.blocks == 2
    # Each block loads half of B and both receive it: a whole B is read, two arrive.
    assert only(counts, "b", "load").copies == Copies(2, 64 * ROW, 64 * ROW, 2 * BOX)
    assert only(counts, "a", "load").copies == Copies(2, 2 * 50 * ROW, 0, 2 * BOX)
    assert only(counts, "c", "store").copies == Copies(2, 2 * 64 * ROW, 0, 2 * BOX)
    found = counts.to_dict()
    assert found["tma_bytes"] == (2 * 50 + 64 + 2 * 64) * ROW
    assert found["tma_bytes_saved_by_multicast"] == 64 * ROW
    assert found["tma_copies"] == 6
    assert found["operands"]["b"] == {
        "sectors_per_request": None,
        "ideal": None,
        "loaded_bytes": 64 * ROW,
        "stored_bytes": 0,
    }
    assert found["wgmma_shared_bytes"] == 2 * 4 * (2048 + 2048)


@pytest.mark.parametrize("number", range(5, 12))
def test_counted_is_derived(emulator: EmulatorBackend, number: int) -> None:
    rung = rungs()[number]
    plan = rung.plan(BF16)
    counts = count(emulator, rung, plan, Problem(512, 512, 256, BF16))
    assert counts is not None
    expected = derived(plan, get_gpu("h200"))
    assert counts.blocks == plan.cluster
    assert counts.flop_per_byte == pytest.approx(expected["flop_per_byte"])
    assert counts.multiply_adds == plan.cluster * plan.bm * plan.bn * 128
    assert counts.shared_load_bytes_per_mac == pytest.approx(expected["shared_load_bytes_per_mac"])
    assert counts.operands["c"].stored_bytes == plan.cluster * plan.bm * plan.bn * 2
    assert counts.shared.excess_per_request in (0.0, None)
    moved_by_tma = [name for name, each in counts.operands.items() if each.all.requests == 0]
    assert moved_by_tma == (["a", "b", "c"] if number == 11 else ["a", "b"] if number >= 7 else [])
    for name, each in counts.operands.items():
        assert each.all.cost == each.all.ideal or name == "c"
    if number >= 10:
        (_, b) = (counts.operands[name].copied_in for name in "ab")
        assert b.saved_bytes == b.global_bytes == plan.bn * 128 * 2


@pytest.mark.parametrize(
    "changes",
    [
        {"a_layout": "column", "b_layout": "column"},
        {"cluster_m": 1, "cluster_n": 2},
        {"cluster_m": 1, "pingpong": True, "bn": 128},
        {"cluster_m": 1, "half_tail": True, "bm": 256, "bn": 128, "epilogue_columns": 32},
    ],
)
def test_other_plans(changes: Mapping[str, Any]) -> None:
    rung = rungs()[11]
    plan = rung.plan(BF16).with_(**changes)
    problem = Problem(512, 512, 128, BF16, a_layout=plan.a_layout, b_layout=plan.b_layout)
    counts = count(EmulatorBackend(), rung, plan, problem)
    assert counts is not None
    assert isinstance(plan, TensorPlan)
    assert counts.blocks == plan.cluster
    expected = derived(plan, get_gpu("h200"))
    assert counts.flop_per_byte == pytest.approx(expected["flop_per_byte"])
    assert counts.shared_load_bytes_per_mac == pytest.approx(expected["shared_load_bytes_per_mac"])
    assert counts.shared.excess_per_request == 0
    shared = {name: each.copied_in.saved_bytes for name, each in counts.operands.items()}
    assert (shared["a"] > 0, shared["b"] > 0) == (plan.cluster_n == 2, plan.cluster_m == 2)


def test_a_ragged_tile_counts_what_c_needs() -> None:
    rung = rungs()[9]
    counts = count(EmulatorBackend(), rung, rung.plan(BF16), Problem(100, 72, 40, BF16))
    assert counts is not None
    assert counts.flops == 2 * 100 * 72 * 40
    assert counts.multiply_adds == 128 * 256 * 64
    assert counts.operands["a"].loaded_bytes == 100 * 40 * 2
    assert counts.operands["b"].loaded_bytes == 72 * 40 * 2
    assert counts.operands["c"].stored_bytes == 100 * 72 * 2


@pytest.mark.parametrize(("number", "blocks"), [(9, 1), (10, 4)])
def test_a_part_of_a_persistent_grid(number: int, blocks: int) -> None:
    """All tiles of one block, or one cluster, of a grid that has fewer of them than C has tiles."""
    emulator, rung = EmulatorBackend(), rungs()[number]
    plan = rung.plan(BF16).with_(blocks=blocks, group=1)
    problem = Problem(512, 512, 64, BF16)
    operands = make_operands(emulator, problem, *random_operands(problem, 0))
    launch = (plan.grid(problem), plan.block, launch_arguments(emulator, plan, operands), plan.shared_bytes)
    counts = trace(emulator, rung.source(plan, "host"), *launch, [blocks - 1], cluster=plan.cluster)
    assert counts.blocks == plan.cluster
    clusters = blocks // plan.cluster
    assert counts.multiply_adds == 512 * 512 * 64 // clusters
    assert counts.flop_per_byte == pytest.approx(derived(plan, get_gpu("h200"))["flop_per_byte"])
    assert counts.operands["c"].stored_bytes == 512 * 512 * 2 // clusters
