"""Run a kernel: from a plan and matrices in a backend's memory to a filled C."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from tilewright.backends.base import Backend, Kernel, Matrix, Packed, TensorMap
from tilewright.epilogue.code import PLAIN, BoundEpilogue
from tilewright.errors import UsageError
from tilewright.kernel_file import KernelFile
from tilewright.plan_base import Plan
from tilewright.plan_tensor import LAST, TMA
from tilewright.problem import Problem
from tilewright.source import KernelSource, Target
from tilewright.workspace import make, parts_of

DEFAULT_ARCH = "sm_90a"


@dataclass(frozen=True)
class Operands:
    """A ``(m, k)``, B ``(k, n)`` and C ``(m, n)`` in one backend's memory; C is row-major, A and B are either."""

    a: Matrix
    b: Matrix
    c: Matrix

    @property
    def aligned(self) -> bool:
        """Whether 16-byte accesses are legal on every line of all three."""
        return self.a.aligned16 and self.b.aligned16 and self.c.aligned16

    @property
    def problem(self) -> Problem:
        """The problem they pose. Raises ``UsageError`` when shapes or dtypes do not fit, or C is column-major."""
        a, b, c = self.a, self.b, self.c
        if a.dtype != b.dtype:
            raise UsageError(f"dtypes do not fit: A {a.dtype}, B {b.dtype}; both must be the same")
        if a.cols != b.rows or c.rows != a.rows or c.cols != b.cols:
            raise UsageError(
                f"shapes do not fit: A {a.rows}x{a.cols}, B {b.rows}x{b.cols}, C {c.rows}x{c.cols}; "
                "C (m, n) = A (m, k) B (k, n)"
            )
        if c.layout != "row":
            raise UsageError("C is column-major and every rung writes rows: compute its transpose, B^T A^T, instead")
        lda, ldb, ldc = (max(x.ld, 1) for x in (a, b, c))  # a tight matrix without elements has ld 0
        return Problem(c.rows, c.cols, a.cols, a.dtype, c.dtype, a.layout, b.layout, lda, ldb, ldc)


