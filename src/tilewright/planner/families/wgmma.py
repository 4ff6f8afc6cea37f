"""The main kernel, rung 11: operands by TMA, products by wgmma, a persistent grid."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import product
from typing import Any

import numpy as np

from tilewright.dtypes import DType
from tilewright.errors import UsageError
from tilewright.plan_space import CLUSTER_SHAPES, MOST_STAGES, TEAMS, TILES
from tilewright.plan_tensor import LAST, LONGEST_BOX, SHARED_LIMIT, SWIZZLE_ROW, TensorPlan
from tilewright.planner.calibration import Calibration
from tilewright.planner.candidate import Candidate, Predicted, Raster
from tilewright.planner.facts import Shape, candidate
from tilewright.planner.family import Family, Offer, register
from tilewright.planner.lazy import LazySequence
from tilewright.planner.machine import Machine
from tilewright.planner.raster import Floats, Ints, Order, lines_read
from tilewright.planner.terms import Estimate, Work, least_bytes_raster
from tilewright.problem import Layout, Problem

# What the kernel itself costs an SM, in clocks, from its cycle counters on an H200 (a 128x256 tile: about 1,700 before
# its first K block; an epilogue of 1,764 with two slabs a consumer and of 1,373 with four).
PROLOGUE_CLK = 200  # before the first load is issued
EPILOGUE_CLK = 190  # from the last wgmma to the first slab, and from the last slab to the next wgmma
SLAB_CLK = 40  # two barriers and a fence for each slab
SLAB_WAIT_CLK = 195  # for a slab that is stored again before its store has been read
ISSUE_CLK = 110  # of a K block: a wait, the loads, and the wgmmas of a stage
# Loads of so many clocks under way hide the latency of HBM twice; stages beyond that may go to the epilogue.
COVER_CLK = 2000
SPREAD = (0.93, 1.10)

Kind = tuple[int, int, tuple[int, bool, int, int], tuple[int, int], bool]
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


def buffers(plan: TensorPlan, wgmma_clk: float | None = None) -> _Buffers:
    """Stages and slabs of a kind of plan, by rule; ``plan`` has the least of both.

    As many stages as fit beside two slabs a consumer (one is filled while the other drains), though at most
    ``MOST_STAGES``. A slab is as wide as divides BN and costs no stage: 64 columns or 32, 16 only where nothing else
    fits. Where blocks are not in clusters, whose loads wait for each other, a stage is given up for slabs that hold the
    whole tile, if loads of ``COVER_CLK`` stay under way. What is left of shared memory goes to more slabs.
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
    whole = team_blocks * (plan.bn // columns)
    fewer = min(fit(columns, whole), stages)
    if plan.cluster == 1 and fewer == stages - 1 and (fewer - 1) * step_clk >= COVER_CLK:
        stages = fewer
    slabs = max(slabs, min(whole, (SHARED_LIMIT - stages * stage) // slab_bytes(columns), MOST_STAGES))
    return _Buffers(stages, fit(columns, slabs), columns, slabs)


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
    """The legal kinds of a dtype and two layouts, with what of them no problem changes, and the others."""

    kinds: tuple[Kind, ...]
    buffers: tuple[_Buffers, ...]
    plans: tuple[TensorPlan, ...]
    columns: dict[str, Ints]
    refused: tuple[Kind, ...]


@cache
def table(dtype: DType, a: Layout, b: Layout) -> _Table:
    """Every kind once.

    What ``TensorPlan`` refuses as a lone block it refuses in a cluster and with half tiles too, unless it is the length
    of a TMA box, which those shorten.
    """
    kinds, plans, refused = [], [], []
    hopeless: set[Any] = set()
    for kind in KINDS:
        bm, bn, team, (cluster_m, cluster_n), half = kind
        lone = (cluster_m, cluster_n) == (1, 1) and not half
        if (bm, bn, team) in hopeless:
            refused.append(kind)
            continue
        try:
            plans.append(kind_plan(kind, dtype, a, b, cluster_m * cluster_n))
            kinds.append(kind)
        except UsageError:
            refused.append(kind)
            if lone and bm <= LONGEST_BOX:
                hopeless.add((bm, bn, team))
    spent = tuple(buffers(plan) for plan in plans)
    each = {
        "bm": [p.bm for p in plans], "bn": [p.bn for p in plans], "cluster_m": [p.cluster_m for p in plans],
        "cluster_n": [p.cluster_n for p in plans], "consumers": [p.consumers for p in plans],
        "pingpong": [p.pingpong for p in plans], "half": [p.half_tail for p in plans],
        "stages": [s.stages for s in spent], "columns": [s.columns for s in spent], "slabs": [s.slabs for s in spent],
    }  # fmt: skip
    arrays = {name: np.array(values, dtype=np.int64) for name, values in each.items()}
    return _Table(tuple(kinds), spent, tuple(plans), arrays, tuple(refused))


@lru_cache
def _wgmma_clk(dtype: DType, a: Layout, b: Layout, calibration: Calibration) -> Floats:
    """Clocks of one m64nNk16 for each legal kind."""
    return np.array([calibration.wgmma_clocks(bn) for bn in table(dtype, a, b).columns["bn"].tolist()])


class Wgmma(Family):
    """Rung 11, every kind of ``plan_space`` with the rest by rule."""

    name = "wgmma"

    def refusal(self, problem: Problem) -> str | None:
        """TMA reads lines that start on 16-byte boundaries; TensorPlan knows the dtypes."""
        try:
            kind_plan(KINDS[0], problem.dtype, problem.a_layout, "column", 1)
        except UsageError as error:
            return str(error)
        if problem.aligned:
            return None
        off = next(
            (name, ld, size)
            for name, ld, size in (
                ("lda", problem.lda, problem.dtype.itemsize),
                ("ldb", problem.ldb, problem.dtype.itemsize),
                ("ldc", problem.ldc, problem.out_dtype.itemsize),
            )
            if ld * size % 16
        )
        name, ld, size = off
        return f"{name} is {ld}, lines of {ld * size} bytes; TMA moves lines that start on 16-byte boundaries"

    def refused(self, problem: Problem, machine: Machine, reason: str) -> Candidate:
        """Its default tile, with the reason."""
        kind: Kind = (128, 256, TEAMS[1], (1, 1), False)
        return _rejected(problem, kind, machine.sms, reason)

    def offer(self, problem: Problem, machine: Machine) -> Offer:
        """All legal kinds of the problem's dtype and layouts."""
        found = table(problem.dtype, problem.a_layout, problem.b_layout)
        t = found.columns
        cluster = t["cluster_m"] * t["cluster_n"]
        fits = cluster <= machine.sms
        places = np.ones_like(cluster)
        for size in np.unique(cluster[fits]).tolist():
            places[cluster == size] = machine.places(size)
        chosen = np.flatnonzero(fits)
        t = {name: values[chosen] for name, values in t.items()}
        places, cluster = places[chosen], cluster[chosen]
        rows, cols = t["bm"] * t["cluster_m"], t["bn"] * t["cluster_n"]
        one = np.ones_like(rows)
        order = least_bytes_raster(Order(problem.m, problem.n, rows, cols, one, one < 0), places)
        wgmma = _wgmma_clk(problem.dtype, problem.a_layout, problem.b_layout, machine.calibration)[chosen]
        work = _work(problem, machine, t, order, places, wgmma)
        estimate = Estimate(work, problem, machine)

        def make(index: int, terms: dict[str, float], predicted: Predicted) -> Candidate:
            at = int(chosen[index])
            kind, spent = found.kinds[at], found.buffers[at]
            group, along_n = int(order.group[index]), bool(order.along_n[index])
            alternates = bool(work.k_alternates[index])
            plan = kind_plan(
                kind, problem.dtype, problem.a_layout, problem.b_layout, int(places[index] * cluster[index]),
                stages=spent.stages, epilogue_columns=spent.columns, epilogue_slabs=spent.slabs, group=group,
                along_n=along_n, alternate_k=alternates, store_evict_first=_evicts(problem, machine),
            )  # fmt: skip
            shape = _shape(kind, problem.dtype, spent, int(places[index]))
            return candidate(
                problem, shape, raster=Raster(group, "n" if along_n else "m"), k_alternates=alternates, plan=plan,
                terms_us=terms, predicted_us=predicted,
            )  # fmt: skip

        traffic = problem.m * -(-problem.n // cols) + problem.n * -(-problem.m // rows)
        ties = np.stack([cluster, t["pingpong"], t["half"], traffic, t["bm"], t["bn"], t["consumers"], rows], axis=1)
        waves = work.waves - np.where(work.cut, 0.5, 0.0)
        useful = problem.m * problem.n / (waves * places * (rows * cols))
        small = [found.kinds[at] for at in np.flatnonzero(~fits).tolist()]
        unfit = [*found.refused, *small]
        rejected = LazySequence(len(unfit), lambda index: _rejected(problem, unfit[index], machine.sms, None))
        return Offer(estimate.sustained(), estimate.burst(), ties, useful, make, rejected, SPREAD)


def _evicts(problem: Problem, machine: Machine) -> bool:
    """Whether C is stored as the first to leave L2: where it would push out operands that are read again."""
    return problem.bytes_moved > machine.l2_keeps_bytes


def _work(
    problem: Problem, machine: Machine, t: dict[str, Ints], order: Order, places: Ints, wgmma_clk: Floats
) -> Work:
    c = machine.calibration
    itemsize = problem.dtype.itemsize
    k_blocks = max(1, -(-problem.k // SWIZZLE_ROW))
    bm, bn, cluster_m, cluster_n = t["bm"], t["bn"], t["cluster_m"], t["cluster_n"]
    row_blocks = bm / 64
    a_bytes, b_bytes = bm * SWIZZLE_ROW * itemsize, bn * SWIZZLE_ROW * itemsize  # of a K block
    # Of lines beyond A's and B's edge nothing is read.
    a_read = a_bytes * (problem.m / (order.tiles_m * order.rows))
    b_read = b_bytes * (problem.n / (order.tiles_n * order.cols))
    own = np.where(cluster_n == 1, a_read, 0) + np.where(cluster_m == 1, b_read, 0)
    port = machine.gpu.shared_bytes_per_clock
    tensor = row_blocks * 4 * wgmma_clk
    reads = row_blocks * 4 * (64 + bn) * 16 * itemsize / port
    fills = (a_bytes + b_bytes) / port
    pingpong = t["pingpong"] == 1
    c_clk = 2 * bm * bn * itemsize / port  # C into the slabs and out of them
    steps = row_blocks / np.where(pingpong, 1, t["consumers"]) * (bn / t["columns"])
    waits = np.maximum(0, steps - t["slabs"])
    step_clk = np.maximum(tensor, reads)
    wave_rows, wave_cols = lines_read(order, np.zeros_like(places), np.minimum(places, order.tiles_m * order.tiles_n))
    wave_bytes = (wave_rows + wave_cols) * problem.k * itemsize
    several = order.tiles_m * order.tiles_n > places
    return Work(
        order=order,
        cluster=cluster_m * cluster_n,
        places=places,
        half_tail=t["half"] == 1,
        k_alternates=several & (wave_bytes > machine.l2_keeps_bytes),
        hidden=pingpong,
        tensor_clk=k_blocks * tensor,
        port_clk=k_blocks * (reads + c.port_contention * fills) + np.where(pingpong, c.port_contention * c_clk, 0),
        issue_clk=np.full(len(bm), float(k_blocks * ISSUE_CLK)),
        ring_clk=k_blocks * (c.tma_latency_hbm_clk + step_clk) / t["stages"],
        own_bytes=k_blocks * own,
        shared_bytes=k_blocks * (a_read + b_read - own),
        l2_bytes=k_blocks * (a_read / cluster_n + b_read / cluster_m),
        half_share=(bm / 2 + bn) / (bm + bn),
        epilogue_clk=EPILOGUE_CLK + steps * SLAB_CLK + waits * SLAB_WAIT_CLK + c_clk,
        first_clk=PROLOGUE_CLK + c.tma_latency_hbm_clk + (a_bytes + b_bytes) / c.l2_alone_bytes_per_clk,
        launch_us=np.where(cluster_m * cluster_n > 1, c.cluster_launch_us, c.launch_us),
        flop=(2 * bm * bn * k_blocks * SWIZZLE_ROW).astype(float),
        pj_per_flop=c.energy_pj_per_flop,
        most_hz=c.burst_clock_mhz * 1e6,
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
            reason = f"a cluster of {blocks} blocks does not fit on {sms} SMs"
        except UsageError as error:
            reason = str(error)
    itemsize = problem.dtype.itemsize
    most = (SHARED_LIMIT - consumers * 64 * 16 * itemsize) // ((bm + bn) * SWIZZLE_ROW * itemsize + 16)
    spent = _Buffers(max(2, min(most, MOST_STAGES)), most, 16, 1)
    return candidate(problem, _shape(kind, problem.dtype, spent, max(1, sms // blocks)), rejected=reason)


register(Wgmma())
