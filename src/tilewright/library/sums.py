"""Sums of the rows or columns of an epilogue's values, in an order that is the same from run to run.

The epilogue leaves a partial sum of each block of C that a warp has at once (``plan_base.Lanes``) in the workspace, in
a place of its own; ``cuda/library/sum.cu`` adds them up. Both orders depend on the plan and on the length of what is
summed, and on nothing else.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Literal

import numpy as np

from tilewright.backends.base import Backend, Matrix, Packed
from tilewright.dtypes import FP32
from tilewright.epilogue.code import ArrayValue
from tilewright.errors import UsageError
from tilewright.library.choose import three
from tilewright.library.pack import moved_us
from tilewright.library.shapes import Product
from tilewright.plan_base import LARGEST_GRID, Lanes, header_of
from tilewright.run import Launch, target_of
from tilewright.source import CUDA_ROOT, KernelSource, flatten

if TYPE_CHECKING:
    from tilewright.planner.machine import Machine

FILE = CUDA_ROOT / "library" / "sum.cu"
SECTOR = 8  # elements of fp32: so many results a block of the kernel adds up, and a line of partial sums begins on one
THREADS = 512
AT_ONCE = 16  # loads of a thread that are on their way together
MOST_OF_A_MATRIX = 2**32
RESULT = 4  # the number of the argument that begins with the address of the results
Three = tuple[int, int, int]


@dataclass(frozen=True)
class Partials:
    """Partial sums of each of ``kept`` rows, or columns as ``along`` says: ``count``, ``ld`` elements apart.

    Those of neighbouring rows or columns lie side by side; there are as many for each matrix of a batch of ``sizes``.
    Raises ``UsageError`` for more of a matrix than the kernels count.
    """

    along: Literal["row", "column"]
    kept: int
    count: int
    sizes: Three = (1, 1, 1)

    def __post_init__(self) -> None:
        if self.count * self.ld >= MOST_OF_A_MATRIX:
            raise UsageError(
                f"the epilogue sums {self.kept} {self.along}s of {self.count} partial sums each; the kernels count "
                f"fewer than {MOST_OF_A_MATRIX} of a matrix"
            )

    @property
    def ld(self) -> int:
        """Elements from one partial sum of a row or column to the next."""
        return -(-self.kept // SECTOR) * SECTOR

    @property
    def elements(self) -> int:
        """Of all of them, with what lies between."""
        return prod(self.sizes) * self.count * self.ld

    @property
    def nbytes(self) -> int:
        """The same in bytes."""
        return self.elements * FP32.itemsize

    def array(self, pointer: int) -> ArrayValue:
        """Where an epilogue writes them: ``cuda/tw/epilogue_sum.cuh`` says what the strides are."""
        _, b, c = self.sizes
        one = self.count * self.ld
        steps = (one * b * c, one * c, one)
        if self.along == "row":
            return ArrayValue(pointer, 1, self.ld, steps, extent=(self.kept, self.count))
        return ArrayValue(pointer, self.ld, 1, steps, extent=(self.count, self.kept))


@dataclass(frozen=True)
class Sum:
    """A result of the epilogue that is a sum, of each row of the kernel's C or of each column: ``along`` says which.

    ``name`` is that of the output in ``Args``, where its address is at ``byte``; ``mark`` is the caller's function. The
    result lies at the address of ``role``, ``step`` elements from one to the next and ``batch`` from matrix to matrix.
    """

    name: str
    mark: str
    along: Literal["row", "column"]
    role: int
    byte: int
    step: int
    batch: Three

    def partials(self, lanes: Lanes, product: Product) -> Partials:
        """What a kernel with these lanes leaves of a product."""
        m, n, sizes = product.m, product.n, three(product.batch, 1)
        if self.along == "row":
            return Partials("row", m, lanes.column_blocks(n), sizes)
        return Partials("column", n, lanes.row_blocks(m), sizes)

    def result(self, pointer: int) -> ArrayValue:
        """Where the sums go."""
        return ArrayValue(pointer, self.step, 0, self.batch)


def source(backend: Backend) -> KernelSource:
    """The kernel's text for a backend."""
    constants = {"THREADS": THREADS, "KEPT": SECTOR, "AT_ONCE": AT_ONCE, "SHARED_BYTES": 4 * THREADS}
    target, arch = target_of(backend)
    return KernelSource(FILE.stem, flatten(FILE, target, header_of(FP32, constants)), target, arch)


def blocks_of(partials: Partials) -> int:
    """Of the launch that adds them up."""
    return -(-partials.kept // SECTOR) * prod(partials.sizes)


def predicted_us(partials: Partials, machine: Machine) -> float:
    """Microseconds of that launch, which reads what the kernel has just written; 0 where there are no elements."""
    if not partials.elements:
        return 0.0
    written = partials.kept * prod(partials.sizes) * FP32.itemsize
    return moved_us(machine, partials.nbytes, written, blocks_of(partials), from_l2=True)


def prepare(backend: Backend, partials: Partials, memory: Matrix, to: ArrayValue) -> Launch:
    """The launch that adds up the partial sums in ``memory``, a row of fp32, to the results: ``to`` has one a row.

    Raises ``UsageError`` for memory that does not do, and for more sums than a grid has blocks for.
    """
    held = memory.cols if memory.rows == 1 and memory.layout == "row" and memory.dtype == FP32 else 0
    if held < partials.elements:
        raise UsageError(f"memory for partial sums is a row of {held} fp32; it must be one of {partials.elements}")
    blocks = blocks_of(partials)
    if blocks > LARGEST_GRID:
        raise UsageError(f"adding up partial sums takes {blocks} blocks; a grid has at most {LARGEST_GRID}")
    words = struct.pack("<Q4q", to.pointer, to.row, *to.batch)
    results = Packed(words, (to.seen(FP32, partials.kept, 1, partials.sizes),))
    return Launch(
        backend.compile(source(backend)),
        (blocks, 1, 1),
        (THREADS, 1, 1),
        [
            replace(memory, cols=partials.elements, ld=partials.elements), np.uint32(partials.count),
            np.int32(partials.kept), np.int64(partials.ld), results,
            struct.pack("<3i", *partials.sizes),
        ],
        4 * THREADS,
    )  # fmt: skip
