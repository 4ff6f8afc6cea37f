"""What the arithmetic says of a tensor-core plan: what it asks of each part of an SM, and which gives out first."""

from __future__ import annotations

from typing import Any

from tilewright import roofline, roofline_tensor
from tilewright.gpu import GpuSpec
from tilewright.plan_registers import SPARE_REGISTERS
from tilewright.plan_tensor import FIRST, LAST, SPECIALISED, TMA, TensorPlan
from tilewright.problem import Problem
from tilewright.roofline import Derived, number
from tilewright.roofline_tensor import Waves

LOOP_DEPTH = 4096  # K of the tile whose epilogue is weighed against its K loop
COPY_BYTES = 16  # of one cp.async


def derived_tensor(plan: TensorPlan, gpu: GpuSpec) -> dict[str, Any]:
    """``derive.derived`` of a tensor-core plan, with what only these have.

    ``flop_per_byte`` counts a multicast once, ``flop_per_byte_without_multicast`` once a block. ``roof_tflops`` is that
    of the instruction. ``shared_bytes_per_clock`` is what the tensor cores read at that roof. Rates that are not known
    for ``gpu`` are None.
    """
    itemsize = plan.dtype.itemsize
    alone = roofline.tile_intensity(plan.bm, plan.bn, itemsize)
    intensity = intensity_of(plan)
    per_mac = operand_bytes(plan)
    stage = roofline.k_step_bytes(plan.bm, plan.bn, plan.bk, itemsize)
    known = gpu.bf16_tensor_tflops is not None and gpu.bf16_tensor_flop_per_clock is not None
    port = port_of(plan, gpu) if known else None
    return {
        "flop_per_byte": intensity.value,
        "flop_per_byte_without_multicast": alone.value,
        "shared_load_bytes_per_mac": per_mac.value,
        "shared_bytes_per_clock": None if port is None else port.value,
        "stage_bytes": int(stage.value),
        "bytes_in_flight": int(in_flight(plan).value),
        "accumulator_registers": plan.accumulators,
        "roof_tflops": roof_tflops(plan, gpu) if known else None,
        "bottleneck": bottleneck(plan, gpu) if known else f"the tensor cores of {gpu.name} are not known",
        "formula": f"{intensity}; {per_mac}",
    }


def intensity_of(plan: TensorPlan) -> Derived:
    """FLOP/B from L2 of its tile, or of its cluster's where blocks share operands."""
    return roofline_tensor.cluster_intensity(plan.bm, plan.bn, plan.cluster_m, plan.cluster_n, plan.dtype.itemsize)


