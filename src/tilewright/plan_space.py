"""The plans that a tensor-core rung can have: one of each kind, or a random choice of them.

A *kind* is what the code takes different paths for: dtype, layouts, tile, who multiplies, cluster, half tiles. What
only counts or orders (stages, slabs, raster, direction of K, hints) can go with any kind: it is drawn at random, from
all that is legal, so that the plans of all kinds together have every value of it many times over.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any

from tilewright.errors import UsageError
from tilewright.ladder import Rung
from tilewright.plan_tensor import CLUSTERS, FIRST, LAST, PERSISTENT, SPECIALISED, TensorPlan

SMS = 132  # of an H100 or H200: the most blocks of a persistent grid
MOST_STAGES = 8

_TILES = tuple(product((64, 128, 192, 256, 384), (16, 48, 64, 96, 128, 160, 176, 192, 208, 256)))
_WARPS = ((1, 2), (2, 1), (2, 2), (2, 4), (4, 2), (1, 8), (4, 4))
# Warpgroups that multiply, whether they take turns, and the registers of the loading threads and of theirs.
_TEAMS = ((1, False, 40, 248), (2, False, 40, 232), (3, False, 56, 152), (2, True, 40, 232))
_CLUSTERS = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1))
_WIDTHS = (16, 32, 64)


def legal_plans(rung: Rung, seed: int = 0) -> list[TensorPlan]:
    """One plan of every kind that the rung has, the rest of it drawn with ``seed``."""
    rng = random.Random(seed)
    return [_finished(kind, rng) for kind in _kinds(rung)]


def sample_plans(rung: Rung, count: int, seed: int = 0) -> list[TensorPlan]:
    """Plans of ``count`` different kinds, these too drawn with ``seed``; of all kinds where there are fewer."""
    rng, kinds = random.Random(seed), _kinds(rung)
    return [_finished(kind, rng) for kind in rng.sample(kinds, min(count, len(kinds)))]


@cache
def _kinds(rung: Rung) -> tuple[TensorPlan, ...]:
    """Every kind of plan, the rest of it as small as can be."""
    return tuple(_legal(rung))


def _legal(rung: Rung) -> Iterator[TensorPlan]:
    number = rung.number
    if number == FIRST:
        teams = [{"warps_m": m, "warps_n": n} for m, n in _WARPS]
    elif number < SPECIALISED:
        teams = [{"consumers": count} for count in (1, 2, 3)]
    else:
        names = ("consumers", "pingpong", "producer_registers", "consumer_registers")
        teams = [dict(zip(names, team, strict=True)) for team in _TEAMS if number == LAST or not team[1]]
    clusters = _CLUSTERS if number >= CLUSTERS else _CLUSTERS[:1]
    halves = (False, True) if number == LAST else (False,)
    stages = 3 if number == FIRST + 1 else 2
    layouts = tuple(product(("row", "column"), repeat=2))
    for dtype, (a, b), (bm, bn), team, (cm, cn), half in product(rung.dtypes, layouts, _TILES, teams, clusters, halves):
        rest: dict[str, Any] = {"cluster_m": cm, "cluster_n": cn, "half_tail": half, **team}
        if number >= PERSISTENT:
            rest["blocks"] = cm * cn
        if number == LAST:
            rest |= {"epilogue_columns": 16, "epilogue_slabs": 1}
        try:
            yield TensorPlan(number, dtype, bm, bn, 64, a_layout=a, b_layout=b, stages=stages, **rest)
        except UsageError:
            continue


def _finished(kind: TensorPlan, rng: random.Random) -> TensorPlan:
    """The kind with everything else drawn, again until it fits into shared memory."""
    while True:
        rest: dict[str, Any] = {"stages": rng.randint(2, MOST_STAGES)}
        if kind.rung < LAST:
            rest["aligned"] = rng.random() < 0.5
        else:
            rest["epilogue_columns"] = rng.choice([width for width in _WIDTHS if kind.bn % width == 0])
            rest["epilogue_slabs"] = rng.randint(1, 4)
            rest |= {name: rng.random() < 0.5 for name in ("alternate_k", "store_evict_first", "dependent_launch")}
        if kind.rung >= PERSISTENT:
            rest |= {"group": rng.choice((1, 2, 3, 8)), "along_n": rng.random() < 0.5}
            rest["blocks"] = rng.choice((1, 2, SMS // kind.cluster)) * kind.cluster
        try:
            return kind.with_(**rest)
        except UsageError:
            continue
