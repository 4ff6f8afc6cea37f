"""The constraints that a tile meets, each a function that says it with its numbers filled in.

Each takes plain numbers and gives a ``Finding``; ``planner.choice`` asks all of them of one choice. A *hard* one no
kernel breaks; of the others one that does is slower for it. None is about the intensity of a tile against the ridge of
HBM: what tiles read again comes from L2, and the ridge belongs to the intensity of the whole problem.
"""

from __future__ import annotations

import math
from functools import lru_cache

from tilewright import roofline, roofline_tensor
from tilewright.errors import UsageError
from tilewright.gpu import GpuSpec, clusters_that_fit
from tilewright.plan_grid import LONGEST_BOX, TILE_ROWS
from tilewright.plan_registers import SPARE_REGISTERS
from tilewright.plan_tensor import (
    LARGEST_CLUSTER,
    LARGEST_PITCH,
    operand_lines,
)
from tilewright.planner.judgement import Finding
from tilewright.problem import Layout, Problem
from tilewright.roofline import Derived, Roof, amount, number
from tilewright.roofline_tensor import WARPGROUP_ROWS, WARPGROUP_THREADS

SWIZZLE_BYTES = 128
INSTRUCTION_DEPTH_BYTES = 32  # of K in one wgmma: 16 elements of bf16, 32 of fp8
INSTRUCTION_DEPTH = 16  # of 16-bit elements, those whose clocks a calibration has
WIDEST_INSTRUCTION = 256
BARRIER_BYTES = 16  # two mbarriers a stage
LEAST_STAGES = 2
AS_FAST = 1.01  # times what the tensor cores need: a wgmma of so many clocks is one at their rate
GOOD_USE = 0.8  # of the SMs over all waves; below it the waves are worth a finding
MOST_WASTE = 0.1  # of the elements of all tiles, beyond C's edges

_TILE = "arithmetic: a K-step's FLOP over its bytes, in which BK cancels"
_TRAFFIC = "arithmetic: A once for each column of tiles, B once for each row of them"
_PTX = "PTX ISA, wgmma.mma_async: m64nNk16 of 16-bit elements, N a multiple of 8 up to 256"
_TMA = "CUDA Driver API, cuTensorMapEncodeTiled"
_REGISTERS = "PTX ISA, setmaxnreg, and the registers that ptxas needs beside accumulators"
_OCCUPANCY = "cuOccupancyMaxActiveClusters on an H200 of 132 SMs"
_WAVES = "arithmetic: one tile an SM at a time"


# ---- bytes and FLOP


def intensity(bm: int, bn: int, itemsize: int, cluster: tuple[int, int] = (1, 1)) -> Finding:
    """FLOP per byte that a tile, or the tiles of a cluster that share by multicast, loads from L2."""
    alone = roofline.tile_intensity(bm, bn, itemsize)
    if cluster == (1, 1):
        return _figure("intensity", alone, f"a tile loads for {alone} from L2, whatever BK is", _TILE)
    shared = roofline_tensor.cluster_intensity(bm, bn, *cluster, itemsize)
    said = f"a tile loads for {alone} from L2, with multicast in its cluster for {shared}; BK changes neither"
    return _figure("intensity", shared, said, _TILE)


def operand_traffic(problem: Problem, bm: int, bn: int, cluster: tuple[int, int] = (1, 1)) -> Finding:
    """Bytes of A and B that all tiles load, a byte that a cluster multicasts counted once."""
    alone = roofline.tiled_traffic(problem, bm, bn)
    said = f"the tiles load {amount(alone.value)}: {alone}"
    if cluster == (1, 1):
        return _figure("operand traffic", alone, said, _TRAFFIC)
    shared = roofline.tiled_traffic(problem, cluster[0] * bm, cluster[1] * bn)
    return _figure("operand traffic", shared, f"{said}; with multicast {amount(shared.value)}: {shared}", _TRAFFIC)


def l2_bandwidth(
    problem: Problem,
    bm: int,
    bn: int,
    cluster: tuple[int, int],
    gpu: GpuSpec,
    supply_bytes_per_s: float,
    source: str,
    roof: Roof = "bf16_tensor",
) -> Finding:
    """What L2 has to deliver for the tensor cores never to wait, against what it does."""
    traffic = roofline.tiled_traffic(problem, cluster[0] * bm, cluster[1] * bn).value
    time = roofline.time_at_roof(problem, gpu, roof)
    needed = roofline.bandwidth_over(traffic, time.value)
    supply = supply_bytes_per_s / 1e12
    said = f"at the roof ({time}) L2 delivers {needed}; it has {number(supply)} TB/s"
    return _against("L2 bandwidth", needed, supply, said, source, hard=False)


