"""NumPy's arrays on a GPU: copied there, lines on 16-byte boundaries as no copy costs more for, and the result back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.backends.base import Backend, Matrix
from tilewright.dtypes import DType
from tilewright.library.arrays import Array, view


def copied(backend: Any, array: Array) -> Array:
    """A copy on the backend's device, of the same shape. What is broadcast along an axis is copied once."""
    if not array.shape:
        one = copied(backend, view(array.owner.reshape(1)))
        return Array(one.pointer, (), (), array.dtype, one.device, "numpy", one.owner)
    host = array.owner
    shared = [n > 1 and s == 0 for n, s in zip(array.shape, array.strides, strict=True)]
    shared[-2:] = [False] * len(shared[-2:])
    core = host[tuple(slice(0, 1) if each else slice(None) for each in shared)]
    columns = core.ndim > 1 and abs(core.strides[-2]) < abs(core.strides[-1])  # keep what is contiguous so
    lines = np.swapaxes(core, -1, -2) if columns else core
    line = lines.shape[-1]
    flat = np.ascontiguousarray(lines).reshape(math.prod(lines.shape[:-1]), line)
    matrix = backend.upload(flat, _padded(line, array.dtype))
    seen = _array(matrix, lines.shape, backend.device_id)
    shape, strides = list(seen.shape), list(seen.strides)
    if columns:
        for values in (shape, strides):
            values[-1], values[-2] = values[-2], values[-1]
    for axis, each in enumerate(shared):
        if each:
            shape[axis], strides[axis] = array.shape[axis], 0
    return Array(seen.pointer, tuple(shape), tuple(strides), array.dtype, seen.device, "numpy", matrix)


def room(backend: Any, shape: Sequence[int], dtype: DType) -> Array:
    """Memory on the backend's device for a result of that shape."""
    line = shape[-1] if shape else 1
    matrix = backend.empty(math.prod(shape[:-1]), line, dtype, _padded(line, dtype))
    return _array(matrix, shape, backend.device_id)


def brought_back(backend: Backend, array: Array) -> np.ndarray[Any, Any]:
    """The elements of such memory, once all work before is done."""
    return backend.download(array.owner).reshape(array.shape)


def _padded(line: int, dtype: DType) -> int:
    chunk = 16 // dtype.itemsize
    return max(-(-line // chunk), 1) * chunk


def _array(matrix: Matrix, shape: Sequence[int], device: int) -> Array:
    strides, step = [1], matrix.ld
    for length in reversed(shape[1:-1]):
        strides.append(step)
        step *= max(length, 1)
    strides = [*([step] if len(shape) > 1 else []), *reversed(strides)] if shape else []
    return Array(matrix.pointer, tuple(shape), tuple(strides), matrix.dtype, device, "numpy", matrix)
