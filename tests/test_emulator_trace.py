"""The tracer counts what a kernel moves: by hand on small kernels, against the arithmetic on the ladder."""

from __future__ import annotations

import ctypes
import json
import re
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from observed import Product, kernel_source, product

from tilewright.backends import emulator_lines
from tilewright.backends.emulator import EmulatorBackend
from tilewright.backends.emulator_counts import Counts, LineCounts
from tilewright.backends.emulator_lines import SourceLine
from tilewright.backends.emulator_trace import trace
from tilewright.backends.host_compiler import HostCompiler, available_compilers
from tilewright.dtypes import BF16, FP32, DType
from tilewright.errors import UsageError
from tilewright.ladder import Rung, rungs
from tilewright.plan_base import Plan
from tilewright.plan_simt import SimtPlan
from tilewright.problem import Problem
from tilewright.roofline import naive_intensity, shared_load_bytes_per_mac, tile_intensity


@pytest.fixture(params=available_compilers(), ids=lambda c: c.kind)
def compiler(request: pytest.FixtureRequest) -> HostCompiler:
    """Every compiler found here."""
    found: HostCompiler = request.param
    return found


@pytest.fixture
def emulator(compiler: HostCompiler) -> EmulatorBackend:
    return EmulatorBackend(compiler=compiler)


# ---- the rule for shared memory --------------------------------------------------------------------------------------


@cache
def runtime() -> ctypes.CDLL:
    return EmulatorBackend().runtime


def wavefronts(
    addresses: Sequence[int], width: int, active: int = 0xFFFFFFFF, *, write: bool = False
) -> tuple[int, int]:
    """Wavefronts and ideal of one request, by the runtime's rule."""
    actual, ideal = ctypes.c_uint32(), ctypes.c_uint32()
    runtime().tw_shared_wavefronts(
        (ctypes.c_uint64 * 32)(*addresses),
        ctypes.c_uint32(active),
        ctypes.c_uint32(width),
        ctypes.c_bool(write),
        ctypes.byref(actual),
        ctypes.byref(ideal),
    )
    return actual.value, ideal.value


@pytest.mark.parametrize(
    ("stride", "width", "expected"),
    [(4, 4, 1), (0, 4, 1), (8, 4, 2), (16, 4, 4), (128, 4, 32), (132, 4, 1), (2, 2, 1), (1, 1, 1), (64, 2, 16)],
)
def test_wavefronts_of_narrow_requests(stride: int, width: int, expected: int) -> None:
    assert wavefronts([lane * stride for lane in range(32)], width) == (expected, 1)


@pytest.mark.parametrize(
    ("stride", "width", "excess"),
    [(8, 8, 0), (16, 16, 0), (0, 8, 0), (0, 16, 0), (16, 8, 2), (32, 16, 4), (128, 16, 28), (144, 16, 0)],
)
def test_excess_of_wide_requests(stride: int, width: int, excess: int) -> None:
    actual, ideal = wavefronts([lane * stride for lane in range(32)], width)
    assert actual - ideal == excess


def test_wavefronts_are_those_of_an_h200() -> None:
    """The rule against ncu's counters for every pattern of scripts/probe_wavefronts.py."""
    fixture = json.loads((Path(__file__).parent / "fixtures" / "wavefronts_h200.json").read_text())
    assert fixture["gpu"] == "NVIDIA H200"
    assert len(fixture["patterns"]) == 492
    for pattern in fixture["patterns"]:
        active = sum(1 << lane for lane, address in enumerate(pattern["addresses"]) if address is not None)
        addresses = [address or 0 for address in pattern["addresses"]]
        actual, ideal = wavefronts(addresses, pattern["width"], active, write=pattern["op"] == "st")
        assert (actual, actual - ideal) == (pattern["wavefronts"], pattern["bank_conflicts"]), pattern["name"]


def test_wavefronts_of_no_lanes() -> None:
    assert wavefronts([0] * 32, 4, active=0) == (0, 0)
    assert wavefronts([128 * lane for lane in range(32)], 4, active=0x101) == (2, 1)


