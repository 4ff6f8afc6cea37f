"""The main kernel, rung 11: operands by TMA, products by wgmma, a persistent grid."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from tilewright import derive_tensor
from tilewright.derive_tensor import COPY_BYTES
from tilewright.dtypes import FP32, DType
from tilewright.errors import UsageError
from tilewright.plan_base import Plan
from tilewright.plan_grid import CLUSTER_SHAPES, LONGEST_BOX, about_boxes, can_be_halved
from tilewright.plan_space import MOST_STAGES, TEAMS, TILES
from tilewright.plan_tensor import FIRST, LAST, SHARED_LIMIT, SWIZZLE_ROW, TMA, TensorPlan, operand_lines
from tilewright.planner import constraints
from tilewright.planner.candidate import Candidate, Predicted, Raster
from tilewright.planner.facts import Shape, candidate
from tilewright.planner.family import Family, Offer, register
from tilewright.planner.lazy import LazySequence, chained
from tilewright.planner.machine import Machine
from tilewright.planner.one_tile import one_tile_work
from tilewright.planner.persistent import (
    ISSUE_CLK,
    STORE_BYTES_PER_CLK,
    columns,
    k_should_alternate,
    persistent_work,
    with_stages,
)
from tilewright.planner.raster import Floats, Ints, Order, columns_of
from tilewright.planner.terms import Estimate, Work, least_bytes_raster, useful_share
from tilewright.problem import Layout, Problem

# Loads of so many clocks under way hide the latency of HBM twice; stages beyond that may go to the epilogue.
COVER_CLK = 2000
MOST_SLABS = 8  # of a consumer
SPREAD = (0.93, 1.10)

Team = tuple[int, bool, int, int]
Kind = tuple[int, int, Team, tuple[int, int], bool]
KINDS: tuple[Kind, ...] = tuple(
    (bm, bn, team, cluster, half)
    for (bm, bn), team, cluster, half in product(TILES, TEAMS, CLUSTER_SHAPES, (False, True))
)


@dataclass(frozen=True)
class _Buffers:
    """How a block's shared memory is spent."""

    stages: int
    most_stages: int
    columns: int
    slabs: int


