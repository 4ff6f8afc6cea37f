"""What a place that runs kernels can do: the emulator and CUDA behind one protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from tilewright.dtypes import DType
from tilewright.problem import Layout
from tilewright.source import KernelSource

Dim3 = tuple[int, int, int]


@dataclass(frozen=True)
class Matrix:
    """A matrix in a backend's memory.

    Element ``(i, j)`` lies at ``pointer + (i * ld + j) * dtype.itemsize`` when ``layout`` is ``"row"`` and at
    ``pointer + (j * ld + i) * dtype.itemsize`` when it is ``"column"``; ``ld`` counts elements.
    ``owner`` keeps the memory alive.
    """

    pointer: int
    rows: int
    cols: int
    ld: int
    dtype: DType
    owner: Any = field(repr=False, compare=False)
    layout: Layout = "row"

    @property
    def lines(self) -> int:
        """Contiguous lines it consists of: rows, or columns where it is column-major."""
        return self.rows if self.layout == "row" else self.cols

    @property
    def line(self) -> int:
        """Elements of a contiguous line."""
        return self.cols if self.layout == "row" else self.rows

    @property
    def span(self) -> int:
        """Elements from its first to its last, the padding between lines included."""
        return (self.lines - 1) * self.ld + self.line if self.lines and self.line else 0

    @property
    def aligned16(self) -> bool:
        """Whether every line starts on a 16-byte boundary, as 16-byte accesses need; without elements none does not."""
        return not self.span or (
            self.pointer % 16 == 0 and (self.ld * self.dtype.itemsize % 16 == 0 or self.lines <= 1)
        )


@dataclass(frozen=True)
class TensorMap:
    """A kernel argument: how TMA sees a matrix (CUDA Driver API, ``cuTensorMapEncodeTiled``).

    Dimension 0 runs along a contiguous line, dimension 1 over the lines. ``box`` is what one copy moves, in elements,
    contiguous dimension first; ``swizzle_bytes`` is 0, 32, 64 or 128. Of a batch, ``batch`` has the matrices and the
    elements from one to the next along each further dimension, of which a box is one, and ``seen`` is all memory of it.
    """

    matrix: Matrix
    box: tuple[int, int]
    swizzle_bytes: int = 128
    batch: tuple[tuple[int, int], ...] = ()
    seen: Matrix | None = None

    def strides(self, pitch: int) -> tuple[int, ...]:
        """Bytes between neighbours in dimensions 1 and up, of lines that lie ``pitch`` bytes apart.

        Along a dimension of one matrix nothing is stepped, and any stride will do.
        """
        size = self.matrix.dtype.itemsize
        return (pitch, *(step * size if count > 1 else pitch for count, step in self.batch))


@dataclass(frozen=True)
class Packed:
    """A kernel argument of the caller's own packing, by value: a struct, with the matrices that it points to."""

    data: bytes
    matrices: tuple[Matrix, ...] = ()


@dataclass(frozen=True)
class DeviceInfo:
    """What runs the kernels: ``key`` names a known ``GpuSpec`` or is None."""

    name: str
    key: str | None
    details: Mapping[str, Any]


class Kernel(Protocol):
    """A compiled kernel of some backend."""

    @property
    def name(self) -> str: ...


class Backend(Protocol):
    """Compile and run kernels on one device, over matrices in its memory."""

    name: str

    def device(self) -> DeviceInfo:
        """Describe the device."""
        ...

    def upload(self, array: np.ndarray[Any, Any], ld: int | None = None, layout: Layout = "row") -> Matrix:
        """Copy a 2-D array in, its lines ``ld`` elements apart (default: tight), the padding between them NaN."""
        ...

    def empty(self, rows: int, cols: int, dtype: DType, ld: int | None = None, layout: Layout = "row") -> Matrix:
        """Allocate a matrix poisoned with NaN, its padding too."""
        ...

    def download(self, matrix: Matrix) -> np.ndarray[Any, Any]:
        """Copy a matrix out as ``(rows, cols)``, waiting for the kernels before it."""
        ...

    def padding_intact(self, matrix: Matrix) -> bool:
        """Whether what lies between its lines still holds the poison it was given."""
        ...

    def compile(self, source: KernelSource) -> Kernel:
        """Compile, or find in the cache. Raises ``CompileError`` or ``UnavailableError``."""
        ...

    def launch(
        self,
        kernel: Kernel,
        grid: Dim3,
        block: Dim3,
        args: Sequence[Any],
        shared_bytes: int,
        *,
        cluster: int = 1,
        dependent: bool = False,
        stream: Any = None,
    ) -> None:
        """Run a kernel.

        ``args`` are NumPy scalars, packed by their type, matrices, packed as pointers, tensor maps and ``Packed``
        structs, by value.
        ``grid`` counts blocks, of which ``cluster`` along x form a cluster. A ``dependent`` kernel may start before
        the one ahead of it in the stream has ended (programmatic dependent launch).
        """
        ...