def make_operands(backend: Backend, problem: Problem, a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> Operands:
    """Copy A and B in, laid out as the problem says, and make a C full of NaN."""
    return Operands(
        backend.upload(a, problem.lda, problem.a_layout),
        backend.upload(b, problem.ldb, problem.b_layout),
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
    cluster: int = 1
    dependent: bool = False

    def __call__(self, backend: Backend, stream: Any = None) -> None:
        """Enqueue it; nothing to do for an empty C."""
        if 0 not in self.grid:
            backend.launch(
                self.kernel,
                self.grid,
                self.block,
                self.args,
                self.shared_bytes,
                cluster=self.cluster,
                dependent=self.dependent,
                stream=stream,
            )


def target_of(backend: Backend) -> tuple[Target, str | None]:
    """What a backend compiles for."""
    if backend.name == "emulator":
        return "host", None
    return "gpu", getattr(backend, "arch", DEFAULT_ARCH)


def source_for(backend: Backend, kernel: KernelFile, plan: Plan, epilogue: BoundEpilogue | None = None) -> KernelSource:
    """The text of a kernel that a backend compiles. Raises ``UsageError`` for an epilogue where it applies none."""
    return kernel.source(plan, *target_of(backend), PLAIN if epilogue is None else epilogue.compiled)


def prepare(
    backend: Backend,
    kernel: KernelFile,
    plan: Plan,
    operands: Operands,
    *,
    workspace: Matrix | None = None,
    epilogue: BoundEpilogue | None = None,
) -> Launch:
    """Compile a rung, or a kernel of a branch, for a plan and bind it to operands.

    ``workspace`` is the caller's memory of ``plan.workspace_bytes`` bytes (see ``workspace``); without one a launch
    that needs it gets its own. ``epilogue`` is applied to the accumulators; None rounds and stores them. Raises
    ``UsageError`` when the plan is another kernel's or for another dtype or layout, when it needs 16-byte alignment
    that the operands lack, when the operands do not fit together, when the workspace does not do, when C lies where A
    or B does, when the kernel applies no epilogue, and when the epilogue's arrays lie where they are overwritten;
    ``CompileError`` when the kernel does not compile, ``UnavailableError`` when there is no compiler.
    """
    problem = operands.problem
    if plan.of != kernel.place:
        raise UsageError(f"plan is of {plan.of}; {kernel.place} ({kernel.name}) needs one of its own")
    if plan.dtype != problem.dtype:
        raise UsageError(f"plan is for {plan.dtype} and the operands are {problem.dtype}: both must be the same")
    if plan.c_dtype != problem.out_dtype:
        raise UsageError(
            f"dtypes do not fit: {plan.of} writes C in {plan.c_dtype} by this plan, and C is {problem.out_dtype}"
        )
    for name, planned, layout in (
        ("A", plan.a_layout, problem.a_layout),
        ("B", plan.b_layout, problem.b_layout),
    ):
        if planned != layout:
            raise UsageError(f"plan is for {planned}-major {name} and the operand is {layout}-major")
    require_tma(plan, operands)
    if plan.aligned and not fits(plan, operands):
        raise UsageError("the plan is for rows on 16-byte boundaries and an operand's rows are not: use aligned=False")
    for name, matrix in (("A", operands.a), ("B", operands.b)):
        if overlap(matrix, operands.c):
            raise UsageError(
                f"C shares memory with {name}, which blocks still read while others write C: it needs memory of its own"
            )
    source = source_for(backend, kernel, plan, epilogue)
    parts = workspace_arguments(backend, plan, problem, workspace)
    if epilogue is not None:
        _require_apart(epilogue, operands, parts)
    for name, matrix in (("A", operands.a), ("B", operands.b), ("C", operands.c)):
        if any(overlap(matrix, part) for part in parts):
            raise UsageError(f"{name} shares memory with the workspace, which blocks write: it needs memory of its own")
    return Launch(
        backend.compile(source),
        plan.grid(problem),
        plan.block,
        [*arguments(plan, operands), *parts, *epilogue_arguments(plan, operands, epilogue)],
        plan.shared_bytes,
        plan.cluster,
        plan.dependent,
    )


def fits(plan: Plan, operands: Operands) -> bool:
    """Whether 16-byte accesses are legal on every line of the operands that an aligned plan has them on."""
    return all(getattr(operands, name).aligned16 for name in plan.wide)


def overlap(one: Matrix, other: Matrix) -> bool:
    """Whether two matrices have an element in the same place. Padding is none: both may be views of one matrix."""

    def lines(matrix: Matrix) -> np.ndarray[Any, Any]:
        size = matrix.dtype.itemsize
        described = {
            "version": 3,
            "data": (matrix.pointer, True),  # an address, for arithmetic: nothing is read there
            "shape": (matrix.lines, matrix.line * size),
            "strides": (matrix.ld * size, 1),
            "typestr": "|u1",
        }
        return np.asarray(SimpleNamespace(__array_interface__=described))

    return one.span > 0 and other.span > 0 and bool(np.shares_memory(lines(one), lines(other)))


def require_tma(plan: Plan, operands: Operands) -> None:
    """Raise ``UsageError`` for the first operand that the plan moves by TMA and TMA cannot move."""
    for each in plan.tensor_boxes:
        name, matrix = each.operand.upper(), getattr(operands, each.operand)
        if not matrix.aligned16:
            apart = matrix.ld * matrix.dtype.itemsize
            taken = (LAST if each.operand == "c" else TMA) - 1  # C goes by TMA in the last rung alone
            raise UsageError(
                f"{plan.of} moves {name} by TMA, whose lines start on 16-byte boundaries; it lies at "
                f"{matrix.pointer:#x} with {matrix.layout}s {apart} bytes apart, which rungs up to {taken} take"
            )


def arguments(plan: Plan, operands: Operands) -> list[Any]:
    """The arguments of ``tw_gemm``: tensor maps, the sizes, then pointers and leading dimensions of the rest."""
    a, b, c = operands.a, operands.b, operands.c
    # TMA stores write whole chunks of 16 bytes: the map of C ends with the last whole one of a row, and the kernel
    # stores the columns after it through the pointer. (A map has at least one column; the kernel then uses none.)
    chunk = 16 // c.dtype.itemsize
    seen = {"a": a, "b": b, "c": replace(c, cols=max(c.cols // chunk * chunk, min(c.cols, 1)))}
    # Of a matrix without elements nothing is loaded, yet TMA traps unless its map begins in mapped memory (seen on an
    # H200), and such a matrix may lie anywhere: its map begins where C does.
    seen |= {name: replace(seen[name], pointer=c.pointer // 16 * 16) for name in "ab" if not seen[name].span}
    maps = {each.operand: TensorMap(seen[each.operand], each.box, each.swizzle_bytes) for each in plan.tensor_boxes}
    sizes = [np.int32(x) for x in (c.rows, c.cols, a.cols)]
    read = () if "a" in maps else ((a, np.int64(a.ld)), (b, np.int64(b.ld)))
    pointers = (*read, (c, np.int64(c.ld)))
    return [*maps.values(), *sizes, *(value for pair in pointers for value in pair)]


def workspace_arguments(backend: Backend, plan: Plan, problem: Problem, memory: Matrix | None = None) -> list[Any]:
    """What follows ``arguments`` where a kernel has a workspace: the caller's or a new one."""
    needed = plan.workspace(problem)
    if needed is None:
        return []
    return list(parts_of(make(backend, needed.nbytes) if memory is None else memory, needed))


def epilogue_arguments(plan: Plan, operands: Operands, epilogue: BoundEpilogue | None = None) -> list[Packed]:
    """What follows that where a kernel applies an epilogue, the plain one too."""
    return [(epilogue or BoundEpilogue()).argument(operands.c.rows, operands.c.cols)] if plan.has_epilogue else []


def launch_arguments(
    backend: Backend, plan: Plan, operands: Operands, epilogue: BoundEpilogue | None = None
) -> list[Any]:
    """All arguments of ``tw_gemm``, with a workspace of their own where it needs one."""
    parts = workspace_arguments(backend, plan, operands.problem)
    return [*arguments(plan, operands), *parts, *epilogue_arguments(plan, operands, epilogue)]


def _require_apart(epilogue: BoundEpilogue, operands: Operands, parts: Sequence[Matrix]) -> None:
    """Raise ``UsageError`` where what an epilogue reads or writes is written or read by others meanwhile.

    An array that is C itself is read element by element by who then writes it. No more is looked at.
    """
    a, b, c = operands.a, operands.b, operands.c
    outputs = epilogue.arrays(epilogue.code.outputs)
    for name, (value, dtype) in {**epilogue.arrays(epilogue.code.args), **outputs}.items():
        seen = value.seen(dtype, c.rows, c.cols)
        same = (value.pointer, dtype) == (c.pointer, c.dtype)
        same = same and (value.row == c.ld or c.rows <= 1) and (value.col == 1 or c.cols <= 1)
        taken = [("the workspace", part) for part in parts]
        if name in outputs:
            if (value.row == 0 and c.rows > 1) or (value.col == 0 and c.cols > 1):
                raise UsageError(
                    f"{name} of the epilogue has strides {value.row} and {value.col}; an output has an element for "
                    "each of C's"
                )
            taken += [("A", a), ("B", b), ("C", c)]
        elif not same:
            taken += [("C", c)]
        for other, matrix in taken:
            if overlap(seen, matrix):
                raise UsageError(f"{name} of the epilogue shares memory with {other}: it needs memory of its own")


def default_plan(kernel: KernelFile, operands: Operands) -> Plan:
    """The kernel's plan for operands of this kind and alignment. Raises ``UsageError`` where it has none."""
    problem = operands.problem
    plan = kernel.plan_for(problem, aligned=True)
    require_tma(plan, operands)
    return plan if fits(plan, operands) else kernel.plan_for(problem, aligned=False)


def run(
    backend: Backend,
    kernel: KernelFile,
    operands: Operands,
    plan: Plan | None = None,
    *,
    workspace: Matrix | None = None,
    epilogue: BoundEpilogue | None = None,
    stream: Any = None,
) -> None:
    """C = A B by a rung or a branch's kernel, with its default plan for these operands unless one is given.

    ``workspace`` and ``epilogue`` as in ``prepare``; a workspace that is made here is freed at the end, for which the
    caller waits.
    """
    plan = plan or default_plan(kernel, operands)
    prepare(backend, kernel, plan, operands, workspace=workspace, epilogue=epilogue)(backend, stream)
