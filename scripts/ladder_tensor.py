"""The blocks of the tensor-core rungs' pages: arithmetic, and counts for each layout of A and B.

bf16 and fp16 are alike in both: 16-bit elements, the same instructions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ladder_figures import counted, lane, layouts, line_rows, pair, place, posed
from ladder_records import GPU, MISSING, SIZE, table

from tilewright import roofline, roofline_tensor
from tilewright.backends.emulator_counts import Counts
from tilewright.derive import derived
from tilewright.derive_tensor import in_flight, intensity_of, operand_bytes, port_of, waves_of
from tilewright.ladder import Rung
from tilewright.plan_tensor import CLUSTERS, FIRST, LAST, TMA, TensorPlan
from tilewright.report.table import number
from tilewright.results import Record

_ALIKE = "bf16 and fp16"


def _plans(rung: Rung) -> list[TensorPlan]:
    return [plan for plan in layouts(rung) if isinstance(plan, TensorPlan)]


def arithmetic_block(rung: Rung, _: Sequence[Record]) -> str:
    """Every derived figure with its formula."""
    return table(["", _ALIKE], [list(row) for row in _formulas(_plans(rung)[0])], left=2)


def _formulas(plan: TensorPlan) -> Iterator[tuple[str, str]]:
    size, bm, bn = plan.dtype.itemsize, plan.bm, plan.bn
    multiply_adds = bm * bn * plan.bk
    yield "FLOP a byte from L2", str(roofline.tile_intensity(bm, bn, size))
    if plan.cluster > 1:
        yield f"of a {plan.cluster_m} x {plan.cluster_n} cluster that multicasts", str(intensity_of(plan))
    yield "a K-step brings in", str(roofline.k_step_bytes(bm, bn, plan.bk, size))
    yield "and takes the tensor cores", str(roofline_tensor.tensor_clocks(multiply_adds, GPU))
    yield "bytes under way meanwhile", str(in_flight(plan))
    if plan.rung == FIRST:
        yield "limit of mma.sync", str(roofline_tensor.mma_sync_tflops(GPU))
    yield "shared bytes read a MAC", str(operand_bytes(plan))
    yield f"asked of the port's {GPU.shared_bytes_per_clock} B/clk", str(port_of(plan, GPU))
    yield "asked of L2 at the roof", str(roofline_tensor.l2_demand(intensity_of(plan).value, GPU))
    supply = roofline_tensor.l2_supply(GPU)
    yield "and L2 gives all SMs at once", MISSING if supply is None else str(supply)
    problem = posed(plan)
    read = roofline.tiled_traffic(problem, plan.cluster_m * bm, plan.cluster_n * bn)
    yield f"A and B read at {SIZE}^3", str(read)
    warps = f"{plan.threads // 32} warps" if plan.rung == FIRST else f"{plan.consumers} x 128 threads"
    yield "accumulators a thread", f"{bm} x {bn} over {warps} = {plan.accumulators} registers"
    waves = waves_of(plan, problem, GPU)
    what = "cluster tiles on the clusters" if plan.rung >= CLUSTERS else "tiles on the SMs"
    yield f"{what} at {SIZE}^3", f"{waves}, {waves.use:.0%} of {waves.waves} whole ones"


def counted_block(rung: Rung, _: Sequence[Record]) -> str:
    """What a tile moved, a column a layout; by source line for the layout of the ladder."""
    plans = _plans(rung)
    shown = [(plan, counted(rung, plan)) for plan in plans]
    columns = [dict(_counts(plan, counts)) for plan, counts in shown]
    head = ["", *(f"A {plan.a_layout}, B {plan.b_layout}" for plan in plans)]
    rows = [[name, *(column[name] for column in columns)] for name in columns[0]]
    first = shown[0][1]
    said = table(head, rows)
    if first.copy_lines:
        said += f"\nTMA, by source line, of row-major A and B:\n\n{_copy_rows(rung, first)}"
    return f"{said}\nRequests of lanes, by source line, of row-major A and B:\n\n{line_rows(rung, first)}"


def _counts(plan: TensorPlan, counts: Counts) -> Iterator[tuple[str, str]]:
    arithmetic = derived(plan, GPU)
    steps = counts.multiply_adds // (plan.bm * plan.bn * plan.bk)  # of all blocks together
    operands = counts.operands
    yield "FLOP a byte from L2 (derived)", pair(counts.flop_per_byte, arithmetic["flop_per_byte"])
    if plan.rung < TMA:
        for name in ("a", "b"):
            yield f"sectors a request of {name.upper()}", lane(operands[name].all)
    else:
        copies = [operands[name].copied_in for name in ("a", "b")]
        yield "TMA loads a K-step, of A + of B", " + ".join(number(each.copies / steps) for each in copies)
        yield "bytes they read", f"{sum(each.global_bytes for each in copies) // steps:,}"
        if plan.cluster > 1:
            yield "bytes that multicast spares", f"{sum(each.saved_bytes for each in copies) // steps:,}"
    if plan.rung < LAST:
        yield "sectors a request of C", lane(operands["c"].all)
    else:
        yield "TMA stores a tile of C", number(operands["c"].copied_out.copies / counts.blocks)
    kind = "mma.sync" if plan.rung == FIRST else "wgmma"
    for each in counts.matrix:
        yield f"{kind} m{each.m}n{each.n}k{each.k} a K-step", number(each.instructions / steps)
    yield (
        "shared bytes read a MAC (derived)",
        pair(counts.shared_load_bytes_per_mac, arithmetic["shared_load_bytes_per_mac"]),
    )
    if counts.shared_loads.requests:
        yield "wavefronts an ldmatrix", lane(counts.shared_loads)
    if counts.shared_stores.requests:
        what = "an stmatrix" if plan.rung == LAST else "a store of a copy"
        yield f"wavefronts {what}", lane(counts.shared_stores)
    if plan.rung >= TMA:
        yield "threads that wait at an mbarrier a K-step", number(counts.waits.mbarrier / steps)
    if counts.waits.proxy_fences:
        per, over = ("a tile", counts.blocks) if plan.rung == LAST else ("a K-step", steps)
        yield f"proxy fences {per}, one a thread", number(counts.waits.proxy_fences / over)


def _copy_rows(rung: Rung, counts: Counts) -> str:
    head = ["line", "", "operand", "copies", "bytes a copy", "read or written", "spared", "in or out of shared memory"]
    rows = []
    for line in counts.copy_lines:
        c = line.copies
        whose = MISSING if line.operand is None else line.operand.upper()
        figures = [c.copies, c.global_bytes // c.copies, c.global_bytes, c.saved_bytes, c.shared_bytes]
        rows.append([place(rung, line.line), line.kind, whose, *(f"{each:,}" for each in figures)])
    return table(head, rows, left=3)