def hbm_bandwidth(problem: Problem, gpu: GpuSpec, roof: Roof = "bf16_tensor") -> Finding:
    """What HBM has to deliver when each byte passes once, against what it does; the problem against the ridge."""
    time = roofline.time_at_roof(problem, gpu, roof)
    needed = roofline.bandwidth_over(problem.bytes_moved, time.value)
    supply = gpu.hbm_bytes_per_s / 1e12
    ridge, whole = roofline.ridge(gpu, roof).value, roofline.problem_intensity(problem)
    assert whole is not None
    said = (
        f"HBM moves A, B and C once: {needed}; it has {number(supply)}. The problem's {number(whole.value)} FLOP/B "
        f"stand against a ridge of {ridge:.3g}, no tile's do"
    )
    return _against("HBM bandwidth", needed, supply, said, gpu.sources["hbm_bytes_per_s"], hard=False)


# ---- shared memory


def stages_that_fit(stage_bytes: int, gpu: GpuSpec, epilogue_bytes: int = 0) -> int:
    """Stages of that size, each with its barriers, beside the epilogue's buffers."""
    return (gpu.shared_bytes_per_block - epilogue_bytes) // (stage_bytes + BARRIER_BYTES)


def stages(bm: int, bn: int, bk: int, itemsize: int, count: int, gpu: GpuSpec, epilogue_bytes: int = 0) -> Finding:
    """Whether so many stages fit into a block's shared memory, beside the epilogue's buffers; two are the least."""
    stage = roofline.k_step_bytes(bm, bn, bk, itemsize)
    alone = stages_that_fit(int(stage.value), gpu)
    most = stages_that_fit(int(stage.value), gpu, epilogue_bytes)
    said = (
        f"a stage is {roofline.held(stage)}: {stage}; {roofline.held(gpu.shared_bytes_per_block)} a block hold {alone}"
    )
    if epilogue_bytes:
        said += f", {most} beside {roofline.held(epilogue_bytes)} for the epilogue"
    said += f"; {count} asked for"
    if count < LEAST_STAGES:
        said += f", and {LEAST_STAGES} are the least: one is read while another is filled"
    ok = LEAST_STAGES <= count <= most
    return Finding("stages", ok, count, most, "stages", said, gpu.sources["shared_bytes_per_block"])


def stage_clocks(tile: tuple[int, int, int], gpu: GpuSpec, wgmma_clk: float | None = None) -> float:
    """Clocks in which a stage is multiplied at the tensor cores' rate, or by wgmmas of ``wgmma_clk`` that are slower.

    That is so below 64 columns, where reading A takes longer than multiplying.
    """
    bm, bn, bk = tile
    least = roofline_tensor.tensor_clocks(bm * bn * bk, gpu).value
    own = least if wgmma_clk is None else round(bm / WARPGROUP_ROWS * bk / INSTRUCTION_DEPTH * wgmma_clk)
    return own if own > least * AS_FAST else least


def pipeline(
    bm: int, bn: int, bk: int, count: int, gpu: GpuSpec, latency_clk: float, source: str, wgmma_clk: float | None = None
) -> Finding:
    """Whether the stages in flight are multiplied for as long as a load takes to come from HBM."""
    step = stage_clocks((bm, bn, bk), gpu, wgmma_clk)
    cover = roofline.figure((count - 1) * step, "clk", f"({count} - 1) x {number(step)} clk a stage")
    said = f"while one stage is multiplied the others cover {cover}; a load from HBM takes {number(latency_clk)}"
    if wgmma_clk is not None and step > stage_clocks((bm, bn, bk), gpu):
        said += f"; a wgmma of {bn} columns takes {number(wgmma_clk)} clk"
    return Finding("pipeline depth", cover.value >= latency_clk, cover.value, latency_clk, "clk", said, source, False)


def swizzle_row(bk: int, itemsize: int) -> Finding:
    """BK against one row of the widest swizzle, which wgmma reads without bank conflicts."""
    row = SWIZZLE_BYTES // itemsize
    depth = INSTRUCTION_DEPTH_BYTES // itemsize
    said = (
        f"BK is {bk}: a row of {bk} x {itemsize} B = {bk * itemsize} B of the {SWIZZLE_BYTES} B that TMA swizzles at "
        f"most, so {row} it is, {number(row / depth)} instructions of K = {depth} a stage; reuse does not depend on BK"
    )
    return Finding("swizzle row", bk == row, bk, row, "elements", said, f"{_TMA}: CU_TENSOR_MAP_SWIZZLE_128B")