def buffers(plan: TensorPlan, alone: bool) -> _Buffers:
    """Stages and slabs of a kind of plan, by rule; ``plan`` has the least of both.

    As many stages as fit beside two slabs a consumer (one is filled while the other drains), though at most
    ``MOST_STAGES``. A slab is as wide as divides BN and costs no stage: 64 columns or 32, 16 only where nothing else
    fits. ``alone``, where no blocks of a cluster wait for each other's loads, a stage is given up for slabs that hold
    the whole tile, if loads of ``COVER_CLK`` stay under way. What is left of shared memory goes to more slabs.
    """
    stage = plan.tile_bytes + 16
    step_clk = plan.bm * plan.bn * plan.bk / 2048
    team_blocks = plan.bm // 64 // (1 if plan.pingpong else plan.consumers)

    def slab_bytes(columns: int) -> int:
        return plan.consumers * 64 * columns * plan.dtype.itemsize

    def fit(columns: int, slabs: int) -> int:
        return (SHARED_LIMIT - slabs * slab_bytes(columns)) // stage

    options = [
        (min(fit(columns, slabs), MOST_STAGES), columns > 16, slabs, columns)
        for columns, slabs in product((64, 32, 16), (2, 1))
        if plan.bn % columns == 0 and fit(columns, slabs) >= 2
    ]
    two = [each for each in options if each[2] == 2]
    wide = [each for each in two if each[1]]
    stages, _, slabs, columns = max(wide or two or options)
    whole = min(team_blocks * (plan.bn // columns), MOST_SLABS)
    fewer = min(fit(columns, whole), stages)
    if alone and fewer == stages - 1 and (fewer - 1) * step_clk >= COVER_CLK:
        stages = fewer
    slabs = max(slabs, min(whole, (SHARED_LIMIT - stages * stage) // slab_bytes(columns)))
    return _Buffers(stages, fit(columns, slabs), columns, slabs)


def _without_slabs(plan: TensorPlan) -> _Buffers:
    """The same where C is of fp32, which no slab holds: all stages beside the least of them."""
    room = SHARED_LIMIT - (plan.shared_bytes - plan.stages * (plan.tile_bytes + 16))
    most = room // (plan.tile_bytes + 16)
    return _Buffers(min(most, MOST_STAGES), most, plan.epilogue_columns, plan.epilogue_slabs)


def kind_plan(kind: Kind, dtype: DType, a: Layout, b: Layout, blocks: int, **values: Any) -> TensorPlan:
    """A plan of a kind; what is not given as small as can be. Raises ``UsageError`` where no kernel has the kind."""
    bm, bn, (consumers, pingpong, producer, consumer), (cluster_m, cluster_n), half = kind
    least = {"stages": 2, "epilogue_columns": 16, "epilogue_slabs": 1}
    return TensorPlan(
        LAST, dtype, bm, bn, SWIZZLE_ROW, a_layout=a, b_layout=b, consumers=consumers, pingpong=pingpong,
        producer_registers=producer, consumer_registers=consumer, cluster_m=cluster_m, cluster_n=cluster_n,
        half_tail=half, blocks=blocks, **{**least, **values},
    )  # fmt: skip


@dataclass(frozen=True)
class _Table:
    """The legal kinds of a dtype and two layouts, with what of them no problem changes, and the others.

    A kind is there twice where a stage of its ring may go to the epilogue: prices say which is faster.
    """

    kinds: tuple[Kind, ...]
    buffers: tuple[_Buffers, ...]
    columns: dict[str, Ints]
    refused: tuple[Kind, ...]


@cache
def table(dtype: DType, a: Layout, b: Layout, wide_c: bool = False) -> _Table:
    """Every kind with each of its rings; ``wide_c`` says that C is of fp32.

    What ``TensorPlan`` says of a tile and a team it says in every cluster; of the cluster and of half tiles ask
    ``about_boxes`` and ``can_be_halved``, as it does. So a plan is made of each tile and team only.
    """
    spent_of: dict[tuple[int, int, Team, bool], tuple[_Buffers, ...]] = {}
    for (bm, bn), team in product(TILES, TEAMS):
        shared = operand_lines(bm, bn, SWIZZLE_ROW, a, b)[0] > LONGEST_BOX  # too long for one block: two load it
        cluster = (1, 2) if shared else (1, 1)
        with suppress(UsageError):
            plan = kind_plan((bm, bn, team, cluster, False), dtype, a, b, 2)
            full = _without_slabs(plan) if wide_c else buffers(plan, alone=False)
            lone = full if wide_c else buffers(plan, alone=True)
            spent_of[bm, bn, team, False] = (full,)
            spent_of[bm, bn, team, True] = tuple(dict.fromkeys((lone, full)))  # of equals in time the first is taken
    kinds: list[Kind] = []
    spent: list[_Buffers] = []
    refused: list[Kind] = []
    for kind in KINDS:
        bm, bn, team, cluster, half = kind
        found = spent_of.get((bm, bn, team, cluster == (1, 1)))
        lines = operand_lines(bm // 2 if half else bm, bn, SWIZZLE_ROW, a, b)
        if found is None or (half and not can_be_halved(bm, *team[:2])) or next(about_boxes(lines, cluster), None):
            refused.append(kind)
        else:
            kinds += [kind] * len(found)
            spent += found
    whole = {kind[:-1] for kind in kinds if not kind[-1]}
    clusters = [(bm * m, bn * n, m * n) for bm, bn, _, (m, n), _ in kinds]
    numbers = {each: number for number, each in enumerate(dict.fromkeys(clusters))}
    arrays = columns_of(
        {
            "bm": [kind[0] for kind in kinds],
            "bn": [kind[1] for kind in kinds],
            "consumers": [kind[2][0] for kind in kinds],
            "pingpong": [kind[2][1] for kind in kinds],
            "cluster_m": [kind[3][0] for kind in kinds],
            "cluster_n": [kind[3][1] for kind in kinds],
            "half": [kind[4] for kind in kinds],
            "stages": [each.stages for each in spent],
            "columns": [each.columns for each in spent],
            "slabs": [each.slabs for each in spent],
            "through_slabs": [True] * len(kinds),
            "twin": [kind[-1] and kind[:-1] in whole for kind in kinds],  # the same without half tiles
            "again": [kind == before for kind, before in zip(kinds, (None, *kinds), strict=False)],  # with another ring
            "alike": [numbers[each] for each in clusters],  # whose order can only be the same
        }
    )
    return _Table(tuple(kinds), tuple(spent), arrays, tuple(refused))


class Wgmma(Family):
    """Rung 11, every kind of ``plan_space`` with the rest by rule."""

    name = "wgmma"
    rungs = range(FIRST + 1, LAST + 1)

    def refusal(self, problem: Problem) -> str | None:
        """What TensorPlan says of the dtype, and TMA of the lines of the matrices."""
        try:
            kind_plan(KINDS[0], problem.dtype, problem.a_layout, "column", 1)
        except UsageError as error:
            return str(error)
        lines = constraints.tma_lines(problem)
        return None if lines.ok else lines.sentence

    def refused(self, problem: Problem, machine: Machine, reason: str) -> Candidate:
        """Its default tile, with the reason."""
        kind: Kind = (128, 256, TEAMS[1], (1, 1), False)
        return _rejected(problem, kind, machine.sms, reason)

    def priced(self, plan: Plan, problem: Problem, machine: Machine) -> Offer:
        """An offer of one plan, as it is: also those of rungs 6 to 10, which lead to the main kernel."""
        assert isinstance(plan, TensorPlan)
        t = columns([plan])
        c = machine.calibration
        wgmma_clk = np.array([c.wgmma_clocks(plan.bn)])
        places = np.array([min(plan.blocks // plan.cluster, machine.places(plan.cluster))]) if plan.persistent else None
        rows, cols = t["bm"] * t["cluster_m"], t["bn"] * t["cluster_n"]
        if places is None:
            work = _one_tile(problem, machine, plan, wgmma_clk)
            places = work.places
        else:
            order = Order(problem.m, problem.n, rows, cols, np.array([plan.group]), np.array([plan.along_n]))
            work = persistent_work(problem, machine, t, order, places, wgmma_clk, np.array([plan.alternate_k]))
        estimate = Estimate(work, problem, machine)
        stage, slabs = plan.tile_bytes + 16, plan.consumers * plan.epilogue_slabs * 128 * plan.epilogue_columns
        team: Team = (plan.consumers, plan.pingpong, plan.producer_registers, plan.consumer_registers)
        kind: Kind = (plan.bm, plan.bn, team, (plan.cluster_m, plan.cluster_n), plan.half_tail)
        spent = _Buffers(plan.stages, (SHARED_LIMIT - slabs) // stage, plan.epilogue_columns, plan.epilogue_slabs)
        shape = replace(_shape(kind, plan.dtype, spent, int(places[0])), shared_bytes=plan.shared_bytes)
        if not plan.producer_registers:
            shape = replace(shape, register_split=None)

        def make(_index: int, terms: dict[str, float], predicted: Predicted) -> Candidate:
            raster = Raster(plan.group, "n" if plan.along_n else "m")
            return candidate(
                problem, shape, raster=raster, k_alternates=plan.alternate_k, plan=plan, terms_us=terms,
                predicted_us=predicted,
            )  # fmt: skip

        useful = useful_share(work, problem)
        nothing: LazySequence[Candidate] = LazySequence(0, lambda _: make(0, {}, Predicted(0, 0, 0, 0)))
        ties = np.zeros((1, 1), dtype=np.int64)
        return Offer(estimate.sustained(), estimate.burst(), ties, useful, make, nothing, SPREAD)

    def staged(self, candidate: Candidate, stages: int) -> TensorPlan:
        """With slabs for the epilogue in what the stages leave."""
        assert isinstance(candidate.plan, TensorPlan)
        return with_stages(candidate.plan, stages)

    def offer(self, problem: Problem, machine: Machine) -> Offer:
        """All legal kinds of the problem's dtype and layouts, a lone block's with the ring and slabs of either rule."""
        found = table(problem.dtype, problem.a_layout, problem.b_layout, problem.out_dtype == FP32)
        t = found.columns
        cluster = t["cluster_m"] * t["cluster_n"]
        fits = cluster <= machine.sms
        places = machine.places_of(np.where(fits, cluster, 1))
        tiles = -(-problem.m // (t["bm"] * t["cluster_m"])) * -(-problem.n // (t["bn"] * t["cluster_n"]))
        over = 2 * (tiles - (-(-tiles // places) - 1) * places) > places
        uncut = fits & (t["twin"] == 1) & over  # the same as its twin: one of two equals is enough
        chosen = np.flatnonzero(fits & ~uncut)
        twins = np.flatnonzero(uncut & (t["again"] == 0))
        t = {name: values[chosen] for name, values in t.items()}
        places, cluster = places[chosen], cluster[chosen]
        rows, cols = t["bm"] * t["cluster_m"], t["bn"] * t["cluster_n"]
        one = np.ones_like(rows)
        _, at, alike = np.unique(t["alike"], return_index=True, return_inverse=True)
        orders = Order(problem.m, problem.n, rows[at], cols[at], one[at], one[at] < 0)
        orders = least_bytes_raster(orders, places[at])
        order, alternates = orders.take(alike), k_should_alternate(problem, machine, orders, places[at])[alike]
        wgmma = machine.calibration.wgmma_clocks_of(t["bn"])
        work = persistent_work(problem, machine, t, order, places, wgmma, alternates, alike)
        estimate = Estimate(work, problem, machine)

        def make(index: int, terms: dict[str, float], predicted: Predicted) -> Candidate:
            at = int(chosen[index])
            kind, spent = found.kinds[at], found.buffers[at]
            group, along_n = int(order.group[index]), bool(order.along_n[index])
            plan = kind_plan(
                kind, problem.dtype, problem.a_layout, problem.b_layout, int(places[index] * cluster[index]),
                stages=spent.stages, epilogue_columns=spent.columns, epilogue_slabs=spent.slabs, group=group,
                along_n=along_n, alternate_k=bool(alternates[index]), store_evict_first=_evicts(problem, machine),
            )  # fmt: skip
            shape = _shape(kind, problem.dtype, spent, int(places[index]))
            return candidate(
                problem, shape, raster=Raster(group, "n" if along_n else "m"), k_alternates=bool(alternates[index]),
                plan=plan, terms_us=terms, predicted_us=predicted,
            )  # fmt: skip

        traffic = problem.m * -(-problem.n // cols) + problem.n * -(-problem.m // rows)
        ties = np.stack([cluster, t["pingpong"], t["half"], traffic, t["bm"], t["bn"], t["consumers"], rows], axis=1)
        useful = useful_share(work, problem)
        whole = "the last wave is more than half full, so that no tile is cut: it is the kernel without half tiles"

        def listed(kinds: Sequence[Kind], which: Ints, reason: str | None = None) -> LazySequence[Candidate]:
            return LazySequence(
                len(which), lambda index: _rejected(problem, kinds[int(which[index])], machine.sms, reason)
            )

        rejected = chained(
            [
                listed(found.refused, np.arange(len(found.refused))),
                listed(found.kinds, np.flatnonzero(~fits)),
                listed(found.kinds, twins, whole),
            ]
        )
        return Offer(estimate.sustained(), estimate.burst(), ties, useful, make, rejected, SPREAD)


def _evicts(problem: Problem, machine: Machine) -> bool:
    """Whether C is stored as the first to leave L2: where it would push out operands that are read again."""
    return problem.bytes_moved > machine.l2_keeps_bytes


def _one_tile(problem: Problem, machine: Machine, plan: TensorPlan, wgmma_clk: Floats) -> Work:
    """Rungs 6 to 8. In rung 6 the threads that multiply also copy, 16 bytes each."""
    port = machine.gpu.shared_bytes_per_clock
    macs = plan.bm * plan.bn * plan.bk
    tensor = plan.bm / 64 * 4 * wgmma_clk
    copies = plan.tile_bytes / COPY_BYTES / 32 if plan.rung < TMA else 0.0  # instructions of whole warps
    return one_tile_work(
        problem,
        machine,
        bm=np.array([plan.bm]),
        bn=np.array([plan.bn]),
        bk=plan.bk,
        shared_by=np.array([derive_tensor.blocks_per_sm(plan, machine.gpu)]),
        tensor_clk=tensor,
        port_clk=np.maximum(tensor, derive_tensor.operand_bytes(plan).value * macs / port)
        + machine.calibration.port_contention * plan.tile_bytes / port,
        issue_clk=np.array([ISSUE_CLK + copies]),
        stages=np.array([plan.stages]),
        store_bytes_per_clk=STORE_BYTES_PER_CLK,
        pj_per_flop=machine.calibration.energy_pj_per_flop,
        most_mhz=machine.calibration.burst_clock_mhz,
    )


def _shape(kind: Kind, dtype: DType, spent: _Buffers, places: int) -> Shape:
    bm, bn, (consumers, pingpong, producer, consumer), cluster, half = kind
    stage = (bm + bn) * SWIZZLE_ROW * dtype.itemsize + 16
    slabs = consumers * spent.slabs * 64 * spent.columns * dtype.itemsize
    return Shape(
        family=Wgmma.name,
        tile=(bm, bn, SWIZZLE_ROW),
        stages=spent.stages,
        max_stages=spent.most_stages,
        max_stages_no_epilogue=SHARED_LIMIT // stage,
        shared_bytes=spent.stages * stage + slabs,
        accumulator_registers_per_thread=bm * bn // (128 * (1 if pingpong else consumers)),
        consumers=consumers,
        schedule="pingpong" if pingpong else "cooperative",
        places=places,
        cluster=cluster,
        register_split=(producer, consumer),
        half_tail=half,
    )


def _rejected(problem: Problem, kind: Kind, sms: int, reason: str | None) -> Candidate:
    """A kind that is no choice, with one slab of 16 columns and as many stages as fit beside it, two at least."""
    bm, bn, (consumers, *_), (cluster_m, cluster_n), _half = kind
    blocks = cluster_m * cluster_n
    if reason is None:
        try:
            kind_plan(kind, problem.dtype, problem.a_layout, problem.b_layout, blocks)
            reason = f"a cluster of {blocks} blocks does not fit on {sms} SM{'s' * (sms != 1)}"
        except UsageError as error:
            reason = str(error)
    itemsize = problem.dtype.itemsize
    most = (SHARED_LIMIT - consumers * 64 * 16 * itemsize) // ((bm + bn) * SWIZZLE_ROW * itemsize + 16)
    spent = _Buffers(max(2, min(most, MOST_STAGES)), most, 16, 1)
    return candidate(problem, _shape(kind, problem.dtype, spent, max(1, sms // blocks)), rejected=reason)


register(Wgmma())
