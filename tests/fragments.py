"""Which thread holds which element in the tensor-core instructions, and how wgmma's operands lie in shared memory.

Written from the PTX ISA ("Matrix Fragments for mma.m16n8k16", "Register Fragments and Shared Memory Matrix Layouts"),
element by element, so that it shares nothing with what it checks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def pack_pairs(elements: Array) -> Array:
    """16-bit elements, the last axis in pairs, as 32-bit registers with the first of a pair in the low half."""
    return np.ascontiguousarray(elements).view(np.uint32)


def a_fragments(a: Array) -> Array:
    """``(lanes, 4)`` registers of A, 16 x 16 or, for the four warps of wgmma, 64 x 16."""
    lane = np.arange(32 * (a.shape[0] // 16))[:, None, None]
    register, half = np.arange(4)[None, :, None], np.arange(2)[None, None, :]
    row = lane // 32 * 16 + lane % 32 // 4 + register % 2 * 8
    column = lane % 4 * 2 + register // 2 * 8 + half
    return pack_pairs(a[row, column])[..., 0]


def b_fragments(b: Array) -> Array:
    """``(32, 2)`` registers of B, 16 x 8."""
    lane, register, half = np.arange(32)[:, None, None], np.arange(2)[None, :, None], np.arange(2)[None, None, :]
    return pack_pairs(b[lane % 4 * 2 + register * 8 + half, lane // 4 + 0 * half])[..., 0]


def accumulator_places(rows: int, columns: int) -> tuple[Array, Array]:
    """Row and column of each accumulator register: ``(lanes, columns / 2)``, for 16 rows or for wgmma's 64."""
    lane, register = np.arange(2 * rows)[:, None], np.arange(columns // 2)[None, :]
    row = lane // 32 * 16 + lane % 32 // 4 + register % 4 // 2 * 8
    return row, register // 4 * 8 + lane % 4 * 2 + register % 2


@dataclass(frozen=True)
class Layout:
    """How a matrix of ``size`` (M or N) x ``depth`` (K) 16-bit elements lies in shared memory for wgmma.

    ``swizzle`` is 0, 32, 64 or 128 bytes. ``mn_major``: neighbours along M or N are neighbours in memory. Without a
    swizzle, ``k_first`` puts the core matrices that follow each other in K next to each other, else those in M or N.
    """

    size: int
    depth: int
    swizzle: int
    mn_major: bool
    k_first: bool = False

    @property
    def span(self) -> int:
        """Elements of a row of the swizzle's pattern, which is what a TMA box has of them."""
        return self.swizzle // 2 or 8

    @property
    def nbytes(self) -> int:
        """Bytes of it, whole rows of the pattern."""
        return self.size * self.depth * 2 if self.mn_major else self.size * -(-self.depth // self.span) * self.span * 2

    @property
    def offsets(self) -> tuple[int, int]:
        """Leading and stride byte offset of the descriptor. 48 stands for: not looked at."""
        if self.swizzle == 0:
            along_k, along_mn = (128, self.depth * 16) if self.k_first else (self.size * 16, 128)
            return along_k, along_mn
        return (self.depth * self.swizzle if self.mn_major else 48), 8 * self.swizzle

    def place(self, mn: Any, k: Any, *, swizzled: bool = True) -> Any:
        """Byte offset of an element, or of arrays of them."""
        if self.swizzle == 0:
            leading, stride = self.offsets
            inside = k % 8 * 16 + mn % 8 * 2 if self.mn_major else mn % 8 * 16 + k % 8 * 2
            return k // 8 * leading + mn // 8 * stride + inside
        if self.mn_major:
            linear = mn // self.span * self.depth * self.swizzle + k * self.swizzle + mn % self.span * 2
        else:
            linear = k // self.span * self.size * self.swizzle + mn * self.swizzle + k % self.span * 2
        chunk = linear // 128 % (self.swizzle // 16) if swizzled else 0  # of 16 bytes, exchanged by line of 128
        return linear ^ chunk * 16

    def image(self, matrix: Array) -> Array:
        """The bytes of a ``size`` x ``depth`` matrix so laid out."""
        out = np.zeros(self.nbytes // 2, np.uint16)
        out[self.place(*np.indices(matrix.shape)) // 2] = matrix.view(np.uint16)
        return out.view(np.uint8)

    def descriptor(self, start: int, k: int = 0) -> int:
        """The 64-bit descriptor of 16 of K, from ``k`` on, when the matrix begins at byte ``start``."""
        leading, stride = self.offsets
        mode = {0: 0, 128: 1, 64: 2, 32: 3}[self.swizzle]
        first = start + int(self.place(0, k, swizzled=False))
        return first >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | mode << 62
