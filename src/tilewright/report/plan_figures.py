"""What the pictures of a plan show, as numbers: the tiles of C wave by wave, and what fills an SM's memories.

``plan_picture`` draws them in a terminal, ``plan_svg`` in a page.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tilewright.plan_parts import PartsPlan, Turns
from tilewright.plan_registers import REGISTER_FILE
from tilewright.plan_tensor import SHARED_LIMIT
from tilewright.planner.candidate import Candidate
from tilewright.problem import Problem

Indices = npt.NDArray[np.int64]
THREADS = 128  # of a warpgroup
FREE = "free"


@dataclass(frozen=True)
class TileMap:
    """The tiles of C, ``down x across``, each with the wave in which it is done; ``at_once`` blocks work at a time.

    A cell of the picture stands for ``step_down x step_across`` tiles and has the wave (from 0) of the one in its
    middle. Wave ``odd`` is not like the others, mostly the last: ``busy`` of the blocks have work in it, and it takes
    ``length`` of the time of a whole one. ``cut`` says that its tiles are halved, ``said`` how K of tiles is cut.
    """

    down: int
    across: int
    step_down: int
    step_across: int
    at_once: int
    waves: int
    odd: int
    busy: int
    length: float
    cut: bool
    said: str
    cells: Indices

    @property
    def tiles(self) -> int:
        """Tiles of C."""
        return self.down * self.across

    @property
    def scaled(self) -> bool:
        """Whether a cell stands for several tiles."""
        return self.step_down > 1 or self.step_across > 1

    @property
    def full(self) -> bool:
        """Whether the odd wave is a wave like any other: all blocks have a whole tile, or part, in it."""
        return self.busy == self.at_once and self.length == 1

    @cached_property
    def tiles_of_cells(self) -> Indices:
        """How many tiles each cell stands for: fewer along the far edges of C."""
        steps = ((self.down, self.step_down), (self.across, self.step_across))
        down, across = (np.minimum(step, size - np.arange(0, size, step)) for size, step in steps)
        return np.multiply.outer(down, across)


def tiles_of(candidate: Candidate, problem: Problem, sms: int, *, most: tuple[int, int]) -> TileMap:
    """The tiles of a candidate over the places that its plan's grid has on so many SMs."""
    return tile_map(candidate, problem, places(candidate, sms), most=most)


def places(candidate: Candidate, sms: int) -> int:
    """Blocks that work at the same time: of a persistent grid all, else as many as give its waves."""
    blocks = getattr(candidate.plan, "blocks", 0)
    if blocks or not candidate.waves or not candidate.wave_efficiency:
        return int(blocks or sms)
    return max(1, round(candidate.tiles / (candidate.waves * candidate.wave_efficiency)))


