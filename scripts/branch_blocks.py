"""The generated blocks of the branches' pages: the arithmetic of several sizes, what is counted, what is compiled.

``ladder_pages.py`` puts them where they belong. A block function takes a branch and returns Markdown; it raises
``UnavailableError`` where what it is made with is not installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

import sweep_file
import sweep_shapes
from ladder_blocks import fitting_blocks
from ladder_figures import emulator, lane, pair, report
from ladder_records import GPU, MISSING, table

from tilewright import branches
from tilewright.backends.emulator_counts import Counts
from tilewright.branches import Branch, BranchKernel
from tilewright.count import count
from tilewright.derive import derived
from tilewright.errors import UsageError
from tilewright.plan_base import Plan
from tilewright.plan_branch import BranchPlan
from tilewright.plan_parts import PartsPlan
from tilewright.planner.family import priced
from tilewright.planner.plan import machine_of
from tilewright.problem import Problem
from tilewright.report.table import number

Block = Callable[[Branch], str]
# M, N, K that users of few tokens bring: projections of language models, a router, and the sizes of each rule.
TOKENS = (
    (1, 4096, 4096), (1, 28672, 4096), (1, 256, 7168), (2, 2112, 7168), (4, 4096, 4096), (8, 2112, 7168),
    (16, 7168, 2048), (64, 4096, 7168), (64, 28672, 4096),
)  # fmt: skip
# Few tiles and a long K; and a last wave that is poorly filled.
DEEP = ((1024, 1024, 8192), (512, 512, 65536), (256, 256, 131072), (128, 128, 16384))
WAVES = (
    (640, 7168, 7168), (2304, 2304, 4096), (1408, 6144, 4096), (3328, 3328, 4096), (4096, 4096, 4096),
    (4096, 7168, 2048),
)  # fmt: skip
SWEEP = Path(__file__).resolve().parent.parent / "results" / "sweep_h200.jsonl"
# Of the sweep's shapes what a branch is for: strata, and rows of A.
MEASURED = {
    "decode": (("decode",), range(1, 9)), "swapab": (("decode", "small"), range(4, 257)),
    "splitk": (("deepk", "small"), range(1, 2**31)), "streamk": (("wave",), range(1, 2**31)),
}  # fmt: skip
# fp32 of any size: tiles for a whole GPU, for few of its SMs, for few rows or columns.
SINGLE = (
    (4096, 4096, 4096), (1024, 1024, 1024), (512, 512, 512), (256, 256, 4096), (64, 4096, 4096), (4096, 64, 4096),
    (1, 4096, 4096), (4096, 1, 4096),
)  # fmt: skip
SIZES = {"decode": TOKENS, "swapab": TOKENS, "splitk": DEEP, "streamk": WAVES, "simt": SINGLE}
# What a column of its own says, or the same in all rows; a tile stands there where it does not follow from the rest.
_COMMON = {each.name for each in fields(Plan)} - {"bm", "bn", "bk"}


def arithmetic_block(branch: Branch) -> str:
    """The plan of each size that a kernel takes, with its floor in time and what it has on its way."""
    rows = []
    for kernel, problem, plan in _sized(branch):
        said = derived(plan, GPU, problem)
        rows.append(
            [
                kernel.name,
                f"{problem.m} x {problem.n} x {problem.k}",
                _values(plan),
                number(plan.grid(problem)[0]),
                number(problem.bytes_moved / 1e6),
                number(problem.bytes_moved / GPU.hbm_bytes_per_s * 1e6),
                _kb(said.get("bytes_in_flight")),
            ]
        )
    head = ["kernel", "M x N x K", "plan", "blocks", "MB moved at least", "us at 4.8 TB/s", "KB in flight an SM"]
    return table(head, rows, left=3)


def cut_block(branch: Branch) -> str:
    """How the plan by rule cuts each size, and the clocks of the model that it is chosen by."""
    rows = []
    for _, problem, plan in _sized(branch):
        assert isinstance(plan, PartsPlan)
        tile = f"{plan.bm} x {plan.bn}" + (f", cluster {plan.cluster_m} x {plan.cluster_n}" if plan.cluster > 1 else "")
        rows.append(
            [
                f"{problem.m} x {problem.n} x {problem.k}",
                tile,
                plan.said(problem),
                number(round(plan.estimate(problem) / 1e3, 1)),
                number(plan.sum_clocks(plan.parts(problem)) / plan.estimate(problem) * 100),
                number(problem.bytes_moved / GPU.hbm_bytes_per_s * 1e6),
            ]
        )
    head = ["M x N x K", "tile", "cut", "1,000 clocks (model)", "of them the sum, %", "us at 4.8 TB/s"]
    return table(head, rows, left=3)


def measured_block(branch: Branch) -> str:
    """The branch's best configuration on each shape of the sweep's development part that it is for."""
    sweep = sweep_file.read(SWEEP)
    strata, tokens = MEASURED[branch.name]
    machine, _ = machine_of(GPU, None, None)
    rows = []
    for shape in sweep_shapes.select("development"):
        seen = sweep.shapes.get(shape.sizes)
        if seen is None or shape.stratum not in strata or shape.sizes[0] not in tokens or not seen.vendor:
            continue
        ours, others = {}, [seen.vendor[sweep_file.CUBLAS].us.median]
        for name, timed in seen.times.items():
            plan = sweep.plans[name]
            if isinstance(plan, BranchPlan) and plan.branch == branch.name:
                ours[timed.us.median] = plan
            else:
                others.append(timed.us.median)
        if not ours:
            continue
        us, problem = min(ours), shape.problem
        best = ours[us]
        rows.append(
            [
                f"{problem.m} x {problem.n} x {problem.k}",
                priced(best, problem, machine).label,
                f"{us:.2f}",
                f"{problem.bytes_moved / us / 1e6:.2f}",
                f"{problem.flops / us / 1e6:.0f}",
                f"{others[0] / us:.3f}",
                f"{min(others[1:], default=others[0]) / us:.3f}",
            ]
        )
    first, last = min(run.date for run in sweep.runs.values())[:10], max(run.date for run in sweep.runs.values())[:10]
    machines = " and ".join(dict.fromkeys(f"{run.gpu}, driver {run.driver}" for run in sweep.runs.values()))
    head = ["M x N x K", "best of the branch", "us", "TB/s", "TFLOPS", "to cuBLAS", "to the best other kernel here"]
    days = first if first == last else f"{first} to {last}"
    return f"{machines}, {days}.\n\n{table(head, rows, left=2)}"


def counted_block(branch: Branch) -> str:
    """What one tile, or one cluster's, moved at the size of the emulator, a column a kernel."""
    problem = _posed(branch, branch.shapes["emulated"])
    columns = {}
    for kernel in branches.select(branch.name, problem):
        plan = kernel.plan_for(problem, aligned=True)
        found = count(emulator(), kernel, plan, problem)
        assert found is not None
        columns[kernel.name] = dict(_counts(plan, found, problem))
    names = dict.fromkeys(name for column in columns.values() for name in column)
    rows = [[name, *(column.get(name, MISSING) for column in columns.values())] for name in names]
    size = f"{problem.m} x {problem.n} x {problem.k}"
    return (
        f"A tile of {size}, {branch.dtype}; in brackets what is derived, or the ideal.\n\n{table(['', *columns], rows)}"
    )


