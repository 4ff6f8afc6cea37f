"""The work of persistent grids, rungs 9 to 11: a warpgroup loads by TMA, others multiply by wgmma, tile after tile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

from tilewright.dtypes import FP32
from tilewright.errors import UsageError
from tilewright.plan_parts import PartsPlan
from tilewright.plan_tensor import LAST, SWIZZLE_ROW, TensorPlan
from tilewright.planner.machine import Machine
from tilewright.planner.raster import Bools, Floats, Ints, Order, columns_of, lines_read
from tilewright.planner.supply import FILL, MULTICAST_TRANSPORT, askew
from tilewright.planner.terms import Work
from tilewright.problem import Problem

# Slabs of C that a kernel is tried with, as columns and count for a consumer: the planner's rule first prefers two, so
# that one drains while the next is filled, then width. The last is the least that an epilogue needs.
SLABS = ((64, 2), (32, 2), (64, 1), (32, 1), (16, 2), (16, 1))

# What the kernel itself costs an SM, in clocks, from its cycle counters on an H200 (a 128x256 tile: about 1,700 before
# its first K block; an epilogue of 1,764 with two slabs a consumer and of 1,373 with four).
PROLOGUE_CLK = 200  # before the first load is issued
EPILOGUE_CLK = 190  # from the last wgmma to the first slab, and from the last slab to the next wgmma
SLAB_CLK = 40  # two barriers and a fence for each slab
SLAB_WAIT_CLK = 195  # for a slab that is stored again before its store has been read
ISSUE_CLK = 110  # of a K block: a wait, the loads, and the wgmmas of a stage
# Before rung 11 threads store C from registers, 16 bytes of a row at a time: half of what a sector of L2 takes.
STORE_BYTES_PER_CLK = 16  # of C, and of partial sums, by threads from their registers

Columns = Mapping[str, Ints]
_Ringed = TypeVar("_Ringed", TensorPlan, PartsPlan)


def columns(plans: list[TensorPlan]) -> dict[str, Ints]:
    """What of plans the work follows from, an array each."""
    each: dict[str, Sequence[int]] = {
        "bm": [p.bm for p in plans],
        "bn": [p.bn for p in plans],
        "cluster_m": [p.cluster_m for p in plans],
        "cluster_n": [p.cluster_n for p in plans],
        "consumers": [p.consumers for p in plans],
        "pingpong": [p.pingpong for p in plans],
        "half": [p.half_tail for p in plans],
        "stages": [p.stages for p in plans],
        "columns": [p.epilogue_columns for p in plans],
        "slabs": [p.epilogue_slabs for p in plans],
        "through_slabs": [p.rung == LAST for p in plans],
    }
    return columns_of(each)


def persistent_work(
    problem: Problem,
    machine: Machine,
    t: Columns,
    order: Order,
    places: Ints,
    wgmma_clk: Floats,
    k_alternates: Bools,
    alike: Ints | None = None,
) -> Work:
    """``t`` are ``columns``, ``wgmma_clk`` the clocks of one m64nNk16 of each; the rest is as ``Work`` has it."""
    c = machine.calibration
    itemsize = problem.dtype.itemsize
    k_blocks = max(1, -(-problem.k // SWIZZLE_ROW))  # with K = 0 one of zeros
    bm, bn, cluster_m, cluster_n = t["bm"], t["bn"], t["cluster_m"], t["cluster_n"]
    row_blocks = bm / 64
    a_bytes, b_bytes = bm * SWIZZLE_ROW * itemsize, bn * SWIZZLE_ROW * itemsize  # of a K block
    # Of lines beyond A's and B's edge nothing is read.
    a_read = a_bytes * (problem.m / (order.tiles_m * order.rows))
    b_read = b_bytes * (problem.n / (order.tiles_n * order.cols))
    a_cost, b_cost = askew(problem)
    own = np.where(cluster_n == 1, a_cost * a_read, 0) + np.where(cluster_m == 1, b_cost * b_read, 0)
    shared = np.where(cluster_n == 1, 0, a_read) + np.where(cluster_m == 1, 0, b_read)
    beyond = FILL * ((a_bytes - a_read) / cluster_n + (b_bytes - b_read) / cluster_m)
    different = np.where(cluster_m > 1, problem.m, 0) + np.where(cluster_n > 1, problem.n, 0)
    apart = different / (problem.m + problem.n)
    from_l2 = a_read / cluster_n + b_read / cluster_m
    moved = from_l2 + MULTICAST_TRANSPORT * (a_read + b_read - from_l2)
    port = machine.gpu.shared_bytes_per_clock
    pingpong = t["pingpong"] == 1
    team = np.where(pingpong, 1, t["consumers"])  # warpgroups that share a tile
    tensor = row_blocks * 4 * wgmma_clk
    reads = row_blocks * 4 * (64 + bn) * 16 * itemsize / port
    fills = (a_bytes + b_bytes) / port
    held = np.maximum(tensor, reads)  # TMA's writes delay wgmma as much whether it reads the port full or not
    slabs = (t["through_slabs"] == 1) & (problem.out_dtype != FP32)  # which no slab holds
    c_bytes = bm * bn * problem.out_dtype.itemsize
    c_clk = 2 * c_bytes / port  # into the slabs and out of them
    steps = row_blocks / team * (bn / np.maximum(t["columns"], 1))
    by_slabs = steps * SLAB_CLK + np.maximum(0, steps - t["slabs"]) * SLAB_WAIT_CLK + c_clk
    return Work(
        order=order,
        cluster=cluster_m * cluster_n,
        places=places,
        half_tail=t["half"] == 1,
        k_alternates=k_alternates,
        hidden=pingpong,
        tensor_clk=k_blocks * tensor,
        port_clk=k_blocks * (held + c.port_contention * fills) + np.where(pingpong, c.port_contention * c_clk, 0),
        port_half_clk=k_blocks * (held + c.port_contention * (a_bytes + 2 * b_bytes) / port) / 2,
        issue_clk=np.full(len(bm), float(k_blocks * ISSUE_CLK)),
        ring_clk=k_blocks * (c.tma_latency_hbm_clk + np.maximum(tensor, reads)) / t["stages"],
        chain=k_blocks / _stages_under_way(t["stages"], team),
        turnaround_us=machine.turnaround_us(a_bytes + b_bytes),
        apart=apart,
        own_bytes=k_blocks * (own + beyond),
        shared_bytes=k_blocks * shared,
        moved_bytes=k_blocks * moved,
        half_share=(bm / 2 + bn) / (bm + bn),
        epilogue_clk=EPILOGUE_CLK + np.where(slabs, by_slabs, c_bytes / STORE_BYTES_PER_CLK),
        first_clk=PROLOGUE_CLK + c.tma_latency_hbm_clk + (a_bytes + b_bytes) / c.l2_alone_bytes_per_clk,
        launch_us=np.where(cluster_m * cluster_n > 1, c.cluster_launch_us, c.launch_us),
        flop=(2 * bm * bn * k_blocks * SWIZZLE_ROW).astype(float),
        pj_per_flop=c.energy_pj_per_flop,
        most_hz=c.burst_clock_mhz * 1e6,
        alike=alike,
    )


def _stages_under_way(stages: Ints, team: Ints) -> Floats:
    """How many stages of a ring are being filled while one is multiplied by ``team`` warpgroups that share its tile.

    The tensor cores take the wgmmas of one warpgroup after those of another, each a ``1 / team`` of what a stage takes.
    The first needs the next stage when it is done with its own, the last frees this one when all are done: beside the
    ``stages - 1`` that others wait in, ``(team - 1) / team`` of the time of one is lost.
    """
    found: Floats = stages - 2 + 1 / team
    return found


def k_should_alternate(problem: Problem, machine: Machine, order: Order, places: Ints) -> Bools:
    """Whether walking K backwards in every other tile saves bytes: a wave reads more than L2 keeps; another follows."""
    tiles = order.tiles_m * order.tiles_n
    rows, cols = lines_read(order, np.zeros_like(places), np.minimum(places, tiles))
    wave_bytes = (rows + cols) * problem.k * problem.dtype.itemsize
    return (tiles > places) & (wave_bytes > machine.l2_keeps_bytes)


def with_stages(plan: _Ringed, stages: int) -> _Ringed:
    """The plan with other stages, and slabs for the epilogue in what they leave.

    Raises ``UsageError`` where no kernel has them, with what is said of the least slabs.
    """
    reason = UsageError(f"no slab is possible beside {stages} stages")
    for columns, slabs in ((plan.epilogue_columns, plan.epilogue_slabs), *SLABS):
        try:
            return plan.with_(stages=stages, epilogue_columns=columns, epilogue_slabs=slabs)
        except UsageError as error:
            reason = error
    raise reason
