"""The blocks of the CUDA-core rungs' pages: arithmetic, counts, and the mistake that a rung is shown beside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ladder_figures import counted, lane, line_rows, mistakes, pair, posed
from ladder_records import GPU, MISSING, SIZE, record_of, table, tflops

from tilewright import roofline
from tilewright.backends.emulator_counts import SECTOR_BYTES, Counts
from tilewright.derive import derived
from tilewright.ladder import Rung
from tilewright.plan_base import Plan
from tilewright.plan_simt import SimtPlan
from tilewright.report.table import number
from tilewright.results import Record


def port_clocks(counts: Counts) -> float:
    """Clocks of the L1 and shared-memory data path that a clock of full-rate FMAs in the K loop asks for, at least.

    A shared wavefront takes one. A global request takes one, and one for each 128 bytes of its sectors where that is
    more; an asynchronous copy counts where it lands. C's stores come once a tile and are left out.
    """
    loaded = (c.requests for c in counts.lines if c.memory in ("a", "b") and not c.asynchronous)
    clocks = counts.shared.cost + sum(max(r.requests, r.cost * SECTOR_BYTES / 128) for r in loaded)
    return clocks / (counts.multiply_adds / GPU.fp32_fma_per_clock)


def port_and_cap(counts: Counts) -> tuple[str, str]:
    """The port clocks, and the most TFLOPS that they leave."""
    clocks = port_clocks(counts)
    return number(clocks), number(GPU.fp32_tflops / max(clocks, 1))


def arithmetic_block(rung: Rung, _: Sequence[Record]) -> str:
    """Every derived figure with its formula, a column a dtype."""
    columns = [dict(_formulas(rung.plan(dtype))) for dtype in rung.dtypes]
    return table(
        ["", *map(str, rung.dtypes)], [[name, *(column[name] for column in columns)] for name in columns[0]], left=3
    )


def _formulas(plan: Plan) -> Iterator[tuple[str, str]]:
    assert isinstance(plan, SimtPlan)
    size, bm, bn, tm, tn = plan.dtype.itemsize, plan.bm, plan.bn, plan.tm or 1, plan.tn or 1
    wide = 16 if plan.tm else size
    if plan.stages == 0:
        intensity = roofline.naive_intensity(size)
        yield "FLOP a requested byte", str(intensity)
        yield "limit, were HBM to serve each request", roofline.bound(GPU, "fp32", intensity=intensity.value).formula
        return
    intensity = roofline.tile_intensity(bm, bn, size)
    per_mac = roofline.shared_load_bytes_per_mac(tm, tn, size)
    yield "FLOP a requested byte", str(intensity)
    yield "a K-step brings in", str(roofline.k_step_bytes(bm, bn, plan.bk, size))
    yield "and is worth", str(roofline.k_step_flops(bm, bn, plan.bk))
    yield f"A and B read at {SIZE}^3", str(roofline.tiled_traffic(posed(plan), bm, bn))
    yield "which at the roof takes", str(roofline.bandwidth_needed(GPU.fp32_tflops, intensity.value))
    yield "shared bytes loaded a MAC", str(per_mac)
    yield "asked of the port at full FMA rate", str(roofline.shared_port_demand(per_mac.value, GPU, load_bytes=wide))
    yield (
        "limit",
        roofline.bound(GPU, "fp32", shared_bytes_per_mac=per_mac.value, load_bytes=wide).formula,
    )


def counted_block(rung: Rung, _: Sequence[Record]) -> str:
    """What one block moved, beside the ideal; by source line for fp32, where all compilers agree on the lines."""
    shown = [(derived(plan := rung.plan(dtype), GPU), counted(rung, plan)) for dtype in rung.dtypes]
    rows = [["FLOP a requested byte (derived)", *(pair(c.flop_per_byte, d["flop_per_byte"]) for d, c in shown)]]
    for name in ("a", "b", "c"):
        rows.append([f"sectors a request of {name.upper()}", *(lane(c.operands[name].all) for _, c in shown)])
    if shown[0][1].shared.requests:
        key = "shared_load_bytes_per_mac"
        rows.append(["shared bytes loaded a MAC (derived)", *(pair(getattr(c, key), d[key]) for d, c in shown)])
        rows.append(["wavefronts a shared load", *(lane(c.shared_loads) for _, c in shown)])
        rows.append(["wavefronts a shared store", *(lane(c.shared_stores) for _, c in shown)])
    rows.append(["port clocks a clock of FMAs, at least", *(number(port_clocks(c)) for _, c in shown)])
    return f"{table(['', *map(str, rung.dtypes)], rows)}\nIn fp32, by source line:\n\n{line_rows(rung, shown[0][1])}"


def mistake_block(rung: Rung, records: Sequence[Record]) -> str:
    """The rung beside what it would be with one thing done wrong."""
    head = ["", "A", "B", "C", "wavefronts a shared load", "a shared store", "port clocks", "cap, TFLOPS", "TFLOPS"]
    rows = []
    for dtype in rung.dtypes:
        for index, (name, plan) in enumerate(mistakes(rung, dtype)):
            c = counted(rung, plan)
            record = record_of(records, rung, dtype, name if index else None)
            sectors = [lane(c.operands[operand].all) for operand in ("a", "b", "c")]
            shared = [lane(c.shared_loads), lane(c.shared_stores), *port_and_cap(c)]
            rows.append([f"{dtype} {name}", *sectors, *shared, tflops(record)])
    measured = "" if any(row[-1] != MISSING for row in rows) else "Not measured yet.\n"
    key = (
        "A, B, C: sectors a request, in brackets the ideal. "
        "Port clocks: for a clock of FMAs, at least; the cap is the roof over them."
    )

    return f"{table(head, rows)}\n{key} {measured}".rstrip() + "\n"
