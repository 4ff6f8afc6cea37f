"""What waves of tiles read, in closed form, against a walk of the order as the kernel has it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tilewright.planner.raster import Order, lines_read

BM, BN = 4, 6  # sizes of a block's tile; nothing in the order depends on them but the edges


def walk(
    m: int, n: int, clusters: int, cluster: tuple[int, int], group: int, along_n: bool, half_tail: bool
) -> Iterator[list[tuple[int, int, int]]]:
    """The (row, col, rows) of every block of every wave: ``tile_order.cuh``, statement by statement."""
    cluster_m, cluster_n = cluster
    tiles_m = (m + cluster_m * BM - 1) // (cluster_m * BM)
    tiles_n = (n + cluster_n * BN - 1) // (cluster_n * BN)
    whole = tiles_m * tiles_n
    items = whole
    last_wave = whole % clusters
    if half_tail and 2 * last_wave <= clusters:
        whole -= last_wave
        items = whole + 2 * last_wave
    for start in range(0, items, clusters):
        blocks = []
        for item in range(start, min(start + clusters, items)):
            cut = half_tail and item >= whole
            half = (item - whole) % 2 if cut else 0
            tile = whole + (item - whole) // 2 if cut else item
            along, across = (tiles_n, tiles_m) if along_n else (tiles_m, tiles_n)
            first = tile // (group * across) * group
            in_group = tile % (group * across)
            width = min(along - first, group)
            p, q = first + in_group % width, in_group // width
            tile_m, tile_n = (q, p) if along_n else (p, q)
            rows = BM // 2 if cut else BM
            for rank_m in range(cluster_m):
                for rank_n in range(cluster_n):
                    row = (tile_m * BM + half * rows) * cluster_m + rank_m * rows
                    blocks.append((row, (tile_n * cluster_n + rank_n) * BN, rows))
        yield blocks


def lines(blocks: list[tuple[int, int, int]], m: int, n: int) -> tuple[int, int]:
    """Distinct rows and columns of C that blocks cover, those beyond its edge left out."""
    rows = {r for row, _, height in blocks for r in range(row, row + height) if r < m}
    cols = {c for _, col, _ in blocks for c in range(col, col + BN) if c < n}
    return len(rows), len(cols)


@given(
    m=st.integers(1, 90),
    n=st.integers(1, 120),
    clusters=st.integers(1, 40),
    cluster=st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 2), (4, 1)]),
    group=st.integers(1, 12),
    along_n=st.booleans(),
    half_tail=st.booleans(),
)
@example(m=40, n=36, clusters=7, cluster=(1, 1), group=3, along_n=False, half_tail=False)  # waves across super-rows
@example(m=41, n=37, clusters=11, cluster=(2, 1), group=4, along_n=True, half_tail=True)
@example(m=8, n=6, clusters=4, cluster=(2, 1), group=1, along_n=False, half_tail=True)  # an only wave, cut in two
@settings(max_examples=400, deadline=None)
def test_waves_read_what_a_walk_reads(
    m: int, n: int, clusters: int, cluster: tuple[int, int], group: int, along_n: bool, half_tail: bool
) -> None:
    cluster_m, cluster_n = cluster
    order = Order(m, n, np.array([cluster_m * BM]), np.array([cluster_n * BN]), np.array([group]), np.array([along_n]))
    tiles = int(order.tiles_m[0] * order.tiles_n[0])
    waves = list(walk(m, n, clusters, cluster, group, along_n, half_tail))
    assert len(waves) == -(-tiles // clusters), "half tiles do not change the number of waves"
    first = np.arange(len(waves)) * clusters
    rows, cols = lines_read(order.take(np.zeros(len(waves), dtype=int)), first, np.minimum(first + clusters, tiles))
    assert list(zip(rows.tolist(), cols.tolist(), strict=True)) == [lines(blocks, m, n) for blocks in waves]


@given(
    tiles_m=st.integers(1, 12),
    tiles_n=st.integers(1, 12),
    group=st.integers(1, 14),
    along_n=st.booleans(),
    ends=st.tuples(st.integers(0, 144), st.integers(0, 144)),
)
@settings(max_examples=400, deadline=None)
def test_any_range_of_tiles(tiles_m: int, tiles_n: int, group: int, along_n: bool, ends: tuple[int, int]) -> None:
    """Not only waves: the model asks for two of them together as well."""
    m, n = tiles_m * BM - 1, tiles_n * BN - 2
    first, last = (min(end, tiles_m * tiles_n) for end in sorted(ends))
    order = Order(m, n, np.array([BM]), np.array([BN]), np.array([group]), np.array([along_n]))
    rows, cols = lines_read(order, np.array([first]), np.array([last]))
    every = [blocks[0] for blocks in walk(m, n, 1, (1, 1), group, along_n, False)]
    assert (int(rows[0]), int(cols[0])) == lines(every[first:last], m, n)


@pytest.mark.parametrize("power", [11, 12, 13])
def test_of_very_many_tiles_numbers_are_exact_too(power: int) -> None:
    """Super-rows of one tile run along N, far from the first and over the end of one."""
    side = 2**power
    order = Order(side, side, np.array([1]), np.array([1]), np.array([1]), np.array([False]))
    for first, last, rows, cols in ((-8, -3, 1, 5), (-side - 3, -side + 4, 2, 7), (-3 * side, 0, 3, side)):
        ends = (np.array([side * side + each]) for each in (first, last))
        assert tuple(int(each[0]) for each in lines_read(order, *ends)) == (rows, cols)