def tile_map(candidate: Candidate, problem: Problem, at_once: int, *, most: tuple[int, int]) -> TileMap:
    """The tiles of a candidate in the order of its raster, in at most ``most`` cells down and across.

    ``at_once`` blocks, a multiple of a cluster's, work at the same time. The wave of a tile follows from its place in
    closed form, so that a grid of any size takes the time of its picture. A plan that cuts K says when its parts are
    computed.
    """
    bm, bn, _ = candidate.tile
    down, across = -(-problem.m // bm), -(-problem.n // bn)
    step_down, step_across = (max(1, -(-size // limit)) for size, limit in zip((down, across), most, strict=True))
    middles = [
        np.minimum(np.arange(0, size, step) + step // 2, size - 1)
        for size, step in ((down, step_down), (across, step_across))
    ]
    cluster_m, cluster_n = candidate.cluster
    grid = -(-down // cluster_m), -(-across // cluster_n)
    order = tile_order(middles[0][:, None] // cluster_m, middles[1] // cluster_n, grid, candidate)
    plan = candidate.plan
    if isinstance(plan, PartsPlan):
        size, cut, turns = plan.cluster, False, plan.turns(problem)
        clusters = max(1, at_once // size)
    else:
        size = cluster_m * cluster_n
        clusters = max(1, at_once // size)
        turns, cut = _whole(grid[0] * grid[1], clusters, candidate)
    return TileMap(
        down,
        across,
        step_down,
        step_across,
        clusters * size,
        turns.waves,
        max(turns.odd, 0),
        turns.busy * size,
        turns.length,
        cut,
        turns.said,
        turns.of(order),
    )


def _whole(tiles: int, clusters: int, candidate: Candidate) -> tuple[Turns, bool]:
    """When so many clusters compute the tiles of a candidate, and whether those of the last wave are halved.

    ``split`` blocks share K of each tile at the same time.
    """
    items = tiles * candidate.split
    waves = -(-items // clusters)
    busy = items - (waves - 1) * clusters if items else 0
    cut = candidate.tail == "half" and 0 < 2 * (busy % clusters) <= clusters
    halves = 2 if cut else 1
    return Turns(
        waves, waves - 1, busy * halves, 1 / halves, lambda order: order * candidate.split // clusters, ""
    ), cut


def tile_order(tile_m: Indices, tile_n: Indices, grid: tuple[int, int], candidate: Candidate) -> Indices:
    """When each cluster tile has its turn, from 0: the inverse of ``tw::TileOrder`` in cuda/tw/tile_order.cuh.

    ``tile_m`` and ``tile_n``, broadcast against each other, are places in a ``grid`` of cluster tiles down and across.
    """
    group, along_n = candidate.raster.group, candidate.raster.along == "n"
    p, q = (tile_n, tile_m) if along_n else (tile_m, tile_n)
    along, across = (grid[1], grid[0]) if along_n else grid
    first = p // group * group
    width = np.minimum(group, along - first)
    return np.asarray(first * across + q * width + (p - first), np.int64)


@dataclass(frozen=True)
class Part:
    """A piece of a budget; ``pieces`` equal ones of it lie side by side. The ``rest`` is what no other one takes."""

    name: str
    size: int
    pieces: int = 1
    rest: bool = False


@dataclass(frozen=True)
class Budget:
    """What there is of something, and what takes it: ``parts`` in their order, and what is left as ``free``.

    ``free`` is negative where the parts do not fit. ``rest`` is what it is called: not all of it is free where not all
    that takes something is known.
    """

    name: str
    unit: str
    limit: int
    parts: tuple[Part, ...]
    rest: str = FREE

    @property
    def free(self) -> int:
        """What is left, negative where that is not enough."""
        return self.limit - sum(part.size for part in self.parts)

    @property
    def all_parts(self) -> tuple[Part, ...]:
        """The parts that are not empty, and what is free of it: together ``limit``, where they fit."""
        return tuple(part for part in (*self.parts, Part(self.rest, self.free, rest=True)) if part.size > 0)


def shared_budget(candidate: Candidate) -> Budget:
    """What a block has in shared memory, in bytes."""
    if candidate.plan is None:
        stages = candidate.stages * candidate.stage_bytes
        sizes = {"stages": stages, "epilogue and barriers": candidate.shared_bytes - stages}
    else:
        sizes = dict(candidate.plan.shared_parts)
    count = candidate.stages
    parts = [
        Part(f"{count} stages", size, count) if name == "stages" else Part(name, size) for name, size in sizes.items()
    ]
    return Budget("shared memory of a block", "B", SHARED_LIMIT, tuple(parts))


def register_budget(candidate: Candidate) -> Budget:
    """What a block has of an SM's registers: those that hold C, others of the same threads, those of the loading ones.

    Of a block whose threads all load and multiply only the accumulators are known before it is compiled.
    """
    accumulators = candidate.accumulator_registers_per_thread
    if candidate.register_split is None:
        threads = THREADS * max(candidate.consumers, 1)
        if candidate.plan is not None and not candidate.swap_ab:  # swap-AB's last two warps load and hold none
            threads = candidate.plan.threads
        known = (Part("accumulators of a block", accumulators * threads),)
        return Budget("registers of an SM", "", REGISTER_FILE, known, rest="their threads' other values, and free")
    loading, multiplying = candidate.register_split
    threads = THREADS * candidate.consumers
    return Budget(
        "registers of an SM",
        "",
        REGISTER_FILE,
        (
            Part(f"accumulators of {_warpgroups(candidate.consumers)}", accumulators * threads, candidate.consumers),
            Part("their other values", max(0, multiplying - accumulators) * threads),
            Part("loading warpgroup", loading * THREADS),
        ),
    )


def _warpgroups(count: int) -> str:
    return "a warpgroup" if count == 1 else f"{count} warpgroups"
