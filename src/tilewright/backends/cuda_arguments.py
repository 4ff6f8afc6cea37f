"""What callers hand to the CUDA backend, checked and turned into what the driver takes; no driver is needed here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.backends.base import Matrix
from tilewright.dtypes import DTYPES, DType
from tilewright.errors import UsageError


def require(condition: bool, message: str) -> None:
    """Raise ``UsageError`` unless ``condition`` holds."""
    if not condition:
        raise UsageError(message)


def pack_arguments(args: Sequence[Any]) -> list[Any]:
    """Kernel arguments as cuda.core packs them: a matrix becomes its address, a NumPy scalar keeps its type.

    Raises ``UsageError`` for a Python number, whose width is anyone's guess (cuda.core would take it for a pointer).
    """
    packed: list[Any] = []
    for position, value in enumerate(args):
        if isinstance(value, Matrix):
            packed.append(int(value.pointer))
        elif isinstance(value, np.generic):
            packed.append(value)
        else:
            raise UsageError(
                f"kernel argument {position} is a {type(value).__name__}; it must be a Matrix or a NumPy scalar"
            )
    return packed


def stream_handle(stream: Any) -> int:
    """The address of a stream given as such, by ``__cuda_stream__``, or as PyTorch's and CuPy's stream objects."""
    if isinstance(stream, int | np.integer) and not isinstance(stream, bool):
        return int(stream)
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        version, handle = protocol() if callable(protocol) else protocol
        require(version == 0, f"stream speaks version {version} of __cuda_stream__; only version 0 is known")
        return int(handle)
    for attribute in ("cuda_stream", "ptr"):
        if isinstance(getattr(stream, attribute, None), int):
            return int(getattr(stream, attribute))
    raise UsageError(f"stream is a {type(stream).__name__}; it must be a CUDA stream, its handle or None")


def row_major_ld(shape: Sequence[int], strides: Sequence[int] | None) -> int:
    """The leading dimension, in elements, of a 2-D array with these strides (None: packed).

    Raises ``UsageError`` unless the columns lie next to each other and the rows do not overlap.
    """
    rows, cols = shape
    if strides is None or rows == 0 or cols == 0:
        return max(cols, 1)
    row_stride, col_stride = strides
    require(
        cols == 1 or col_stride == 1,
        f"array of shape {tuple(shape)} has strides {tuple(strides)}; its columns must lie next to each other",
    )
    if rows == 1:
        return cols
    require(
        row_stride >= cols,
        f"array of shape {tuple(shape)} has strides {tuple(strides)}; its rows must not overlap or run backwards",
    )
    return row_stride


def dtype_of(numpy_dtype: np.dtype[Any]) -> DType:
    """The element type of a NumPy dtype. Raises ``UsageError`` listing the possible ones."""
    for known in DTYPES.values():
        if known.numpy == numpy_dtype:
            return known
    raise UsageError(f"array has dtype {numpy_dtype}; it must be one of {', '.join(DTYPES)}")


def leading_dimension(cols: int, ld: int | None) -> int:
    """The elements from one row to the next: ``ld``, else tight. Raises ``UsageError`` when a row is longer."""
    tight = max(cols, 1)
    require(ld is None or ld >= cols, f"ld is {ld}; a row has {cols} elements")
    return max(ld or tight, tight)
