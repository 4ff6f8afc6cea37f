"""The plans of the split-K branch: every tile's K cut into the same number of even parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tilewright.dtypes import FP32
from tilewright.errors import UsageError
from tilewright.plan_base import COUNTED_DEPTH, Dim3
from tilewright.plan_parts import PartsPlan, Turns, tiles_for
from tilewright.plan_swapab import CLUSTERS as K_CLUSTERS
from tilewright.plan_swapab import REACHED_SMS
from tilewright.plan_tensor import LARGEST_CLUSTER
from tilewright.roofline import amount

if TYPE_CHECKING:
    from tilewright.problem import Problem

LEAST_STAGES = 4  # left to the ring beside what a cluster along K exchanges: with 3 it was 7% behind the best and more
LEAST_BLOCKS = 4  # K blocks that the rule leaves a block: with fewer it is all start and sum
MOST_SPLITS = 2**15


@dataclass(frozen=True)
class SplitKPlan(PartsPlan):
    """The compile-time values of the split-K kernel.

    ``splits`` is the parts of each tile, or as many as it has K blocks; ``interleave_k`` deals the K blocks out in
    turn, so that neighbouring blocks read neighbouring bytes. ``cluster_k`` blocks of a cluster share the K blocks of a
    part: they add up their share of the tile's columns each in each other's shared memory, before what is left goes to
    the workspace, or with one part to C. The rest as in ``PartsPlan``.
    """

    branch: ClassVar[str] = "splitk"
    kernel: ClassVar[str] = "split-k"

    splits: int = 2
    interleave_k: bool = False
    cluster_k: int = 1

    @property
    def along_k(self) -> int:
        """Blocks of a cluster that share the K blocks of a part."""
        return self.cluster_k

    def alone(self) -> SplitKPlan:
        """The same without clusters, along K either."""
        return self.with_(cluster_m=1, cluster_n=1, cluster_k=1)

    @property
    def traits(self) -> tuple[str, ...]:
        """Those of the tile, and the parts."""
        shared = [f"cluster-K{self.cluster_k}"] if self.cluster_k > 1 else []
        return (*super().traits, f"split-K{self.splits}", *shared, *(["interleaved"] if self.interleave_k else []))

    def parts(self, problem: Problem) -> int:
        """Parts of a tile: no more than leave each block of a cluster a K block."""
        return max(1, min(self.splits, self.k_blocks(problem) // self.cluster_k))

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
        return m, n, max(COUNTED_DEPTH, self.splits * self.cluster_k * LEAST_BLOCKS * self.bk)

    def cut(self) -> Mapping[str, int | bool]:
        """How K is cut."""
        return {"SPLITS": self.splits, "INTERLEAVE_K": self.interleave_k}

    def complaints(self) -> Iterator[str]:
        """Why no kernel has this plan, the most basic reason first; nothing when one has."""
        if self.cluster_k not in K_CLUSTERS:
            yield f"cluster_k is {self.cluster_k}; {', '.join(map(str, K_CLUSTERS))} blocks can share K"
            return
        yield from super().complaints()
        if not 1 <= self.splits <= MOST_SPLITS:
            yield f"splits is {self.splits}; 1 to {MOST_SPLITS} parts are possible"
        m, n, k = self.cluster_m, self.cluster_n, self.cluster_k
        if m * n * k > LARGEST_CLUSTER:
            yield f"the cluster is {m}x{n} and {k} along K; it has 1 to {LARGEST_CLUSTER} blocks"
        if self.blocks % self.cluster:
            yield f"blocks is {self.blocks}; it must be a multiple of the {self.cluster} blocks of a cluster"
        columns = 8 if self.c_dtype == FP32 else self.epilogue_columns
        if self.bn % (k * columns):
            yield (
                f"cluster_k is {k}; it cuts {self.bn} columns of a tile, which must give whole multiples of {columns}, "
                "the columns that are stored at once"
            )

    def estimate(self, problem: Problem) -> float:
        """Clocks: rounds of parts, and one sum at the end."""
        parts = self.parts(problem)
        rounds = -(-self.work(problem) // max(self.clusters(problem), 1))
        deep = -(-self.k_blocks(problem) // (parts * self.cluster_k))
        return rounds * deep * self.block_clocks() + self.sum_clocks(parts)

    def said(self, problem: Problem) -> str:
        """How the work is cut, in words."""
        tiles, parts, blocks = self.cluster_tiles(problem), self.parts(problem), self.grid(problem)[0]
        by = f", each by {self.cluster_k} blocks of a cluster," if self.cluster_k > 1 else ""
        left = "no partial sums"
        if parts > 1:
            count = min(self.fan_in or parts, parts)
            left = f"{amount(self.workspace_bytes(problem))} for partial sums, {count} added up at once"
        return (
            f"{self.tiles_named(tiles)} in {parts} part{'s' * (parts != 1)} of {-(-self.k_blocks(problem) // parts)} K "
            f"blocks{by} on {blocks} blocks; {left}"
        )

    def turns(self, problem: Problem) -> Turns:
        """All tiles' first parts, then their second ones: a tile is done with its last.

        As ``SplitK`` in cuda/branches/splitk.cu deals them out.
        """
        clusters, tiles, parts = max(self.clusters(problem), 1), self.cluster_tiles(problem), self.parts(problem)
        before = (parts - 1) * tiles
        waves = -(-self.work(problem) // clusters)
        busy = self.work(problem) - (waves - 1) * clusters
        said = f"K of each tile in {parts} parts; its wave is that of the last" if parts > 1 else ""
        return Turns(waves, waves - 1, busy, 1.0, lambda numbers: (before + numbers) // clusters, said)

    @classmethod
    def default(cls, problem: Problem, *, aligned: bool) -> SplitKPlan:
        """The tile and the cut with the fewest clocks by ``estimate``: as many parts as fill one round of clusters.

        A block keeps ``LEAST_BLOCKS`` K blocks. Raises ``UsageError`` for a dtype that the kernel does not multiply.
        """
        found: list[SplitKPlan] = []
        for plan in with_clusters(tiles_for(cls, problem, aligned=aligned)):
            most = plan.k_blocks(problem) // (LEAST_BLOCKS * plan.cluster_k)
            if most < 1 < plan.cluster_k:
                continue
            most = max(1, most)
            fill = max(1, plan.blocks // plan.cluster // max(plan.cluster_tiles(problem), 1))
            cuts = {min(splits, most, MOST_SPLITS) for splits in (1, fill, max(1, fill // 2))}
            found += [plan.with_(splits=splits).two_levels(problem) for splits in cuts]
        return min(found, key=lambda plan: (plan.estimate(problem), plan.splits, plan.cluster_k, -plan.bm * plan.bn))


def with_clusters(plans: Iterable[PartsPlan]) -> Iterator[SplitKPlan]:
    """Each as it is, and with each number of blocks that can share a part, on the SMs that such clusters reach."""
    for plan in plans:
        assert isinstance(plan, SplitKPlan)
        yield plan
        for blocks in K_CLUSTERS[1:]:
            with suppress(UsageError):  # more blocks than a cluster has, or columns than they can store
                columns = min(plan.epilogue_columns, plan.bn // blocks)
                shared = plan.with_(stages=2, cluster_k=blocks, blocks=REACHED_SMS[8], epilogue_columns=columns)
                shared = shared.with_(blocks=REACHED_SMS[shared.cluster]).full()
                if shared.stages >= LEAST_STAGES:
                    yield shared
