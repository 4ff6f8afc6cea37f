"""Structs copied and arrays filled, which compilers turn into calls, are accesses like any other to the observers."""

from __future__ import annotations

import numpy as np
import pytest
from observed import KERNELS, Call, kernel_source

from tilewright.backends.emulator import EmulatorBackend
from tilewright.backends.emulator_checks import check_bounds, check_races
from tilewright.backends.emulator_counts import Counts
from tilewright.backends.emulator_lines import SourceLine
from tilewright.backends.emulator_trace import trace
from tilewright.backends.host_compiler import HostCompiler, available_compilers
from tilewright.errors import EmulatorFault

SHARED_BYTES = 32 * 5 * 4 + 32 * 32 * 4
RACE, ORDERED, FIVE, PAIR, LOOPS, UPDATE, PAST_END, LAST_CALL, RETYPED = range(9)  # CASE of observed/copies.cu


@pytest.fixture(params=available_compilers(), ids=lambda c: c.kind)
def emulator(request: pytest.FixtureRequest) -> EmulatorBackend:
    """One with every compiler found here."""
    compiler: HostCompiler = request.param
    return EmulatorBackend(compiler=compiler)


def call(emulator: EmulatorBackend, case: int, *, first: float = 0.0) -> Call:
    """A launch of one warp on ``in``, 0, 1, 2, ... but for its first element, and an ``out`` of NaN."""
    numbers = np.arange(1024, dtype=np.float32).reshape(1, -1)
    numbers[0, 0] = first
    args = [emulator.upload(numbers), emulator.upload(np.full((1, 1024), np.nan, np.float32))]
    source = kernel_source("observed/copies.cu", SHARED_BYTES=SHARED_BYTES, CASE=case)
    return Call(source, (1, 1, 1), (32, 1, 1), args, SHARED_BYTES)


def output(emulator: EmulatorBackend, launch: Call) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    out: np.ndarray[tuple[int], np.dtype[np.float32]] = emulator.download(launch.args[1])[0]
    return out


def counts(emulator: EmulatorBackend, case: int) -> Counts:
    return trace(emulator, *call(emulator, case), names=("in", "out"))


def test_a_race_of_struct_copies(emulator: EmulatorBackend) -> None:
    with pytest.raises(EmulatorFault, match=r"write-then-read race at .* wrote at copies\.cu:\d+, .* read at copies"):
        check_races(emulator, *call(emulator, RACE))


@pytest.mark.parametrize("case", [ORDERED, LOOPS])
def test_what_a_copy_wrote_is_written(emulator: EmulatorBackend, case: int) -> None:
    launch = call(emulator, case)
    check_races(emulator, *launch)
    numbers = np.arange(1024, dtype=np.float32)
    expected = numbers[1:161].reshape(32, 5)[::-1].ravel()
    if case == LOOPS:
        expected = numbers[:512].reshape(32, 16).sum(axis=1)[::-1]
    start = 0 if case == LOOPS else 1
    np.testing.assert_array_equal(output(emulator, launch)[start : start + expected.size], expected)


@pytest.mark.parametrize("case", [PAIR, FIVE])
def test_a_struct_is_aligned_as_its_members_are(emulator: EmulatorBackend, case: int) -> None:
    launch = call(emulator, case)
    check_bounds(emulator, *launch)
    floats = 32 * (2 if case == PAIR else 5)
    np.testing.assert_array_equal(output(emulator, launch)[1 : 1 + floats], np.arange(1, 1 + floats))


@pytest.mark.parametrize(("case", "words"), [(PAIR, 2), (FIVE, 5), (ORDERED, 5)])
def test_copies_are_counted_word_by_word(emulator: EmulatorBackend, case: int, words: int) -> None:
    found = counts(emulator, case)
    parts = [found.operands["in"].loads, found.operands["out"].stores]
    if case == ORDERED:
        parts += [found.shared_loads, found.shared_stores]
    assert [(r.requests, r.lanes, r.bytes) for r in parts] == [(words, 32 * words, 128 * words)] * len(parts)
    assert not any(r.approximate for r in parts)


def test_fills_by_loops_are_counted(emulator: EmulatorBackend) -> None:
    found = counts(emulator, LOOPS)
    assert found.shared_stores.bytes == found.shared_loads.bytes == 32 * 32 * 4
    assert found.operands["in"].loads.bytes == 32 * 16 * 4


def test_an_update_reads(emulator: EmulatorBackend) -> None:
    out = counts(emulator, UPDATE).operands["out"]
    assert (out.loads.bytes, out.stores.bytes) == (128, 128)


def test_a_copy_past_the_end(emulator: EmulatorBackend) -> None:
    with pytest.raises(EmulatorFault, match=r"read of \d+ bytes at .*, at copies\.cu:\d+") as caught:
        check_bounds(emulator, *call(emulator, PAST_END, first=1000.0))
    assert caught.value.kind == "out-of-bounds"


def test_the_line_of_a_call_that_could_be_a_jump(emulator: EmulatorBackend) -> None:
    text = (KERNELS / "observed/copies.cu").read_text().splitlines()
    atomics = {number for number, line in enumerate(text, start=1) if "tw::atomic_add" in line}
    found = {c.line for c in counts(emulator, LAST_CALL).lines if c.kind == "atomic"}
    assert found == {SourceLine("copies.cu", number) for number in atomics}


def test_pointers_of_two_types_may_alias(emulator: EmulatorBackend) -> None:
    launch = call(emulator, RETYPED)
    source, *rest, _ = launch
    emulator.launch(emulator.compile(source), *rest)
    np.testing.assert_array_equal(output(emulator, launch)[:32], np.full(32, 2.0))
