"""The stream-K branch: whole waves of tiles, and the K blocks of what is left in equal shares."""

from __future__ import annotations

import numpy as np

from tilewright.plan_base import Plan
from tilewright.plan_parts import PartsPlan
from tilewright.plan_streamk import StreamKPlan, parts_of
from tilewright.plan_tensor import SWIZZLE_ROW
from tilewright.planner import partial_sums
from tilewright.planner.candidate import Candidate
from tilewright.planner.family import Offer, register
from tilewright.planner.machine import Machine
from tilewright.planner.parts import LISTED, PASSED_OVER, Cut, Cutting, Parts
from tilewright.planner.raster import Bools, Ints
from tilewright.problem import Problem


class StreamK(Parts):
    """Tiles and clusters, each with the last full wave among what is shared and without it."""

    name = "streamk"
    kind = StreamKPlan
    passed_over = (
        *PASSED_OVER,
        (
            (128, 96, 2),
            (1, 1),
            f"tiles but {len(LISTED)} that fill waves are the main kernel's: nothing is shared",
        ),
    )
    fixed_us = 0.0
    same_walk = 1.0  # blocks are at different K, so that each line is one block's own
    turnaround = 2.0  # fitted to the sweep, as the next
    walk_us = 2.9  # a block stores the end of one tile before it begins another

    def adds(self, candidate: Candidate) -> str:
        """The partial sums of the tiles whose K is shared."""
        return ", and partial sums of shared tiles: written, waited for and added up" if _shares(candidate) else ""

    def source(self, term: str, candidate: Candidate, said: str) -> str:
        """Also that blocks at different K read lines again that whole tiles before them have left to L2."""
        again = term == "hbm" and candidate.waves > 1 and _shares(candidate)
        told = super().source(term, candidate, said)
        return f"{told}; blocks at different K of shared tiles read lines again" if again else told

    def offer(self, problem: Problem, machine: Machine) -> Offer:
        """Both ways to cut each tile and cluster, the second where there is a full wave.

        Of tiles without clusters none that fill their waves: with nothing to share they are the main kernel's.
        """
        bases, counted = self.bases(problem, machine)
        tiles, places = np.array(counted), machine.places_of(bases.columns["cluster"])
        full = (tiles > places).tolist()
        shares = ((bases.columns["lone"] == 0) | (tiles % places > 0)).tolist()
        two = [(row, two) for row, more in enumerate(full) if shares[row] for two in ((False, True)[: 1 + more])]
        (two,), dependent = machine.launches(two)
        rows, two_tiles = np.array([row for row, _ in two]), np.array([each for _, each in two])

        def finish(index: int, plan: PartsPlan, problem: Problem) -> PartsPlan:
            return plan.with_(two_tiles=bool(two_tiles[index])).two_levels(problem)

        return self.offered(bases, rows, _cut(two_tiles, problem), problem, machine, dependent, finish)

    def priced(self, plan: Plan, problem: Problem, machine: Machine) -> Offer:
        """An offer of one plan, as it is."""
        assert isinstance(plan, StreamKPlan)
        return self.one(plan, _cut(np.array([plan.two_tiles]), problem), problem, machine)


def _shares(candidate: Candidate) -> bool:
    """Whether its tiles do not fill their waves, so that some are shared."""
    plan = candidate.plan
    assert isinstance(plan, StreamKPlan)
    return candidate.wave_efficiency < 1 or -(-candidate.tiles // plan.cluster) % (plan.blocks // plan.cluster) > 0


def _cut(two_tiles: Bools, problem: Problem) -> Cutting:
    def cut(tiles: Ints, places: Ints) -> Cut:
        blocks = max(1, -(-problem.k // SWIZZLE_ROW))
        shared = partial_sums.streamk_tiles(tiles, places, two_tiles)
        whole = (tiles - shared) // places
        # A share in whole K blocks, as what each place has of a tile in the last round.
        part = -(-shared * blocks // places) / blocks
        parts = parts_of(shared, np.full_like(tiles, blocks), places)
        none = shared == 0
        items = np.where(none, tiles, (whole + 1) * places)
        again = np.where(whole > 0, shared, 0)  # in one round alone a line is read about once
        share = np.ones(len(tiles))
        return Cut(items, share, np.where(none, 1.0, part), parts, shared, whole > 0, again)

    return cut


register(StreamK())
