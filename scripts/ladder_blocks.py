"""The generated blocks of the ladder's pages: tables of what is derived, counted, compiled and measured.

``ladder_pages.py`` puts them where they belong. A block function takes a rung and the records of the measured problem
and returns Markdown; it raises ``UnavailableError`` where what it is made with is not installed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from typing import Any

from ladder_records import (
    DTYPES,
    GPU,
    MISSING,
    ROOT,
    SIZE,
    expectation_block,
    hardware_block,
    measured_block,
    percent,
    record_of,
    table,
    tflops,
)

from tilewright import ladder, nvrtc, roofline
from tilewright.backends.emulator import EmulatorBackend
from tilewright.backends.emulator_counts import SECTOR_BYTES, Counts, LineCounts, Requests
from tilewright.count import count
from tilewright.derive import derived
from tilewright.dtypes import FP32, DType
from tilewright.errors import UnavailableError
from tilewright.ladder import Rung
from tilewright.plan import Plan
from tilewright.plan_simt import SimtPlan
from tilewright.problem import Problem
from tilewright.ptxas import CompileReport
from tilewright.report.diff import body, rung_diff
from tilewright.report.table import number
from tilewright.results import Record
from tilewright.run import DEFAULT_ARCH

# Beside the ladder's own counter-examples: what a detail of a rung's layout is there for.
WITHOUT: Mapping[int, tuple[tuple[str, Mapping[str, Any]], ...]] = {2: (("no padding", {"pad": 0}),)}


# ---- what is counted and compiled, once for all blocks


@cache
def emulator() -> EmulatorBackend:
    """The emulator on this machine's compiler; the counts are the same with every compiler (the tests hold it)."""
    return EmulatorBackend()


@cache
def counted(rung: Rung, plan: Plan) -> Counts:
    """The counts of one interior block of the problem that is measured, its K cut short."""
    found = count(emulator(), rung, plan, Problem(SIZE, SIZE, SIZE, plan.dtype))
    if found is None or any(line.line is None for line in found.lines):
        raise UnavailableError("source lines are not known here: they need pyelftools and an ELF system")
    return found


@cache
def report(rung: Rung, plan: Plan) -> CompileReport:
    """What the pinned NVRTC says of a plan; another one counts registers differently."""
    pinned = re.search(r"nvidia-cuda-nvrtc==(\d+)\.(\d+)", (ROOT / "pyproject.toml").read_text("utf-8"))
    if pinned is None or nvrtc.nvrtc_version() != (int(pinned[1]), int(pinned[2])):
        raise UnavailableError("registers are those that the NVRTC of the extra cuda13 reports, which is not here")
    return nvrtc.compile_kernel(rung.source(plan, "gpu", DEFAULT_ARCH)).report


def mistakes(rung: Rung, dtype: DType) -> list[tuple[str, Plan]]:
    """The rung as it is, then each mistake it is shown beside."""
    plan = rung.plan(dtype)
    shown = [(m.name, m.changes) for m in rung.counter_examples if dtype in m.dtypes]
    return [(rung.name, plan)] + [(name, plan.with_(**changes)) for name, changes in (*shown, *_without(rung))]


def _without(rung: Rung) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    return WITHOUT.get(rung.number, ())


def compile_ahead(rungs: Sequence[Rung]) -> None:
    """Compile everything side by side; the caches hold it afterwards. What cannot be compiled here is left out."""

    def compile_one(job: tuple[Rung, Plan]) -> None:
        rung, plan = job
        with suppress(UnavailableError):
            emulator().compile(rung.source(plan, "host"), instrumented=True)
        with suppress(UnavailableError):
            if plan == rung.plan(plan.dtype):  # of a mistake, the registers are not shown
                report(rung, plan)

    jobs = [(rung, plan) for rung in rungs for dtype in DTYPES for _, plan in mistakes(rung, dtype)]
    with ThreadPoolExecutor() as pool:
        list(pool.map(compile_one, jobs))


# ---- Markdown


