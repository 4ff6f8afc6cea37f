#!/usr/bin/env python3
"""Every kernel compiles, for every architecture it is meant for, and keeps what it holds in registers.

Each rung, dtype and plan (aligned and not, and the counter-examples) goes through NVRTC, which needs no GPU: sm_90a
for all, and for the CUDA-core rungs the architectures around it. A table of registers, shared memory and stack is
printed; a kernel that spills, uses a stack, draws a compiler warning or does not compile is a failure (exit 1).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tilewright import ladder, nvrtc
from tilewright.dtypes import DTYPES
from tilewright.errors import TilewrightError
from tilewright.plan import Plan

HOPPER = "sm_90a"
OTHERS = ("sm_80", "sm_89", "sm_100", "sm_120")  # CUDA-core rungs use nothing that is Hopper's alone
LAST_CUDA_CORE_RUNG = 4


@dataclass(frozen=True)
class Job:
    """One kernel to compile."""

    rung: ladder.Rung
    plan: Plan
    what: str
    arch: str

    def __str__(self) -> str:
        return f"{self.rung.number} {self.rung.name:16} {self.plan.dtype.name} {self.what:10} {self.arch:7}"


def jobs() -> Iterator[Job]:
    """Everything there is to compile."""
    for rung in ladder.rungs().values():
        arches = (HOPPER, *OTHERS) if rung.number <= LAST_CUDA_CORE_RUNG else (HOPPER,)
        for dtype in rung.dtypes:
            plans = {"aligned": rung.plan(dtype), "unaligned": rung.plan(dtype, aligned=False)}
            plans |= {
                example.name: rung.plan(dtype).with_(**example.changes)
                for example in rung.counter_examples
                if dtype in example.dtypes
            }
            for what, plan in plans.items():
                for arch in arches:
                    yield Job(rung, plan, what, arch)


def compiled(job: Job) -> nvrtc.CompileReport | TilewrightError:
    """The compiler's report, or why there is none."""
    try:
        return nvrtc.compile_kernel(job.rung.source(job.plan, "gpu", job.arch)).report
    except TilewrightError as error:
        return error


def problems(report: nvrtc.CompileReport | TilewrightError) -> list[str]:
    """What is wrong with one compiled kernel."""
    if isinstance(report, TilewrightError):
        return [str(report)]
    if report.registers is None:
        return ["the compiler reported no registers: its log was not understood"]
    found = [f"warning: {line}" for line in report.warnings]
    if report.spill_bytes:
        found.append(f"{report.spill_bytes} bytes spilled")
    if report.stack_bytes:
        found.append(f"{report.stack_bytes} bytes of stack")
    return found


def main() -> int:
    """Compile everything and print the table; 1 when anything is wrong."""
    if (reason := nvrtc.unavailable_reason()) is not None:
        print(reason, file=sys.stderr)
        return 1
    todo = list(jobs())
    covered = {job.plan.dtype.name for job in todo}
    failed = 0
    print("rung               dtype plan       arch    registers  shared/block  stack  spilled")
    with ThreadPoolExecutor() as pool:
        for job, report in zip(todo, pool.map(compiled, todo), strict=True):
            found = problems(report)
            failed += bool(found)
            if isinstance(report, nvrtc.CompileReport):
                print(
                    f"{job} {report.registers!s:>10} {job.plan.shared_bytes:>13} "
                    f"{report.stack_bytes!s:>6} {report.spill_bytes!s:>8}"
                )
            for problem in found:
                print(f"{job}: {problem}", file=sys.stderr)
    print(f"kernels: {len(todo)} compiled in {', '.join(d for d in DTYPES if d in covered)}, {failed} failed")
    return 1 if failed or not todo else 0


if __name__ == "__main__":
    sys.exit(main())
