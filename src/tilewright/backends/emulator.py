"""The emulator as a backend: kernels compiled by a host C++ compiler, GPU threads run as fibers.

It computes what a GPU computes and finds what a GPU would not forgive; it says nothing about speed.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tilewright.backends import emulator_runtime
from tilewright.backends.base import DeviceInfo, Dim3, Kernel, Matrix
from tilewright.backends.emulator_runtime import POLICIES, GuardedMemory, LaunchStats, Policy
from tilewright.backends.host_compiler import HostBuild, HostCompiler, find_compiler, host_build
from tilewright.dtypes import DTYPES, DType
from tilewright.errors import UsageError
from tilewright.problem import Layout
from tilewright.settings import cache_dir
from tilewright.source import KernelSource

POISON = 0xFF  # as in memory.hpp: NaN in every dtype


@dataclass(frozen=True)
class EmulatorKernel:
    """A kernel in a loaded host library. ``library_path`` holds its line numbers when ``instrumented``."""

    name: str
    source: KernelSource
    instrumented: bool
    thunk: int
    library: ctypes.CDLL = field(repr=False, compare=False)

    @property
    def library_path(self) -> str:
        """Where the library lies."""
        return self.library._name


class EmulatorBackend:
    """Run kernels on the host, over memory whose edges are page-protected.

    ``policy`` says when asynchronous copies are done: ``"eager"`` (at issue), ``"lazy"`` (as late as is legal, their
    destination NaN until then) or ``"random"`` (in between, by ``seed``). They find different mistakes. ``compiler``
    is found by ``find_compiler`` when None; that and the runtime are needed, and looked for, at the first use.
    """

    name = "emulator"

    def __init__(self, policy: Policy = "eager", *, seed: int = 0, compiler: HostCompiler | None = None) -> None:
        if policy not in POLICIES:
            raise UsageError(f"policy is {policy!r}; {', '.join(POLICIES)} are possible")
        self.policy: Policy = policy
        self.seed = seed
        self.last_launch: LaunchStats | None = None
        self._compiler = compiler
        self._kernels: dict[tuple[KernelSource, bool], EmulatorKernel] = {}

    @property
    def compiler(self) -> HostCompiler:
        """The host compiler. Raises ``UnavailableError`` when there is none."""
        if self._compiler is None:
            self._compiler = find_compiler()
        return self._compiler

    @property
    def build(self) -> HostBuild:
        """The compiler's runtime, built and loaded at the first use."""
        with _build_lock:
            return host_build(self.compiler, cache_dir())

    @property
    def runtime(self) -> ctypes.CDLL:
        """The loaded C++ runtime."""
        return self.build.runtime

    def device(self) -> DeviceInfo:
        """Describe the emulator. Raises ``UnavailableError`` when there is no compiler."""
        details = {"compiler": self.compiler.version, "policy": self.policy, "seed": self.seed}
        return DeviceInfo("emulator", None, details)

    def upload(self, array: np.ndarray[Any, Any], ld: int | None = None, layout: Layout = "row") -> Matrix:
        """Copy a 2-D array in; the padding of each line up to ``ld`` is NaN, but for the last line, which ends.

        Raises ``UsageError`` for an array that is not 2-D, a dtype that no kernel has, or ``ld`` shorter than a line.
        """
        if array.ndim != 2:
            raise UsageError(f"array has {array.ndim} dimensions; a matrix has 2")
        dtype = next((d for d in DTYPES.values() if d.numpy == array.dtype), None)
        if dtype is None:
            raise UsageError(f"array is {array.dtype}; {', '.join(d.numpy_name for d in DTYPES.values())} are possible")
        matrix = self.empty(array.shape[0], array.shape[1], dtype, ld, layout)
        _elements(matrix)[...] = array
        return matrix

    def empty(self, rows: int, cols: int, dtype: DType, ld: int | None = None, layout: Layout = "row") -> Matrix:
        """Allocate a matrix poisoned with NaN. It ends with the last line's last element, at a page that faults."""
        line = cols if layout == "row" else rows
        ld = line if ld is None else ld
        if rows < 0 or cols < 0 or ld < line:
            across = "columns" if layout == "row" else "rows"
            raise UsageError(
                f"{rows} rows of {cols} columns, {ld} apart: sizes are at least 0, ld at least the {across}"
            )
        unplaced = Matrix(0, rows, cols, ld, dtype, None, layout)
        memory = GuardedMemory(self.runtime, unplaced.span * dtype.itemsize)
        return replace(unplaced, pointer=memory.address, owner=memory)

    def download(self, matrix: Matrix) -> np.ndarray[Any, Any]:
        """Copy a matrix out as ``(rows, cols)``."""
        return _elements(matrix).copy()

    def padding_intact(self, matrix: Matrix) -> bool:
        """Whether what lies between its lines still holds the poison it was given."""
        if matrix.lines < 2 or matrix.line == 0:
            return True
        size, lines = matrix.dtype.itemsize, matrix.lines - 1  # the last line ends the memory
        full = _memory(matrix)[: lines * matrix.ld * size].reshape(lines, matrix.ld * size)
        return bool((full[:, matrix.line * size :] == POISON).all())

    def compile(self, source: KernelSource, *, instrumented: bool = False) -> EmulatorKernel:
        """Compile a host text, or find it in the cache; ``instrumented`` reports each access to an observer.

        Raises ``CompileError`` with the compiler's log, and ``UnavailableError`` when there is no compiler.
        """
        if source.target != "host":
            raise UsageError(
                f"the source of {source.name} was flattened for the {source.target}; the emulator needs host"
            )
        key = (source, instrumented)
        if key not in self._kernels:
            library = self.build.load_kernel(source.name, source.text, instrumented=instrumented)
            try:
                thunk = ctypes.cast(getattr(library, f"{source.entry}_thunk"), ctypes.c_void_p).value
            except AttributeError:
                raise UsageError(f"{source.name} does not export {source.entry}: its text lacks TW_EXPORT") from None
            assert thunk is not None
            self._kernels[key] = EmulatorKernel(source.name, source, instrumented, thunk, library)
        return self._kernels[key]

    def launch(
        self,
        kernel: Kernel,
        grid: Dim3,
        block: Dim3,
        args: Sequence[Any],
        shared_bytes: int,
        *,
        cluster: int = 1,
        dependent: bool = False,
        stream: Any = None,
        blocks: Sequence[int] | None = None,
        together: int = 1,
    ) -> None:
        """Run a kernel, or only the ``blocks`` named (linear, x fastest), in that order.

        Of a grid without clusters, ``together`` blocks run in turns; others wait until all of these have returned.
        ``dependent`` and ``stream`` mean nothing here: one kernel runs after another. Raises ``EmulatorFault`` naming
        what went wrong and where.
        """
        self._launch(kernel, grid, block, args, shared_bytes, cluster, together, blocks, None)

    def launch_instrumented(
        self,
        kernel: Kernel,
        grid: Dim3,
        block: Dim3,
        args: Sequence[Any],
        shared_bytes: int,
        *,
        cluster: int = 1,
        together: int = 1,
        blocks: Sequence[int] | None = None,
        mode: str = "none",
    ) -> LaunchStats:
        """Run a kernel compiled ``instrumented`` under an observer: ``"trace"``, ``"race"`` or ``"none"``."""
        if not getattr(kernel, "instrumented", False):
            raise UsageError(f"{kernel.name} was not compiled with instrumented=True")
        observer = None if mode == "none" else mode
        return self._launch(kernel, grid, block, args, shared_bytes, cluster, together, blocks, observer)

    def _launch(
        self,
        kernel: Kernel,
        grid: Dim3,
        block: Dim3,
        args: Sequence[Any],
        shared_bytes: int,
        cluster: int,
        together: int,
        blocks: Sequence[int] | None,
        observer: str | None,
    ) -> LaunchStats:
        if not isinstance(kernel, EmulatorKernel):
            raise UsageError(f"{kernel.name} is not a kernel of the emulator")
        stats = emulator_runtime.launch(
            self.runtime,
            kernel.thunk,
            grid,
            block,
            args,
            shared_bytes,
            cluster=cluster,
            together=together,
            policy=self.policy,
            seed=self.seed,
            blocks=blocks,
            observer=observer,
        )
        self.last_launch = stats
        return stats


def _memory(matrix: Matrix) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The bytes from a matrix's first element to its last, not a copy. Its owner has to live meanwhile."""
    size = matrix.span * matrix.dtype.itemsize
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(matrix.pointer))


def _elements(matrix: Matrix) -> np.ndarray[Any, Any]:
    """The matrix in its own memory, as ``(rows, cols)``."""
    if matrix.rows == 0 or matrix.cols == 0:
        return np.empty((matrix.rows, matrix.cols), matrix.dtype.numpy)
    strides = (matrix.ld * matrix.dtype.itemsize, matrix.dtype.itemsize)
    flat = _memory(matrix).view(matrix.dtype.numpy)
    lines = np.lib.stride_tricks.as_strided(flat, (matrix.lines, matrix.line), strides)
    return lines if matrix.layout == "row" else lines.T


_build_lock = threading.Lock()


def _after_fork() -> None:
    """In a child: a thread that was building when its parent forked is not there to let go."""
    global _build_lock
    _build_lock = threading.Lock()


if hasattr(os, "register_at_fork"):  # not on Windows, where there are no forks
    os.register_at_fork(after_in_child=_after_fork)
