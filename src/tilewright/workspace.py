"""The workspace of a launch: where blocks leave partial sums for each other, and the counters they meet at.

``plan.workspace_bytes(problem)`` says how much a launch needs. Whoever allocates zeroes the counters, once: each launch
puts them back. Launches one after another on a stream may share a workspace, under dependent launch too; launches that
may run at the same time, on two streams, may not.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilewright.backends.base import Backend, Matrix
from tilewright.dtypes import FP32
from tilewright.errors import UsageError
from tilewright.plan_base import MOST_COUNTERS, Workspace

POISON = 0xFFFFFFFF  # NaN


def make(backend: Backend, nbytes: int) -> Matrix:
    """A workspace of so many bytes, a row of fp32: counters, zero, then NaN. It does for plans that need no more."""
    words = np.full((1, max(-(-nbytes // 4), MOST_COUNTERS)), POISON, np.uint32)
    words[:, :MOST_COUNTERS] = 0
    return backend.upload(words.view(FP32.numpy))


def parts_of(memory: Matrix, needed: Workspace) -> tuple[Matrix, Matrix]:
    """The partial sums and the counters of a plan in a workspace.

    Raises ``UsageError`` for what is no matrix, and for memory that is too small, no single row or off a 16-byte
    boundary.
    """
    if not isinstance(memory, Matrix):
        raise UsageError(
            f"the workspace is a {type(memory).__name__}; it must be a row of a matrix, as ``make`` gives it"
        )
    held = memory.cols * memory.dtype.itemsize if memory.rows == 1 and memory.layout == "row" else 0
    if held < needed.nbytes:
        raise UsageError(
            f"the workspace is {memory.rows}x{memory.cols} of {memory.dtype}; the plan needs a row of "
            f"{needed.nbytes} bytes"
        )
    if memory.pointer % 16:
        raise UsageError(f"the workspace lies at {memory.pointer:#x}; it must be on a 16-byte boundary")
    counters = replace(memory, cols=needed.counters, ld=needed.counters, dtype=FP32)
    behind = memory.pointer + 4 * MOST_COUNTERS
    return replace(counters, pointer=behind, cols=needed.partials, ld=needed.partials), counters
