"""What follows the product in a call, as kernels take it: ``alpha``, ``beta`` and ``c``, the bias, the epilogue."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.dtypes import DType
from tilewright.epilogue.code import ArrayValue, BoundEpilogue
from tilewright.epilogue.compose import NUMBER, Composed, Described, compose, name_of
from tilewright.epilogue.graph import Graph
from tilewright.epilogue.placement import Along, Placement, Role, along_of, place
from tilewright.epilogue.symbol import is_number
from tilewright.errors import UsageError
from tilewright.library.arrays import Array, view
from tilewright.library.pair import SECOND, pair_of
from tilewright.library.shapes import Axes, View, as_matrices
from tilewright.library.sums import Sum

SCALAR_BYTES, ARRAY_BYTES = 8, 48  # tw::EpilogueScalar, tw::EpilogueArray
_ROLES: dict[str, Role] = {"c": "addend", "bias": "bias"}


@dataclass(frozen=True, slots=True)
class After:
    """What a call asks for after the product. ``arrays`` and ``numbers`` have the names that ``compose`` binds.

    Where ``beta`` is 0, C is not read; its shape is looked at all the same. ``second`` is the other B of a pair.
    """

    alpha: float
    beta: float
    fn: Callable[..., Any] | None
    arrays: tuple[tuple[str, Array], ...]
    numbers: tuple[tuple[str, float], ...]
    second: Array | None = None

    @property
    def pointers(self) -> dict[str, int]:
        """What each member of ``Args`` holds: an address, or the bits of a number."""
        found = {"alpha": bits(self.alpha), "beta": bits(self.beta)}
        found |= {name: bits(value) for name, value in self.numbers}
        if self.second is not None:
            found[SECOND] = self.second.pointer
        return found | {name: each.pointer for name, each in self.arrays}

    @property
    def named(self) -> tuple[tuple[str, Array], ...]:
        """All arrays, by what the caller calls them."""
        arrays = tuple((name.removeprefix("arg_"), each) for name, each in self.arrays)
        return arrays if self.second is None else (("b[1]", self.second), *arrays)

    @property
    def key(self) -> Any:
        """What decides the kernel beside the function: not numbers, nor addresses beyond their last 4 bits."""
        arrays = tuple(
            (name, each.shape, each.strides, each.dtype.name, each.pointer % 16) for name, each in self.named
        )
        kinds = (self.alpha == 1, self.beta == 0, self.beta == 1)
        return kinds, arrays, tuple(name for name, _ in self.numbers)

    def placed(self, a: Sequence[int], b: Sequence[int], shape: Sequence[int]) -> dict[str, Placement]:
        """How each array lies under the result of operands of these shapes. Raises ``UsageError``."""
        (*batch, m, n), _ = as_matrices((tuple(shape), (0,) * len(shape)), len(a), len(b))
        found = {}
        for name, array in self.arrays:
            seen: Axes = (array.shape, array.strides)
            # A vector operand leaves an axis of the result out: so do arrays that are broadcast to the result.
            if len(array.shape) <= len(shape) and (len(a) == 1 or len(b) == 1):
                seen = as_matrices(seen, len(a), len(b))
            said = name.removeprefix("arg_")
            found[name] = place(said, *seen, m, n, batch, _ROLES.get(name, "argument"))
        return found

    def composed(
        self,
        described: Mapping[str, Described],
        out_dtypes: Sequence[DType],
        along: Mapping[str, Along] | None = None,
    ) -> Composed:
        """The epilogue for arrays that lie as described; ``along`` as ``compose`` has it.

        Raises ``UsageError`` for what cannot be traced.
        """
        args = {name: seen for name, seen in described.items() if name.startswith("arg_")}
        args |= {name: NUMBER for name, _ in self.numbers}
        return compose(
            alpha=self.alpha,
            beta=self.beta,
            c=described.get("c"),
            bias=described.get("bias"),
            fn=self.fn,
            args={name.removeprefix("arg_"): seen for name, seen in args.items()},
            out_dtypes=out_dtypes,
            pair=self.second is not None,
            along=along,
        )


def after_of(c: Any, alpha: Any, beta: Any, bias: Any, epilogue: Any, args: Any, b: Any = None) -> After | None:
    """What a call says of it; None where the product is all. Raises ``UsageError`` for arguments of the wrong kind."""
    pair = pair_of(b)
    second = None if pair is None else view(pair[1], "b[1]")
    scale, share = number("alpha", alpha), number("beta", beta)
    plain = c is None and bias is None and epilogue is None and args is None and scale == 1 and share == 0
    if plain and second is None:
        return None
    arrays = {name: view(value, name) for name, value in (("c", c), ("bias", bias)) if value is not None}
    values = {}
    for name, value in sorted(mapping(args).items(), key=lambda item: str(item[0])):
        if is_number(value):
            values[name_of(name)] = _float(value)
        else:
            arrays[name_of(name)] = view(value, f"args[{name!r}]")
    return After(scale, share, epilogue, tuple(arrays.items()), tuple(values.items()), second)


def mapping(args: Any) -> Mapping[str, Any]:
    """What a call says as ``args``. Raises ``UsageError`` for what maps nothing."""
    if args is not None and not isinstance(args, Mapping):
        raise UsageError(f"args is a {type(args).__name__}; it must map names to arrays and numbers")
    return args or {}


def number(name: str, value: Any) -> float:
    """What a call says as ``alpha`` or ``beta``. Raises ``UsageError`` for what is no number."""
    if is_number(value) and not isinstance(value, bool):
        return _float(value)
    raise UsageError(f"{name} is a {type(value).__name__}; it must be a number")


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # an int of more than 1024 bits
        return _infinite(value)


def _infinite(value: Any) -> float:
    return math.inf if value > 0 else -math.inf


def bits(number: float) -> int:
    """A number as ``tw::EpilogueScalar`` has it: the bits of its fp32, which is infinite beyond that range."""
    try:
        return int(_WORD.unpack(_FLOAT.pack(number))[0])
    except (OverflowError, struct.error):  # the latter of an int of more than 1024 bits
        return int(_WORD.unpack(_FLOAT.pack(_infinite(number)))[0])


_FLOAT, _WORD = struct.Struct("<f"), struct.Struct("<I")


@dataclass(frozen=True)
class Fused:
    """An epilogue bound to the roles of arrays: ``members`` are those of its ``Args``, whose place is their role's.

    ``fields`` has where in ``Args`` each one's address, or number, is. ``fills`` are outputs that are
    the largest of rows or columns: the role, how many words from its address on are set before the launch, and to what.
    ``sums`` are those whose kernel leaves partial sums, which are somewhere only once a plan is chosen. ``graph`` is
    what the text was made of.
    """

    bound: BoundEpilogue
    graph: Graph
    members: tuple[str, ...]
    fields: tuple[tuple[int, int], ...]
    fills: tuple[tuple[int, int, int], ...] = ()
    sums: tuple[Sum, ...] = ()

    def summing(self, partials: Mapping[str, ArrayValue]) -> BoundEpilogue:
        """The epilogue with its partial sums where they are."""
        return BoundEpilogue(self.bound.code, {**self.bound.values, **partials})


def fused(
    composed: Composed,
    views: Mapping[str, View],
    offsets: Mapping[str, int],
    first_role: int,
    stand_in: Callable[[int, int], int],
    sizes: Sequence[int],
    along: Mapping[str, Along],
) -> Fused:
    """Bind arrays that lie as ``views`` says to stand-ins for their roles, the first of which is ``first_role``.

    ``offsets`` are the bytes by which they start past a multiple of 16, ``sizes`` those of the batch, rows and columns.
    ``along`` is what the epilogue was composed with.
    """
    fills, sums = [], []
    values: dict[str, float | ArrayValue] = {}
    fields, at = [], 0
    for number, spec in enumerate(composed.code.members):
        role = first_role + number
        fields.append((at, role))
        if spec.kind == "scalar":
            values[spec.name] = 0.0
            at += SCALAR_BYTES
        else:
            seen = views[spec.name]
            batch = (*(0,) * (3 - len(seen.batch)), *seen.batch)
            values[spec.name] = ArrayValue(stand_in(role, offsets[spec.name]), seen.row, seen.col, batch)  # type: ignore[arg-type]
            if spec.summed:
                mark = composed.graph.marks[int(spec.name.removeprefix("out"))]
                way = along[spec.name]
                sums.append(Sum(spec.name, mark, way, role, at, seen.row if way == "row" else seen.col, batch))  # type: ignore[arg-type]
            at += ARRAY_BYTES
            if spec.initial is not None:
                steps = (*seen.batch, seen.row, seen.col)
                words = 1 + sum((size - 1) * step for size, step in zip(sizes, steps, strict=True))
                fills.append((role, words, bits(spec.initial)))
    members = tuple(spec.name for spec in composed.code.members)
    return Fused(
        BoundEpilogue(composed.code, values), composed.graph, members, tuple(fields), tuple(fills), tuple(sums)
    )


def described(arrays: Mapping[str, DType], views: Mapping[str, View]) -> dict[str, Described]:
    """What the code depends on of arrays that lie as ``views`` says."""
    return {name: Described(dtype, along_of(views[name].row, views[name].col)) for name, dtype in arrays.items()}
