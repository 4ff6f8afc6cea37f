"""A launch made once and started often: its arguments stay in memory, and only addresses in them change.

Through the driver's functions by ctypes, not cuda.bindings: all that they need is a number by then. An address is put
into a tensor map by the driver's ``cuTensorMapReplaceAddress``, which does not encode the map anew.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

from tilewright.backends.arguments import Arguments
from tilewright.backends.base import Dim3, Matrix, TensorMap
from tilewright.backends.cuda_capture import library
from tilewright.backends.cuda_errors import call, driver_errors, driver_version
from tilewright.backends.cuda_launch import launch_attributes
from tilewright.backends.cuda_tensor_map import FAULTY_BIT, LAST_FAULTY_DRIVER, encode
from tilewright.errors import LaunchError

ATTRIBUTE_BYTES = 72  # CUlaunchAttribute: an id of 4 bytes, 4 of padding, a value of 64
IN_ANOTHER_CONTEXT = (201, 400)
"""``CUDA_ERROR_INVALID_CONTEXT`` and ``CUDA_ERROR_INVALID_HANDLE``: what a launch on the default stream returns, with
nothing queued, where no context or another one is current. One on a stream of its own runs: that has its context."""


class LaunchConfig(ctypes.Structure):
    """``CUlaunchConfig`` (CUDA Driver API)."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    )


@cache
def driver_functions() -> tuple[Any, Any]:
    """``cuLaunchKernelEx`` and ``cuTensorMapReplaceAddress``; each returns a ``CUresult``.

    The library is in memory by then: cuda.bindings loaded it. The first takes nothing but ``at`` and None: without
    types to convert to, ctypes calls in two thirds of the time. It lets go of the GIL, as it waits where the driver's
    queue is full.
    """
    launch, replace = library().cuLaunchKernelEx, library().cuTensorMapReplaceAddress
    replace.argtypes = [ctypes.c_void_p] * 2
    return launch, replace


def at(address: int) -> Any:
    """An address as ctypes passes it to a function without further ado."""
    return ctypes.byref(ctypes.c_char.from_address(address))


class PreparedLaunch:
    """A kernel, its configuration and its arguments.

    ``args`` are as ``Backend.launch`` takes them. ``slots`` names those that move with the caller's arrays:
    ``(argument, role, offset)`` is an argument whose address is ``pointers[role] + offset`` of each call. ``fields``
    are the same inside of an argument given as bytes, ``(argument, byte, role, offset)``.
    """

    __slots__ = (
        "_args", "_attributes", "_backend", "_configured", "_fields", "_free", "_handle", "_kernel", "_launch",
        "_replace", "_slots",
    )  # fmt: skip

    def __init__(
        self,
        backend: Any,
        kernel: Any,
        grid: Dim3,
        block: Dim3,
        args: Sequence[Any],
        shared_bytes: int,
        *,
        cluster: int,
        dependent: bool,
        slots: Sequence[tuple[int, int, int]],
        fields: Sequence[tuple[int, int, int, int]] = (),
    ) -> None:
        self._backend, self._kernel, self._args, self._slots, self._fields = backend, kernel, args, slots, fields
        self._launch, self._replace = driver_functions()
        where = f"grid {grid}, block {block}, {shared_bytes} B shared"
        with backend.current(), driver_errors(f"preparing {kernel.name}", where):
            from cuda.bindings import driver

            backend.allow_shared(kernel, shared_bytes)
            function = call(driver.cuKernelGetFunction, kernel.handle.handle)
            call(driver.cuFuncLoad, function)  # now, not at the first launch, which may be one that is captured
            self._handle = at(int(function))
            attributes = launch_attributes(cluster, dependent)
            packed = b"".join(ctypes.string_at(each.getPtr(), ATTRIBUTE_BYTES) for each in attributes)
        self._attributes = ctypes.create_string_buffer(packed, max(len(packed), 1))
        self._configured = (grid, block, shared_bytes, None, ctypes.addressof(self._attributes), len(attributes))
        self._free: list[_Bound] = []

    def start(self, pointers: tuple[int, ...], stream: int) -> None:
        """Start it on the stream of that handle, with the arguments where ``pointers`` says. Raises ``LaunchError``."""
        try:
            bound = self._free.pop()
        except IndexError:  # the first call, or other threads are starting it: the driver reads theirs
            bound = _Bound(LaunchConfig(*self._configured))
        try:
            if pointers != bound.pointers:
                self._move(bound, pointers)
            if stream != bound.stream:
                bound.config.stream = bound.stream = stream
            # Asking which context is current would take as long as a twentieth of all this: the driver says so.
            code = self._launch(bound.config_at, self._handle, bound.at, None)
            if code in IN_ANOTHER_CONTEXT:
                with self._backend.current():
                    code = self._launch(bound.config_at, self._handle, bound.at, None)
        finally:
            self._free.append(bound)
        if code:
            self._raise(code, "launching")

    def _move(self, bound: _Bound, pointers: tuple[int, ...]) -> None:
        before, bound.pointers = bound.pointers, None
        if before is None:
            self._encode(bound, pointers)
        else:
            for role, offset, word, where, second in bound.moves:
                pointer = pointers[role]
                if pointer == before[role]:
                    continue
                if word is not None:
                    word.value = pointer + offset
                    continue
                code = self._replace(where, pointer + offset)
                if code:
                    self._raise(code, "moving a tensor map of")
                if second is not None:
                    second.value &= ~(1 << (FAULTY_BIT - 64))
        bound.pointers = pointers

    def _encode(self, bound: _Bound, pointers: tuple[int, ...]) -> None:
        """Everything anew, for the first call: from then on only addresses change."""
        args = list(self._args)
        for number, role, offset in self._slots:
            args[number] = moved(args[number], pointers[role] + offset)
        with self._backend.current(), driver_errors(f"preparing {self._kernel.name}"):
            block = Arguments(args, encode)
        version = driver_version()
        faulty = version is not None and version <= LAST_FAULTY_DRIVER
        moves: list[tuple[int, int, Any, int, Any]] = []
        for number, role, offset in self._slots:
            where, arg = block.slot(number), args[number]
            if isinstance(arg, TensorMap):
                second = ctypes.c_uint64.from_address(where + 8)
                correct = faulty and not second.value >> (FAULTY_BIT - 64) & 1  # the driver may set it again
                moves.append((role, offset, None, where, second if correct else None))
            else:
                moves.append((role, offset, ctypes.c_uint64.from_address(where), where, None))
        for number, byte, role, offset in self._fields:
            word = ctypes.c_uint64.from_address(block.slot(number) + byte)
            word.value = pointers[role] + offset
            moves.append((role, offset, word, 0, None))
        bound.block, bound.at, bound.moves = block, at(block.address), moves

    def _raise(self, code: int, what: str) -> None:
        from cuda.bindings import driver

        with driver_errors(f"{what} {self._kernel.name}"):
            call(lambda: (driver.CUresult(code),))
        raise LaunchError(f"{what} {self._kernel.name}: the driver answered {code}")


