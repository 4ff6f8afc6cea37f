"""An epilogue as a kernel takes it: generated CUDA text, and the arguments that text has.

The text declares ``namespace epilogue`` with ``NONE``, ``struct Args`` and ``apply`` (``cuda/tw/epilogue_code.cuh`` is
the plain one), and takes that file's place in each kernel that includes ``<tw/epilogue.cuh>``. ``Args`` has a member
for each of ``EpilogueCode.args`` and then of ``outputs``, in their order: a ``tw::EpilogueScalar`` or
``tw::EpilogueArray``.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from tilewright.backends.base import Matrix, Packed
from tilewright.dtypes import DType
from tilewright.errors import UsageError
from tilewright.plan_base import ALONE, Lanes, constant
from tilewright.source import EPILOGUE

_ARRAY = struct.Struct("<Q5q")  # tw::EpilogueArray
_EMPTY = b"\0"  # a struct without members has a byte


@dataclass(frozen=True)
class ArgSpec:
    """One member of ``Args``: a number, passed in fp32 whatever ``dtype`` says, or an array of ``dtype``.

    ``initial`` is what an output holds before the launch, each element of which many of C's are reduced to.
    ``summed`` outputs are partial sums of rows or of columns, which another kernel adds up (``library/sums.py``).
    """

    name: str
    kind: Literal["scalar", "array"]
    dtype: DType
    initial: float | None = None
    summed: bool = False


@dataclass(frozen=True)
class ArrayValue:
    """An array under C: element (i, j) of matrix (p, q, r) at ``pointer``, ``row``, ``col`` and ``batch`` strides on.

    Strides count elements and are 0 along what the array is the same for. ``owner`` keeps the memory alive. ``extent``
    are the rows and columns of partial sums, which are not C's.
    """

    pointer: int
    row: int
    col: int
    batch: tuple[int, int, int] = (0, 0, 0)
    owner: Any = field(default=None, repr=False, compare=False)
    extent: tuple[int, int] | None = None

    def aligned16(self, dtype: DType) -> bool:
        """Whether every line starts on a 16-byte boundary, wherever elements lie side by side."""
        strides = (self.row, *self.batch) if self.col == 1 else ()
        return self.col != 1 or (all(each * dtype.itemsize % 16 == 0 for each in strides) and self.pointer % 16 == 0)

    def seen(self, dtype: DType, m: int, n: int, batch: tuple[int, int, int] = (1, 1, 1)) -> Matrix:
        """What of it lies under ``m x n`` elements of C in a batch of such a shape.

        Its lines where they lie side by side, otherwise all from the first element to the last.
        """
        m, n = self.extent or (m, n)
        rows, cols = m if self.row else min(m, 1), n if self.col else min(n, 1)
        if 0 in (rows, cols, *batch):
            return Matrix(self.pointer, 0, 0, 0, dtype, self.owner)
        single = not any(stride and size > 1 for stride, size in zip(self.batch, batch, strict=True))
        if single and (self.col == 1 or cols == 1) and (rows == 1 or self.row >= cols):
            return Matrix(self.pointer, rows, cols, self.row if rows > 1 else cols, dtype, self.owner)
        if single and (self.row == 1 or rows == 1) and self.col >= rows:
            return Matrix(self.pointer, rows, cols, self.col, dtype, self.owner, "column")
        extents = zip((self.row, self.col, *self.batch), (rows, cols, *batch), strict=True)
        reach = [stride * (size - 1) for stride, size in extents]
        first, last = sum(min(each, 0) for each in reach), sum(max(each, 0) for each in reach)
        length = last - first + 1
        return Matrix(self.pointer + first * dtype.itemsize, 1, length, length, dtype, self.owner)


Value = float | ArrayValue


@dataclass(frozen=True)
class EpilogueCode:
    """The text of an epilogue, its arguments, and the arrays it writes beside C, in the order of ``Args``.

    ``aligned`` says that every line of every array starts on a 16-byte boundary. It is another kernel: wide accesses
    behind a test are as slow as narrow ones. ``paired``: ``apply`` takes the accumulators of two Bs. ``staged``: the
    text has a function of that name, which gives the array of 16-bit elements that a kernel may bring through shared
    memory where it is ``aligned``.
    """

    text: str
    args: tuple[ArgSpec, ...] = ()
    outputs: tuple[ArgSpec, ...] = ()
    aligned: bool = False
    paired: bool = False
    staged: bool = False

    @cached_property
    def digest(self) -> str:
        """What tells it from others: 16 hex digits of the SHA-256 of all of it."""
        members = [(each.name, each.kind, each.dtype.name) for each in self.members]
        values = (self.text, members, len(self.outputs), self.aligned, *([True] if self.paired else []))
        return hashlib.sha256(repr(values).encode()).hexdigest()[:16]

    @property
    def members(self) -> tuple[ArgSpec, ...]:
        """All members of ``Args``."""
        return (*self.args, *self.outputs)

    @property
    def sums(self) -> tuple[ArgSpec, ...]:
        """The outputs that are partial sums."""
        return tuple(each for each in self.outputs if each.summed)

    def header(self, lanes: Lanes = ALONE) -> str:
        """What the headers before the text read, as C++; ``lanes`` come to it at once, of which sums are made."""
        values: dict[str, bool | int] = {
            "ALIGNED": self.aligned, "PAIRED": self.paired, "STAGED": self.staged and self.aligned
        }  # fmt: skip
        values |= (lanes if self.sums else ALONE).constants()
        return f"namespace epilogue {{ {' '.join(constant(name, value) for name, value in values.items())} }}\n"

    def pack(self, values: Mapping[str, Value]) -> bytes:
        """``Args`` in memory. Raises ``UsageError`` where the values are not those of its members."""
        names = [each.name for each in self.members]
        if set(values) != set(names):
            raise UsageError(
                f"the epilogue is given {', '.join(sorted(values)) or 'no values'}; it takes "
                f"{', '.join(names) or 'none'}"
            )
        return b"".join(_packed(each, values[each.name]) for each in self.members) or _EMPTY


def _packed(spec: ArgSpec, value: Value) -> bytes:
    if isinstance(value, ArrayValue) != (spec.kind == "array"):
        possible = "an ArrayValue" if spec.kind == "array" else "a number"
        raise UsageError(f"{spec.name} of the epilogue is {value!r}; it must be {possible}")
    if isinstance(value, ArrayValue):
        if value.pointer % spec.dtype.itemsize:
            raise UsageError(
                f"{spec.name} of the epilogue lies at {value.pointer:#x}; an array of {spec.dtype} lies at a multiple "
                f"of {spec.dtype.itemsize}"
            )
        return _ARRAY.pack(value.pointer, value.row, value.col, *value.batch)
    with np.errstate(over="ignore"):  # beyond fp32 a number is infinite there
        return np.array([value, 0], np.float32).tobytes()


PLAIN = EpilogueCode(EPILOGUE.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class BoundEpilogue:
    """An epilogue with a value for each member of its ``Args``. Raises ``UsageError`` as ``EpilogueCode.pack``."""

    code: EpilogueCode = PLAIN
    values: Mapping[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.code.pack(self.values)

    def arrays(self, specs: tuple[ArgSpec, ...]) -> dict[str, tuple[ArrayValue, DType]]:
        """Those of the values that are arrays, by name."""
        found = {spec.name: (self.values[spec.name], spec.dtype) for spec in specs}
        return {name: (value, dtype) for name, (value, dtype) in found.items() if isinstance(value, ArrayValue)}

    @property
    def compiled(self) -> EpilogueCode:
        """The code that its kernel is compiled with: ``aligned`` where its arrays are, so that others need another."""
        arrays = self.arrays(tuple(each for each in self.code.members if not each.summed)).values()
        return replace(self.code, aligned=bool(arrays) and all(value.aligned16(dtype) for value, dtype in arrays))

    def argument(self, m: int, n: int, batch: tuple[int, int, int] = (1, 1, 1)) -> Packed:
        """The kernel's argument for a batch of Cs of ``m x n``."""
        data = self.code.pack(self.values)
        arrays = self.arrays(self.code.members).values()
        return Packed(data, tuple(value.seen(dtype, m, n, batch) for value, dtype in arrays))
