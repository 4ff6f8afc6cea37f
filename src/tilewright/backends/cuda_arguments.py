"""What callers hand to the CUDA backend, checked and turned into what the driver takes; no driver is needed here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.dtypes import DTYPES, DType
from tilewright.errors import UsageError
from tilewright.problem import Layout


def require(condition: bool, message: str) -> None:
    """Raise ``UsageError`` unless ``condition`` holds."""
    if not condition:
        raise UsageError(message)


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


def lines_of(shape: Sequence[int], strides: Sequence[int] | None) -> tuple[Layout, int]:
    """The layout and leading dimension, in elements, of a 2-D array with these strides (None: packed rows).

    An array that is both, such as a single row or column, is row-major. Raises ``UsageError`` unless the elements of
    its rows or those of its columns lie next to each other and these lines do not overlap.
    """
    rows, cols = shape
    if strides is None or rows == 0 or cols == 0:
        return "row", max(cols, 1)
    across, along = strides
    layout: Layout
    if cols == 1 or along == 1:
        layout, line, lines, ld = "row", cols, rows, across
    else:
        layout, line, lines, ld = "column", rows, cols, along
        require(
            rows == 1 or across == 1,
            f"array of shape {tuple(shape)} has strides {tuple(strides)}; the elements of its rows or of its columns "
            "must lie next to each other",
        )
    require(
        lines == 1 or ld >= line,
        f"array of shape {tuple(shape)} has strides {tuple(strides)}; its {layout}s must not overlap or run backwards",
    )
    return layout, line if lines == 1 else ld


def dtype_of(numpy_dtype: np.dtype[Any]) -> DType:
    """The element type of a NumPy dtype. Raises ``UsageError`` listing the possible ones."""
    for known in DTYPES.values():
        if known.numpy == numpy_dtype:
            return known
    raise UsageError(f"array has dtype {numpy_dtype}; it must be one of {', '.join(DTYPES)}")


def leading_dimension(line: int, ld: int | None) -> int:
    """The elements from one line to the next: ``ld``, else tight. Raises ``UsageError`` when a line is longer."""
    tight = max(line, 1)
    require(ld is None or ld >= line, f"ld is {ld}; a line has {line} elements")
    return max(ld or tight, tight)
