"""Which tiles of C are computed at the same time, and so what of A and B a wave of them reads.

A persistent grid walks C in super-rows (``cuda/tw/tile_order.cuh``): the tiles of wave w are numbers ``w * places`` to
``(w + 1) * places`` of that order. What such a range touches has a closed form, so no tile is walked here. All
functions take NumPy arrays that broadcast, integers of 64 bits, and give arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
_Counts = NDArray[np.floating[Any]]
Bools = NDArray[np.bool_]


def columns_of(values: Mapping[str, Sequence[int]]) -> dict[str, Ints]:
    """Lists with an entry a candidate as arrays; a bool counts as 0 or 1."""
    return {name: np.array(each, dtype=np.int64) for name, each in values.items()}


@dataclass(frozen=True)
class Order:
    """The order of the cluster tiles of each candidate: arrays of one shape, or that broadcast to one.

    ``tiles_m x tiles_n`` cluster tiles of ``rows x cols`` elements of C, of which there are ``m x n``; super-rows of
    ``group`` along M, or along N where ``along_n``.
    """

    m: int
    n: int
    rows: Ints
    cols: Ints
    group: Ints
    along_n: Bools

    @property
    def tiles_m(self) -> Ints:
        """Cluster tiles down C."""
        return -(-self.m // self.rows)

    @property
    def tiles_n(self) -> Ints:
        """Cluster tiles across C."""
        return -(-self.n // self.cols)

    def take(self, index: Any) -> Order:
        """The orders of some candidates, one for each of ``index``."""
        return Order(self.m, self.n, self.rows[index], self.cols[index], self.group[index], self.along_n[index])


def lines_read(order: Order, first: Ints | Floats, last: Ints | Floats) -> tuple[Floats, Floats]:
    """Rows of A and columns of B that the cluster tiles ``first <= number < last`` need, each counted once.

    Exact, C's edges included: a tile at the edge needs only the rows that there are. An empty range needs none. The
    numbers are whole, in floating point, as what they are multiplied with.
    """

    def turned(down: Any, to_the_right: Any) -> tuple[Floats, Floats]:
        """What is of the super-rows' axis, and of the other."""
        first_axis = np.where(order.along_n, to_the_right, down).astype(float)
        return first_axis, np.where(order.along_n, down, to_the_right).astype(float)

    along, across = turned(order.tiles_m, order.tiles_n)
    step_p, step_q = turned(order.rows, order.cols)
    size_p, size_q = turned(order.m, order.n)
    # Numbers of tiles below 2**24 are exact in 32 bits too, and so are their quotients, in half the time.
    kind: Any = np.float32 if np.max(along * across, initial=0) < 2**24 else np.float64
    begin, end = np.asarray(first, dtype=kind), np.asarray(last, dtype=kind)
    places, last_place, turns, last_turn = _distinct(
        begin, end, along.astype(kind), across.astype(kind), order.group.astype(kind)
    )
    some = end > begin
    p = (places * step_p - last_place * (along * step_p - size_p)) * some
    q = (turns * step_q - last_turn * (across * step_q - size_q)) * some
    return np.where(order.along_n, q, p), np.where(order.along_n, p, q)


def _distinct(
    first: _Counts, last: _Counts, along: _Counts, across: _Counts, group: _Counts
) -> tuple[_Counts, Bools, _Counts, Bools]:
    """Of the tiles in a range that is not empty: how many different places along the super-rows' axis, whether the
    last place is among them, and the same for the other axis.

    Within a super-row of width w the tiles run first along it: number x of it lies at place ``x % w`` and at turn
    ``x // w`` of the other axis. A range that leaves one super-row and ends in another has all turns from where it
    began on in the first, all up to where it ends in the last, and every one in those between.
    """
    width = np.minimum(group, along)
    full = width * across  # tiles of a super-row; the last one may have fewer
    final = over(along - 1, width)
    tail = along - final * width
    end = np.maximum(last - 1, first)
    row_a, row_b = over(first, full), over(end, full)
    in_a, in_b = first - row_a * full, end - row_b * full
    in_final = row_b == final
    width_b = np.where(in_final, tail, width)
    one = row_a == row_b
    several = ~one
    # the part in the last super-row that the range reaches, from `start_b` of it to `in_b`
    start_b = in_a * one
    turn_b, began_b = over(in_b, width_b), over(start_b, width_b)
    places = np.minimum(width_b, in_b - start_b + 1)
    turns = turn_b - began_b + 1
    # the part in the first, to its end, where that is another one; between them `between` whole ones
    between = row_b - row_a - 1
    places += several * (np.minimum(width, full - in_a) + between * width)
    turns += several * (across - over(in_a, width))
    turns = np.where(between > 0, across, np.minimum(across, turns))
    # numbers x of [start_b, in_b] with x % width_b == width_b - 1: in the final super-row these are the last place
    last_place = in_final & (over(in_b + 1, width_b) > began_b)
    last_turn = several | (turn_b == across - 1)
    return places, last_place, turns, last_turn


def over(whole: Ints | _Counts, parts: Ints | _Counts) -> Any:
    """``whole // parts`` of numbers from 0 on, in floating point: exact below 2**53, and a quarter of the time."""
    quotient: _Counts = np.floor(whole / parts)
    return quotient
