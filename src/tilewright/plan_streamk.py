"""The plans of the stream-K branch: whole waves of tiles, and the K blocks of what is left in equal shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from tilewright.plan_parts import Ints, PartsPlan, Turns, tiles_for
from tilewright.roofline import amount

if TYPE_CHECKING:
    from tilewright.problem import Problem

LEAST_SHARE = 4  # K blocks that the rule leaves a share where there is less than a wave
EQUAL = 100  # clocks by ``estimate``: of plans no further apart the first is taken


@dataclass(frozen=True)
class StreamKPlan(PartsPlan):
    """The compile-time values of the stream-K kernel.

    ``two_tiles`` puts the last full wave into the shared part too, so that a share is between one tile and two and a
    tile has few parts. ``shared_first`` lets each block do its share before its whole tiles, under which the sums then
    lie. The rest as in ``PartsPlan``.
    """

    branch: ClassVar[str] = "streamk"
    kernel: ClassVar[str] = "stream-k"

    two_tiles: bool = False
    shared_first: bool = True

    @property
    def traits(self) -> tuple[str, ...]:
        """Those of the tile, and what is shared."""
        return (*super().traits, "stream-K", *(["two-tiles"] if self.two_tiles else []))

    def waves(self, problem: Problem) -> tuple[int, int]:
        """Waves of whole tiles, and the tiles whose K blocks are shared."""
        clusters, tiles = self.clusters(problem), self.cluster_tiles(problem)
        waves, left = divmod(tiles, clusters) if clusters else (0, 0)
        if self.two_tiles and waves and left:
            return waves - 1, left + clusters
        return waves, left

    def parts(self, problem: Problem) -> float:
        """Parts of a shared tile, on average."""
        _, shared = self.waves(problem)
        each = (np.array([value]) for value in (shared, self.k_blocks(problem), self.clusters(problem)))
        return int(parts_of(*each)[0]) / shared if shared else 1.0

    def work(self, problem: Problem) -> int:
        """K blocks of all tiles."""
        return self.cluster_tiles(problem) * self.k_blocks(problem)

    def places(self, problem: Problem) -> tuple[int, int]:
        """One a cluster and tile that a share may lie in, three with ``two_tiles``; none without a shared tile."""
        _, shared = self.waves(problem)
        return ((3 if self.two_tiles else 2) * self.clusters(problem), shared) if shared else (0, 0)

    def cut(self) -> Mapping[str, int | bool]:
        """How the last wave is cut."""
        return {"TWO_TILES": self.two_tiles, "SHARED_FIRST": self.shared_first}

    def estimate(self, problem: Problem) -> float:
        """Clocks: whole waves, the largest share, and one sum."""
        waves, shared = self.waves(problem)
        deep, clusters = self.k_blocks(problem), max(self.clusters(problem), 1)
        return (waves * deep + -(-shared * deep // clusters)) * self.block_clocks() + self.sum_clocks(
            self.parts(problem)
        )

    def said(self, problem: Problem) -> str:
        """How the work is cut, in words."""
        (waves, shared), clusters = self.waves(problem), max(self.clusters(problem), 1)
        on = f"{self.tiles_named(self.cluster_tiles(problem))} on {clusters} clusters"
        text = f"{on}: {waves} whole wave{'s' * (waves != 1)}"
        if not shared:
            return f"{text}, nothing to share"
        share = shared * self.k_blocks(problem) / clusters
        return (
            f"{text}, {self.tiles_named(shared)} in shares of {share:.4g} K blocks, {self.parts(problem):.3g} parts "
            f"a tile; {amount(self.workspace_bytes(problem))} for partial sums"
        )

    def turns(self, problem: Problem) -> Turns:
        """Whole waves, and before or after them the wave in which all share the K blocks of the other tiles.

        As ``StreamK`` in cuda/branches/streamk.cu deals them out.
        """
        (whole, shared), clusters = self.waves(problem), max(self.clusters(problem), 1)
        if not shared:
            return Turns(whole, whole - 1, clusters, 1.0, lambda tiles: tiles // clusters, "")
        deep, first = self.k_blocks(problem), int(self.shared_first)
        even, more = divmod(shared * deep, clusters)
        odd = 0 if first else whole
        each = f"{even:,}" if not more else f"{even + 1:,} ({more:,} clusters) or {even:,}"
        said = (
            f"in wave {odd + 1} all share the K of {self.tiles_named(shared)}: each cluster has {each} K blocks; "
            f"a tile has {deep:,}"
        )

        def of(tiles: Ints) -> Ints:
            shared_or_whole = np.minimum(tiles // clusters, whole)  # of a shared one ``whole``
            done: Ints = (shared_or_whole + first) % (whole + 1)
            return done

        return Turns(whole + 1, odd, min(clusters, shared * deep), (even + (more > 0)) / deep, of, said)

    @classmethod
    def default(cls, problem: Problem, *, aligned: bool) -> StreamKPlan:
        """The tile, with or without a full wave in the shared part, that has the fewest clocks by ``estimate``.

        With less than a wave of tiles, so many clusters that each has ``LEAST_SHARE`` K blocks. Raises ``UsageError``
        for a dtype that the kernel does not multiply.
        """
        found: list[StreamKPlan] = []
        for plan in tiles_for(cls, problem, aligned=aligned):
            assert isinstance(plan, StreamKPlan)
            most = max(plan.work(problem) // LEAST_SHARE, plan.cluster_tiles(problem), 1)
            plan = plan.with_(blocks=min(plan.blocks // plan.cluster, most) * plan.cluster)
            found += [each.two_levels(problem) for each in (plan, plan.with_(two_tiles=True))]
        return min(found, key=lambda plan: (round(plan.estimate(problem) / EQUAL), plan.two_tiles, -plan.bm * plan.bn))


def parts_of(shared: Ints, k_blocks: Ints, clusters: Ints) -> Ints:
    """Parts that ``shared`` tiles of ``k_blocks`` each are cut into, where clusters have shares as even as can be.

    All tiles' K blocks are one row, and the first shares have a block more where they do not come out even. Each end of
    a share within a tile is a cut. Arrays that broadcast.
    """
    blocks = shared * k_blocks
    sharing = np.minimum(clusters, blocks)  # others have no block
    even, more = np.divmod(blocks, np.maximum(sharing, 1))
    number = np.arange(1, max(2, int(np.max(shared, initial=0))))[:, None]
    end, larger = number * k_blocks, more * (even + 1)  # of a tile; of the shares that have a block more
    together = np.where(end < larger, end % (even + 1), (end - larger) % np.maximum(even, 1)) == 0
    cuts = sharing - 1 - (together & (number < shared)).sum(axis=0)
    parts: Ints = np.where(shared > 0, shared + cuts, 0)
    return parts
