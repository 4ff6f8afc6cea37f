"""Blocks of a grid that run in turns: what orders their accesses of global memory, and what does not."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from observed import KERNELS, kernel_source

from tilewright.backends.emulator import EmulatorBackend
from tilewright.backends.emulator_checks import check_races
from tilewright.dtypes import FP32
from tilewright.errors import EmulatorFault, UsageError

BLOCKS, THREADS = 5, 64
KERNEL = "broken/blocks/partials.cu"
FAULTS = re.findall(r"[A-Z_]{3,}", re.search(r"enum Fault {(.*?)}", (KERNELS / KERNEL).read_text("utf-8"))[1])  # type: ignore[index]
RACES = {  # what the report says of it
    "NOT_RELEASED": "matrix 0, byte",
    "NOT_ACQUIRED": "matrix 0, byte",
    "RELAXED": "matrix 1, byte 0",
    "NO_BARRIER": "matrix 0, byte",
    "NOT_THE_LAST": "matrix 0, byte",
    "ONE_SLOT": "write-write race at matrix 0, byte",
}


def launch(emulator: EmulatorBackend, fault: str = "NONE") -> tuple[tuple[Any, ...], np.ndarray[Any, Any]]:
    args = [
        emulator.empty(BLOCKS, THREADS, FP32),
        emulator.upload(np.zeros((1, 1), np.float32)),
        emulator.empty(1, THREADS, FP32),
    ]
    source = kernel_source(KERNEL, FAULT=FAULTS.index(fault), SHARED_BYTES=8)
    rows = np.arange(BLOCKS)[:, None] + (np.arange(THREADS) ^ 32)
    return (source, (BLOCKS, 1, 1), (THREADS, 1, 1), args, 8), rows.sum(0)


@pytest.mark.parametrize("order", [range(BLOCKS), range(BLOCKS - 1, -1, -1), (3, 0, 4, 2, 1)], ids=str)
@pytest.mark.parametrize("together", [1, 2, 8])
def test_any_order(emulator: EmulatorBackend, together: int, order: Any) -> None:
    """Whoever is last adds up all; the counter is zero again, and a second launch finds it so."""
    (source, grid, block, args, shared), expected = launch(emulator)
    kernel = emulator.compile(source)
    for _ in range(2):
        emulator.launch(kernel, grid, block, args, shared, together=together, blocks=list(order))
        np.testing.assert_array_equal(emulator.download(args[2])[0], expected)
        assert emulator.download(args[1])[0, 0] == 0
    check_races(emulator, source, grid, block, args, shared, list(order), together=together)


@pytest.mark.parametrize("fault", RACES)
def test_a_race_between_blocks(emulator: EmulatorBackend, fault: str) -> None:
    arguments, _ = launch(emulator, fault)
    with pytest.raises(EmulatorFault) as caught:
        check_races(emulator, *arguments, together=8)
    assert caught.value.kind == "race"
    assert RACES[fault] in str(caught.value)
    assert "partials.cu" in str(caught.value)


def test_one_block_after_another_shows_none_of_it(emulator: EmulatorBackend) -> None:
    """Why they have to run in turns to be watched: the result alone is right."""
    for fault in ("NOT_RELEASED", "NOT_ACQUIRED", "RELAXED", "NO_BARRIER"):
        (source, grid, block, args, shared), expected = launch(emulator, fault)
        emulator.launch(emulator.compile(source), grid, block, args, shared)
        np.testing.assert_array_equal(emulator.download(args[2])[0], expected)


def test_a_counter_that_stays(emulator: EmulatorBackend) -> None:
    (source, grid, block, args, shared), expected = launch(emulator, "COUNTER_STAYS")
    check_races(emulator, source, grid, block, args, shared, together=8)  # it races with nothing
    kernel = emulator.compile(source)
    args = [*args[:1], emulator.upload(np.zeros((1, 1), np.float32)), emulator.empty(1, THREADS, FP32)]
    emulator.launch(kernel, grid, block, args, shared)
    np.testing.assert_array_equal(emulator.download(args[2])[0], expected)
    again = [*args[:2], emulator.empty(1, THREADS, FP32)]
    emulator.launch(kernel, grid, block, again, shared)
    assert np.isnan(emulator.download(again[2])).all()


def test_every_fault_is_tested() -> None:
    assert set(FAULTS) == {"NONE", "COUNTER_STAYS", *RACES}


@pytest.mark.parametrize(("together", "cluster"), [(0, 1), (9, 1), (2, 5)])
def test_what_cannot_run_in_turns(emulator: EmulatorBackend, together: int, cluster: int) -> None:
    (source, grid, block, args, shared), _ = launch(emulator)
    with pytest.raises(UsageError, match=f"together is {together}; 1 to 8 blocks of a grid without clusters"):
        emulator.launch(emulator.compile(source), grid, block, args, shared, cluster=cluster, together=together)
