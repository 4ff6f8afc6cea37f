"""What is multiplied: C = A @ B with its sizes, element types and memory layout.

Everything here is arithmetic on the sizes; nothing is allocated.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, cast, get_args

from tilewright.dtypes import FP32, DType
from tilewright.dtypes import dtype as lookup_dtype
from tilewright.errors import UsageError

Layout = Literal["row", "column"]

# Kernels hold sizes in 32 bits and round them up to whole tiles, of at most 256; offsets have 64 bits.
SIZE_LIMIT = 2**31 - 1024
"""Kernels take m, n and k as 32-bit integers (offsets are 64-bit), so each must be below this."""


@dataclass(frozen=True, init=False)
class Problem:
    """One matrix product: A is ``(m, k)``, B is ``(k, n)``, C is ``(m, n)``, row-major by default.

    ``dtype`` is the element type of A and B, ``out_dtype`` that of C (``dtype`` when left out); both may be
    given by name. ``lda``, ``ldb`` and ``ldc`` count elements between the starts of consecutive rows
    (columns, for the ``"column"`` layout) and are tight when left out. Every field holds its final value,
    so use ``changed`` rather than ``dataclasses.replace`` to derive another problem.

    Raises ``UsageError`` for a size that is no integer, negative or not below 2**31, an unknown dtype or
    layout, and a leading dimension shorter than the row it strides over.
    """

    m: int
    n: int
    k: int
    dtype: DType
    out_dtype: DType
    a_layout: Layout
    b_layout: Layout
    lda: int
    ldb: int
    ldc: int

    def __init__(
        self,
        m: int,
        n: int,
        k: int,
        dtype: DType | str = FP32,
        out_dtype: DType | str | None = None,
        a_layout: Layout = "row",
        b_layout: Layout = "row",
        lda: int | None = None,
        ldb: int | None = None,
        ldc: int | None = None,
    ) -> None:
        m, n, k = _size("m", m), _size("n", n), _size("k", k)
        in_dtype = lookup_dtype(dtype)
        a_row = k if _layout("a_layout", a_layout) == "row" else m
        b_row = n if _layout("b_layout", b_layout) == "row" else k
        values = {
            "m": m,
            "n": n,
            "k": k,
            "dtype": in_dtype,
            "out_dtype": in_dtype if out_dtype is None else lookup_dtype(out_dtype),
            "a_layout": a_layout,
            "b_layout": b_layout,
            "lda": _leading("lda", lda, a_row),
            "ldb": _leading("ldb", ldb, b_row),
            "ldc": _leading("ldc", ldc, n),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def flops(self) -> int:
        """Floating-point operations: ``2 m n k``, a multiply and an add for each MAC."""
        return 2 * self.m * self.n * self.k

    @property
    def bytes_a(self) -> int:
        """Bytes of A's elements, padding not counted."""
        return self.m * self.k * self.dtype.itemsize

    @property
    def bytes_b(self) -> int:
        """Bytes of B's elements, padding not counted."""
        return self.k * self.n * self.dtype.itemsize

    @property
    def bytes_c(self) -> int:
        """Bytes of C's elements, padding not counted."""
        return self.m * self.n * self.out_dtype.itemsize

    @property
    def bytes_moved(self) -> int:
        """The least traffic to memory: A and B read once, C written once."""
        return self.bytes_a + self.bytes_b + self.bytes_c

    @property
    def intensity(self) -> float | None:
        """FLOP per byte of ``bytes_moved``; None for a problem that moves nothing."""
        return self.flops / self.bytes_moved if self.bytes_moved else None

    @property
    def aligned(self) -> bool:
        """Whether every line of A, B and C starts on a 16-byte boundary, where the matrices themselves do."""
        lines = ((self.lda, self.dtype), (self.ldb, self.dtype), (self.ldc, self.out_dtype))
        return all(length * kind.itemsize % 16 == 0 for length, kind in lines)

    def changed(self, **changes: Any) -> Problem:
        """The same problem with some fields changed.

        A leading dimension that was tight stays tight, and an ``out_dtype`` equal to ``dtype`` stays so.
        Raises ``UsageError`` for an unknown field and as the constructor does.
        """
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        tight = Problem(self.m, self.n, self.k, self.dtype, None, self.a_layout, self.b_layout)
        for name in ("out_dtype", "lda", "ldb", "ldc"):
            if given[name] == getattr(tight, name):
                given[name] = None
        return _build(given | changes)

    def padded(self) -> Problem:
        """The same with lines that start on 16-byte boundaries, as TMA and 16-byte accesses want them."""
        sizes = (self.dtype.itemsize, self.dtype.itemsize, self.out_dtype.itemsize)
        lds = zip((self.lda, self.ldb, self.ldc), (16 // size for size in sizes), strict=True)
        a, b, c = (-(-ld // step) * step for ld, step in lds)
        return self.changed(lda=a, ldb=b, ldc=c)

    def to_dict(self) -> dict[str, int | str]:
        """Every field by name, dtypes as their names: ready for JSON."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: str(value) if isinstance(value, DType) else value for name, value in values.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Problem:
        """The inverse of ``to_dict``; fields left out take their defaults. Raises ``UsageError``."""
        return _build(values)

    def __str__(self) -> str:
        """For people: ``4096x4096x4096 fp32`` (m, n, k), with what differs from the defaults after it."""
        text = f"{self.m}x{self.n}x{self.k} {self.dtype}"
        if self.out_dtype != self.dtype:
            text += f"->{self.out_dtype}"
        tight = self.changed(lda=None, ldb=None, ldc=None)
        layouts = {"A": self.a_layout, "B": self.b_layout}
        notes = [f"{matrix} column-major" for matrix, layout in layouts.items() if layout == "column"]
        for name in ("lda", "ldb", "ldc"):
            leading = getattr(self, name)
            if leading != getattr(tight, name):
                notes.append(f"{name} {leading}")
        return ", ".join([text, *notes])


def _build(values: Mapping[str, Any]) -> Problem:
    known = [field.name for field in fields(Problem)]
    for name in values:
        if name not in known:
            raise UsageError(f"problem field {name!r} is not one of {', '.join(known)}")
    for name in ("m", "n", "k"):
        if name not in values:
            raise UsageError(f"problem field {name!r} is missing: m, n and k are required")
    return Problem(**values)


def _integer(name: str, value: object) -> int:
    # bool is an int to Python; as a matrix size it is a slip.
    if not isinstance(value, bool):
        try:
            return operator.index(cast(int, value))
        except TypeError:
            pass
    raise UsageError(f"{name} is {value!r}, which is not an integer")


def _size(name: str, value: object) -> int:
    size = _integer(name, value)
    if not 0 <= size < SIZE_LIMIT:
        raise UsageError(f"{name} is {size}; it must be at least 0 and below 2**31 - 1024")
    return size


def _layout(name: str, value: Layout) -> Layout:
    layouts = get_args(Layout)
    if value not in layouts:
        raise UsageError(f"{name} {value!r} is not one of {', '.join(layouts)}")
    return value


def _leading(name: str, value: object | None, row: int) -> int:
    # At least 1, as BLAS asks: a zero-length row still has a stride that addresses may be formed with.
    least = max(row, 1)
    if value is None:
        return least
    leading = _integer(name, value)
    if leading < least:
        raise UsageError(f"{name} is {leading}, shorter than the row: it must be at least {least} elements")
    return leading