# ---- registers and the instruction


def sharing(consumers: int, schedule: str) -> int:
    """Warpgroups that share a tile: all where they cooperate, one where each has its own."""
    return 1 if schedule == "pingpong" else consumers


def accumulators(bm: int, bn: int, consumers: int, schedule: str, gpu: GpuSpec) -> Finding:
    """Registers of a consumer thread that hold C, against what one thread can have."""
    held = roofline_tensor.accumulator_registers(bm, bn, sharing(consumers, schedule))
    tiles = consumers if schedule == "pingpong" else 1
    values = tiles * bm * bn
    said = (
        f"C is held in {held}, of at most {gpu.max_registers_per_thread}; its {number(values)} values are "
        f"{roofline.held(4 * values)} of the {roofline.held(4 * gpu.registers_per_sm)} of an SM's registers"
    )
    source = gpu.sources["max_registers_per_thread"]
    return _against("accumulators", held, gpu.max_registers_per_thread, said, source)


def thread_registers(bm: int, bn: int, consumers: int, schedule: str, available: int) -> Finding:
    """Accumulators and what else a consumer thread needs, against what the split of registers leaves it."""
    held = roofline_tensor.accumulator_registers(bm, bn, sharing(consumers, schedule)).value
    needed = roofline.figure(held + SPARE_REGISTERS, "registers", f"{number(held)} + about {SPARE_REGISTERS}")
    said = f"with addresses, descriptors and counters a consumer thread needs {needed}; it has {available}"
    return _against("thread registers", needed, available, said, _REGISTERS)


def register_file(consumers: int, producer: int, consumer: int, gpu: GpuSpec) -> Finding:
    """The split between the warpgroup that loads and those that multiply, against an SM's registers."""
    few, many = WARPGROUP_THREADS, WARPGROUP_THREADS * consumers
    total = few * producer + many * consumer
    said = (
        f"{few} threads x {producer} + {many} threads x {consumer} = {number(few * producer)} + "
        f"{number(many * consumer)} = {number(total)} of {number(gpu.registers_per_sm)} registers"
    )
    source = gpu.sources["registers_per_sm"]
    ok = total <= gpu.registers_per_sm
    return Finding("register file", ok, total, gpu.registers_per_sm, "registers", said, source)


def instruction(bm: int, bn: int, consumers: int, schedule: str) -> Finding:
    """Whether the tile is cut into whole instructions: 64 rows for each warpgroup that shares it, N columns."""
    groups = sharing(consumers, schedule)
    rows = WARPGROUP_ROWS * groups
    each = (
        f"{groups} warpgroup{'s share' if groups > 1 else ' has'} a tile, and an instruction has {WARPGROUP_ROWS} rows"
    )
    said = f"m{WARPGROUP_ROWS}n{bn}: {each}, so BM is a multiple of {rows} and is {bm}; N is a multiple of 8 up to 256"
    ok = bm % rows == 0 and bn % 8 == 0 and bn <= WIDEST_INSTRUCTION
    return Finding("instruction", ok, bm, rows, "rows", f"{said} and is {bn}", _PTX)


# ---- TMA


@lru_cache(maxsize=64)
def tma_lines(problem: Problem, operands: str = "ABC") -> Finding:
    """Whether TMA can step from line to line of A, B and C, or of those ``operands`` that a kernel moves by it."""
    pitches = {name: pitch for name, pitch in _pitches(problem).items() if name in operands}
    name = max(pitches, key=lambda each: (pitches[each] % 16 != 0, pitches[each] >= LARGEST_PITCH, pitches[each]))
    pitch = pitches[name]
    said = f"ld{name.lower()} makes lines of {name} {number(pitch)} B apart; TMA steps multiples of 16 B below 2^40"
    return Finding(
        "TMA lines", pitch % 16 == 0 and pitch < LARGEST_PITCH, pitch, 16, "B", said, f"{_TMA}: globalStrides"
    )


