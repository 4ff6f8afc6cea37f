"""A plan: every number a kernel is compiled with, and what follows from them.

The plan becomes a header (``namespace plan { ... }``) in front of the kernel text. A binary is keyed by its plan and
dtype, never by M, N, K, which are run-time arguments. ``plan_simt`` holds the plans of the CUDA-core rungs,
``plan_tensor`` those of the tensor-core rungs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, asdict, dataclass, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Self

from tilewright.dtypes import DType, dtype
from tilewright.errors import UsageError

if TYPE_CHECKING:
    from tilewright.problem import Layout, Problem

Dim3 = tuple[int, int, int]
LARGEST_GRID = 2**31 - 1  # CUDA C++ Programming Guide, "Compute Capabilities": maximum x-dimension of a grid


MOST_COUNTERS = 2**14  # of a workspace

COUNTED_DEPTH = 128  # of the rungs, whose K-steps are no deeper


@dataclass(frozen=True)
class TensorBox:
    """What one TMA copy of an operand moves: elements along the contiguous dimension, then lines of it."""

    operand: str  # "a", "b" or "c"
    box: tuple[int, int]
    swizzle_bytes: int


@dataclass(frozen=True)
class Workspace:
    """Memory of a launch's own: ``counters`` words, which are zero between launches, and ``partials`` fp32 elements.

    The partial sums begin behind ``MOST_COUNTERS`` words, whatever a plan needs of them, so that plans may share it.
    """

    partials: int
    counters: int

    @property
    def nbytes(self) -> int:
        """Bytes of both."""
        return 4 * (MOST_COUNTERS + self.partials)


@dataclass(frozen=True)
class Lanes:
    """The lanes of a warp that come to the epilogue at once: ``down`` rows of ``across`` lanes, and their block of C.

    Each has ``neighbours`` elements of a row. Rows are ``apart`` from each other, and those between them come at other
    times. As many sums of rows, or of columns, as there are such blocks become one (``library/sums.py``).
    """

    neighbours: int = 1
    across: int = 1
    down: int = 1
    apart: int = 1

    def row_blocks(self, m: int) -> int:
        """Partial sums of a column of ``m`` elements."""
        return -(-m // (self.down * self.apart)) * self.apart

    def column_blocks(self, n: int) -> int:
        """Partial sums of a row of ``n`` elements."""
        return -(-n // (self.across * self.neighbours))

    def constants(self) -> Mapping[str, int]:
        """What the epilogue's header says of them."""
        return {
            "NEIGHBOURS": self.neighbours, "ACROSS": self.across, "DOWN": self.down, "ROWS_APART": self.apart,
        }  # fmt: skip


ALONE = Lanes()
"""Each lane comes by itself."""
FRAGMENT = Lanes(2, 4, 8)
"""PTX ISA, "Matrix Fragments for mma.m16n8k16": lane l has row l / 4 and columns 2 (l % 4) and the next, of 8."""


