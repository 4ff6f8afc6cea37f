"""The work of kernels whose blocks compute one tile each and end: the grids of the rungs before the persistent ones."""

from __future__ import annotations

import numpy as np

from tilewright.planner.machine import Machine
from tilewright.planner.raster import Bools, Floats, Ints, Order
from tilewright.planner.terms import Work
from tilewright.problem import Problem

PROLOGUE_CLK = 300  # from a block's start to its first load


def one_tile_work(
    problem: Problem,
    machine: Machine,
    *,
    bm: Ints,
    bn: Ints,
    bk: int,
    shared_by: Ints,
    tensor_clk: Floats,
    port_clk: Floats,
    issue_clk: Floats,
    stages: Ints,
    store_bytes_per_clk: float,
    pj_per_flop: float,
    most_mhz: float,
    alike: Ints | None = None,
) -> Work:
    """Tiles in rows of C, one a block and an SM at a time. Clocks are of a K-step.

    Where ``shared_by`` blocks share an SM they take turns, so that one multiplies while another begins or ends: then
    only the last epilogue shows. Else each block begins with a first load that nothing hides, and ends with its
    epilogue, C's tile at ``store_bytes_per_clk``.
    """
    c, itemsize = machine.calibration, problem.dtype.itemsize
    steps = -(-problem.k // bk)
    one = np.ones_like(bm)
    never: Bools = np.zeros(len(bm), dtype=bool)
    order = Order(problem.m, problem.n, bm, bn, one, never)
    a_read = bm * bk * itemsize * (problem.m / (order.tiles_m * bm))
    b_read = bn * bk * itemsize * (problem.n / (order.tiles_n * bn))
    first = PROLOGUE_CLK + c.tma_latency_hbm_clk + (bm + bn) * bk * itemsize / c.l2_alone_bytes_per_clk
    step = np.maximum(tensor_clk, port_clk)
    resident = np.minimum(
        shared_by, -(-(order.tiles_m * order.tiles_n) // machine.sms)
    )  # blocks that there are for an SM
    return Work(
        order=order,
        cluster=one,
        places=np.full_like(bm, machine.sms),
        half_tail=never,
        k_alternates=never,
        hidden=shared_by > 1,
        tensor_clk=steps * tensor_clk,
        port_clk=steps * port_clk,
        port_half_clk=steps * port_clk,
        issue_clk=steps * issue_clk,
        ring_clk=steps * (c.tma_latency_hbm_clk + step) / (stages * resident),
        chain=np.where(stages > 1, steps / (np.maximum(stages - 1, 1) * resident), 0.0),  # else others hide it
        turnaround_us=machine.turnaround_us((bm + bn) * bk * itemsize),
        apart=np.zeros(len(bm)),
        own_bytes=steps * (a_read + b_read),
        shared_bytes=np.zeros(len(bm)),
        moved_bytes=steps * (a_read + b_read),
        half_share=np.ones(len(bm)),
        epilogue_clk=bm * bn * problem.out_dtype.itemsize / store_bytes_per_clk + np.where(shared_by > 1, 0, first),
        first_clk=first,
        launch_us=np.full(len(bm), c.launch_us),
        flop=(2 * bm * bn * steps * bk).astype(float),
        pj_per_flop=pj_per_flop,
        most_hz=most_mhz * 1e6,
        alike=alike,
    )
