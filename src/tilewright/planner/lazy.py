"""Sequences whose items are made when they are asked for: of hundreds of candidates a user looks at a few."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class LazySequence(Sequence[T], Generic[T]):
    """``count`` items, each made once by ``make(index)``. Compares, hashes, slices and pickles as their tuple does."""

    def __init__(self, count: int, make: Callable[[int], T]) -> None:
        self._count, self._make = count, make
        self._made: dict[int, T] = {}

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...
    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        if isinstance(index, slice):
            return tuple(self[each] for each in range(*index.indices(self._count)))
        at = range(self._count)[index]  # raises for an index that is none; counts from the end where it is negative
        if at not in self._made:
            self._made[at] = self._make(at)
        return self._made[at]

    def __iter__(self) -> Iterator[T]:
        return (self[index] for index in range(self._count))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LazySequence | tuple):
            return NotImplemented
        return self is other or (len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True)))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"<{self._count} items>"

    def __reduce__(self) -> Any:
        return tuple, (list(self),)


def chained(parts: Sequence[Sequence[T]]) -> LazySequence[T]:
    """The items of several sequences one after another."""
    starts = [0]
    for part in parts:
        starts.append(starts[-1] + len(part))

    def item(index: int) -> T:
        which = next(number for number, start in enumerate(starts[1:]) if index < start)
        return parts[which][index - starts[which]]

    return LazySequence(starts[-1], item)