@dataclass(frozen=True)
class Plan(ABC):
    """The compile-time values that every rung has.

    ``bm x bn`` is the tile of C a block computes, ``bk`` the depth of a K-step, ``threads`` those of a block.
    ``aligned`` says that every row of A, B and C (column, where it is column-major) starts on a 16-byte boundary.
    """

    rung: int
    dtype: DType
    bm: int
    bn: int
    bk: int
    threads: int
    aligned: bool = True
    a_layout: Layout = "row"
    b_layout: Layout = "row"

    @property
    @abstractmethod
    def shared_parts(self) -> Mapping[str, int]:
        """Bytes of the dynamic shared memory of a block by what lies there, in its order."""

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block in bytes: all of ``shared_parts``."""
        return sum(self.shared_parts.values())

    @abstractmethod
    def constants(self) -> Mapping[str, int | bool]:
        """What the kernels read as ``plan::NAME``, in the order of the header."""

    @property
    def c_dtype(self) -> DType:
        """The element type of C."""
        return self.dtype

    def storing(self, out: DType) -> Self:
        """The same with C in another type. Raises ``UsageError`` where the kernel does not write that."""
        if out == self.c_dtype:
            return self
        raise UsageError(f"out_dtype is {out}; {self.of} writes what it reads, {self.dtype}")

    @property
    def of(self) -> str:
        """The kernel that it is of, as ``kernel_file.KernelFile.place`` names it."""
        return f"rung {self.rung}"

    @property
    def block(self) -> Dim3:
        """Threads of a block."""
        return (self.threads, 1, 1)

    @property
    def cluster(self) -> int:
        """Blocks of a cluster."""
        return 1

    @property
    def dependent(self) -> bool:
        """Whether a launch may start before the kernel ahead of it has ended."""
        return False

    @property
    def tensor_boxes(self) -> tuple[TensorBox, ...]:
        """The operands that the kernel takes as tensor maps, in the order of its arguments."""
        return ()

    @property
    def wide(self) -> tuple[str, ...]:
        """The operands that ``aligned`` is about: their lines are accessed 16 bytes at a time."""
        return ("a", "b", "c")

    @property
    def takes_batch(self) -> bool:
        """Whether the kernel has plans of a batch, and so an argument for it, of one product too."""
        return False

    @property
    def batched(self) -> bool:
        """Whether it is a plan of a batch."""
        return False

    @property
    def takes_pair(self) -> bool:
        """Whether the kernel has plans of a pair of Bs, and so an argument for the second, of one B too."""
        return False

    @property
    def paired(self) -> bool:
        """Whether it is a plan of two Bs, of whose accumulators the epilogue makes one C."""
        return False

    @property
    def has_epilogue(self) -> bool:
        """Whether the kernel applies an epilogue, whose argument is then its last."""
        return False

    @property
    def lanes(self) -> Lanes:
        """The lanes that come to the epilogue at once: of the rungs with one, those of a matrix fragment."""
        return FRAGMENT

    def workspace(self, problem: Problem) -> Workspace | None:
        """What it needs beside its operands; None: nothing."""
        return None

    def workspace_bytes(self, problem: Problem) -> int:
        """Bytes of the workspace that a launch on ``problem`` needs, 0 for none (``workspace.make``)."""
        needed = self.workspace(problem)
        return 0 if needed is None else needed.nbytes

    @property
    def counted(self) -> Dim3:
        """The most of M, N and K that is traced for its counts: a tile, or a cluster's, each block having one.

        The K is so deep that what is counted a multiply-add does not change beyond.
        """
        return self.bm, self.bn, COUNTED_DEPTH

    @property
    def columns(self) -> int:
        """Columns of C that a tile has: of a pair each B fills half of B's tile."""
        return self.bn // 2 if self.paired else self.bn

    def tiles(self, problem: Problem) -> tuple[int, int]:
        """Tiles of C down and across."""
        return -(-problem.m // self.bm), -(-problem.n // self.columns)

    def grid(self, problem: Problem, batch: int = 1) -> Dim3:
        """One block a tile of C, row of tiles after row of tiles, in one dimension, for each product of a batch.

        Raises ``UsageError`` when that is more blocks than a grid may have.
        """
        down, across = self.tiles(problem)
        return (self.counted_tiles(problem, down * across, batch), 1, 1)

    def counted_tiles(self, problem: Problem, tiles: int, batch: int) -> int:
        """So many tiles of each product. Raises ``UsageError`` for more than a grid has blocks, or a kernel counts."""
        if tiles * batch > LARGEST_GRID:
            of = problem if batch == 1 else f"{batch} x {problem}"
            raise UsageError(
                f"{of} needs {tiles * batch} blocks of {self.bm}x{self.bn}; a grid has at most {LARGEST_GRID}"
            )
        return tiles * batch

    def interior_block(self, problem: Problem) -> int:
        """A block about the middle of C: a whole tile wherever there is one, away from the edges where it can be."""
        down, across = self.tiles(problem)
        whole_down, whole_across = max(problem.m // self.bm, 1), max(problem.n // self.columns, 1)
        return min(down // 2, whole_down - 1) * across + min(across // 2, whole_across - 1)

    def edge_blocks(self, problem: Problem) -> list[int]:
        """The blocks along the four sides of C."""
        down, across = self.tiles(problem)
        sides = ((i, j) for i in range(down) for j in range(across) if i in (0, down - 1) or j in (0, across - 1))
        return [i * across + j for i, j in sides]

    def with_(self, **changes: Any) -> Self:
        """A copy with some values changed.

        Raises ``UsageError`` for a value that a plan has not or that follows from others, and where no kernel has the
        combination.
        """
        known = [each.name for each in fields(self) if each.init]
        for name in changes:
            if name not in known:
                raise UsageError(f"plan value {name!r} is not one of {', '.join(known)}")
        return replace(self, **changes)

    def header(self) -> str:
        """The plan as C++, in the form the kernels read."""
        return header_of(self.dtype, self.constants(), self.c_dtype)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return {**asdict(self), "dtype": self.dtype.name, "shared_bytes": self.shared_bytes}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Plan:
        """The inverse of ``to_dict``, of the class that its kernel's plans have; what has a default may be left out.

        Raises ``UsageError`` for what is no plan, naming the value, and where no kernel has the combination.
        """
        kind, values = _kind_of(values)
        made = {each.name: each for each in fields(kind) if each.init}
        derived = {"shared_bytes", *(each.name for each in fields(kind) if not each.init)}
        for name in values:
            if name not in made and name not in derived:
                raise UsageError(f"plan value {name!r} is not one of {', '.join(made)}")
        for name, each in made.items():
            if name not in values and each.default is MISSING:
                raise UsageError(f"plan value {name!r} is missing")
        plan = kind(**{name: _read(each, values[name]) for name, each in made.items() if name in values})
        for name in sorted(derived & set(values)):
            if values[name] != getattr(plan, name):
                raise UsageError(f"plan value {name!r} is {values[name]!r}; the others make it {getattr(plan, name)}")
        return plan


def mistyped(plan: Plan) -> Iterator[str]:
    """Values that the header could not hold: it has C++'s int and bool."""
    for name, kind in _header_fields(type(plan)):
        value = getattr(plan, name)
        if type(value) is not kind:
            possible = "True and False are possible" if kind is bool else "it must be an int of 32 bits"
            yield f"{name} is {value!r}; {possible}"
        elif abs(value) >= 2**31:
            yield f"{name} is {value!r}; it must be an int of 32 bits"


@cache
def _header_fields(plan_kind: type[Plan]) -> tuple[tuple[str, Any], ...]:
    """Names and types of what a plan is given that the header has."""
    types = {"bool": bool, "int": int}
    return tuple((each.name, types[str(each.type)]) for each in fields(plan_kind) if each.init and each.type in types)


def _kind_of(values: Any) -> tuple[type[Plan], Mapping[str, Any]]:
    """The class that a plan's values are of, and the values without what names it."""
    from tilewright import branches, ladder  # which in turn need the classes of plans, and they this module

    if isinstance(values, Mapping) and "branch" in values:
        rest = {name: value for name, value in values.items() if name not in ("branch", "kernel")}
        return branches.kernel(values["branch"], values.get("kernel", "")).plan_kind, rest
    if not isinstance(values, Mapping) or type(values.get("rung")) is not int:
        raise UsageError(f"a plan is {values!r}; it must be an object whose rung is a whole number")
    return ladder.rung(values["rung"]).plan_kind, values


def _read(value_of: Field[Any], value: Any) -> Any:
    """A value of a plan as JSON has it. Raises ``UsageError`` where it is not of the field's type."""
    if value_of.type == "DType":
        return dtype(value)
    if value_of.type == "DType | None":
        return None if value is None else dtype(value)
    types: dict[object, tuple[type, str]] = {
        "bool": (bool, "true and false are"), "int": (int, "a whole number is"), "Layout": (str, "row and column are"),
    }  # fmt: skip
    kind, possible = types[value_of.type]
    if type(value) is not kind or (value_of.type == "Layout" and value not in ("row", "column")):
        raise UsageError(f"plan value {value_of.name!r} is {value!r}; {possible} possible")
    return value


def header_of(dtype: DType, constants: Mapping[str, int | bool], c_dtype: DType | None = None) -> str:
    """Element types, ``plan::T`` of the operands and ``plan::Out`` of C (T when left out), and constants, as C++."""
    c_name, out_name = dtype.c_name, (c_dtype or dtype).c_name
    lines = [
        f"namespace tw {{ struct {name.removeprefix('tw::')}; }}"
        for name in sorted({c_name, out_name}) if name.startswith("tw::")
    ]  # fmt: skip
    lines += ["namespace plan {", f"using T = {c_name};", f"using Out = {out_name};"]
    lines += [constant(name, value) for name, value in constants.items()]
    return "\n".join([*lines, "}  // namespace plan", ""])


def constant(name: str, value: int | bool) -> str:
    """A constant as C++."""
    if isinstance(value, bool):
        return f"constexpr bool {name} = {str(value).lower()};"
    return f"constexpr int {name} = {value};"
