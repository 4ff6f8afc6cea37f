"""The plans of the stream-K branch: whole waves of tiles, and the K blocks of what is left in equal shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tilewright.plan_parts import PartsPlan, tiles_for

if TYPE_CHECKING:
    from tilewright.problem import Problem

LEAST_SHARE = 4  # K blocks that the rule leaves a share where there is less than a wave


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
        return self.clusters(problem) / shared + 1 if shared else 1.0

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
        text = f"{self.cluster_tiles(problem)} tiles on {clusters} clusters: {waves} whole waves"
        if not shared:
            return f"{text}, nothing to share"
        share = shared * self.k_blocks(problem) / clusters
        return (
            f"{text}, {shared} tiles in shares of {share:.4g} K blocks, {self.parts(problem):.3g} parts a tile; "
            f"{self.workspace_bytes(problem) / 1e6:.3g} MB for partial sums"
        )

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
        return min(found, key=lambda plan: (plan.estimate(problem), plan.two_tiles, -plan.bm * plan.bn))
