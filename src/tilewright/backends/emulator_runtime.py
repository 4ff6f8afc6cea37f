"""The emulator's C++ runtime as seen from Python: its structs, a launch, and memory with guarded edges."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
import warnings
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from tilewright.backends import emulator_tensor_map
from tilewright.backends.arguments import Arguments
from tilewright.backends.base import Dim3, Matrix, Packed, TensorMap
from tilewright.errors import EmulatorFault, UsageError

Policy = Literal["eager", "lazy", "random"]
POLICIES: tuple[Policy, ...] = ("eager", "lazy", "random")  # in the order of AsyncPolicy in async.hpp

MAX_THREADS_PER_BLOCK = 1024  # as in runtime.hpp
MAX_SHARED_BYTES = 227 << 10
MAX_CLUSTER = 8


class Buffer(ctypes.Structure):
    """``tw::Buffer``: a matrix argument."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("base", "row_bytes", "pitch", "rows", "element_bytes")]


class _Request(ctypes.Structure):
    """``tw::LaunchRequest``."""

    _fields_ = [
        ("thunk", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
        ("arguments_begin", ctypes.c_uint64),
        ("arguments_bytes", ctypes.c_uint64),
        ("observer", ctypes.c_char_p),
        ("block_ids", ctypes.POINTER(ctypes.c_uint64)),
        ("block_id_count", ctypes.c_uint64),
        ("buffers", ctypes.POINTER(Buffer)),
        ("seed", ctypes.c_uint64),
        ("buffer_count", ctypes.c_uint32),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("cluster_blocks", ctypes.c_uint32),
        ("shared_bytes", ctypes.c_uint32),
        ("together", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("interrupts", ctypes.c_uint32),
    ]


_COUNTS = (
    *("blocks", "switches", "early_exits", "mbarrier_waits", "mbarrier_blocked", "tma_loads", "tma_stores"),
    *("dependency_waits", "dependency_launches"),
)


class _Result(ctypes.Structure):
    """``tw::LaunchResult``, which begins with ``tw::Counts``."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in (*_COUNTS, "fmas")),
        ("kind", ctypes.c_char * 32),
        ("report", ctypes.c_char * 8192),
    ]


class _Allocation(ctypes.Structure):
    """``tw::Allocation``."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("address", "mapping", "mapping_bytes")]


@dataclass(frozen=True)
class LaunchStats:
    """What a launch did: blocks run, fiber switches, multiply-adds counted (instrumented builds) and its time.

    ``mbarrier_waits`` counts waits of threads, ``mbarrier_blocked`` those for which the phase had not completed yet;
    ``tma_loads`` and ``tma_stores`` count copies issued, ``dependency_waits`` and ``dependency_launches`` the calls of
    the two halves of programmatic dependent launch, by thread.
    """

    blocks: int
    switches: int
    fmas: int
    mbarrier_waits: int
    mbarrier_blocked: int
    tma_loads: int
    tma_stores: int
    dependency_waits: int
    dependency_launches: int
    seconds: float


class GuardedMemory:
    """``nbytes`` of memory poisoned with NaN, its end against a page that faults; freed with this object."""

    def __init__(self, runtime: ctypes.CDLL, nbytes: int) -> None:
        allocation = _Allocation()
        if runtime.tw_allocate(ctypes.c_uint64(nbytes), ctypes.byref(allocation)) != 0:
            raise MemoryError(f"the system has no {nbytes} bytes for a matrix")
        self.address: int = allocation.address
        self.nbytes = nbytes
        mapping, mapping_bytes = (
            ctypes.c_uint64(allocation.mapping),
            ctypes.c_uint64(allocation.mapping_bytes),
        )
        weakref.finalize(self, runtime.tw_free, mapping, mapping_bytes)

    def bytes(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The memory itself, not a copy. Valid while this object lives."""
        if self.nbytes == 0:
            return np.empty(0, np.uint8)
        return np.ctypeslib.as_array((ctypes.c_uint8 * self.nbytes).from_address(self.address))


def matrices(args: Sequence[Any]) -> list[Matrix]:
    """The matrices among a kernel's arguments in their order: those behind tensor maps, and those given as pointers.

    A pointer to what a tensor map before it describes is the same matrix, and tells all of it (rung 11's C). A struct
    points to those that are not among them already.
    """
    found: list[Matrix] = []
    mapped: list[int] = []
    for arg in args:
        if isinstance(arg, TensorMap):
            mapped.append(len(found))
            found.append(arg.seen or arg.matrix)
        elif isinstance(arg, Matrix):
            same = [i for i in mapped if replace(found[i], rows=arg.rows, cols=arg.cols) == arg]
            if same:
                found[same[-1]] = arg
            else:
                found.append(arg)
        elif isinstance(arg, Packed):
            found += [each for each in dict.fromkeys(arg.matrices) if each not in found]
    return found


def buffers(args: Sequence[Any]) -> list[Buffer]:
    """What the runtime is told of ``matrices(args)``."""
    return [
        Buffer(m.pointer, m.line * m.dtype.itemsize, m.ld * m.dtype.itemsize, m.lines, m.dtype.itemsize)
        for m in matrices(args)
    ]


def launch(
    runtime: ctypes.CDLL,
    thunk: int,
    grid: Dim3,
    block: Dim3,
    args: Sequence[Any],
    shared_bytes: int,
    *,
    cluster: int,
    together: int,
    policy: Policy,
    seed: int,
    blocks: Sequence[int] | None,
    observer: str | None,
) -> LaunchStats:
    """Run a kernel to its end. One launch runs at a time in a process; others wait.

    ``blocks`` names the blocks to run (all when None); blocks of a cluster run together, so that naming one runs its
    cluster. Without clusters, ``together`` of them do, in the order named. Raises ``EmulatorFault``; Ctrl-C ends a
    launch of the main thread as Python's own handler has it.
    """
    _check_shape(grid, block, shared_bytes, cluster, blocks)
    if not 1 <= together <= MAX_CLUSTER or (together > 1 and cluster > 1):
        raise UsageError(
            f"together is {together}; 1 to {MAX_CLUSTER} blocks of a grid without clusters can run in turns"
        )
    packed, registered = Arguments(args, emulator_tensor_map.pack), buffers(args)
    request = _Request(thunk, packed.address, packed.address, packed.nbytes)
    request.observer = observer.encode() if observer else None
    if blocks is not None:
        request.block_ids = (ctypes.c_uint64 * len(blocks))(*blocks)
        request.block_id_count = len(blocks)
    request.buffers = (Buffer * len(registered))(*registered)
    request.buffer_count = len(registered)
    request.seed = seed % 2**64
    request.grid = (ctypes.c_uint32 * 3)(*grid)
    request.block = (ctypes.c_uint32 * 3)(*block)
    request.cluster_blocks, request.shared_bytes, request.together = cluster, shared_bytes, together
    request.policy = POLICIES.index(policy)
    result = _Result()
    with _launch_lock:
        request.interrupts = _handles_interrupts()
        _running.append(runtime)
        try:
            start = time.perf_counter()
            runtime.tw_launch(ctypes.byref(request), ctypes.byref(result))
            seconds = time.perf_counter() - start
        finally:
            _running.clear()
    _raise_fault(result.kind.decode(), result.report.decode(errors="replace"))
    if result.early_exits:
        warnings.warn(
            f"__syncthreads was passed {result.early_exits} times after threads of the block had returned; a GPU does "
            "not promise that this works",
            RuntimeWarning,
            stacklevel=4,
        )
    counts = {name: getattr(result, name) for name in (*_COUNTS, "fmas") if name != "early_exits"}
    return LaunchStats(**counts, seconds=seconds)


def _check_shape(grid: Dim3, block: Dim3, shared_bytes: int, cluster: int, blocks: Sequence[int] | None) -> None:
    limits = (2**31 - 1, 65535, 65535)  # CUDA C++ Programming Guide, "Compute Capabilities"
    if any(not 1 <= extent <= limit for extent, limit in zip(grid, limits, strict=True)):
        raise UsageError(f"grid is {grid}; from 1 to {limits} blocks are possible")
    threads = block[0] * block[1] * block[2]
    if min(block) < 1 or block[2] > 64 or threads > MAX_THREADS_PER_BLOCK:
        raise UsageError(
            f"block is {block}; 1 to {MAX_THREADS_PER_BLOCK} threads are possible, at most 64 of them in z"
        )
    if not 0 <= shared_bytes <= MAX_SHARED_BYTES:
        raise UsageError(f"shared_bytes is {shared_bytes}; 0 to {MAX_SHARED_BYTES} are possible")
    if not 1 <= cluster <= MAX_CLUSTER or grid[0] % cluster:
        raise UsageError(f"cluster is {cluster}; it must divide the {grid[0]} blocks in x and be at most {MAX_CLUSTER}")
    count = grid[0] * grid[1] * grid[2]
    if blocks is not None and not all(0 <= b < count for b in blocks):
        raise UsageError(f"blocks is {list(blocks)}; the grid has blocks 0 to {count - 1}")


def _handles_interrupts() -> bool:
    """Whether Ctrl-C would reach a Python handler in this thread."""
    return threading.current_thread() is threading.main_thread() and callable(signal.getsignal(signal.SIGINT))


def _raise_fault(kind: str, report: str) -> None:
    if kind == "interrupted":
        signal.raise_signal(signal.SIGINT)  # to the handler that was in place: most raise KeyboardInterrupt
    if kind == "memory":
        raise MemoryError(report)
    if kind:
        raise EmulatorFault(kind, report)


_launch_lock = threading.Lock()
_running: list[ctypes.CDLL] = []  # the runtime inside tw_launch, if any


def _after_fork() -> None:
    """In a child that was forked while another thread ran a kernel: that launch is not the child's."""
    global _launch_lock
    _launch_lock = threading.Lock()
    for runtime in _running:
        runtime.tw_after_fork()
    _running.clear()


if hasattr(os, "register_at_fork"):  # not on Windows, where there are no forks
    os.register_at_fork(after_in_child=_after_fork)
