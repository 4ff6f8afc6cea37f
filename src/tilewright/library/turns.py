"""More batch dimensions than a kernel steps over: one is gone through launch by launch, with one plan.

Dimensions are counted from the right among those of the batch, so that arrays without the outer ones have theirs in
the same places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.library.arrange import Arranged, arranged
from tilewright.library.arrays import Array
from tilewright.library.choose import Question
from tilewright.library.request import Request
from tilewright.library.shapes import TooManyDimensions, batch_shape


@dataclass(frozen=True)
class Turn:
    """One place along the dimension that is gone through: the call that is left there, and its arrays."""

    request: Request
    a: Array
    b: Array
    outs: tuple[Array, ...]

    @property
    def addresses(self) -> dict[str, int]:
        """Where the arrays that an epilogue takes lie, by the names of its members."""
        found = {f"out{number}": each.pointer for number, each in enumerate(self.outs)}
        return found if self.request.after is None else self.request.after.pointers | found


def turns(request: Request, a: Array, b: Array, outs: Sequence[Array]) -> list[Turn]:
    """The calls that a call comes to, of one batch dimension less. It has such a dimension of more than one place.

    Reductions are contiguous, and each launch first fills what lies between the first and the last that it writes: with
    them it is the outermost dimension, whose places have no others between theirs.
    """
    sizes = batch_shape(a.shape, b.shape)[::-1]
    long = [(size, number) for number, size in enumerate(sizes) if size > 1]
    reduces = any(len(each.shape) < len(request.shape) for each in outs)
    axis = long[-1][1] if reduces else min(long)[1]
    return [_turn(request, a, b, outs, axis, place) for place in range(sizes[axis])]


def _turn(request: Request, a: Array, b: Array, outs: Sequence[Array], axis: int, place: int) -> Turn:
    full, matrix = len(request.shape), (len(a.shape) > 1) + (len(b.shape) > 1)  # vectors leave an axis out

    def of_operand(array: Array) -> Array:
        return _at(array, 2 + axis, place)

    def of_result(array: Array) -> Array:
        behind = matrix - 1 if len(array.shape) < full else matrix  # a reduction has one axis less
        return _at(array, behind + axis, place)

    def of_argument(array: Array) -> Array:
        return _at(array, (2 if len(array.shape) > full else matrix) + axis, place)

    after = request.after
    if after is not None:
        arrays = tuple((name, of_argument(each)) for name, each in after.arrays)
        after = replace(after, arrays=arrays, second=None if after.second is None else of_operand(after.second))
    gone = full - 1 - matrix - axis
    shape = request.shape[:gone] + request.shape[gone + 1 :]
    left = tuple(of_result(each) for each in outs)
    inner = replace(request, outs=left if request.outs else (), shape=shape, after=after)
    inner = replace(inner, a=of_operand(a), b=of_operand(b))
    return Turn(inner, inner.a, inner.b, left)


def _at(array: Array, behind: int, place: int) -> Array:
    """An array without the axis that has so many behind it, at one place along that; as it is where it has none."""
    at = len(array.shape) - 1 - behind
    if at < 0:
        return array
    step = 0 if array.shape[at] == 1 else array.strides[at] * array.dtype.itemsize
    shape, strides = array.shape, array.strides
    return replace(
        array,
        pointer=array.pointer + place * step,
        shape=shape[:at] + shape[at + 1 :],
        strides=strides[:at] + strides[at + 1 :],
    )


def counted(request: Request, a: Array, b: Array, outs: Sequence[Array]) -> list[tuple[Arranged, int]]:
    """The product of a call, or those of its turns that are not alike, and how many are like each.

    Raises as ``arranged``.
    """
    try:
        return [(arranged(request, a, b, outs), 1)]
    except TooManyDimensions:
        found: dict[Question, tuple[Arranged, int]] = {}
        for turn in turns(request, a, b, outs):
            for each, count in counted(turn.request, turn.a, turn.b, turn.outs):
                first, before = found.get(each.question, (each, 0))
                found[each.question] = first, before + count
        return list(found.values())


def one_after_another(
    every: Sequence[Turn], ready: Sequence[Callable[..., None]], members: Sequence[str]
) -> Callable[[tuple[int, ...], int], None]:
    """What starts the launches of all turns, each made ready, for the addresses of the whole arrays."""
    first = every[0]
    steps = [
        (
            each.a.pointer - first.a.pointer,
            each.b.pointer - first.b.pointer,
            each.outs[0].pointer - first.outs[0].pointer,
            [each.addresses[name] - first.addresses[name] for name in members],
            start,
        )
        for each, start in zip(every, ready, strict=True)
    ]

    def start_all(pointers: tuple[int, ...], stream: int) -> None:
        a, b, out, _, *more = pointers
        for step_a, step_b, step_out, others, start in steps:
            values: Any = tuple([at + step for at, step in zip(more, others, strict=True)])
            start(a + step_a, b + step_b, out + step_out, stream, values)

    return start_all