def pair(actual: float | None, ideal: float | None) -> str:
    """A figure and, in brackets, what it is held against."""
    return MISSING if actual is None else f"{number(actual)} ({number(ideal)})"


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


def lane(requests: Requests) -> str:
    """Wavefronts or sectors a request, beside the ideal."""
    return pair(requests.cost_per_request, requests.ideal_per_request)


# ---- the blocks of a rung's page


def diff_block(rung: Rung, _: Sequence[Record]) -> str:
    """The kernel itself for rung 0, else what its idea changed in the rung before."""
    if rung.number == 0:
        return "```c++\n" + "\n".join(body(rung.path.read_text("utf-8"))) + "\n```\n"
    found = rung_diff(ladder.rung(rung.number - 1).path, rung.path)
    moved = f", {found.moved} of these into a shared header" if found.moved else ""
    text = "\n".join(line.rstrip() for line in found.lines)
    return f"{found.added} lines added, {found.removed} removed{moved}.\n\n```diff\n{text}\n```\n"


def arithmetic_block(rung: Rung, _: Sequence[Record]) -> str:
    """Every derived figure with its formula, a column a dtype."""
    columns = [dict(_formulas(rung.plan(dtype))) for dtype in DTYPES]
    return table(
        ["", *map(str, DTYPES)], [[name, *(column[name] for column in columns)] for name in columns[0]], left=3
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
    problem = Problem(SIZE, SIZE, SIZE, plan.dtype)
    yield "FLOP a requested byte", str(intensity)
    yield "a K-step brings in", str(roofline.k_step_bytes(bm, bn, plan.bk, size))
    yield "and is worth", str(roofline.k_step_flops(bm, bn, plan.bk))
    yield f"A and B read at {SIZE}^3", str(roofline.tiled_traffic(problem, bm, bn))
    yield "which at the roof takes", str(roofline.bandwidth_needed(GPU.fp32_tflops, intensity.value))
    yield "shared bytes loaded a MAC", str(per_mac)
    yield "asked of the port at full FMA rate", str(roofline.shared_port_demand(per_mac.value, GPU, load_bytes=wide))
    yield (
        "limit",
        roofline.bound(GPU, "fp32", shared_bytes_per_mac=per_mac.value, load_bytes=wide).formula,
    )


def counted_block(rung: Rung, _: Sequence[Record]) -> str:
    """What one block moved, beside the ideal; by source line for fp32, where all compilers agree on the lines."""
    shown = [(derived(plan := rung.plan(dtype), GPU), counted(rung, plan)) for dtype in DTYPES]
    rows = [["FLOP a requested byte (derived)", *(pair(c.flop_per_byte, d["flop_per_byte"]) for d, c in shown)]]
    for name in ("a", "b", "c"):
        rows.append([f"sectors a request of {name.upper()}", *(lane(c.operands[name].all) for _, c in shown)])
    if shown[0][1].shared.requests:
        key = "shared_load_bytes_per_mac"
        rows.append(["shared bytes loaded a MAC (derived)", *(pair(getattr(c, key), d[key]) for d, c in shown)])
        rows.append(["wavefronts a shared load", *(lane(c.shared_loads) for _, c in shown)])
        rows.append(["wavefronts a shared store", *(lane(c.shared_stores) for _, c in shown)])
    rows.append(["port clocks a clock of FMAs, at least", *(number(port_clocks(c)) for _, c in shown)])
    lines = [_line_row(rung, line) for line in shown[0][1].lines]
    head = ["line", "", "memory", "requests", "bytes a lane", "cost", "ideal", "excess"]
    return f"{table(['', *map(str, DTYPES)], rows)}\nIn fp32, by source line:\n\n{table(head, lines, left=3)}"


def _line_row(rung: Rung, counts: LineCounts) -> list[str]:
    assert counts.line is not None
    r, where = counts.requests, f"../../src/tilewright/cuda/rungs/{rung.path.name}#L{counts.line.line}"
    kind = f"async {counts.kind}" if counts.asynchronous else counts.kind
    figures = [counts.bytes_per_lane, r.cost_per_request, r.ideal_per_request, r.excess_per_request]
    memory = counts.memory if counts.memory == "shared" else counts.memory.upper()
    return [f"[{counts.line.line}]({where})", kind, memory, f"{r.requests:,}", *map(number, figures)]


def mistake_block(rung: Rung, records: Sequence[Record]) -> str:
    """The rung beside what it would be with one thing done wrong."""
    head = ["", "A", "B", "C", "wavefronts a shared load", "a shared store", "port clocks", "cap, TFLOPS", "TFLOPS"]
    rows = []
    for dtype in DTYPES:
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


def limits_block(rung: Rung, _: Sequence[Record]) -> str:
    """What a block takes of an SM, and so how many fit."""
    rows: dict[str, list[str]] = {}
    for dtype in DTYPES:
        plan = rung.plan(dtype)
        said = report(rung, plan)
        assert said.registers is not None
        fits = fitting_blocks(plan, said.registers)
        blocks = min(fits.values())
        held = " and ".join(name for name, fit in fits.items() if fit == blocks)
        for name, cell in {
            "threads a block": f"{plan.threads:,}",
            "registers a thread": f"{said.registers} of {GPU.max_registers_per_thread}",
            "spilled": f"{said.spill_bytes} B",
            "shared memory a block": f"{plan.shared_bytes:,} of {GPU.shared_bytes_per_block:,} B",
            "blocks an SM": f"{blocks}, by {held}",
            "warps a scheduler": number(blocks * plan.threads / 32 / 4),
            "bottleneck by the arithmetic": derived(plan, GPU)["bottleneck"],
        }.items():
            rows.setdefault(name, []).append(cell)
    return table(["", *map(str, DTYPES)], [[name, *cells] for name, cells in rows.items()], left=3)


def fitting_blocks(plan: Plan, registers: int) -> dict[str, int]:
    """Blocks that one SM holds, by what there is of each thing.

    Registers go to a warp in units of 256 and come from the file of its scheduler, a quarter of the SM's; a block's
    shared memory takes 1 KB more than it asks for; an SM holds 32 blocks (CUDA C++ Programming Guide, technical
    specifications of compute capability 9.0, and its section on hardware multithreading).
    """
    warps, warp_registers = plan.threads // 32, math.ceil(registers * 32 / 256) * 256
    fits = {
        "registers": GPU.registers_per_sm // 4 // warp_registers * 4 // warps,
        "threads": GPU.max_threads_per_sm // plan.threads,
        "the most there may be": 32,
    }
    if plan.shared_bytes:
        fits["shared memory"] = GPU.shared_bytes_per_sm // (plan.shared_bytes + 1024)
    return fits


# ---- the blocks of other pages


def ladder_block(records: Sequence[Record]) -> str:
    """The ladder at a glance, for the index."""
    rows = []
    for rung in ladder.rungs().values():
        arithmetic = [derived(rung.plan(dtype), GPU) for dtype in DTYPES]
        record = record_of(records, rung, FP32)
        both = [" / ".join(number(d[key]) for d in arithmetic)
                for key in ("flop_per_byte", "shared_load_bytes_per_mac")]  # fmt: skip
        rows.append([f"[{rung.number} {rung.name}]({rung.path.stem}.md)", rung.idea, *both, tflops(record),
                     percent(record)])  # fmt: skip
    head = ["rung", "idea", "FLOP/B, fp32 / bf16", "shared B/MAC, fp32 / bf16", "fp32 TFLOPS", "of the roof"]
    return table(head, rows, left=2)


RUNG: Mapping[str, Callable[[Rung, Sequence[Record]], str]] = {
    "diff": diff_block,
    "arithmetic": arithmetic_block,
    "counted": counted_block,
    "hardware": hardware_block,
    "measured": measured_block,
    "limits": limits_block,
    "mistake": mistake_block,
    "expectation": expectation_block,
}
