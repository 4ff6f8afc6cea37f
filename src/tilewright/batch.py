"""A batch: the same product of many matrices, which lie so many elements apart along up to three dimensions."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import ClassVar

from tilewright.backends.base import Matrix
from tilewright.epilogue.code import ArrayValue
from tilewright.errors import UsageError
from tilewright.problem import SIZE_LIMIT

Three = tuple[int, int, int]


@dataclass(frozen=True)
class Batch:
    """``sizes`` matrices along each dimension, the last one innermost; 1 where there is no such dimension.

    ``a``, ``b`` and ``c`` are the elements from one matrix of the operand to the next along each, and may be anything;
    A and B have 0 where all share one matrix. Raises ``UsageError`` for a size that is negative or too large, and for
    matrices of C that are one and the same.
    """

    sizes: Three
    a: Three
    b: Three
    c: Three

    _layout: ClassVar[struct.Struct] = struct.Struct("<3i4x9q")  # tw::Batch<true>
    NONE: ClassVar[bytes] = b"\0"  # tw::Batch<false>

    def __post_init__(self) -> None:
        for size, step in zip(self.sizes, self.c, strict=True):
            if not 0 <= size < SIZE_LIMIT:
                raise UsageError(f"batch sizes are {self.sizes}; each must be at least 0 and below {SIZE_LIMIT}")
            if size > 1 and not step:
                raise UsageError(f"batch strides of C are {self.c} for sizes {self.sizes}: all would write one matrix")

    @cached_property
    def count(self) -> int:
        """Matrices of C."""
        return prod(self.sizes)

    @property
    def argument(self) -> bytes:
        """As the kernels take it."""
        return self._layout.pack(*self.sizes, *self.a, *self.b, *self.c)

    def strides(self, operand: str) -> Three:
        """Those of ``"a"``, ``"b"`` or ``"c"``; 0 along a dimension of one matrix, where they mean nothing."""
        given: Three = getattr(self, operand)
        p, q, r = (step if size > 1 else 0 for size, step in zip(self.sizes, given, strict=True))
        return p, q, r

    def seen(self, operand: str, matrix: Matrix) -> Matrix:
        """All memory of an operand whose first matrix is given: that one's lines where all share it, else one range."""
        row, col = (matrix.ld, 1) if matrix.layout == "row" else (1, matrix.ld)
        if not any(self.strides(operand)):
            return matrix
        value = ArrayValue(matrix.pointer, row, col, self.strides(operand), matrix.owner)
        return value.seen(matrix.dtype, matrix.rows, matrix.cols, self.sizes)