@given(st.sampled_from([1, 2, 4, 8, 16]), st.data())
def test_wavefronts_are_between_ideal_and_lanes(width: int, data: st.DataObject) -> None:
    addresses = [width * a for a in data.draw(st.lists(st.integers(0, 511), min_size=32, max_size=32))]
    active = data.draw(st.integers(1, 2**32 - 1))
    actual, ideal = wavefronts(addresses, width, active)
    assert 1 <= ideal <= actual <= active.bit_count()
    shifted = [a + 128 * 7 for a in addresses]
    assert wavefronts(shifted, width, active) == (actual, ideal)


# ---- requests counted by hand ----------------------------------------------------------------------------------------


def only(counts: Counts, text: str, memory: str, kind: str) -> LineCounts:
    """The one entry for the line of requests.cu that contains ``text``."""
    lines = (Path(__file__).parent / "kernels/observed/requests.cu").read_text().splitlines()
    (line,) = (number for number, each in enumerate(lines, start=1) if text in each)
    where = SourceLine("requests.cu", line)
    (found,) = (c for c in counts.lines if (c.line, c.memory, c.kind) == (where, memory, kind))
    return found


def test_requests_by_hand(emulator: EmulatorBackend) -> None:
    numbers = emulator.upload(np.zeros((1, 256), np.float32))
    out = emulator.upload(np.zeros((1, 256), np.float32))
    source = kernel_source("observed/requests.cu", SHARED_BYTES=4096)
    counts = trace(emulator, source, (1, 1, 1), (32, 1, 1), [numbers, out], 4096, names=("in", "out"))

    strided = only(counts, "in[2 * t]", "in", "load").requests
    assert (strided.requests, strided.lanes, strided.bytes, strided.cost, strided.ideal) == (1, 16, 64, 4, 2)
    assert not strided.approximate
    atomic = only(counts, "atomic_add", "out", "atomic").requests
    assert (atomic.requests, atomic.lanes, atomic.cost, atomic.ideal) == (1, 32, 1, 1)
    uneven = only(counts, "i < t", "shared", "store").requests
    assert (uneven.lanes, uneven.approximate) == (31 * 32 // 2, True)
    broadcast = only(counts, "in[200]", "in", "load").requests
    assert (broadcast.bytes, broadcast.cost, broadcast.ideal) == (128, 1, 1)
    conflict = only(counts, "[32 * t] =", "shared", "store").requests
    assert (conflict.cost, conflict.ideal, conflict.excess_per_request) == (32, 1, 31.0)
    misplaced = only(counts, "in[t + 1]", "in", "load").requests
    assert (misplaced.cost_per_request, misplaced.ideal_per_request) == (5.0, 4.0)
    assert counts.operands["out"].loads.requests == 0
    assert counts.multiply_adds == 0
    assert counts.shared_load_bytes_per_mac is None
    assert counts.flop_per_byte is None


def test_more_matrices_than_names(emulator: EmulatorBackend) -> None:
    numbers = emulator.upload(np.zeros((1, 256), np.float32))
    source = kernel_source("observed/requests.cu", SHARED_BYTES=4096)
    with pytest.raises(UsageError, match="takes 2 matrices"):
        trace(emulator, source, (1, 1, 1), (32, 1, 1), [numbers, numbers], 4096, names=("in",))


# ---- the ladder ------------------------------------------------------------------------------------------------------


def counted(emulator: EmulatorBackend, rung: Rung, plan: Plan, operands: Product) -> Counts:
    """One interior block of a rung."""
    problem = Problem(operands.c.rows, operands.c.cols, operands.a.cols, plan.dtype)
    return trace(
        emulator,
        rung.source(plan, "host"),
        plan.grid(problem),
        plan.block,
        operands.args,
        plan.shared_bytes,
        [plan.interior_block(problem)],
    )


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
@pytest.mark.parametrize("number", range(5))
def test_counted_is_derived(emulator: EmulatorBackend, number: int, dtype: DType) -> None:
    rung = rungs()[number]
    plan = rung.plan(dtype)
    assert isinstance(plan, SimtPlan)
    counts = counted(emulator, rung, plan, product(emulator, 256, 256, 128, dtype=dtype))
    size = dtype.itemsize
    tiled = plan.stages > 0
    intensity = tile_intensity(plan.bm, plan.bn, size) if tiled else naive_intensity(size)
    assert counts.flop_per_byte == pytest.approx(float(intensity), rel=0.02)
    assert counts.multiply_adds == plan.bm * plan.bn * 128
    assert counts.operands["c"].stores.bytes == plan.bm * plan.bn * size
    assert not any(c.requests.approximate for c in counts.lines)
    per_mac = float(shared_load_bytes_per_mac(max(plan.tm, 1), max(plan.tn, 1), size)) if tiled else 0.0
    assert counts.shared_load_bytes_per_mac == pytest.approx(per_mac, rel=0.02)
    assert counts.shared.excess_per_request == (0.0 if tiled else None)
    for name in ("a", "b"):
        loads = counts.operands[name].loads
        assert loads.cost == loads.ideal, name
    if number >= 3:
        assert all(operand.all.cost_per_request == 16.0 for operand in counts.operands.values())


def test_json_object(emulator: EmulatorBackend) -> None:
    rung = rungs()[2]
    found = counted(emulator, rung, rung.plan(FP32), product(emulator, 128, 128, 64)).to_dict()
    read, written = 4 * 128 * 64, 4 * 128 * 128
    assert found == {
        "blocks": 1,
        "flop": 2 * 128 * 128 * 64,
        "flop_per_byte": 32.0,
        "flop_per_byte_with_c": 2 * 128 * 128 * 64 / (4 * 128 * (64 + 64 + 128)),
        "shared_load_bytes_per_mac": 1.0,
        "excess_wavefronts_per_request": 0.0,
        "wgmma_shared_bytes": 0,
        "tma_copies": 0,
        "tma_bytes": 0,
        "tma_bytes_saved_by_multicast": 0,
        "mbarrier_waits": 0,
        "mbarrier_waits_blocked": 0,
        "proxy_fences": 0,
        "approximate": False,
        "operands": {
            "a": {"sectors_per_request": 4.0, "ideal": 4.0, "loaded_bytes": read, "stored_bytes": 0},
            "b": {"sectors_per_request": 4.0, "ideal": 4.0, "loaded_bytes": read, "stored_bytes": 0},
            "c": {"sectors_per_request": 16.0, "ideal": 4.0, "loaded_bytes": 0, "stored_bytes": written},
        },
    }


def test_counter_examples_show_their_mistake(emulator: EmulatorBackend) -> None:
    naive, blocked = rungs()[0], rungs()[2]
    operands = product(emulator, 128, 128, 32)
    swapped = counted(emulator, naive, naive.plan(FP32).with_(swapped=True), operands)
    assert swapped.operands["a"].loads.cost_per_request == 32.0
    assert swapped.operands["b"].loads.cost_per_request == 1.0
    adjacent = counted(emulator, blocked, blocked.plan(FP32).with_(interleaved=False), operands)
    excess = adjacent.shared.excess_per_request
    assert excess is not None
    assert excess > 0


def test_lines_are_those_of_the_kernel_file(emulator: EmulatorBackend) -> None:
    rung = rungs()[4]
    counts = counted(emulator, rung, rung.plan(FP32), product(emulator, 128, 256, 32))
    text = rung.path.read_text().splitlines()
    expected = {
        ("a", "load", False): r"rows\.fetch",
        ("b", "load", True): r"columns\.fetch",
        ("c", "store", False): "tw::store_block",
        ("shared", "store", True): r"columns\.fetch",
        ("shared", "store", False): r"rows\.(fetch|hand_over)|columns\.fetch<false>",
        ("shared", "load", False): "tw::load_fragment<",
    }
    for each in counts.lines:
        assert each.line is not None
        assert each.line.file == f"rungs/{rung.path.name}"
        assert re.search(expected[each.memory, each.kind, each.asynchronous], text[each.line.line - 1]), each
    assert {(c.memory, c.kind, c.asynchronous) for c in counts.lines} == set(expected)


def test_without_pyelftools_there_are_counts_but_no_lines(
    emulator: EmulatorBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulator_lines.line_table.cache_clear()
    for module in [m for m in sys.modules if re.match(r"elftools(\.|$)", m)]:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, "elftools", None)
    rung = rungs()[0]
    counts = counted(emulator, rung, rung.plan(FP32), product(emulator, 16, 64, 8))
    emulator_lines.line_table.cache_clear()
    assert {c.line for c in counts.lines} == {None}
    assert counts.flop_per_byte == 0.25


def test_a_file_that_is_no_library_has_no_lines(tmp_path: Path) -> None:
    file = tmp_path / "empty.so"
    file.write_bytes(b"not a library")
    assert emulator_lines.line_table(file) is None
    assert emulator_lines.line_table(tmp_path / "missing.so") is None
