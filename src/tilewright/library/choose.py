"""Which kernel a product gets: the tuned winner, else the planner's pick, on operands as they lie or once packed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import prod
from typing import TYPE_CHECKING

from tilewright.dtypes import DType
from tilewright.errors import UsageError
from tilewright.library import pack
from tilewright.library.layouts import Lines, lines_of, packed_layout
from tilewright.library.limits import keeps_to, of_batch_or_none
from tilewright.library.pair import choose_pair
from tilewright.library.posed import invariant, priced_as, turned_invariant, with_rows
from tilewright.library.shapes import Product, View
from tilewright.plan_base import Plan
from tilewright.problem import Layout, Problem
from tilewright.tune.key import PLAIN

if TYPE_CHECKING:  # the planner and its tables are for who asks it: most processes find what it said (``kept``)
    from tilewright.planner.candidate import Candidate
    from tilewright.planner.machine import Machine
    from tilewright.planner.planning import Planning

MOST, MOST_OF_A_BATCH = 16, 400  # of the planner's candidates that are looked at; few kernels compute a batch


@dataclass(frozen=True)
class Question:
    """Everything that decides a kernel: a product, its element types, where A, B and C start past a multiple of 16.

    ``swapped`` products have had their operands exchanged with it. Of a pair ``offsets`` has a place for the workspace,
    0, too, and that of the second B.
    """

    product: Product
    dtype: DType
    out_dtype: DType
    offsets: tuple[int, ...] = (0, 0, 0)
    sms: int | None = None
    batch_invariant: bool = False
    epilogue: str = PLAIN
    """What the database of tuned plans calls the epilogue."""

    def view(self, name: str) -> View:
        """That of ``a``, ``b``, ``c`` or, of a pair, ``SECOND``."""
        found: View = getattr(self.product, name)
        return found


@dataclass(frozen=True)
class Packing:
    """A copy that an operand needs before a kernel takes it. ``us`` is its predicted time."""

    operand: str
    array: pack.Strided
    layout: Layout
    why: str
    bytes_moved: int
    us: float


@dataclass(frozen=True)
class Choice:
    """A kernel's plan for a product. ``problem`` is what it computes, after packing; ``us`` is predicted, with it.

    ``source`` is ``tuned``, ``planned``, ``given``, ``invariant`` or ``bundled``. ``lines`` are those of A, B and C as
    the kernel is given them. ``planning`` is None where the planner was not asked this time.
    """

    plan: Plan
    source: str
    problem: Problem
    lines: Mapping[str, Lines]
    packs: tuple[Packing, ...]
    us: float
    label: str
    runner_up: tuple[str, float] | None
    planning: Planning | None


@dataclass(frozen=True)
class Run:
    """A candidate as it computes a product. ``us`` is predicted for that, without packing."""

    plan: Plan
    us: float
    candidate: Candidate

    @property
    def label(self) -> str:
        """The candidate's."""
        return self.candidate.label


@dataclass(frozen=True)
class Way:
    """A set of operands that are packed, the operands after it, and the problem that is left for a kernel."""

    packs: tuple[Packing, ...]
    lines: Mapping[str, Lines]
    problem: Problem

    @property
    def us(self) -> float:
        """Of packing."""
        return sum(each.us for each in self.packs)


Ranked = tuple[Way, list[Run], "Planning"]
"""A way, what then computes the product, the fastest first, and the planner's answer with all its candidates."""


def choose(question: Question, given: Plan | None = None) -> Choice:
    """The plan that computes a product with elements in C.

    ``given`` forces a plan; operands that it cannot take are packed. Raises ``UsageError`` where no kernel, or not the
    given one, computes it.
    """
    from tilewright.library.winners import tuned
    from tilewright.planner.plan import machine_of

    found = tuned(question) if given is None else None
    if found is not None:
        return found
    machine, _ = machine_of(None, question.sms, None)
    if given is not None and question.batch_invariant:
        raise UsageError("plan is given and batch_invariant is True, which chooses the plan: give one of them")
    if question.product.second is not None:
        return choose_pair(question, given, machine)
    lines = operand_lines(question)
    if given is not None:
        return _given(given, question, lines, machine)
    if question.batch_invariant:
        return _invariant(question, lines, machine)
    options = list(_options(question, lines, machine))
    if not options:
        raise UsageError(f"no kernel computes {question.dtype} with a result in {question.out_dtype}")
    best = min(options, key=lambda each: each.us)
    others = [(each.label, each.us) for each in options if each is not best]
    others += [best.runner_up] if best.runner_up else []
    return replace(best, runner_up=min(others, key=lambda each: each[1]) if others else None)


