"""Two Bs, ``b=(gate, up)``: A is read once and multiplied by both, and the epilogue makes one result of the products.

Rung 11 does it: each B fills half of B's tile, so that both accumulators of an element are in one thread. To the
planner that is one product with twice the columns. TMA brings all operands; what it cannot read is packed first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tilewright.errors import UsageError
from tilewright.library.layouts import Lines, lines_of, packed_layout
from tilewright.plan_base import Plan
from tilewright.plan_tensor import LAST, TensorPlan
from tilewright.problem import Layout, Problem

if TYPE_CHECKING:
    from tilewright.library.choose import Choice, Question
    from tilewright.planner.candidate import Candidate
    from tilewright.planner.machine import Machine

SECOND = "second"  # what the second B is called beside "a", "b" and "c"


def pair_of(b: Any) -> tuple[Any, Any] | None:
    """The two arrays of ``b``; None where it is one. Raises ``UsageError`` for another number of them."""
    if not isinstance(b, tuple | list):
        return None
    if len(b) != 2:
        raise UsageError(f"b has {len(b)} arrays; one array, or a pair (gate, up), is possible")
    return b[0], b[1]


def lines_of_second(question: Question) -> Lines:
    """The second B as kernels see it."""
    return lines_of(question.view(SECOND), question.dtype.itemsize, question.offsets[-1], "b[1]")


ALIKE = 1.002
"""Times that a pair's tile with at least as many columns as rows is taken over the planner's first for.

Half of its columns are C's: of swiglu at 4096x4096x4096 on an H200 128x256 took 0.5 to 1.4% less than 256x128, and
their times are predicted to be within 0.02%.
"""


def choose_pair(question: Question, given: Plan | None, machine: Machine) -> Choice:
    """The plan of a pair. Raises ``UsageError`` for operands and results that no kernel has, and a plan of another."""
    from tilewright.library import choose
    from tilewright.planner.family import priced
    from tilewright.planner.plan import plan as planned

    lines = {**choose.operand_lines(question), SECOND: lines_of_second(question)}
    p = question.product
    if question.dtype.itemsize != 2:
        raise UsageError(f"b is a pair of {question.dtype}; pairs of bf16 and fp16 can be multiplied")
    if not lines["c"].aligned:
        raise UsageError(
            f"b is a pair, whose kernel writes lines that start on 16-byte boundaries, and {lines['c'].why}: an out "
            "with padded rows is possible"
        )
    names, layouts = _to_pack(question, lines, given)
    packs, after = choose.packed(question, lines, names, machine, layouts)
    problem = choose.problem_of(question, {name: after[name] for name in "abc"})
    wide = _as_one(problem)
    rows = choose.INVARIANT_ROWS if question.batch_invariant else 0
    cost = sum(each.us for each in packs)
    if given is not None:
        plan = _paired(given, bool(p.batch))
        candidate = priced(given.with_(paired=False, batched=False), choose.priced_as(wide, p.batch), machine)
        return choose.Choice(
            plan, "given", problem, after, packs, choose.us_of(candidate) + cost, candidate.label, None, None
        )
    planning = planned(
        problem=choose.with_rows(wide, rows) if rows else choose.priced_as(wide, p.batch), sms=question.sms
    )
    found: list[tuple[TensorPlan, Candidate]] = []
    for each in choose.candidates(planning, choose.MOST_OF_A_BATCH, found):
        if isinstance(each.plan, TensorPlan) and each.plan.rung == LAST and not (rows and each.k_alternates):
            try:
                found.append((_paired(each.plan, bool(p.batch)), each))
            except UsageError:  # a tile that cannot be halved
                continue
    if not found:
        raise UsageError(f"b is a pair, and no kernel of pairs computes {problem}")
    most = choose.us_of(found[0][1]) * ALIKE
    found.sort(key=lambda each: each[0].bn < each[0].bm or choose.us_of(each[1]) > most)
    plan, best = found[0]
    if rows:
        free = choose.choose(replace(question, batch_invariant=False))
        one = plan.with_(paired=False, batched=False)
        us = choose.us_of(priced(one, choose.priced_as(wide, p.batch), machine)) + cost
        return choose.Choice(plan, "invariant", problem, after, packs, us, best.label, (free.label, free.us), None)
    runner_up = (found[1][1].label, choose.us_of(found[1][1]) + cost) if len(found) > 1 else None
    shown = planning if planning.ranked[0] is best else None  # what it says is of its own pick
    return choose.Choice(
        plan, "planned", problem, after, packs, choose.us_of(best) + cost, best.label, runner_up, shown
    )


def _to_pack(question: Question, lines: dict[str, Lines], given: Plan | None) -> tuple[list[str], dict[str, Layout]]:
    """The operands that are packed, and the layouts of their copies: both Bs end up in one layout, alike in a batch."""
    from tilewright.library import choose, pack

    names = [name for name in ("a", "b", SECOND) if lines[name].layout is None or not lines[name].aligned]
    layouts: dict[str, Layout] = {}
    if given is not None:
        layouts = {"a": given.a_layout, "b": given.b_layout}
    else:
        kept = next((lines[name].layout for name in ("b", SECOND) if name not in names), None)
        layouts["b"] = kept or packed_layout(question.product.b)
    layouts[SECOND] = layouts["b"]
    names += [name for name in layouts if name not in names and lines[name].layout != layouts[name]]

    def steps(name: str, packed: bool) -> tuple[int, ...]:
        if not packed:
            return choose.three(question.view(name).batch, 0)
        return pack.tight(choose.strided(question, name, 0), layouts[name]).steps

    # The kernel steps over both as over the first: as they lie, or one or both of them packed.
    wanted = [[each for each in names if each != "a"]]
    wanted += [each for each in (["b"], [SECOND], ["b", SECOND]) if set(each) > set(wanted[0])]
    found = next(each for each in wanted if steps("b", "b" in each) == steps(SECOND, SECOND in each))
    return [*(name for name in names if name == "a"), *found], layouts


def _as_one(problem: Problem) -> Problem:
    """The product with the columns of both Bs, for the planner; all lines on 16-byte boundaries, as TMA needs them."""
    n, chunk = 2 * problem.n, 16 // problem.dtype.itemsize
    padded = -(-n // chunk) * chunk
    return problem.changed(n=n, ldb=padded if problem.b_layout == "row" else problem.ldb, ldc=padded)


def _paired(plan: Plan, batched: bool) -> TensorPlan:
    """A plan of one B as that of a pair, a tile of B half of each. Raises ``UsageError`` where no kernel has that."""
    if not isinstance(plan, TensorPlan) or plan.rung != LAST:
        raise UsageError(f"plan is of {plan.of}, which computes no pair; rung {LAST} does")
    return plan.with_(paired=True, batched=batched)
