#!/usr/bin/env python3
"""Every kernel compiles, for every architecture it is meant for, and its main loop is what it should be.

Each rung, dtype and plan (all layouts, aligned and not, and the counter-examples) goes through NVRTC for sm_90a, which
needs no GPU; so do the kernels of the branches with the plans of several sizes, the measured plans of tensor_rows.json,
and the default plans of the CUDA-core rungs for the architectures around it. A table of registers, shared memory and
stack is printed. A kernel that does not compile, draws a compiler warning or breaks a rule of sass_lint.py is a failure
(exit 1); so is a CUDA-core rung or a branch that spills or uses a stack anywhere, where a tensor-core rung may outside
its main loops.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import get_args

import sass_lint
import tensor_bench

from tilewright import branches, ladder, nvrtc
from tilewright.dtypes import DTYPES, DType
from tilewright.errors import TilewrightError, UsageError
from tilewright.kernel_file import KernelFile
from tilewright.plan_base import Plan
from tilewright.plan_tensor import TensorPlan
from tilewright.problem import Layout, Problem
from tilewright.ptxas import CompileReport

HOPPER = "sm_90a"
OTHERS = ("sm_80", "sm_120")  # CUDA-core rungs use nothing that is Hopper's alone: one before it, one after
LAST_CUDA_CORE_RUNG = 4
MOST_TOKENS = (1, 8, 64)
WEIGHTS = ((256, 7168), (2112, 7168), (4096, 4096), (28672, 4096))  # N, K: of each case of the branches' rules


@dataclass(frozen=True)
class Job:
    """One kernel to compile."""

    kernel: KernelFile
    plan: Plan
    what: str
    arch: str

    def __str__(self) -> str:
        place = " ".join(map(str, (*self.kernel.identity.values(), self.kernel.name)))
        return f"{place:18} {self.plan.dtype.name} {self.what:25} {self.arch:7}"


def jobs() -> Iterator[Job]:
    """Everything there is to compile."""
    for rung in ladder.rungs().values():
        for dtype in rung.dtypes:
            yield from (Job(rung, plan, what, HOPPER) for what, plan in plans(rung, dtype))
            if rung.number <= LAST_CUDA_CORE_RUNG:
                yield from (Job(rung, rung.plan(dtype), "aligned", arch) for arch in OTHERS)
    yield from branch_jobs()
    measured = {
        row.candidate.plan: row.candidate for row in tensor_bench.read_rows() if row.candidate.rung.number == 11
    }
    yield from (
        Job(chosen.rung, plan, f"of tensor_rows {n}", HOPPER) for n, (plan, chosen) in enumerate(measured.items())
    )


def branch_jobs() -> Iterator[Job]:
    """Each kernel of a branch with the plans of the sizes it is for, all that a caller may bring.

    Its first dtype with all sizes, the others, whose text differs by a type, with the branch's own.
    """
    for branch in branches.branches().values():
        more = [(m, n, k) for m in MOST_TOKENS for n, k in WEIGHTS]
        for kernel in branch.kernels:
            made: dict[Plan, str] = {}
            own = list(branch.shapes.values())
            sizes = [
                (dtype, size) for dtype in kernel.dtypes for size in (own + more if dtype == kernel.dtypes[0] else own)
            ]
            for (dtype, size), aligned in product(sizes, (True, False)):
                with suppress(UsageError):  # not every kernel takes every size, or rows off 16-byte boundaries
                    problem = Problem(*size, dtype, None, *branches.LAYOUTS)
                    plan = kernel.plan_for(problem, aligned=aligned)
                    what = "x".join(map(str, size)) + (" aligned" if aligned else " unaligned")
                    made.setdefault(plan, what)
                    made.setdefault(plan.with_(dependent_launch=True), f"{what} PDL")
            yield from (Job(kernel, plan, what, HOPPER) for plan, what in made.items())


def plans(rung: ladder.Rung, dtype: DType) -> Iterator[tuple[str, Plan]]:
    """The default plan for all that a caller may bring, and the mistakes it is shown beside, by name.

    Of rungs that multiply bf16 and fp16 alike the first has every layout, the other rows.
    """
    every = rung.any_layout and dtype == rung.dtypes[0]
    layouts: tuple[Layout, ...] = get_args(Layout) if every else ("row",)
    for a, b, aligned in product(layouts, layouts, (True, False)):
        with suppress(UsageError):  # not every rung takes rows off 16-byte boundaries
            plan = rung.plan(dtype, aligned=aligned, a_layout=a, b_layout=b)
            yield (f"{a} x {b} " if rung.any_layout else "") + ("aligned" if aligned else "unaligned"), plan
    for example in rung.counter_examples:
        if dtype in example.dtypes:
            yield example.name, rung.plan(dtype).with_(**example.changes)


def compiled(job: Job) -> nvrtc.Compiled | TilewrightError:
    """The kernel, or why there is none."""
    try:
        return nvrtc.compile_kernel(job.kernel.source(job.plan, "gpu", job.arch))
    except TilewrightError as error:
        return error


def problems(report: CompileReport, spills_allowed: bool = False) -> list[str]:
    """What the compiler's report says is wrong with a kernel."""
    if report.registers is None:
        return ["the compiler reported no registers: its log was not understood"]
    found = [f"warning: {line}" for line in report.warnings]
    if report.spill_bytes and not spills_allowed:
        found.append(f"{report.spill_bytes} bytes spilled")
    if report.stack_bytes and not spills_allowed:
        found.append(f"{report.stack_bytes} bytes of stack")
    return found


def lint(made: Mapping[Job, nvrtc.Compiled]) -> dict[Job, list[str]]:
    """What the disassembly says is wrong with the kernels for Hopper."""
    hopper = [job for job in made if job.arch == HOPPER]
    listings = sass_lint.disassemble([made[job].cubin for job in hopper])
    return {job: sass_lint.problems(code) for job, code in zip(hopper, listings, strict=True)}


def main() -> int:
    """Compile everything and print the table; 1 when anything is wrong."""
    todo = list(jobs())
    try:
        sass_lint.disassembler()
        nvrtc.nvrtc_version()
        with ThreadPoolExecutor() as pool:
            results = dict(zip(todo, pool.map(compiled, todo), strict=True))
        made = {job: kernel for job, kernel in results.items() if isinstance(kernel, nvrtc.Compiled)}
        found = lint(made)
    except TilewrightError as error:
        print(error, file=sys.stderr)
        return 1
    failed = 0
    print(f"{'rung':18} dtype {'plan':24} arch    registers  shared/block  stack  spilled")
    for job, kernel in results.items():
        if isinstance(kernel, nvrtc.Compiled):
            report = kernel.report
            wrong = problems(report, spills_allowed=isinstance(job.plan, TensorPlan)) + found.get(job, [])
            print(
                f"{job} {report.registers!s:>10} {job.plan.shared_bytes:>13} "
                f"{report.stack_bytes!s:>6} {report.spill_bytes!s:>8}"
            )
        else:
            wrong = [str(kernel)]
        failed += bool(wrong)
        for problem in wrong:
            print(f"{job}: {problem}", file=sys.stderr)
    covered = {job.plan.dtype.name for job in todo}
    print(f"kernels: {len(todo)} compiled in {', '.join(d for d in DTYPES if d in covered)}, {failed} failed")
    return 1 if failed or not todo else 0


if __name__ == "__main__":
    sys.exit(main())
