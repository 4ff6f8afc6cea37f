"""What the pictures of a plan show, as numbers: the tiles of C wave by wave, and what fills an SM's memories.

``plan_picture`` draws them in a terminal, ``plan_svg`` in a page.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tilewright.plan_registers import REGISTER_FILE
from tilewright.plan_tensor import SHARED_LIMIT
from tilewright.planner.candidate import Candidate
from tilewright.problem import Problem

Indices = npt.NDArray[np.int64]
THREADS = 128  # of a warpgroup
FREE = "free"


@dataclass(frozen=True)
class TileMap:
    """The tiles of C, ``down x across``, each with the wave that computes it; ``at_once`` tiles at a time.

    A cell of the picture stands for ``step_down x step_across`` tiles and has the wave (from 0) of the one in its
    middle. ``busy`` of the ``at_once`` places have work in the last wave. ``cut`` says that its tiles are halved.
    """

    down: int
    across: int
    step_down: int
    step_across: int
    at_once: int
    waves: int
    busy: int
    cut: bool
    cells: Indices

    @property
    def tiles(self) -> int:
        """Tiles of C."""
        return self.down * self.across

    @property
    def scaled(self) -> bool:
        """Whether a cell stands for several tiles."""
        return self.step_down > 1 or self.step_across > 1

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
    """Blocks that compute tiles at the same time: of a persistent grid all, else as many as give its waves."""
    blocks = getattr(candidate.plan, "blocks", 0)
    if blocks or not candidate.waves or not candidate.wave_efficiency:
        return int(blocks or sms)
    return max(1, round(candidate.tiles / (candidate.waves * candidate.wave_efficiency)))


def tile_map(candidate: Candidate, problem: Problem, at_once: int, *, most: tuple[int, int]) -> TileMap:
    """The tiles of a candidate in the order of its raster, in at most ``most`` cells down and across.

    ``at_once`` blocks, a multiple of a cluster's, have a tile at the same time. The wave of a tile follows from its
    place in closed form, so that a grid of any size takes the time of its picture.
    """
    bm, bn, _ = candidate.tile
    down, across = -(-problem.m // bm), -(-problem.n // bn)
    step_down, step_across = (max(1, -(-size // limit)) for size, limit in zip((down, across), most, strict=True))
    middles = [
        np.minimum(np.arange(0, size, step) + step // 2, size - 1)
        for size, step in ((down, step_down), (across, step_across))
    ]
    cluster_m, cluster_n = candidate.cluster
    clusters = max(1, at_once // (cluster_m * cluster_n))
    grid = -(-down // cluster_m), -(-across // cluster_n)
    items = grid[0] * grid[1] * candidate.split
    order = tile_order(middles[0][:, None] // cluster_m, middles[1] // cluster_n, grid, candidate)
    waves = -(-items // clusters)
    busy = items - (waves - 1) * clusters if items else 0
    cut = candidate.tail == "half" and 0 < 2 * (busy % clusters) <= clusters
    return TileMap(
        down,
        across,
        step_down,
        step_across,
        clusters * cluster_m * cluster_n,
        waves,
        busy * (2 if cut else 1) * cluster_m * cluster_n,
        cut,
        order * candidate.split // clusters,
    )


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
    """A piece of a budget; ``pieces`` equal ones of it lie side by side."""

    name: str
    size: int
    pieces: int = 1


@dataclass(frozen=True)
class Budget:
    """What there is of something, and what takes it: ``parts`` in their order, and what is left as ``free``.

    ``free`` is negative where the parts do not fit.
    """

    name: str
    unit: str
    limit: int
    parts: tuple[Part, ...]

    @property
    def free(self) -> int:
        """What is left, negative where that is not enough."""
        return self.limit - sum(part.size for part in self.parts)

    @property
    def all_parts(self) -> tuple[Part, ...]:
        """The parts that are not empty, and what is free of it: together ``limit``, where they fit."""
        return tuple(part for part in (*self.parts, Part(FREE, self.free)) if part.size > 0)


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
        threads = candidate.plan.threads if candidate.plan is not None else THREADS * max(candidate.consumers, 1)
        return Budget("registers of an SM", "", REGISTER_FILE, (Part("accumulators", accumulators * threads),))
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
