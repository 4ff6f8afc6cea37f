"""The plans of the split-K branch: every tile's K cut into the same number of even parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tilewright.plan_base import COUNTED_DEPTH, Dim3
from tilewright.plan_parts import PartsPlan, tiles_for

if TYPE_CHECKING:
    from tilewright.problem import Problem

LEAST_BLOCKS = 4  # K blocks that the rule leaves a part: with fewer it is all start and sum
MOST_SPLITS = 2**15


@dataclass(frozen=True)
class SplitKPlan(PartsPlan):
    """The compile-time values of the split-K kernel.

    ``splits`` is the parts of each tile, or as many as it has K blocks; ``interleave_k`` deals the K blocks out in
    turn, so that neighbouring blocks read neighbouring bytes. The rest as in ``PartsPlan``.
    """

    branch: ClassVar[str] = "splitk"
    kernel: ClassVar[str] = "split-k"

    splits: int = 2
    interleave_k: bool = False

    @property
    def traits(self) -> tuple[str, ...]:
        """Those of the tile, and the parts."""
        return (*super().traits, f"split-K{self.splits}", *(["interleaved"] if self.interleave_k else []))

    def parts(self, problem: Problem) -> int:
        """Parts of a tile."""
        return min(self.splits, self.k_blocks(problem))

    def work(self, problem: Problem) -> int:
        """Parts of all tiles."""
        return self.cluster_tiles(problem) * self.parts(problem)

    def places(self, problem: Problem) -> tuple[int, int]:
        """One a part, none without a cut."""
        return (self.work(problem), self.cluster_tiles(problem)) if self.parts(problem) > 1 else (0, 0)

    def neighbours(self, problem: Problem) -> Sequence[int]:
        """The blocks, those of one tile's parts next to each other."""
        clusters, tiles = self.clusters(problem), max(self.cluster_tiles(problem), 1)
        order = sorted(range(clusters), key=lambda cluster: (cluster % tiles, cluster))
        return [cluster * self.cluster + rank for cluster in order for rank in range(self.cluster)]

    @property
    def counted(self) -> Dim3:
        """The tiles of one cluster, each part of them as deep as the rule leaves it."""
        m, n, _ = super().counted
        return m, n, max(COUNTED_DEPTH, self.splits * LEAST_BLOCKS * self.bk)

    def cut(self) -> Mapping[str, int | bool]:
        """How K is cut."""
        return {"SPLITS": self.splits, "INTERLEAVE_K": self.interleave_k}

    def complaints(self) -> Iterator[str]:
        """Why no kernel has this plan, the most basic reason first; nothing when one has."""
        yield from super().complaints()
        if not 1 <= self.splits <= MOST_SPLITS:
            yield f"splits is {self.splits}; 1 to {MOST_SPLITS} parts are possible"

    def estimate(self, problem: Problem) -> float:
        """Clocks: rounds of parts, and one sum at the end."""
        parts = self.parts(problem)
        rounds = -(-self.work(problem) // max(self.clusters(problem), 1))
        return rounds * -(-self.k_blocks(problem) // parts) * self.block_clocks() + self.sum_clocks(parts)

    def said(self, problem: Problem) -> str:
        """How the work is cut, in words."""
        tiles, parts, blocks = self.cluster_tiles(problem), self.parts(problem), self.grid(problem)[0]
        megabytes = self.workspace_bytes(problem) / 1e6 if parts > 1 else 0.0
        return (
            f"{tiles} tiles in {parts} parts of {-(-self.k_blocks(problem) // parts)} K blocks on {blocks} blocks; "
            f"{megabytes:.3g} MB of partial sums, {min(self.fan_in or parts, parts)} added up at once"
        )

    @classmethod
    def default(cls, problem: Problem, *, aligned: bool) -> SplitKPlan:
        """The tile and the cut with the fewest clocks by ``estimate``: as many parts as fill one round of clusters.

        A part keeps ``LEAST_BLOCKS`` K blocks. Raises ``UsageError`` for a dtype that the kernel does not multiply.
        """
        found: list[SplitKPlan] = []
        for plan in tiles_for(cls, problem, aligned=aligned):
            assert isinstance(plan, SplitKPlan)
            most = max(1, plan.k_blocks(problem) // LEAST_BLOCKS)
            fill = max(1, plan.blocks // plan.cluster // max(plan.cluster_tiles(problem), 1))
            cuts = {min(splits, most, MOST_SPLITS) for splits in (1, fill, max(1, fill // 2))}
            found += [plan.with_(splits=splits).two_levels(problem) for splits in cuts]
        return min(found, key=lambda plan: (plan.estimate(problem), plan.splits, -plan.bm * plan.bn))