def operand_bytes(plan: TensorPlan) -> Derived:
    """Bytes of shared memory read per MAC: by ldmatrix for a warp's part of the tile, by wgmma for 64 x BN."""
    if plan.rung == FIRST:
        piece = (plan.bm // plan.warps_m, plan.bn // plan.warps_n)
    else:
        piece = (roofline_tensor.WARPGROUP_ROWS, plan.bn)
    return roofline_tensor.operand_bytes_per_mac(*piece, plan.dtype.itemsize)


def in_flight(plan: TensorPlan) -> Derived:
    """The most bytes that are on their way to a block while it multiplies.

    Rung 6 fetches while the wgmmas on the stage before may still read, so that it holds two. An mbarrier tells later
    rungs when a stage has been read.
    """
    held = 2 if FIRST < plan.rung < TMA else 1
    return roofline_tensor.bytes_in_flight(plan.stages, plan.tile_bytes, held=held)


def roof_tflops(plan: TensorPlan, gpu: GpuSpec) -> float:
    """What its instruction can reach: the tensor roof, of which mma.sync gets a part."""
    if plan.rung == FIRST:
        return roofline_tensor.mma_sync_tflops(gpu).value
    return roofline.peak_tflops(gpu, "bf16_tensor")


def port_of(plan: TensorPlan, gpu: GpuSpec) -> Derived:
    """B/clk/SM that the tensor cores read from shared memory at its instruction's roof."""
    share = roofline_tensor.MMA_SYNC_SHARE if plan.rung == FIRST else 1.0
    return roofline_tensor.port_demand(operand_bytes(plan).value, gpu, share=share)


def waves_of(plan: TensorPlan, problem: Problem, gpu: GpuSpec) -> Waves:
    """Its tiles of a problem over the SMs, or its cluster tiles over the clusters of a persistent grid."""
    places = plan.blocks // plan.cluster if plan.persistent else gpu.sm_count * blocks_per_sm(plan, gpu)
    return roofline_tensor.waves(problem, plan.cluster_m * plan.bm, plan.cluster_n * plan.bn, places)


def blocks_per_sm(plan: TensorPlan, gpu: GpuSpec) -> int:
    """Blocks that one SM holds by shared memory (1 KB more than asked for), threads and registers.

    A compiler may take more registers than the accumulators and the spare ones that a plan reckons with.
    """
    by_shared = gpu.shared_bytes_per_sm // (plan.shared_bytes + 1024)
    by_registers = gpu.registers_per_sm // (plan.threads * (plan.accumulators + SPARE_REGISTERS))
    return max(1, min(by_shared, by_registers, gpu.max_threads_per_sm // plan.threads))


def bottleneck(plan: TensorPlan, gpu: GpuSpec) -> str:
    """Say in words what holds it back, from its arithmetic and its structure.

    In the order in which the ladder removes them: the instruction, the port of shared memory, loads by threads that
    multiply, tiles one by one, bytes from L2, an epilogue in the way. What remains is the tensor cores themselves, at
    the clock that the power limit leaves them.
    """
    supply, port = gpu.shared_bytes_per_clock, port_of(plan, gpu).value
    reads = f"{number(round(port, 1))} of {supply} B/clk"
    if port > supply:
        instruction = "ldmatrix" if plan.rung == FIRST else f"wgmma of n{plan.bn}"
        return f"shared-memory port: {instruction} reads {reads}"
    if plan.rung == FIRST:
        share, tflops = roofline_tensor.MMA_SYNC_SHARE, roofline_tensor.mma_sync_tflops(gpu).value
        return f"mma.sync: about {share:.0%} of the tensor roof, {tflops:.0f} TFLOPS; ldmatrix reads {reads}"
    if plan.rung < TMA:
        copies = plan.tile_bytes // COPY_BYTES // plan.threads
        return f"the warps that multiply also load, {copies} copies a thread and K-step; wgmma reads {reads}"
    if plan.rung < SPECIALISED:
        in_all = roofline.held(int(in_flight(plan).value))
        return f"a thread that multiplies loads, once all {4 * plan.consumers} warps have read; {in_all} in flight"
    epilogue = _epilogue(plan, gpu)
    if not plan.persistent:
        return f"one tile a block: nothing hides first loads and epilogue, {epilogue}"
    asked, there = roofline_tensor.l2_demand(intensity_of(plan).value, gpu).value, roofline_tensor.l2_supply(gpu)
    from_l2 = number(round(asked, 1)) + (f" of about {there.value:.0f}" if there else "") + " B/clk"
    if there is not None and asked > there.value:
        return f"L2 bandwidth: the tile asks {from_l2}, so {there.value / asked:.0%} of the roof"
    if plan.rung < LAST:
        return f"epilogue: nothing multiplies meanwhile; {epilogue}"
    return f"tensor cores and their power: L2 gives {from_l2}, shared memory {reads}"


def _epilogue(plan: TensorPlan, gpu: GpuSpec) -> str:
    """The least time that C's tile takes beside its K loop: were it stored in whole sectors, as fast as L2 delivers."""
    c_bytes, rate = plan.bm * plan.bn * plan.dtype.itemsize, roofline_tensor.l2_supply(gpu)
    loop = roofline_tensor.tensor_clocks(plan.bm * plan.bn * LOOP_DEPTH, gpu).value
    after = f"after {number(loop)} (K = {LOOP_DEPTH})"
    if rate is None:
        return f"{roofline.held(c_bytes)} of C a tile, {after.replace(' (', ' clk (')}"
    return f"{c_bytes / rate.value:,.0f} clk or more {after}"
