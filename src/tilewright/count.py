"""Count what a rung moves, by tracing one block of it in the emulator."""

from __future__ import annotations

from dataclasses import replace

from tilewright.backends.emulator import EmulatorBackend
from tilewright.backends.emulator_counts import Counts
from tilewright.backends.emulator_trace import trace
from tilewright.ladder import Rung
from tilewright.operands import random_operands
from tilewright.plan import Plan
from tilewright.problem import Problem
from tilewright.run import arguments, make_operands

# The most of M and N in tiles, and of K, that is traced: the counts a MAC do not change beyond.
_TILES = 2
_DEPTH = 128


def count(emulator: EmulatorBackend, rung: Rung, plan: Plan, problem: Problem, seed: int = 0) -> Counts | None:
    """The counts of the block nearest the middle of C; None for a problem without work.

    A large problem is cut to two tiles each way and a K of 128, its leading dimensions kept. The multiply-adds that C
    needs of the block are counted apart from those that it executes, on padding too.
    """
    if 0 in (problem.m, problem.n, problem.k):
        return None
    m, n, k = min(problem.m, _TILES * plan.bm), min(problem.n, _TILES * plan.bn), min(problem.k, _DEPTH)
    part = Problem(m, n, k, problem.dtype, lda=problem.lda, ldb=problem.ldb, ldc=problem.ldc)
    operands = make_operands(emulator, part, *random_operands(part, seed))
    source = rung.source(plan, "host")
    block = plan.interior_block(part)
    args = arguments(operands)
    counts = trace(emulator, source, plan.grid(part), plan.block, args, plan.shared_bytes, [block])
    down, across = divmod(block, plan.tiles(part)[1])
    return replace(counts, useful=min(plan.bm, m - down * plan.bm) * min(plan.bn, n - across * plan.bn) * k)