def _invariant(question: Question, lines: Mapping[str, Lines], machine: Machine) -> Choice:
    """A plan that depends on N, K, types and layouts alone, so that a row of the result has the same bits for every M.

    It is planned for ``INVARIANT_ROWS`` rows, of kernels that add up K in one order wherever a tile lies. The operand
    with the rows is packed unless its lines run along K on 16-byte boundaries, which of a single row say nothing about
    those of more. The runner-up is what would run otherwise.
    """
    from tilewright.planner.family import priced
    from tilewright.planner.plan import plan as planned

    p = question.product
    rows: tuple[str, Layout] = ("b", "column") if p.swapped else ("a", "row")
    names = [name for name in "ab" if lines[name].layout is None and name != rows[0]]
    if not lines[rows[0]].aligned or lines[rows[0]].layout != rows[1]:
        names.append(rows[0])
    packs, after = packed(question, lines, names, machine, dict([rows]))
    problem = problem_of(question, after)
    wide = turned_invariant(problem) if p.swapped else invariant(problem)
    for each in candidates(planned(problem=wide, sms=question.sms), MOST_OF_A_BATCH):
        plan = each.plan
        if plan is None or not plan.takes_batch or each.k_alternates or not _applies(question, plan):
            continue
        of_batch = of_batch_or_none(plan) if p.batch else plan
        if of_batch is not None:
            cost = sum(pack.us for pack in packs)
            us = us_of(priced(plan, priced_as(problem, p.batch), machine)) + cost
            free = choose(replace(question, batch_invariant=False))
            return Choice(of_batch, "invariant", problem, after, packs, us, each.label, (free.label, free.us), None)
    raise UsageError(f"batch_invariant is True, and no kernel for it computes {problem}")


def operand_lines(question: Question) -> dict[str, Lines]:
    """A, B and C as kernels see them. Raises ``UsageError`` where C has no contiguous rows."""
    p = question.product
    sizes = (question.dtype.itemsize, question.dtype.itemsize, question.out_dtype.itemsize)
    seen = {
        name: lines_of(view, size, offset, called)
        for name, called, view, size, offset in zip(
            "abc", names_of(p.swapped), (p.a, p.b, p.c), sizes, question.offsets[:3], strict=True
        )
    }
    if seen["c"].layout is None:
        raise UsageError(f"out cannot be written: {seen['c'].why}")
    return seen


def names_of(swapped: bool) -> tuple[str, str, str]:
    """What the caller calls the kernel's A, B and C."""
    return ("the transpose of b", "the transpose of a", "the transpose of out") if swapped else ("a", "b", "out")


def problem_of(question: Question, lines: Mapping[str, Lines]) -> Problem:
    """The planner's problem. It has no pointers, so that an operand off the 16-byte grid is told by its lines."""
    p = question.product
    sizes = (question.dtype.itemsize, question.dtype.itemsize, question.out_dtype.itemsize)
    lds = []
    for each, size in zip(lines.values(), sizes, strict=True):
        looks_aligned = each.ld * size % 16 == 0
        lds.append(each.ld + 1 if looks_aligned and not each.aligned else each.ld)
    a, b, _ = (_layout(each) for each in lines.values())
    return Problem(p.m, p.n, p.k, question.dtype, question.out_dtype, a, b, *lds)


def _layout(lines: Lines) -> Layout:
    assert lines.layout is not None
    return lines.layout


def packable(lines: Mapping[str, Lines]) -> tuple[list[str], list[str]]:
    """The operands that no kernel reads as they lie, and those that only some do."""
    must = [name for name in "ab" if lines[name].layout is None]
    return must, [name for name in "ab" if name not in must and not lines[name].aligned]


def ways(question: Question, lines: Mapping[str, Lines], machine: Machine) -> Iterator[Ranked]:
    """Each set of operands that may be packed, those that must be in every one, with what the planner has for it."""
    from tilewright.planner.plan import plan as planned

    must, may = packable(lines)
    for count in range(len(may) + 1):
        for more in combinations(may, count):
            packs, after = packed(question, lines, [*must, *more], machine)
            problem = problem_of(question, after)
            planning = planned(problem=priced_as(problem, question.product.batch), sms=question.sms)
            runs = _runs(question, planning)
            if runs:
                yield Way(packs, after, problem), runs, planning


def _options(question: Question, lines: Mapping[str, Lines], machine: Machine) -> Iterator[Choice]:
    """The planner's pick of each way."""
    for way, runs, planning in ways(question, lines, machine):
        best, second = runs[0], runs[1] if len(runs) > 1 else None
        runner_up = None if second is None else (second.label, second.us + way.us)
        shown = planning if planning.pick.label == best.label else None  # what it says is of its own pick
        us = best.us + way.us
        yield Choice(best.plan, "planned", way.problem, way.lines, way.packs, us, best.label, runner_up, shown)


