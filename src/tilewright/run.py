"""Run a kernel: from a plan and matrices in a backend's memory to a filled C."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np

from tilewright.backends.base import Backend, Kernel, Matrix, Packed, TensorMap
from tilewright.batch import Batch
from tilewright.epilogue.code import PLAIN, BoundEpilogue
from tilewright.errors import UsageError
from tilewright.kernel_file import KernelFile
from tilewright.plan_base import Plan, TensorBox
from tilewright.plan_tensor import LARGEST_PITCH, LAST, TMA
from tilewright.problem import Problem
from tilewright.source import KernelSource, Target
from tilewright.workspace import make, parts_of

DEFAULT_ARCH = "sm_90a"
NO_SECOND = b"\0"  # tw::SecondMap<false>
MOST_OVERLAP_WORK = 10**6  # candidates that numpy looks at: a tenth of a second


@dataclass(frozen=True)
class Operands:
    """A ``(m, k)``, B ``(k, n)`` and C ``(m, n)`` in one backend's memory; C is row-major, A and B are either.

    Of a ``batch`` they are the first matrices. ``second`` is the other B of a pair: of the same shape, dtype and
    layout, and of a batch with the same strides.
    """

    a: Matrix
    b: Matrix
    c: Matrix
    batch: Batch | None = field(default=None, kw_only=True)
    second: Matrix | None = field(default=None, kw_only=True)

    @property
    def of_each_b(self) -> tuple[Operands, ...]:
        """These, of a pair those with either B."""
        first = replace(self, second=None)
        return (first,) if self.second is None else (first, replace(first, b=self.second))

    @property
    def aligned(self) -> bool:
        """Whether 16-byte accesses are legal on every line of all three."""
        return all(self.aligned16(name) for name in "abc")

    def aligned16(self, name: str) -> bool:
        """Whether they are on those of ``"a"``, ``"b"`` or ``"c"``, in every matrix of a batch."""
        matrix: Matrix = getattr(self, name)
        steps = () if self.batch is None or not matrix.span else self.batch.strides(name)
        return matrix.aligned16 and all(step * matrix.dtype.itemsize % 16 == 0 for step in steps)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Products along each dimension of the batch."""
        return (1, 1, 1) if self.batch is None else self.batch.sizes

    def seen(self, name: str) -> Matrix:
        """All memory of an operand (``Batch.seen``)."""
        matrix: Matrix = getattr(self, name)
        return matrix if self.batch is None else self.batch.seen(name, matrix)

    @property
    def problem(self) -> Problem:
        """The problem they pose. Raises ``UsageError`` when shapes or dtypes do not fit, or C is column-major."""
        a, b, c = self.a, self.b, self.c
        if a.dtype != b.dtype:
            raise UsageError(f"dtypes do not fit: A {a.dtype}, B {b.dtype}; both must be the same")
        second = self.second
        if second is not None and (second.rows, second.cols, second.dtype, second.layout) != (
            b.rows, b.cols, b.dtype, b.layout
        ):  # fmt: skip
            raise UsageError(
                f"the Bs of the pair do not fit: {b.dtype} {b.rows}x{b.cols} {b.layout}-major and {second.dtype} "
                f"{second.rows}x{second.cols} {second.layout}-major; both must be the same"
            )
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
    if plan.batched != (operands.batch is not None):
        of = "a batch" if plan.batched else "one product"
        raise UsageError(f"plan is of {of} and the operands are not: ``batched`` says which")
    if plan.paired != (operands.second is not None):
        of = "a pair of Bs" if plan.paired else "one B"
        raise UsageError(f"plan is of {of} and the operands are not: ``paired`` says which")
    for each in operands.of_each_b:
        require_tma(plan, each)
        if plan.aligned and not fits(plan, each):
            raise UsageError(
                "the plan is for rows on 16-byte boundaries and an operand's rows are not: use aligned=False"
            )
        for name in "ab":
            if _meet(each, name):
                raise UsageError(
                    f"C shares memory with {name.upper()}, which blocks still read while others write C: it needs "
                    "memory of its own"
                )
    source = source_for(backend, kernel, plan, epilogue)
    parts = workspace_arguments(backend, plan, problem, workspace)
    if epilogue is not None:
        _require_apart(epilogue, operands, parts)
    for name in "abc":
        if any(overlap(operands.seen(name), part) for part in parts):
            raise UsageError(
                f"{name.upper()} shares memory with the workspace, which blocks write: it needs memory of its own"
            )
    return Launch(
        backend.compile(source),
        plan.grid(problem, prod(operands.sizes)),
        plan.block,
        [*arguments(plan, operands), *parts, *epilogue_arguments(plan, operands, epilogue)],
        plan.shared_bytes,
        plan.cluster,
        plan.dependent,
    )