class _Bound:
    """The arguments of a launch in memory, for one thread at a time, and where ``pointers`` has put them.

    A list of free ones instead of a lock: taking one off costs a fifth, and no thread waits for another's launch.
    """

    __slots__ = ("at", "block", "config", "config_at", "moves", "pointers", "stream")

    def __init__(self, config: LaunchConfig) -> None:
        self.config, self.config_at = config, ctypes.byref(config)
        self.stream = 0
        self.pointers: tuple[int, ...] | None = None
        self.block: Arguments | None = None
        self.at: Any = None
        self.moves: list[tuple[int, int, Any, int, Any]] = []


class Fill:
    """Words of memory set before a launch: ``words`` of them to ``word``, from the address of a role on."""

    def __init__(self, backend: Any, role: int, words: int, word: int) -> None:
        self._backend, self._role, self._words, self._word = backend, role, words, word

    def __call__(self, pointers: tuple[int, ...], stream: int) -> None:
        """Queue it on the stream of that handle; in host memory it is done. Raises ``LaunchError``."""
        at = pointers[self._role]
        if self._backend.name != "cuda":
            (ctypes.c_uint32 * self._words).from_address(at)[:] = [self._word] * self._words
            return
        from cuda.bindings import driver

        with self._backend.current(), driver_errors("filling an output of an epilogue"):
            call(driver.cuMemsetD32Async, at, self._word, self._words, stream)


def copy(backend: Any, to: int, at: int, nbytes: int, stream: int) -> None:
    """Queue a copy of so many bytes on the stream of that handle; in host memory it is done.

    Raises ``LaunchError``.
    """
    if backend.name != "cuda":
        ctypes.memmove(to, at, nbytes)
        return
    from cuda.bindings import driver

    with backend.current(), driver_errors("copying an argument of an epilogue"):
        call(driver.cuMemcpyDtoDAsync, to, at, nbytes, stream)


def moved(arg: Any, pointer: int) -> Any:
    """A matrix, or the tensor map of one, at another address."""
    from dataclasses import replace

    if isinstance(arg, Matrix):
        return replace(arg, pointer=pointer)
    return replace(arg, matrix=replace(arg.matrix, pointer=pointer), seen=None)
