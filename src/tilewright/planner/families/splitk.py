"""The split-K branch: each tile's K in even parts, for fewer tiles than SMs."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from tilewright.dtypes import DType
from tilewright.plan_base import MOST_COUNTERS, Plan
from tilewright.plan_parts import PartsPlan
from tilewright.plan_splitk import LEAST_BLOCKS, SplitKPlan, with_clusters
from tilewright.plan_tensor import SWIZZLE_ROW
from tilewright.planner.candidate import Candidate, Predicted
from tilewright.planner.family import Offer, register
from tilewright.planner.machine import Machine
from tilewright.planner.parts import Bases, Cut, Cutting, Parts, base_plans, lone_plans
from tilewright.planner.raster import Ints
from tilewright.planner.supply import AS_ALONE
from tilewright.problem import Layout, Problem

SPLITS = (2, 3, 4, 5, 6, 8, 11, 16, 22, 33, 44, 66)
CLUSTER_SPLITS = (1, 2, 3, 4, 5, 7, 8, 10, 15, 16, 30, 33)  # of tiles whose parts a cluster shares: 30 of 4, 66 of 2
FEW = 64
MOST_ROUNDS = 2  # of parts; with more, fewer parts do


@lru_cache(maxsize=32)
def _bases(dtype: DType, a: Layout, b: Layout) -> Bases:
    """One of each tile and cluster, along K too."""
    return Bases((*with_clusters(base_plans(SplitKPlan, dtype, a, b)), *lone_plans(SplitKPlan, dtype, a, b)))


class SplitK(Parts):
    """Tiles and clusters, each with parts that fill one round of clusters, or two; one where clusters share them.

    Clusters share parts where C has more than ``FEW`` rows and columns: with fewer, swap-AB has clusters along K.
    """

    name = "splitk"
    kind = SplitKPlan
    fixed_us = 1.1  # fitted to the sweep
    # Blocks of a part ask for the same lines. Clusters are not in step, nor are the blocks of a dependent launch, which
    # start one by one as the kernel before leaves them room: few then ask for a line together.
    same, same_cluster, same_dependent = AS_ALONE, 1.0, 1.0

    def refusal(self, problem: Problem) -> str | None:
        """Also a K of a single block, which has no parts."""
        if problem.k <= SWIZZLE_ROW:
            return f"splitk split-k: K = {problem.k} is one block of {SWIZZLE_ROW}, which has no parts"
        return super().refusal(problem)

    def uncut(self, dtype: DType, a: Layout, b: Layout) -> Bases:
        """One of each tile and cluster, along K too."""
        return _bases(dtype, a, b)

    def adds(self, candidate: Candidate) -> str:
        """The partial sums of each tile, and those that a cluster along K keeps in shared memory."""
        along_k = getattr(candidate.plan, "cluster_k", 1)
        cluster = f", added up over {along_k} blocks of a cluster" if along_k > 1 else ""
        if candidate.split == 1:
            return cluster
        return f"{cluster}, and partial sums of {candidate.split} parts of K: written, waited for and added up"

    def source(self, term: str, candidate: Candidate, said: str) -> str:
        """Also that lone blocks of a part ask for the same lines at the same time, which L2 gives them faster."""
        lone = candidate.cluster == (1, 1) and candidate.plan is not None and not candidate.plan.dependent
        together = term == "l2" and lone and getattr(candidate.plan, "cluster_k", 1) == 1
        told = super().source(term, candidate, said)
        return f"{told}, which blocks of a part ask for together" if together else told

    def offer(self, problem: Problem, machine: Machine) -> Offer:
        """The plans that leave a part its ``LEAST_BLOCKS`` K blocks; the fewest parts of each tile in any case.

        None with more counters than a workspace has: so many tiles need no cut.
        """
        bases, counted = self.bases(problem, machine)
        blocks = max(1, -(-problem.k // SWIZZLE_ROW))
        rows, splits = [], []
        clusters, along_k = bases.columns["cluster"], bases.columns["along_k"].tolist()
        at_once = machine.places_of(clusters).tolist()
        for row, (tiles, places, along) in enumerate(zip(counted, at_once, along_k, strict=True)):
            shared = along > 1
            if shared and min(problem.m, problem.n) <= FEW:
                continue
            for each in CLUSTER_SPLITS if shared else SPLITS:
                most = places if shared else MOST_ROUNDS * places
                few = tiles * each <= most and each * along * LEAST_BLOCKS <= blocks
                fits = bases.plans[row].counters(tiles, tiles * min(each, blocks)) <= MOST_COUNTERS
                if fits and (few or (each == SPLITS[0] and not shared)):
                    rows.append(row)
                    splits.append(each)
        (rows, splits), dependent = machine.launches(rows, splits)
        parts = np.minimum(np.array(splits, dtype=np.int64), blocks)

        def finish(index: int, plan: PartsPlan, problem: Problem) -> PartsPlan:
            return plan.with_(splits=splits[index]).two_levels(problem)

        cut = _cut(parts, blocks)
        offer = self.offered(bases, np.array(rows, dtype=np.int64), cut, problem, machine, dependent, finish)
        return _with_parts(offer, parts.tolist())

    def priced(self, plan: Plan, problem: Problem, machine: Machine) -> Offer:
        """An offer of one plan, as it is."""
        assert isinstance(plan, SplitKPlan)
        blocks = max(1, -(-problem.k // SWIZZLE_ROW))
        cut = _cut(np.array([plan.parts(problem)]), blocks)
        return _with_parts(self.one(plan, cut, problem, machine), [plan.parts(problem)])


def _cut(parts: Ints, blocks: int) -> Cutting:
    def cut(tiles: Ints, places: Ints) -> Cut:
        share = -(-blocks // parts) / blocks
        several = parts > 1
        return Cut(tiles * parts, share, np.ones(len(parts)), np.where(several, tiles * parts, 0),
                   np.where(several, tiles, 0), parts < 1, 0 * tiles)  # fmt: skip

    return cut


def _with_parts(offer: Offer, parts: list[int]) -> Offer:
    """The candidates with the parts of each: no more than there are K blocks."""

    def make(index: int, terms: dict[str, float], predicted: Predicted) -> Candidate:
        return replace(offer.make(index, terms, predicted), split=parts[index])

    return replace(offer, make=make)


register(SplitK())
