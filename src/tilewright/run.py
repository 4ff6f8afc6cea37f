"""Run a rung: from a plan and matrices in a backend's memory to a filled C."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.backends.base import Backend, Kernel, Matrix
from tilewright.errors import UsageError
from tilewright.ladder import Rung
from tilewright.plan import Plan
from tilewright.problem import Problem
from tilewright.source import KernelSource, Target

DEFAULT_ARCH = "sm_90a"


@dataclass(frozen=True)
class Operands:
    """A ``(m, k)``, B ``(k, n)`` and C ``(m, n)``, row-major, in one backend's memory."""

    a: Matrix
    b: Matrix
    c: Matrix

    @property
    def aligned(self) -> bool:
        """Whether 16-byte accesses are legal on every row of all three."""
        return self.a.aligned16 and self.b.aligned16 and self.c.aligned16

    @property
    def problem(self) -> Problem:
        """The problem they pose. Raises ``UsageError`` when their shapes or dtypes do not fit together."""
        a, b, c = self.a, self.b, self.c
        if not a.dtype == b.dtype == c.dtype:
            raise UsageError(f"dtypes do not fit: A {a.dtype}, B {b.dtype}, C {c.dtype}; all three must be the same")
        if a.cols != b.rows or c.rows != a.rows or c.cols != b.cols:
            raise UsageError(
                f"shapes do not fit: A {a.rows}x{a.cols}, B {b.rows}x{b.cols}, C {c.rows}x{c.cols}; "
                "C (m, n) = A (m, k) B (k, n)"
            )
        lda, ldb, ldc = (max(x.ld, 1) for x in (a, b, c))  # a tight matrix without columns has ld 0
        return Problem(c.rows, c.cols, a.cols, a.dtype, c.dtype, lda=lda, ldb=ldb, ldc=ldc)


def make_operands(backend: Backend, problem: Problem, a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> Operands:
    """Copy A and B in with the problem's leading dimensions, and make a C full of NaN."""
    return Operands(
        backend.upload(a, problem.lda),
        backend.upload(b, problem.ldb),
        backend.empty(problem.m, problem.n, problem.out_dtype, problem.ldc),
    )


@dataclass(frozen=True)
class Launch:
    """A kernel with everything a launch needs but the stream."""

    kernel: Kernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    args: Sequence[Any]
    shared_bytes: int

    def __call__(self, backend: Backend, stream: Any = None) -> None:
        """Enqueue it; nothing to do for an empty C."""
        if 0 not in self.grid:
            backend.launch(self.kernel, self.grid, self.block, self.args, self.shared_bytes, stream=stream)


def target_of(backend: Backend) -> tuple[Target, str | None]:
    """What a backend compiles for."""
    if backend.name == "emulator":
        return "host", None
    return "gpu", getattr(backend, "arch", DEFAULT_ARCH)


def source_for(backend: Backend, rung: Rung, plan: Plan) -> KernelSource:
    """The text of a rung that a backend compiles."""
    return rung.source(plan, *target_of(backend))


def prepare(backend: Backend, rung: Rung, plan: Plan, operands: Operands) -> Launch:
    """Compile a rung for a plan and bind it to operands.

    Raises ``UsageError`` when the plan is another rung's or for another dtype, when it needs 16-byte alignment that
    the operands lack, and when the operands do not fit together; ``CompileError`` when the kernel does not compile,
    ``UnavailableError`` when there is no compiler.
    """
    problem = operands.problem
    if plan.rung != rung.number:
        raise UsageError(f"plan is of rung {plan.rung}; rung {rung.number} ({rung.name}) needs one of its own")
    if plan.dtype != problem.dtype:
        raise UsageError(f"plan is for {plan.dtype} and the operands are {problem.dtype}: both must be the same")
    if plan.aligned and not operands.aligned:
        raise UsageError("the plan is for rows on 16-byte boundaries and an operand's rows are not: use aligned=False")
    kernel = backend.compile(source_for(backend, rung, plan))
    return Launch(kernel, plan.grid(problem), plan.block, arguments(operands), plan.shared_bytes)


def arguments(operands: Operands) -> list[Any]:
    """The arguments of ``tw_gemm``."""
    a, b, c = operands.a, operands.b, operands.c
    m, n, k = (np.int32(x) for x in (c.rows, c.cols, a.cols))
    return [m, n, k, a, np.int64(a.ld), b, np.int64(b.ld), c, np.int64(c.ld)]


def run(backend: Backend, rung: Rung, operands: Operands, plan: Plan | None = None, *, stream: Any = None) -> None:
    """C = A B by a rung, with its default plan for these operands unless one is given."""
    prepare(backend, rung, plan or rung.plan(operands.a.dtype, aligned=operands.aligned), operands)(backend, stream)
