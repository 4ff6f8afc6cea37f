"""A kernel's arguments in memory, as ``cuLaunchKernelEx`` and the emulator's runtime take them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.backends.base import Matrix, Packed, TensorMap
from tilewright.errors import UsageError

_SLOT = 64  # the alignment of a tensor map, the largest that an argument has


class Arguments:
    """An array of pointers at ``address``, each to one argument, all within ``nbytes`` of memory held here.

    NumPy scalars are packed by their type, matrices as pointers, tensor maps as the bytes that ``encode`` makes of
    them, ``bytes`` and ``Packed`` as they are. Raises ``UsageError`` for anything else: a Python number has no width.
    """

    def __init__(self, args: Sequence[Any], encode: Callable[[TensorMap], bytes]) -> None:
        values = [_packed(number, arg, encode) for number, arg in enumerate(args)]
        sizes = [_round_up(len(value)) for value in values]
        table = _round_up(8 * len(values))
        self.nbytes = table + sum(sizes)
        self._storage = (ctypes.c_uint8 * (self.nbytes + _SLOT))()
        self.address = _round_up(ctypes.addressof(self._storage))
        at = self.address + table
        for number, (value, size) in enumerate(zip(values, sizes, strict=True)):
            ctypes.memmove(at, value, len(value))
            ctypes.c_uint64.from_address(self.address + 8 * number).value = at
            at += size


def _packed(number: int, arg: Any, encode: Callable[[TensorMap], bytes]) -> bytes:
    if isinstance(arg, Matrix):
        return arg.pointer.to_bytes(8, "little")
    if isinstance(arg, TensorMap):
        return encode(arg)
    if isinstance(arg, np.generic):
        return arg.tobytes()
    if isinstance(arg, Packed):
        return arg.data
    if isinstance(arg, bytes):
        return arg
    raise UsageError(
        f"kernel argument {number} is {arg!r}; NumPy scalars, matrices, tensor maps, structs and bytes can be passed"
    )


def _round_up(size: int) -> int:
    return -(-size // _SLOT) * _SLOT
