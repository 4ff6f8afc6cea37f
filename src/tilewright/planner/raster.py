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


def lines_read(order: Order, first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """Rows of A and columns of B that the cluster tiles ``first <= number < last`` need, each counted once.

    Exact, C's edges included: a tile at the edge needs only the rows that there are. An empty range needs none.
    """
    tiles_m, tiles_n = order.tiles_m, order.tiles_n
    along = np.where(order.along_n, tiles_n, tiles_m)
    across = np.where(order.along_n, tiles_m, tiles_n)
    places, last_place, turns, last_turn = _distinct(first, last, along, across, order.group)
    step_p = np.where(order.along_n, order.cols, order.rows)
    step_q = np.where(order.along_n, order.rows, order.cols)
    size_p = np.where(order.along_n, order.n, order.m)
    size_q = np.where(order.along_n, order.m, order.n)
    p = places * step_p - last_place * (along * step_p - size_p)
    q = turns * step_q - last_turn * (across * step_q - size_q)
    empty = last <= first
    p, q = np.where(empty, 0, p), np.where(empty, 0, q)
    return np.where(order.along_n, q, p), np.where(order.along_n, p, q)


def _distinct(first: Ints, last: Ints, along: Ints, across: Ints, group: Ints) -> tuple[Ints, Bools, Ints, Bools]:
    """Of the tiles in a range that is not empty: how many different places along the super-rows' axis, whether the
    last place is among them, and the same for the other axis.

    Within a super-row of width w the tiles run first along it: number x of it lies at place ``x % w`` and at turn
    ``x // w`` of the other axis. A range that leaves one super-row and ends in another has all turns from where it
    began on in the first, all up to where it ends in the last, and every one in those between.
    """
    width = np.minimum(group, along)
    full = width * across  # tiles of a super-row; the last one may have fewer
    end = np.maximum(last - 1, first)
    row_a, row_b = _over(first, full), _over(end, full)
    in_a, in_b = first - row_a * full, end - row_b * full
    final = _over(along - 1, width)
    width_b = np.where(row_b == final, along - final * width, width)
    one = row_a == row_b
    # the part in the last super-row that the range reaches, from `start_b` of it to `in_b`
    start_b = np.where(one, in_a, 0)
    count_b = in_b - start_b + 1
    turn_b, began_b = _over(in_b, width_b), _over(start_b, width_b)
    places_b = np.minimum(width_b, count_b)
    turns_b = turn_b - began_b + 1
    # the part in the first, to its end, where that is another one
    places_a = np.minimum(width, full - in_a)
    turns_a = across - _over(in_a, width)
    between = row_b - row_a - 1
    places = np.where(one, places_b, places_a + between * width + places_b)
    turns = np.where(one, turns_b, np.where(between > 0, across, np.minimum(across, turns_a + turns_b)))
    # numbers x of [start_b, in_b] with x % width_b == width_b - 1: in the final super-row these are the last place
    last_place = (row_b == final) & (_over(in_b + 1, width_b) > began_b)
    last_turn = ~one | (turn_b == across - 1)
    return places, last_place, turns, last_turn


def _over(whole: Ints, parts: Ints) -> Ints:
    """``whole // parts`` of numbers from 0 on, in floating point: exact below 2**53, and a quarter of the time."""
    quotient: Ints = (whole / parts).astype(np.int64)
    return quotient
