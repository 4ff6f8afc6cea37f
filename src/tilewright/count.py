"""Count what a kernel moves, by tracing one tile of it, or one cluster's tiles, in the emulator."""

from __future__ import annotations

from dataclasses import replace

from tilewright.backends.emulator import EmulatorBackend
from tilewright.backends.emulator_counts import Counts
from tilewright.backends.emulator_trace import trace
from tilewright.kernel_file import KernelFile
from tilewright.operands import random_operands
from tilewright.plan_base import Plan
from tilewright.problem import Problem
from tilewright.run import launch_arguments, make_operands


def count(emulator: EmulatorBackend, kernel: KernelFile, plan: Plan, problem: Problem, seed: int = 0) -> Counts | None:
    """The counts of one tile, or of the tiles of one cluster; None for a problem without work.

    A large problem is cut to that and to a short K (``Plan.counted``), its leading dimensions kept, so that each block
    has one tile, a whole one where there is any, whatever the grid and its order. The multiply-adds that C needs are
    counted apart from those that are executed, on padding too.
    """
    if 0 in (problem.m, problem.n, problem.k):
        return None
    m, n, k = (min(pair) for pair in zip((problem.m, problem.n, problem.k), plan.counted, strict=True))
    part = problem.changed(m=m, n=n, k=k, lda=problem.lda, ldb=problem.ldb, ldc=problem.ldc)
    operands = make_operands(emulator, part, *random_operands(part, seed))
    counts = trace(
        emulator,
        kernel.source(plan, "host"),
        (plan.cluster, 1, 1),
        plan.block,
        launch_arguments(emulator, plan, operands),
        plan.shared_bytes,
        cluster=plan.cluster,
        names=("a", "b", "c", "partials", "counters"),
    )
    return replace(counts, useful=m * n * k)