def _runs(question: Question, planning: Planning) -> list[Run]:
    """The plans that compute a product, the fastest first.

    A batch is priced as one product of as many rows (``priced_as``). There a tile may have rows of two matrices, which
    it has not in a batch: the time is that of so many more tiles.
    """
    p, found = question.product, list[Run]()
    one = with_rows(planning.problem, p.m) if p.batch else planning.problem
    for each in candidates(planning, MOST_OF_A_BATCH if p.batch or question.sms else MOST, found):
        plan = each.plan
        if plan is None or not _applies(question, plan):
            continue
        us = us_of(each)
        if p.batch:
            of_batch = of_batch_or_none(plan)
            if of_batch is None:
                continue
            down, own = plan.tiles(planning.problem)[0], plan.tiles(one)[0]
            plan, us = of_batch, us * max(own * prod(p.batch) / max(down, 1), 1)
        found.append(Run(plan, us, each))
    fit = [run for run in found if keeps_to(question.sms, run.plan, one, p.batch)] or found
    return sorted(fit, key=lambda run: run.us) if p.batch else fit


def _applies(question: Question, plan: Plan | None) -> bool:
    """Whether a kernel does what follows the product, too."""
    return plan is not None and (question.epilogue == PLAIN or plan.has_epilogue)


def candidates(planning: Planning, most: int, found: Sequence[object] = ()) -> Iterator[Candidate]:
    """Those of the first ``most`` ranked that can be run, and those after as long as the caller has ``found`` none."""
    for number, each in enumerate(planning.ranked):
        if number >= most and found:
            return
        if each.plan is not None:
            yield each


def us_of(candidate: Candidate) -> float:
    """The predicted microseconds of one that can be run."""
    assert candidate.predicted_us is not None
    return candidate.predicted_us.sustained


def packed(
    question: Question,
    lines: Mapping[str, Lines],
    names: Sequence[str],
    machine: Machine | None,
    wanted: Mapping[str, Layout] | None = None,
) -> tuple[tuple[Packing, ...], dict[str, Lines]]:
    """What packing these operands takes, and the lines of all after it. Without a machine no time is predicted.

    They have the layouts that are ``wanted``, by operand, where any are.
    """
    after, packs = dict(lines), []
    for name in names:
        array = strided(question, name, 0)
        layout = (wanted or {}).get(name) or packed_layout(question.view(name))
        copy = pack.tight(array, layout)
        after[name] = Lines(layout, copy.ld, True)
        us = 0.0 if machine is None else pack.predicted_us(array, layout, machine)
        moved = array.elements * question.dtype.itemsize + copy.nbytes
        packs.append(Packing(name, array, layout, lines[name].why or f"the plan takes it {layout}-major", moved, us))
    return tuple(packs), after


def strided(question: Question, name: str, pointer: int) -> pack.Strided:
    """A or B as packing takes it, its first element at ``pointer``."""
    view, p = question.view(name), question.product
    sizes, steps = three(p.batch, 1), three(view.batch, 0)
    apart = three(() if name == "a" else p.apart, 0)
    return pack.Strided(pointer, view.rows, view.cols, view.row, view.col, question.dtype, sizes, steps, apart=apart)


def three(values: Sequence[int], fill: int) -> tuple[int, int, int]:
    """Values of up to three batch dimensions as those of three, the outermost first."""
    a, b, c = (*[fill] * (3 - len(values)), *values)
    return a, b, c


def _given(plan: Plan, question: Question, lines: Mapping[str, Lines], machine: Machine) -> Choice:
    """A plan that the caller brings: operands are packed where it does not take them."""
    from tilewright.planner.family import priced

    if plan.paired:
        raise UsageError("plan is of a pair and b is one array: paired=False is possible")
    if not _applies(question, plan):
        raise UsageError(f"plan is of {plan.of}, which applies no alpha, beta, bias or epilogue; another plan can")
    batch = question.product.batch
    one = plan.with_(batched=False) if plan.batched else plan
    of_batch = of_batch_or_none(one) if batch else one
    if of_batch is None:
        raise UsageError(f"plan is of {plan.of}, which computes no batch; a and b have one of {batch}")
    plan = of_batch
    needed = needs(plan)
    names = [
        name
        for name in "ab"
        if lines[name].layout != getattr(plan, f"{name}_layout") or (name in needed and not lines[name].aligned)
    ]
    if "c" in needed and not lines["c"].aligned:
        raise UsageError(f"plan is of {plan.of} and writes C by 16-byte accesses; {lines['c'].why}")
    if plan.dependent and "b" in names:  # it reads B before the kernel ahead of it, which packs B, has ended
        plan, one = plan.with_(dependent_launch=False), one.with_(dependent_launch=False)
    packs, after = packed(question, lines, names, machine, {"a": plan.a_layout, "b": plan.b_layout})
    problem = problem_of(question, after)
    candidate = priced(one, priced_as(problem, batch), machine)
    cost = sum(each.us for each in packs)
    return Choice(plan, "given", problem, after, packs, us_of(candidate) + cost, candidate.label, None, None)


def needs(plan: Plan) -> set[str]:
    """The operands whose lines must start on 16-byte boundaries."""
    return {box.operand for box in plan.tensor_boxes} | (set(plan.wide) if plan.aligned else set())
