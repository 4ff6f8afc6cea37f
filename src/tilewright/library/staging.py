"""NumPy's arrays on a GPU: copied there, lines on 16-byte boundaries as no copy costs more for, and the result back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.dtypes import DType
from tilewright.library.arrays import Array


def copied(backend: Any, array: Array) -> Array:
    """A copy on the backend's device, of the same shape. What is broadcast along an axis is copied once."""
    there = laid(array, backend.device_id)
    host = array.owner.reshape(1) if not array.shape else array.owner
    core = host[tuple(slice(0, 1) if shared else slice(None) for shared in _shared(array))] if array.shape else host
    lines = np.swapaxes(core, -1, -2) if _by_columns(array) else core
    line = lines.shape[-1]
    flat = np.ascontiguousarray(lines).reshape(math.prod(lines.shape[:-1]), line)
    matrix = backend.upload(flat, _padded(line, array.dtype))
    return replace(there, pointer=matrix.pointer, owner=matrix)


def laid(array: Array, device: int) -> Array:
    """How that copy lies, before it is made: contiguous axes stay so, and every line starts on a 16-byte boundary."""
    shape = [1 if shared else n for n, shared in zip(array.shape, _shared(array), strict=True)]
    if _by_columns(array):
        shape[-1], shape[-2] = shape[-2], shape[-1]
    strides = list(_lines(shape, array.dtype))
    if _by_columns(array):
        strides[-1], strides[-2] = strides[-2], strides[-1]
    strides = [0 if shared else step for step, shared in zip(strides, _shared(array), strict=True)]
    return Array(0, array.shape, tuple(strides), array.dtype, device, "numpy", None)


def bytes_copied(array: Array) -> int:
    """Those of its elements, of what is broadcast once."""
    shape = zip(array.shape, _shared(array), strict=True)
    return math.prod(1 if shared else n for n, shared in shape) * array.dtype.itemsize


def room(backend: Any, shape: Sequence[int], dtype: DType) -> Array:
    """Memory on the backend's device for a result of that shape."""
    line = shape[-1] if shape else 1
    matrix = backend.room(math.prod(shape[:-1]), line, dtype, _padded(line, dtype))
    return replace(laid_room(shape, dtype, backend.device_id), pointer=matrix.pointer, owner=matrix)


def laid_room(shape: Sequence[int], dtype: DType, device: int) -> Array:
    """How that memory lies, before there is any."""
    return Array(0, tuple(shape), _lines(shape, dtype), dtype, device, "numpy", None)


def brought_back(backend: Any, array: Array) -> np.ndarray[Any, Any]:
    """The elements of such memory, once what the backend's stream was given before is done."""
    found: np.ndarray[Any, Any] = backend.fetch(array.owner)
    return found.reshape(array.shape)


def _shared(array: Array) -> list[bool]:
    """The batch axes along which all matrices are the same one."""
    shared = [n > 1 and s == 0 for n, s in zip(array.shape, array.strides, strict=True)]
    return [*shared[:-2], *[False] * len(shared[-2:])]


def _by_columns(array: Array) -> bool:
    return len(array.shape) > 1 and abs(array.strides[-2]) < abs(array.strides[-1])


def _lines(shape: Sequence[int], dtype: DType) -> tuple[int, ...]:
    """The strides of lines on 16-byte boundaries, along the last axis."""
    if not shape:
        return ()
    strides, step = [1], _padded(shape[-1], dtype)
    for length in reversed(shape[:-1]):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))


def _padded(line: int, dtype: DType) -> int:
    chunk = 16 // dtype.itemsize
    return max(-(-line // chunk), 1) * chunk
