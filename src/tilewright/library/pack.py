"""Packing: a copy of an array whose elements lie anywhere, in lines as TMA and 16-byte accesses want them.

``tight`` says what the copy of an array is, ``prepare`` makes the launch, ``predicted_us`` what it takes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.backends.base import Backend, Matrix, Packed
from tilewright.dtypes import BF16, FP32, DType
from tilewright.epilogue.code import ArrayValue
from tilewright.errors import UsageError
from tilewright.plan_base import LARGEST_GRID, header_of
from tilewright.problem import SIZE_LIMIT, Layout
from tilewright.run import Launch, overlap, target_of
from tilewright.source import CUDA_ROOT, KernelSource, flatten

if TYPE_CHECKING:
    from tilewright.planner.machine import Machine

FILE = CUDA_ROOT / "library" / "pack.cu"
CHUNK_BYTES = 16
SECTOR_BYTES = 32
Three = tuple[int, int, int]


@dataclass(frozen=True)
class Strided:
    """An array of up to three batch dimensions and two of a matrix: element (p, q, r, i, j).

    It lies at ``pointer`` plus ``p steps[0] + q steps[1] + r steps[2] + i row + j col`` elements. Steps may be
    anything, and along a dimension of length 1 mean nothing. Along one where ``apart`` is not 0 the copy has all of its
    matrices even where they are one and the same. ``owner`` keeps the memory alive. Raises ``UsageError`` for a size
    that is negative or too large.
    """

    pointer: int
    rows: int
    cols: int
    row: int
    col: int
    dtype: DType
    sizes: Three = (1, 1, 1)
    steps: Three = (0, 0, 0)
    owner: Any = field(default=None, repr=False, compare=False)
    apart: Three = (0, 0, 0)

    def __post_init__(self) -> None:
        for name, size in (("rows", self.rows), ("cols", self.cols), *(("sizes", size) for size in self.sizes)):
            if not 0 <= size < SIZE_LIMIT:
                raise UsageError(f"{name} of the array to pack is {size}; it must be at least 0 and below {SIZE_LIMIT}")

    @property
    def copied(self) -> Three:
        """Matrices of the copy along each batch dimension: 1 where all are the same one and not ``apart``."""
        of_each = zip(self.sizes, self.steps, self.apart, strict=True)
        a, b, c = (size if step or apart or not size else 1 for size, step, apart in of_each)
        return a, b, c

    @property
    def elements(self) -> int:
        """Of the copy."""
        return self.rows * self.cols * prod(self.copied)

    @property
    def seen(self) -> Matrix:
        """The memory from its first element to its last."""
        value = ArrayValue(self.pointer, self.row, self.col, self.steps, self.owner)
        return value.seen(self.dtype, self.rows, self.cols, self.sizes)


@dataclass(frozen=True)
class Tight:
    """A packed copy: ``rows x cols``, ``ld`` elements from line to line, each on a 16-byte boundary.

    What lies between a line's end and the next one's beginning is zero. Matrices of a batch are ``steps`` elements
    apart, 0 along a dimension that is not copied.
    """

    rows: int
    cols: int
    ld: int
    layout: Layout
    dtype: DType
    matrices: int
    steps: Three

    @property
    def lines(self) -> int:
        """Of a matrix."""
        return self.rows if self.layout == "row" else self.cols

    @property
    def length(self) -> int:
        """Elements of a line."""
        return self.cols if self.layout == "row" else self.rows

    @property
    def nbytes(self) -> int:
        """Of all of it."""
        return self.matrices * self.lines * self.ld * self.dtype.itemsize

    def matrix(self, pointer: int, owner: Any = None) -> Matrix:
        """The first of its matrices, where the copy begins at ``pointer``."""
        return Matrix(pointer, self.rows, self.cols, self.ld, self.dtype, owner, self.layout)


@dataclass(frozen=True)
class PackPlan:
    """The compile-time values of the kernel: a block copies ``lines`` lines of ``along`` elements.

    ``across``: neighbouring threads read neighbouring lines, and not neighbours along one. Elements of two bytes have
    one kernel, whatever they are.
    """

    itemsize: int
    across: bool
    lines: int = 64
    along: int = 64
    threads: int = 256

    @property
    def shared_bytes(self) -> int:
        """A tile, its lines a word longer."""
        return self.lines * (self.along * self.itemsize + 4)

    def source(self, backend: Backend) -> KernelSource:
        """The kernel's text for a backend."""
        constants = {
            "LINES": self.lines, "ALONG": self.along, "THREADS": self.threads, "ACROSS": self.across,
            "SHARED_BYTES": self.shared_bytes,
        }  # fmt: skip
        target, arch = target_of(backend)
        header = header_of(FP32 if self.itemsize == FP32.itemsize else BF16, constants)
        return KernelSource(FILE.stem, flatten(FILE, target, header), target, arch)

    def blocks(self, copy: Tight) -> int:
        """One a tile of each matrix. Raises ``UsageError`` for more than a grid may have."""
        count = copy.matrices * -(-copy.lines // self.lines) * -(-copy.length // self.along)
        if count > LARGEST_GRID:
            raise UsageError(f"packing takes {count} blocks; a grid has at most {LARGEST_GRID}")
        return count


def tight(array: Strided, layout: Layout) -> Tight:
    """The copy of an array in a layout, its lines as short as 16-byte boundaries allow."""
    chunk = CHUNK_BYTES // array.dtype.itemsize
    length, lines = (array.cols, array.rows) if layout == "row" else (array.rows, array.cols)
    ld = max(-(-length // chunk), 1) * chunk
    a, b, c = array.copied
    apart = (lines * ld * b * c, lines * ld * c, lines * ld)
    p, q, r = (step if size > 1 else 0 for step, size in zip(apart, (a, b, c), strict=True))
    return Tight(array.rows, array.cols, ld, layout, array.dtype, a * b * c, (p, q, r))


def plan_for(array: Strided, layout: Layout) -> PackPlan:
    """The kernel that reads neighbours where they lie closer together. Raises ``UsageError`` for an element's size."""
    if array.dtype.itemsize not in (2, 4):
        raise UsageError(f"elements of {array.dtype} have {array.dtype.itemsize} bytes; 2 and 4 can be packed")
    along, line = _steps(array, layout)
    return PackPlan(array.dtype.itemsize, along is None or (line is not None and line < along))


def prepare(backend: Backend, array: Strided, layout: Layout, memory: Matrix) -> tuple[Launch, Tight]:
    """The launch that packs an array into ``memory``, a row of any type on a 16-byte boundary, and what it makes there.

    Raises ``UsageError`` for memory that does not do, or that the array lies in.
    """
    copy, plan = tight(array, layout), plan_for(array, layout)
    held = memory.cols * memory.dtype.itemsize if memory.rows == 1 and memory.layout == "row" else 0
    if held < copy.nbytes or memory.pointer % CHUNK_BYTES:
        raise UsageError(
            f"memory for the packed copy is {held} bytes in a row at {memory.pointer:#x}; it must be a row of "
            f"{copy.nbytes} on a {CHUNK_BYTES}-byte boundary"
        )
    elements = copy.nbytes // copy.dtype.itemsize
    to = replace(memory, cols=elements, ld=elements, dtype=copy.dtype)
    if overlap(array.seen, to):
        raise UsageError("the packed copy would lie in the array that is packed: it needs memory of its own")
    across, along = (array.row, array.col) if layout == "row" else (array.col, array.row)
    words = struct.pack("<Q5q", array.pointer, across, along, *array.steps)
    blocks = plan.blocks(copy)
    launch = Launch(
        backend.compile(plan.source(backend)),
        (blocks, 1, 1),
        (plan.threads, 1, 1),
        [
            Packed(words, (array.seen,)), struct.pack("<3i", *array.copied), to, np.int64(copy.ld),
            np.int32(copy.lines), np.int32(copy.length),
        ],
        plan.shared_bytes,
    )  # fmt: skip
    return launch, copy


def predicted_us(array: Strided, layout: Layout, machine: Machine) -> float:
    """Microseconds of packing: a launch, what is read from HBM, and what is written, to L2 where it holds both.

    An element brings a sector of 32 bytes with it where its neighbours lie further away than that. An SM draws no more
    than ``supply.DRAW_BYTES_PER_S``.
    """
    copy = tight(array, layout)
    if not array.elements:
        return 0.0
    apart = [step for step in _steps(array, layout) if step is not None]
    read = array.elements * min(SECTOR_BYTES, max(min(apart, default=1), 1) * array.dtype.itemsize)
    return moved_us(machine, read, copy.nbytes, plan_for(array, layout).blocks(copy))


def moved_us(machine: Machine, read: int, written: int, blocks: int, *, from_l2: bool = False) -> float:
    """Microseconds of a launch that reads and writes so many bytes, and next to nothing else.

    ``from_l2``: what it reads was just written, and is in L2 where that holds it all.
    """
    from tilewright.planner.supply import DRAW_BYTES_PER_S  # who packs needs no planner

    c, fits = machine.calibration, read + written <= machine.l2_keeps_bytes
    to = c.l2_bytes_per_s(written) if fits else c.hbm_write_bytes_per_s
    source = c.l2_bytes_per_s(read) if fits and from_l2 else c.hbm_read_bytes_per_s
    seconds = max(read / source + written / to, read / (min(blocks, machine.sms) * DRAW_BYTES_PER_S))
    return c.launch_us + seconds * 1e6


def _steps(array: Strided, layout: Layout) -> tuple[int | None, int | None]:
    """How far neighbours along a line lie apart, and those across; None where there is one only."""
    row = abs(array.row) if array.rows > 1 else None
    col = abs(array.col) if array.cols > 1 else None
    return (col, row) if layout == "row" else (row, col)