def fits(plan: Plan, operands: Operands) -> bool:
    """Whether 16-byte accesses are legal on every line of the operands that an aligned plan has them on."""
    return all(operands.aligned16(name) for name in plan.wide)


def overlap(one: Matrix, other: Matrix, batch: Batch | None = None, name: str = "c") -> bool:
    """Whether two matrices have an element in the same place. Padding is none: both may be views of one matrix.

    Of a ``batch`` the first is C and the other its operand ``name``; what is too hard to tell is taken as an overlap.
    """

    def lines(matrix: Matrix, operand: str) -> np.ndarray[Any, Any]:
        size = matrix.dtype.itemsize
        sizes, steps = ((), ()) if batch is None else (batch.sizes, batch.strides(operand))
        described = {
            "version": 3,
            "data": (matrix.pointer, True),  # an address, for arithmetic: nothing is read there
            "shape": (*sizes, matrix.lines, matrix.line * size),
            "strides": (*(step * size for step in steps), matrix.ld * size, 1),
            "typestr": "|u1",
        }
        return np.asarray(SimpleNamespace(__array_interface__=described))

    if not one.span or not other.span or (batch is not None and not batch.count):
        return False
    try:
        return bool(np.shares_memory(lines(one, "c"), lines(other, name), max_work=MOST_OVERLAP_WORK))  # type: ignore[arg-type,unused-ignore]
    except np.exceptions.TooHardError:
        return True


def _meet(operands: Operands, name: str) -> bool:
    """Whether C and an operand do, in any two matrices of a batch."""
    return overlap(operands.c, getattr(operands, name), operands.batch, name)


