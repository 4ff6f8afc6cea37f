"""What the ladder's pages are made from: counts by the emulator and reports by the compiler, each made once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from typing import Any, get_args

from ladder_records import MISSING, ROOT, SIZE, table

from tilewright import nvrtc
from tilewright.backends.emulator import EmulatorBackend
from tilewright.backends.emulator_counts import Counts, LineCounts, Requests
from tilewright.backends.emulator_lines import SourceLine
from tilewright.count import count
from tilewright.dtypes import DType
from tilewright.errors import UnavailableError
from tilewright.kernel_file import KernelFile
from tilewright.ladder import Rung
from tilewright.plan_base import Plan
from tilewright.plan_tensor import TensorPlan
from tilewright.problem import Layout, Problem
from tilewright.ptxas import CompileReport
from tilewright.report.table import number
from tilewright.run import DEFAULT_ARCH

# Beside the ladder's own counter-examples: what a detail of a rung's layout is there for.
WITHOUT: Mapping[int, tuple[tuple[str, Mapping[str, Any]], ...]] = {2: (("no padding", {"pad": 0}),)}
LAYOUTS = tuple((a, b) for a in get_args(Layout) for b in get_args(Layout))


@cache
def emulator() -> EmulatorBackend:
    """The emulator on this machine's compiler; the counts are the same with every compiler (the tests hold it)."""
    return EmulatorBackend()


def posed(plan: Plan) -> Problem:
    """The problem that is measured, in a plan's type and layouts."""
    layouts = (plan.a_layout, plan.b_layout) if isinstance(plan, TensorPlan) else ("row", "row")
    return Problem(SIZE, SIZE, SIZE, plan.dtype, None, *layouts)


@cache
def counted(rung: Rung, plan: Plan) -> Counts:
    """The counts of one interior tile of the problem that is measured, or of a cluster's, its K cut short."""
    found = count(emulator(), rung, plan, posed(plan))
    places = () if found is None else (*(each.line for each in found.lines), *(each.line for each in found.copy_lines))
    if found is None or None in places:
        raise UnavailableError("source lines are not known here: they need pyelftools and an ELF system")
    return found


@cache
def report(kernel: KernelFile, plan: Plan) -> CompileReport:
    """What the pinned NVRTC says of a plan; another one counts registers differently."""
    pinned = re.search(r"nvidia-cuda-nvrtc==(\d+)\.(\d+)", (ROOT / "pyproject.toml").read_text("utf-8"))
    if pinned is None or nvrtc.nvrtc_version() != (int(pinned[1]), int(pinned[2])):
        raise UnavailableError("registers are those that the NVRTC of the extra cuda13 reports, which is not here")
    return nvrtc.compile_kernel(kernel.source(plan, "gpu", DEFAULT_ARCH)).report


def mistakes(rung: Rung, dtype: DType) -> list[tuple[str, Plan]]:
    """The rung as it is, then each mistake it is shown beside."""
    plan = rung.plan(dtype)
    shown = [(m.name, m.changes) for m in rung.counter_examples if dtype in m.dtypes]
    without = WITHOUT.get(rung.number, ())
    return [(rung.name, plan)] + [(name, plan.with_(**changes)) for name, changes in (*shown, *without)]


def layouts(rung: Rung) -> list[Plan]:
    """The rung's plan for each layout of A and B, row-major ones first; in its first type, as counts do not differ."""
    return [rung.plan(rung.dtypes[0], a_layout=a, b_layout=b) for a, b in LAYOUTS] if rung.any_layout else []


def compile_ahead(rungs: Sequence[Rung]) -> None:
    """Compile everything side by side; the caches hold it afterwards. What cannot be compiled here is left out."""

    def compile_one(job: tuple[Rung, Plan]) -> None:
        rung, plan = job
        with suppress(UnavailableError):
            emulator().compile(rung.source(plan, "host"), instrumented=True)
        with suppress(UnavailableError):
            if plan == rung.plan(plan.dtype):  # of a mistake, or another layout, the registers are not shown
                report(rung, plan)

    jobs = [(rung, plan) for rung in rungs for dtype in rung.dtypes for _, plan in mistakes(rung, dtype)]
    jobs += [(rung, plan) for rung in rungs for plan in layouts(rung)[1:]]
    with ThreadPoolExecutor() as pool:
        list(pool.map(compile_one, jobs))


# ---- cells of the tables


def pair(actual: float | None, ideal: float | None) -> str:
    """A figure and, in brackets, what it is held against."""
    return MISSING if actual is None else f"{number(actual)} ({number(ideal)})"


def lane(requests: Requests) -> str:
    """Wavefronts or sectors a request, beside the ideal."""
    return pair(requests.cost_per_request, requests.ideal_per_request)


def line_rows(rung: Rung, counts: Counts) -> str:
    """The requests of lanes by source line, as a table."""
    head = ["line", "", "memory", "requests", "bytes a lane", "cost", "ideal", "excess"]
    return table(head, [_line_row(rung, line) for line in counts.lines], left=3)


def place(rung: Rung, line: SourceLine | None) -> str:
    """A source line of the rung, as a link."""
    assert line is not None
    return f"[{line.line}](../../src/tilewright/cuda/rungs/{rung.path.name}#L{line.line})"


def _line_row(rung: Rung, counts: LineCounts) -> list[str]:
    r, kind = counts.requests, f"async {counts.kind}" if counts.asynchronous else counts.kind
    figures = [counts.bytes_per_lane, r.cost_per_request, r.ideal_per_request, r.excess_per_request]
    memory = counts.memory if counts.memory == "shared" else counts.memory.upper()
    return [place(rung, counts.line), kind, memory, f"{r.requests:,}", *map(number, figures)]
