"""The work of split-K and stream-K: rung 11's main loop over parts of K of tiles, and the sums of what it leaves.

A part is what ``persistent.py`` says of a whole tile, times its share of K; ``partial_sums.py`` has what is added.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import product
from typing import Any

import numpy as np

from tilewright import plan_space
from tilewright.dtypes import DType
from tilewright.errors import UsageError
from tilewright.plan_parts import TILES, PartsPlan
from tilewright.plan_tensor import LARGEST_CLUSTER, SHARED_LIMIT, SWIZZLE_ROW
from tilewright.planner import constraints, partial_sums
from tilewright.planner import stream_constraints as limits
from tilewright.planner.candidate import Candidate, Predicted, Raster
from tilewright.planner.facts import Shape, candidate
from tilewright.planner.family import Family, Offer
from tilewright.planner.judgement import Finding
from tilewright.planner.lazy import LazySequence
from tilewright.planner.machine import Machine
from tilewright.planner.persistent import columns, persistent_work, with_stages
from tilewright.planner.raster import Bools, Floats, Ints, Order, columns_of
from tilewright.planner.stream import Stream, StreamEstimate, source
from tilewright.planner.supply import AS_ALONE, BEFORE_FIRST, SAME_LINES
from tilewright.problem import Layout, Problem

SPREAD = (0.88, 1.20)
MORE_TILES = ((128, 192, 2), (192, 128, 3), (64, 192, 1), (128, 64, 2))
CLUSTERS = ((1, 1), (2, 1), (1, 2))
TEAM_REGISTERS = {1: (40, 248), 2: (40, 232), 3: (56, 152)}  # of loading threads and of those that multiply
LISTED = frozenset((bm, bn) for bm, bn, _ in (*TILES, *MORE_TILES))  # in clusters too
TEAM = {64: 1, 128: 2, 192: 3, 256: 2, 384: 3}  # warpgroups that share a tile of so many rows
# What is legal and no candidate: a tile that stands for it, and why.
_GAIN = "none is 5% faster than the planner's first candidate"
Passed = tuple[tuple[int, int, int], tuple[int, int], str]
PASSED_OVER: tuple[Passed, ...] = (
    ((128, 128, 2), (2, 2), f"clusters of 4 tiles are left out, also of other tiles: {_GAIN}"),
    ((128, 96, 2), (2, 1), f"clusters are left out of tiles but {len(LISTED)}: {_GAIN}"),
    ((128, 128, 1), (1, 1), f"tiles of so many rows have one team, of other warpgroups {_GAIN}"),
)


@dataclass(frozen=True)
class Cut:
    """How K of the tiles is cut: arrays with an entry a candidate, of cluster tiles and clusters.

    ``items`` parts, or whole tiles, are computed ``places`` at a time; each has ``share`` of a tile's K, and places
    have ``last_part`` of one in the last round. ``parts`` are left by ``cut`` tiles and added up; where ``covered``,
    under whole tiles. ``again`` of them are computed while the others are at another part of K.
    """

    items: Ints
    share: Floats
    last_part: Floats
    parts: Ints
    cut: Ints
    covered: Bools
    again: Ints


Cutting = Callable[[Ints, Ints], Cut]
"""From cluster tiles and the clusters that run at a time to how the tiles are cut."""


def base_plan(plan_kind: type[PartsPlan], dtype: DType, a: Layout, b: Layout, kind: Any, **more: Any) -> PartsPlan:
    """A plan of a tile with a full ring. Raises ``UsageError`` where no kernel has it."""
    (bm, bn, consumers), (cluster_m, cluster_n) = kind
    producer, consumer = TEAM_REGISTERS[consumers]
    plan = plan_kind(
        dtype, bm, bn, 64, True, a, b, stages=2, consumers=consumers, producer_registers=producer,
        consumer_registers=consumer, cluster_m=cluster_m, cluster_n=cluster_n, group=8 // cluster_m,
        epilogue_columns=16 if bn % 32 else 32, **more,
    )  # fmt: skip
    return plan.full()


@lru_cache(maxsize=32)
def base_plans(plan_kind: type[PartsPlan], dtype: DType, a: Layout, b: Layout) -> tuple[PartsPlan, ...]:
    """One of each tile and cluster of those that are often the best."""
    return _plans(plan_kind, dtype, a, b, product((*TILES, *MORE_TILES), CLUSTERS))


@lru_cache(maxsize=32)
def lone_plans(plan_kind: type[PartsPlan], dtype: DType, a: Layout, b: Layout) -> tuple[PartsPlan, ...]:
    """One of each other tile that rung 11 has, without clusters."""
    tiles = ((bm, bn, TEAM[bm]) for bm, bn in plan_space.TILES if (bm, bn) not in LISTED)
    return _plans(plan_kind, dtype, a, b, product(tiles, [(1, 1)]))


def _plans(
    plan_kind: type[PartsPlan], dtype: DType, a: Layout, b: Layout, kinds: Iterable[Any]
) -> tuple[PartsPlan, ...]:
    found = []
    for kind in kinds:
        with suppress(UsageError):
            found.append(base_plan(plan_kind, dtype, a, b, kind))
    return tuple(found)


@lru_cache(maxsize=32)
def refusal(plan_kind: type[PartsPlan], dtype: DType, a: Layout, b: Layout) -> str | None:
    """What the plan says of a dtype and layouts; None where there are kernels of them."""
    try:
        base_plan(plan_kind, dtype, a, b, (TILES[0], (1, 1)))
    except UsageError as error:
        return str(error)
    return None


@dataclass(frozen=True, eq=False)
class Bases:
    """Plans of a dtype and layouts, with what of them no problem changes."""

    plans: tuple[PartsPlan, ...]

    @cached_property
    def columns(self) -> dict[str, Ints]:
        """``persistent.columns`` of them; blocks along K, blocks of a cluster, super-rows, and who has no clusters."""
        more: dict[str, Sequence[int]] = {
            "along_k": [p.along_k for p in self.plans],
            "group": [p.group for p in self.plans],
            "lone": [(p.bm, p.bn) not in LISTED for p in self.plans],
        }
        found = columns([p.core for p in self.plans]) | columns_of(more)
        return {**found, "cluster": found["cluster_m"] * found["cluster_n"] * found["along_k"]}

    def cluster_tiles(self, problem: Problem) -> Ints:
        """Tiles of whole clusters of each plan."""
        t = self.columns
        down, across = t["bm"] * t["cluster_m"], t["bn"] * t["cluster_n"]
        tiles: Ints = -(-problem.m // down) * -(-problem.n // across)
        return tiles


@lru_cache(maxsize=32)
def _every(plan_kind: type[PartsPlan], dtype: DType, a: Layout, b: Layout) -> Bases:
    return Bases((*base_plans(plan_kind, dtype, a, b), *lone_plans(plan_kind, dtype, a, b)))


def _shared(share: Floats, along_k: Ints, problem: Problem) -> Floats:
    """Of a part that blocks of a cluster share, what one of them has: whole K blocks."""
    deep = max(1, -(-problem.k // SWIZZLE_ROW))
    whole = np.ceil(np.round(share * deep / along_k, 9)) / deep
    return np.where(along_k > 1, whole, share)


class Parts(Family):
    """What both families have. ``residuals`` are factors on the constants of the same names."""

    residuals = ("fixed", "arrive")
    kind: type[PartsPlan]
    fixed_us: float  # beside launch, loads, products, stores and sums
    same = same_cluster = same_dependent = SAME_LINES  # of lone blocks; in clusters; in a dependent launch
    same_walk = AS_ALONE  # of the round in which blocks are at different K
    turnaround = 1.0  # of that of whole tiles
    passed_over = PASSED_OVER
    walk_us = 0.0  # of a grid that leaves partial sums

    def prices(self, plan: Any) -> bool:
        """Those of its kernel."""
        return isinstance(plan, self.kind)

    def refusal(self, problem: Problem) -> str | None:
        """What the plan says of the dtype, and TMA of the lines of the matrices."""
        reason = refusal(self.kind, problem.dtype, problem.a_layout, problem.b_layout)
        if reason is not None:
            return reason
        lines = constraints.tma_lines(problem)
        return None if lines.ok else lines.sentence

    def refused(self, problem: Problem, machine: Machine, reason: str) -> Candidate:
        """A tile of 128 x 128, with the reason."""
        plan = base_plan(self.kind, Problem(1, 1, 1, "bf16").dtype, "row", "column", (TILES[2], (1, 1)))
        return candidate(problem, self._shape(plan, machine.sms), rejected=reason)

    def staged(self, candidate: Candidate, stages: int) -> PartsPlan:
        """With slabs for the epilogue in what the stages leave."""
        assert isinstance(candidate.plan, PartsPlan)
        return with_stages(candidate.plan, stages)

    def source(self, term: str, candidate: Candidate, said: str) -> str:
        """What parts of K leave to add up, and that ``issue`` has the ring; a dependent launch waits for A alone."""
        if term == "first_load" and candidate.plan is not None and candidate.plan.dependent:
            return "a latency of HBM"
        more = {"epilogue": self.adds(candidate), "issue": ", the steps of the ring among them"}
        return source(term, candidate, said + more.get(term, ""), self.fixed_us)

    @abstractmethod
    def adds(self, candidate: Candidate) -> str:
        """What its epilogue does with sums of parts of K, after a comma; nothing where there are none."""

    def findings(self, candidate: Candidate, problem: Problem, machine: Machine) -> Iterator[Finding]:
        """How the work is cut, and the sums that leaves."""
        plan = candidate.plan
        assert isinstance(plan, PartsPlan)
        yield limits.cut(plan.said(problem), candidate.wave_efficiency)
        yield limits.workspace(plan.workspace_bytes(problem), machine.l2_keeps_bytes)

    def one(self, plan: PartsPlan, cut: Cutting, problem: Problem, machine: Machine) -> Offer:
        """An offer of one plan, as it is."""
        row, dependent = np.zeros(1, dtype=np.int64), np.array([plan.dependent_launch])
        return self.offered(Bases((plan,)), row, cut, problem, machine, dependent, lambda *_: plan)

    def bases(self, problem: Problem, machine: Machine) -> tuple[Bases, list[int]]:
        """The tiles and clusters that the machine's SMs have places for, uncut, and the cluster tiles of each."""
        every = self.uncut(problem.dtype, problem.a_layout, problem.b_layout)
        if machine.sms < LARGEST_CLUSTER:
            every = Bases(tuple(plan for plan in every.plans if plan.cluster <= machine.sms))
        return every, every.cluster_tiles(problem).tolist()

    def uncut(self, dtype: DType, a: Layout, b: Layout) -> Bases:
        """One plan of each tile and cluster."""
        return _every(self.kind, dtype, a, b)

    def offered(
        self, bases: Bases, rows: Ints, cut: Cutting, problem: Problem,
        machine: Machine, dependent: Bools, finish: Callable[[int, PartsPlan, Problem], PartsPlan],
    ) -> Offer:  # fmt: skip
        """An offer of the ``rows`` of plans, each as ``cut(tiles, places)`` has it; ``finish`` makes the plan."""
        c, itemsize, plans = machine.calibration, problem.dtype.itemsize, bases.plans
        t = {name: values[rows] for name, values in bases.columns.items()}
        along_k, cluster, group = t["along_k"], t["cluster"], t["group"]
        places = machine.places_of(cluster)
        wgmma = c.wgmma_clocks_of(t["bn"])
        order = Order(problem.m, problem.n, t["bm"] * t["cluster_m"], t["bn"] * t["cluster_n"], group, group < 0)
        whole = persistent_work(problem, machine, t, order, places, wgmma, group < 0)
        tiles = whole.tiles
        how = cut(tiles, places)
        how = replace(how, share=_shared(how.share, along_k, problem))
        elements = t["bm"] * t["bn"] * cluster // along_k
        # Each block leaves and adds up its own tile, of a cluster along K its share of one.
        own = t["bm"] * t["bn"] // along_k
        write, last = partial_sums.reduction_us(how.parts * cluster, how.cut * cluster, own, machine)
        write = write + partial_sums.exchange_us(along_k, t["bm"] * t["bn"], machine)
        covered = np.where(how.covered, 0.0, 1.0)
        rounds = -(-how.items // places)
        worth = (rounds - 1) * places + (how.items - (rounds - 1) * places) * how.last_part
        line = problem.k * itemsize
        lost = 1 - machine.l2_hits(np.array(float((problem.m + problem.n) * line)))
        again = how.again * (order.rows + order.cols) * float(line) * lost
        walk = np.where(how.parts > 0, self.walk_us, 0.0)
        arrive = last * c.residual(self.name, "arrive") * covered
        same = np.select([dependent, cluster > 1], [self.same_dependent, self.same_cluster], self.same)
        fixed_us = self.fixed_us * c.residual(self.name, "fixed")
        stream = Stream(
            tiles=how.items,
            split=cluster,
            places=places,
            reached=places * cluster,
            own_bytes=whole.own_bytes * how.share,
            shared_bytes=whole.shared_bytes * how.share,
            weight_bytes=problem.bytes_moved / (worth * cluster),
            run_bytes=SWIZZLE_ROW * itemsize,
            chain=whole.chain * how.share,
            turnaround_us=self.turnaround * whole.turnaround_us,
            tensor_clk=whole.tensor_clk * how.share,
            port_clk=whole.port_clk * how.share,
            issue_clk=whole.issue_clk * how.share,
            ring_clk=whole.ring_clk * how.share,
            last_part=how.last_part,
            launch_us=np.where(along_k > 1, c.cluster_launch_us, whole.launch_us),
            ramp_us=BEFORE_FIRST * fixed_us,
            first_clk=whole.first_clk,
            end_us=(1 - BEFORE_FIRST) * fixed_us + write + arrive + walk,
            end_clk=whole.epilogue_clk * rounds,  # nothing is multiplied meanwhile
            dependent=dependent,
            shown_clk=c.tma_latency_hbm_clk,  # A may be what the kernel before has written
            flows=covered < 0,
            round_us=0.0,
            same=np.stack([same, np.where(how.parts > 0, np.minimum(same, self.same_walk), same)]),
            apart=whole.apart,
            again_bytes=again,
            useful_elements=problem.m * problem.n / (tiles * elements),
            flop=whole.flop * how.share,
            pj_per_flop=whole.pj_per_flop,
        )
        estimate = StreamEstimate(stream, problem, machine)
        stage = (t["bm"] + t["bn"]) * 64 * itemsize

        def make(index: int, terms: dict[str, float], predicted: Predicted) -> Candidate:
            at = int(places[index])
            plan = plans[int(rows[index])]
            plan = plan.with_(blocks=at * plan.cluster, dependent_launch=bool(dependent[index]))
            plan = finish(index, plan, problem).storing(problem.out_dtype)  # which may leave room for more stages
            made = candidate(
                problem, self._shape(plan, at), raster=Raster(plan.group, "n" if plan.along_n else "m"), plan=plan,
                terms_us=terms,
                predicted_us=predicted,
            )  # fmt: skip
            rounds = float(stream.rounds[index]) - 1 + float(how.last_part[index])
            used = float(how.items[index] * how.share[index]) if how.share[index] < 1 else float(tiles[index])
            spent = rounds * at * min(float(how.share[index]), 1.0)
            return replace(made, waves=int(stream.rounds[index]), wave_efficiency=min(1.0, used / spent))

        ties = np.stack(
            [dependent, cluster, how.parts, -t["bm"] * t["bn"], stage, t["bm"], np.arange(len(rows))], axis=1
        )
        rejected = LazySequence(len(self.passed_over), lambda index: self._passed_over(index, problem, machine))
        return Offer(estimate.sustained(), estimate.burst(), ties, stream.useful, make, rejected, SPREAD)

    def _passed_over(self, index: int, problem: Problem, machine: Machine) -> Candidate:
        """A rule by which legal plans are no candidates, at one of them; the layouts are those that have all tiles."""
        tile, cluster, reason = self.passed_over[index]
        plan = base_plan(self.kind, problem.dtype, "row", "column", (tile, cluster))
        return candidate(problem, self._shape(plan, max(1, machine.sms // plan.cluster)), rejected=reason)

    def _shape(self, plan: PartsPlan, places: int) -> Shape:
        stage = plan.core.tile_bytes + 16
        rest = plan.shared_bytes - plan.stages * stage
        return Shape(
            family=self.name,
            tile=(plan.bm, plan.bn, plan.bk),
            stages=plan.stages,
            max_stages=(SHARED_LIMIT - rest) // stage,
            max_stages_no_epilogue=SHARED_LIMIT // stage,
            shared_bytes=plan.shared_bytes,
            accumulator_registers_per_thread=plan.bm * plan.bn // (128 * plan.consumers),
            consumers=plan.consumers,
            schedule="cooperative",
            places=places,
            cluster=(plan.cluster_m, plan.cluster_n),
            register_split=(plan.producer_registers, plan.consumer_registers),
        )