def require_tma(plan: Plan, operands: Operands) -> None:
    """Raise ``UsageError`` for the first operand that the plan moves by TMA and TMA cannot move."""
    for each in plan.tensor_boxes:
        name, matrix = each.operand.upper(), getattr(operands, each.operand)
        if not operands.aligned16(each.operand):
            size = matrix.dtype.itemsize
            apart = f"{matrix.ld * size} bytes apart"
            if operands.batch is not None:
                apart += f" and matrices {', '.join(str(step * size) for step in operands.batch.strides(each.operand))}"
            taken = (LAST if each.operand == "c" else TMA) - 1  # C goes by TMA in the last rung alone
            raise UsageError(
                f"{plan.of} moves {name} by TMA, whose lines start on 16-byte boundaries; it lies at "
                f"{matrix.pointer:#x} with {matrix.layout}s {apart}, which rungs up to {taken} take"
            )
        steps = (0, 0, 0) if operands.batch is None or not matrix.span else operands.batch.strides(each.operand)
        for step in steps:
            if not 0 <= step * matrix.dtype.itemsize < LARGEST_PITCH:
                raise UsageError(
                    f"{plan.of} moves {name} by TMA, which steps forwards by less than 2^40 bytes; matrices of the "
                    f"batch are {step * matrix.dtype.itemsize} bytes apart"
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
    maps = {each.operand: _map(operands, each, seen[each.operand]) for each in plan.tensor_boxes}
    sizes = [np.int32(x) for x in (c.rows, c.cols, a.cols)]
    read = "c" if "a" in maps else "abc"
    pointers = ((_pointer(operands, name), np.int64(getattr(operands, name).ld)) for name in read)
    values: list[Any] = [*maps.values(), *sizes, *(value for pair in pointers for value in pair)]
    if plan.takes_batch:
        values.append(Batch.NONE if operands.batch is None else operands.batch.argument)
    if plan.takes_pair:
        values.append(
            NO_SECOND if operands.second is None else arguments(plan, operands.of_each_b[1])[list(maps).index("b")]
        )
    return values


def _map(operands: Operands, each: TensorBox, matrix: Matrix) -> TensorMap:
    """An operand as TMA sees it, of a batch with its dimensions, the last one first: 1 where all share one matrix."""
    if operands.batch is None:
        return TensorMap(matrix, each.box, each.swizzle_bytes)
    steps = operands.batch.strides(each.operand) if matrix.span else (0, 0, 0)
    further = tuple((size if step else 1, step) for size, step in zip(operands.sizes, steps, strict=True))
    return TensorMap(matrix, each.box, each.swizzle_bytes, further[::-1], operands.seen(each.operand))


def _pointer(operands: Operands, name: str) -> Matrix | Packed:
    """An operand as a pointer to its first matrix, with all that lies there."""
    first: Matrix = getattr(operands, name)
    return first if operands.batch is None else Packed(first.pointer.to_bytes(8, "little"), (operands.seen(name),))


def workspace_arguments(backend: Backend, plan: Plan, problem: Problem, memory: Matrix | None = None) -> list[Any]:
    """What follows ``arguments`` where a kernel has a workspace: the caller's or a new one."""
    needed = plan.workspace(problem)
    if needed is None:
        return []
    return list(parts_of(make(backend, needed.nbytes) if memory is None else memory, needed))


def epilogue_arguments(plan: Plan, operands: Operands, epilogue: BoundEpilogue | None = None) -> list[Packed]:
    """What follows that where a kernel applies an epilogue, the plain one too."""
    if not plan.has_epilogue:
        return []
    return [(epilogue or BoundEpilogue()).argument(operands.c.rows, operands.c.cols, operands.sizes)]


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
    a, b, c = (operands.seen(name) for name in "abc")
    steps = (0, 0, 0) if operands.batch is None else operands.batch.strides("c")
    outputs = epilogue.arrays(epilogue.code.outputs)
    reduced = {each.name for each in epilogue.code.outputs if each.summed or each.initial is not None}
    for name, (value, dtype) in {**epilogue.arrays(epilogue.code.args), **outputs}.items():
        first = operands.c
        seen = value.seen(dtype, first.rows, first.cols, operands.sizes)
        moves = tuple(step if size > 1 else 0 for size, step in zip(operands.sizes, value.batch, strict=True))
        same = (value.pointer, dtype, moves) == (first.pointer, first.dtype, steps)
        same = same and (value.row == first.ld or first.rows <= 1) and (value.col == 1 or first.cols <= 1)
        taken = [("the workspace", part) for part in parts]
        if name in outputs:
            still = any(size > 1 and not step for size, step in zip(operands.sizes, value.batch, strict=True))
            of_batch = "" if operands.batch is None else f", and {value.batch} in the batch"
            if name not in reduced and (
                still or (value.row == 0 and first.rows > 1) or (value.col == 0 and first.cols > 1)
            ):
                raise UsageError(
                    f"{name} of the epilogue has strides {value.row} and {value.col}{of_batch}; an output has an "
                    "element for each of C's"
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
    plan = plan if fits(plan, operands) else kernel.plan_for(problem, aligned=False)
    changes: dict[str, Any] = {} if operands.batch is None else {"batched": True}
    return plan.with_(**changes)


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