def tma_box(bm: int, bn: int, bk: int, cluster: tuple[int, int], layouts: tuple[Layout, Layout]) -> Finding:
    """The longest box that one block of a cluster loads, against TMA's longest."""
    lines = operand_lines(bm, bn, bk, *layouts)
    boxes = {"A": lines[0] / cluster[1], "B": lines[1] / cluster[0]}
    name = max(boxes, key=lambda each: boxes[each])
    said = f"a box of {name} has {number(boxes[name])} lines of {SWIZZLE_BYTES} B; TMA moves at most {LONGEST_BOX}"
    return Finding("TMA box", boxes[name] <= LONGEST_BOX, boxes[name], LONGEST_BOX, "lines", said, f"{_TMA}: boxDim")


def _pitches(problem: Problem) -> dict[str, int]:
    itemsizes = (problem.dtype.itemsize, problem.dtype.itemsize, problem.out_dtype.itemsize)
    lds = (problem.lda, problem.ldb, problem.ldc)
    return {name: ld * size for name, ld, size in zip("ABC", lds, itemsizes, strict=True)}


# ---- over the SMs


def clusters(cluster: tuple[int, int], gpu: GpuSpec, sms: int) -> Finding:
    """Clusters that run at the same time, against as many as the SMs would make if any of them could be one."""
    size = cluster[0] * cluster[1]
    most = sms // size
    try:
        fit = clusters_that_fit(size, gpu, sms) if size <= LARGEST_CLUSTER else 0
    except UsageError:
        fit = 0
    said = f"{fit} clusters of {size} run at a time on {sms} SM{'s' * (sms != 1)}"
    if fit < most:
        idle = sms - fit * size
        said += f", not {sms} // {size} = {most}: a cluster lies in one GPC, and {idle} SMs stay empty"
    if size > LARGEST_CLUSTER:
        said += f"; every GPU of the architecture has clusters of up to {LARGEST_CLUSTER}"
    return Finding("clusters", fit >= max(most, 1), fit, most, "clusters", said, _OCCUPANCY, hard=fit == 0)


def waves(
    problem: Problem, bm: int, bn: int, cluster: tuple[int, int], places: int, *, half_tail: bool = False
) -> Finding:
    """The rounds in which the tiles run, and how much of the SMs they use; tiles of clusters count as one.

    ``half_tail`` cuts the tiles of a last round that is at most half full in two, which makes it half as long.
    """
    found = roofline_tensor.waves(problem, cluster[0] * bm, cluster[1] * bn, places)
    last = round(found.last * places)
    said = f"{found}: {found.waves} to run, with {last} of {places} in the last; "
    use, together = found.use, cluster[0] * cluster[1]
    if half_tail and 0 < 2 * last <= places:
        use = found.tiles / ((found.waves - 0.5) * places)
        said += "cut in two, for half a round; "
    said += f"{use:.0%} of all places have a tile"
    if together > 1:
        said += f" (a tile here is the {together} of a cluster)"
    return Finding("waves", use >= GOOD_USE, use, GOOD_USE, "", said, _WAVES, hard=False)


def edge_waste(problem: Problem, bm: int, bn: int) -> Finding:
    """The part of all tiles' elements that lies beyond C's edges."""
    down, across = math.ceil(problem.m / bm), math.ceil(problem.n / bn)
    waste = 1 - problem.m * problem.n / (down * bm * across * bn)
    said = (
        f"{down} x {across} tiles cover {number(down * bm)} x {number(across * bn)} for a C of {number(problem.m)} x "
        f"{number(problem.n)}: {waste:.1%} of what is multiplied lies beyond its edges"
    )
    return Finding("edge waste", waste <= MOST_WASTE, waste, MOST_WASTE, "", said, _WAVES, hard=False)


def rows_of_m(problem: Problem, bm: int) -> Finding:
    """Whether a tile has no more rows than the least, of those there are, that all of C's fit into."""
    least = next((rows for rows in TILE_ROWS if rows >= problem.m), bm)
    said = f"C has {number(problem.m)} rows for tiles of {bm}"
    if bm > least:
        said += f": {number(bm - problem.m)} of a tile's rows are multiplied for nothing, {least} rows would do"
    return Finding("rows of C", bm <= least, bm, least, "rows", said, _PTX, hard=False)


# ---- words


def _figure(name: str, derived: Derived, sentence: str, source: str) -> Finding:
    return Finding(name, None, derived.value, None, derived.unit, sentence, source, hard=False)


def _against(name: str, derived: Derived, limit: float, sentence: str, source: str, *, hard: bool = True) -> Finding:
    return Finding(name, derived.value <= limit, derived.value, limit, derived.unit, sentence, source, hard)
