"""Launches that the emulator's observers watch: what they found, with source lines in place of addresses."""

from __future__ import annotations

import ctypes
import os
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tilewright.backends.base import Dim3
from tilewright.backends.emulator import EmulatorBackend, EmulatorKernel
from tilewright.backends.emulator_lines import LineTable, SourceLine, line_table
from tilewright.backends.emulator_runtime import LaunchStats
from tilewright.errors import EmulatorFault
from tilewright.source import KernelSource

Mode = Literal["bounds", "trace", "race", "trace+race"]  # as observe.cpp names them; every mode checks bounds


class SiteCounts(ctypes.Structure):
    """``tw::SiteCounts`` (trace.hpp)."""

    _fields_ = [
        ("pc", ctypes.c_uint64),
        *((name, ctypes.c_uint32) for name in ("shared", "operand", "write", "atomic", "async_copy", "approximate")),
        *((name, ctypes.c_uint64) for name in ("requests", "lanes", "bytes", "cost", "ideal")),
    ]


class CopyCounts(ctypes.Structure):
    """``tw::CopyCounts`` (trace_units.hpp)."""

    _fields_ = [
        ("pc", ctypes.c_uint64),
        *((name, ctypes.c_uint32) for name in ("operand", "store")),
        *((name, ctypes.c_uint64) for name in ("copies", "global_bytes", "saved_bytes", "shared_bytes")),
    ]


class MatrixCounts(ctypes.Structure):
    """``tw::MatrixCounts`` (trace_units.hpp)."""

    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("m", "n", "k", "padding")),
        *((name, ctypes.c_uint64) for name in ("instructions", "a_bytes", "b_bytes")),
    ]


class WaitCounts(ctypes.Structure):
    """``tw::WaitCounts`` (trace_units.hpp)."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("mbarrier_waits", "blocked_waits", "proxy_fences")]


class RaceParty(ctypes.Structure):
    """``tw::Party`` (race_report.hpp)."""

    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("agent", "rank", "index", "deed")),
        ("pc", ctypes.c_uint64),
    ]


class RaceReport(ctypes.Structure):
    """``tw::RaceReport`` (race_report.hpp)."""

    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("kind", "rank", "offset", "bytes")),
        ("block", ctypes.c_uint32 * 3),
        ("times", ctypes.c_uint32),
        ("first", RaceParty),
        ("second", RaceParty),
    ]


@dataclass(frozen=True)
class Watched:
    """What a watched launch did. ``fault`` is what ended it early, if something did; then ``stats`` is None."""

    kernel: EmulatorKernel
    stats: LaunchStats | None
    fault: EmulatorFault | None
    sites: list[SiteCounts]
    copies: list[CopyCounts]
    shapes: list[MatrixCounts]
    waits: WaitCounts
    races: list[RaceReport]
    finer_cell_bytes: int  # smaller race-detector cells that the kernel needs; 0: these were small enough


def watch(
    backend: EmulatorBackend,
    source: KernelSource,
    grid: Dim3,
    block: Dim3,
    args: Sequence[Any],
    shared_bytes: int,
    *,
    mode: Mode,
    blocks: Sequence[int] | None = None,
    cluster: int = 1,
    together: int = 1,
    cell_bytes: int = 4,
) -> Watched:
    """Run an instrumented build of a kernel under an observer. Faults are returned, not raised."""
    kernel = backend.compile(source, instrumented=True)
    runtime = backend.runtime
    with _findings_lock:  # the findings are the process's, not the launch's
        runtime.tw_observe_reset(ctypes.c_uint32(cell_bytes))
        stats, fault = None, None
        try:
            stats = backend.launch_instrumented(
                kernel, grid, block, args, shared_bytes, cluster=cluster, together=together, blocks=blocks, mode=mode
            )
        except EmulatorFault as error:
            fault = EmulatorFault(error.kind, with_lines(kernel, error.detail))
        sites = _fetch(runtime.tw_trace_sites, SiteCounts)
        copies = _fetch(runtime.tw_trace_copies, CopyCounts)
        shapes = _fetch(runtime.tw_trace_shapes, MatrixCounts)
        waits = WaitCounts()
        runtime.tw_trace_waits(ctypes.byref(waits))
        races = _fetch(runtime.tw_race_reports, RaceReport)
        finer = int(runtime.tw_race_finer_cell_bytes())
        runtime.tw_observe_reset(ctypes.c_uint32(cell_bytes))  # gives the memory back
    return Watched(kernel, stats, fault, sites, copies, shapes, waits, races, finer)


def line_of(kernel: EmulatorKernel, pc: int) -> SourceLine | None:
    """The kernel's line that a reported program counter belongs to, where that can be told."""
    found = _line_table(kernel, pc)
    return found[0].find(found[1]) if found else None


def place_of(kernel: EmulatorKernel, pc: int) -> str:
    """A program counter in words: its line, and for a header's line where that was called from; or itself."""
    found = _line_table(kernel, pc)
    return (found[0].describe(found[1]) if found else None) or f"pc {pc:#x}"


def _line_table(kernel: EmulatorKernel, pc: int) -> tuple[LineTable, int] | None:
    """The kernel's line table, and where in it a program counter is."""
    table = line_table(Path(kernel.library_path))
    thunk = f"{kernel.source.entry}_thunk"
    if table is None or thunk not in table.symbols:
        return None
    loaded_at = kernel.thunk - table.symbols[thunk]
    return table, pc - 1 - loaded_at  # a return address; the access is before it


def with_lines(kernel: EmulatorKernel, text: str) -> str:
    """A report of the runtime with lines of the kernel in place of program counters."""
    return re.sub(r"\bpc 0x([0-9a-f]+)", lambda match: f"at {place_of(kernel, int(match[1], 16))}", text)


def _fetch(function: Any, kind: type[Any]) -> list[Any]:
    function.restype = ctypes.c_uint32
    room = int(function(None, ctypes.c_uint32(0)))
    rows = (kind * room)()
    return list(rows[: function(rows, ctypes.c_uint32(room))])


_findings_lock = threading.Lock()


def _after_fork() -> None:
    global _findings_lock
    _findings_lock = threading.Lock()


if hasattr(os, "register_at_fork"):  # not on Windows, where there are no forks
    os.register_at_fork(after_in_child=_after_fork)