def limits_block(branch: Branch) -> str:
    """What a block of each kernel takes of an SM at the size that is measured, and so how many fit."""
    problem = _posed(branch, branch.shapes["measured"])
    rows: dict[str, list[str]] = {}
    kernels = branches.select(branch.name, problem)
    for kernel in kernels:
        plan = kernel.plan_for(problem, aligned=True)
        said = report(kernel, plan)
        assert said.registers is not None
        fits = fitting_blocks(plan, said.registers)
        blocks = min(fits.values())
        for name, cell in {
            "plan": _values(plan),
            "threads a block": f"{plan.threads:,}",
            "registers a thread": f"{said.registers} of {GPU.max_registers_per_thread}",
            "spilled": f"{said.spill_bytes} B",
            "shared memory a block": f"{plan.shared_bytes:,} B",
            "blocks an SM": f"{blocks}, by {' and '.join(name for name, fit in fits.items() if fit == blocks)}",
            "bottleneck by the arithmetic": derived(plan, GPU, problem)["bottleneck"],
        }.items():
            rows.setdefault(name, []).append(cell)
    head = ["", *(kernel.name for kernel in kernels)]
    return table(head, [[name, *cells] for name, cells in rows.items()], left=len(head))


def blocks_of(branch: Branch) -> Mapping[str, Block]:
    """The blocks of a branch's page."""
    of_parts = all(issubclass(kernel.plan_kind, PartsPlan) for kernel in branch.kernels)
    first: Mapping[str, Block] = {"cut": cut_block} if of_parts else {"arithmetic": arithmetic_block}
    measured: Mapping[str, Block] = {"measured": measured_block} if branch.name in MEASURED else {}
    return {**first, **measured, "counted": counted_block, "limits": limits_block}


def _posed(branch: Branch, shape: tuple[int, int, int]) -> Problem:
    return Problem(*shape, branch.dtype, None, *branches.LAYOUTS)


def _sized(branch: Branch) -> Iterator[tuple[BranchKernel, Problem, BranchPlan]]:
    for kernel in branch.kernels:
        for size in SIZES[branch.name]:
            problem = _posed(branch, size)
            with suppress(UsageError):  # not every kernel takes every size
                yield kernel, problem, kernel.plan_for(problem, aligned=True)


def _values(plan: BranchPlan) -> str:
    """What a plan has beside what every plan has: ``rw 4, wk 2``; switches only where they are on."""
    values = {each.name: getattr(plan, each.name) for each in fields(plan) if each.init and each.name not in _COMMON}
    numbers = [f"{name} {value}" for name, value in values.items() if value is not None and not isinstance(value, bool)]
    return ", ".join([*numbers, *(name for name, value in values.items() if value is True)])


def _counts(plan: BranchPlan, counts: Counts, problem: Problem) -> Iterator[tuple[str, str]]:
    said = derived(plan, GPU, problem)
    yield "FLOP a byte asked for (derived)", pair(counts.flop_per_byte, said["flop_per_byte"])
    for name in ("a", "b", "c"):
        operand = counts.operands[name]
        if operand.all.requests:
            yield f"sectors a request of {name.upper()}", lane(operand.all)
        yield f"bytes of {name.upper()}", f"{operand.loaded_bytes + operand.stored_bytes:,}"
    if counts.copied.copies:
        yield "TMA copies", f"{counts.copied.copies:,}"
    for each in counts.matrix:
        kind = "mma.sync" if each.m == 16 else "wgmma"
        yield f"{kind} m{each.m}n{each.n}k{each.k}", f"{each.instructions:,}"
    yield "multiply-adds", f"{counts.multiply_adds:,}"
    yield (
        "shared bytes read a MAC (derived)",
        pair(counts.shared_load_bytes_per_mac, said["shared_load_bytes_per_mac"]),
    )
    if counts.shared_loads.requests:
        yield "wavefronts a shared load", lane(counts.shared_loads)
    if counts.shared_stores.requests:
        yield "wavefronts a shared store", lane(counts.shared_stores)


def _kb(count_of_bytes: int | None) -> str:
    return MISSING if count_of_bytes is None else number(count_of_bytes / 1024)
