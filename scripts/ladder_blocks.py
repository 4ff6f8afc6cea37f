"""The generated blocks of the ladder's pages: tables of what is derived, counted, compiled and measured.

``ladder_pages.py`` puts them where they belong. A block function takes a rung and the records of the measured problem
and returns Markdown; it raises ``UnavailableError`` where what it is made with is not installed. Those that only
CUDA-core or only tensor-core rungs have are in ``ladder_simt.py`` and ``ladder_tensor.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import ladder_simt
import ladder_tensor
from ladder_counters import counters_block
from ladder_figures import mistakes, report
from ladder_records import (
    GPU,
    MISSING,
    expectation_block,
    hardware_block,
    measured_block,
    percent,
    record_of,
    table,
    tflops,
)

from tilewright import ladder
from tilewright.derive import derived
from tilewright.dtypes import BF16, FP32, DType
from tilewright.ladder import Rung
from tilewright.plan_base import Plan
from tilewright.plan_tensor import SPECIALISED, TensorPlan
from tilewright.report.diff import body, rung_diff
from tilewright.report.table import number
from tilewright.results import Record

Block = Callable[[Rung, Sequence[Record]], str]


def diff_block(rung: Rung, _: Sequence[Record]) -> str:
    """The kernel itself for rung 0, else what its idea changed in the rung before."""
    if rung.number == 0:
        return "```c++\n" + "\n".join(body(rung.path.read_text("utf-8"))) + "\n```\n"
    found = rung_diff(ladder.rung(rung.number - 1).path, rung.path)
    moved = f", {found.moved} of these into a shared header" if found.moved else ""
    text = "\n".join(line.rstrip() for line in found.lines)
    return f"{found.added} lines added, {found.removed} removed{moved}.\n\n```diff\n{text}\n```\n"


def limits_block(rung: Rung, _: Sequence[Record]) -> str:
    """What a block takes of an SM, and so how many fit."""
    rows: dict[str, list[str]] = {}
    for dtype in rung.dtypes:
        plan = rung.plan(dtype)
        said = report(rung, plan)
        assert said.registers is not None
        fits = fitting_blocks(plan, said.registers)
        blocks = min(fits.values())
        held = " and ".join(name for name, fit in fits.items() if fit == blocks)
        for name, cell in {
            "threads a block": f"{plan.threads:,}",
            "registers a thread": f"{said.registers} of {GPU.max_registers_per_thread}",
            **_roles(plan),
            "spilled": f"{said.spill_bytes} B",
            "shared memory a block": f"{plan.shared_bytes:,} of {GPU.shared_bytes_per_block:,} B",
            "blocks an SM": f"{blocks}, by {held}",
            "warps a scheduler": number(blocks * plan.threads / 32 / 4),
            "bottleneck by the arithmetic": derived(plan, GPU)["bottleneck"],
        }.items():
            rows.setdefault(name, []).append(cell)
    return table(["", *map(str, rung.dtypes)], [[name, *cells] for name, cells in rows.items()], left=3)


def _roles(plan: Plan) -> dict[str, str]:
    """How the registers are handed out once the kernel runs, where warpgroups have roles."""
    if not isinstance(plan, TensorPlan) or plan.rung < SPECIALISED:
        return {}
    loads, multiplies = plan.producer_registers, plan.consumer_registers
    return {"after setmaxnreg": f"{loads} where it loads, {multiplies} where it multiplies"}


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
        arithmetic = {dtype: derived(rung.plan(dtype), GPU) for dtype in _INDEX if dtype in rung.dtypes}
        both = [
            " / ".join(number(arithmetic[dtype][key]) if dtype in arithmetic else MISSING for dtype in _INDEX)
            for key in ("flop_per_byte", "shared_load_bytes_per_mac")
        ]
        found = [record_of(records, rung, dtype) for dtype in _INDEX]
        speeds = [cell for record in found for cell in (tflops(record), percent(record, rung))]
        rows.append([f"[{rung.number} {rung.name}]({rung.path.stem}.md)", rung.idea, *both, *speeds])
    head = ["rung", "idea", "FLOP/B, fp32 / bf16", "shared B/MAC, fp32 / bf16"]
    return table([*head, *(cell for dtype in _INDEX for cell in (f"{dtype} TFLOPS", "of the roof"))], rows, left=2)


_INDEX: tuple[DType, ...] = (FP32, BF16)
_COMMON: Mapping[str, Block] = {
    "diff": diff_block,
    "measured": measured_block,
    "limits": limits_block,
    "expectation": expectation_block,
}
_SIMT: Mapping[str, Block] = {
    **_COMMON,
    "arithmetic": ladder_simt.arithmetic_block,
    "counted": ladder_simt.counted_block,
    "hardware": hardware_block,
    "mistake": ladder_simt.mistake_block,
}
_TENSOR: Mapping[str, Block] = {
    **_COMMON,
    "arithmetic": ladder_tensor.arithmetic_block,
    "counted": ladder_tensor.counted_block,
    "counters": counters_block,
}


def blocks_of(rung: Rung) -> dict[str, Block]:
    """What stands on a rung's page, by the names of the blocks."""
    if isinstance(rung.plan(rung.dtypes[0]), TensorPlan):
        return dict(_TENSOR)
    return {name: make for name, make in _SIMT.items() if name != "mistake" or len(mistakes(rung, FP32)) > 1}
