"""Two Bs, ``b=(gate, up)``: A is read once and multiplied by both, and the epilogue makes one result of the products.

Rung 11 does it: each B fills half of B's tile, so that both accumulators of an element are in one thread. To the
planner that is one product with twice the columns. TMA brings all operands; what it cannot read is packed first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tilewright.errors import UsageError
from tilewright.library.layouts import Lines, lines_of, packed_layout
from tilewright.library.posed import INVARIANT_ROWS, priced_as, with_rows
from tilewright.plan_base import Plan
from tilewright.plan_tensor import LAST, TensorPlan
from tilewright.problem import Layout, Problem

if TYPE_CHECKING:
    from tilewright.library.choose import Choice, Question, Run, Way
    from tilewright.planner.machine import Machine
    from tilewright.planner.planning import Planning

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


def pairing(question: Question, given: Plan | None, machine: Machine) -> Way:
    """How the operands of a pair are packed. Raises ``UsageError`` for operands and results that no kernel has."""
    from tilewright.library import choose

    lines = {**choose.operand_lines(question), SECOND: lines_of_second(question)}
    if question.dtype.itemsize != 2:
        raise UsageError(f"b is a pair of {question.dtype}; pairs of bf16 and fp16 can be multiplied")
    if not lines["c"].aligned:
        raise UsageError(
            f"b is a pair, whose kernel writes lines that start on 16-byte boundaries, and {lines['c'].why}: an out "
            "with padded rows is possible"
        )
    names, layouts = _to_pack(question, lines, given)
    packs, after = choose.packed(question, lines, names, machine, layouts)
    return choose.Way(packs, after, choose.problem_of(question, {name: after[name] for name in "abc"}))


def ranked_pairs(question: Question, laid: Way) -> tuple[list[Run], Planning]:
    """What computes a pair, by the planner's order and ``ALIKE``. Raises ``UsageError`` where nothing does."""
    from tilewright.library import choose
    from tilewright.planner.plan import plan as planned

    batch, rows = question.product.batch, INVARIANT_ROWS if question.batch_invariant else 0
    wide = _as_one(laid.problem)
    posed = with_rows(wide, rows) if rows else priced_as(wide, batch)
    planning = planned(problem=posed, sms=question.sms)
    found: list[Run] = []
    for each in choose.candidates(planning, choose.MOST_OF_A_BATCH, found):
        if isinstance(each.plan, TensorPlan) and each.plan.rung == LAST and not (rows and each.k_alternates):
            try:
                found.append(choose.Run(_paired(_narrower(each.plan), bool(batch)), choose.us_of(each), each))
            except UsageError:  # a tile that cannot be halved
                continue
    if not found:
        raise UsageError(f"b is a pair, and no kernel of pairs computes {laid.problem}")
    most = found[0].us * ALIKE

    def last(run: Run) -> bool:
        assert isinstance(run.plan, TensorPlan)
        return run.plan.bn < run.plan.bm or run.us > most

    return sorted(found, key=last), planning


def choose_pair(question: Question, given: Plan | None, machine: Machine) -> Choice:
    """The plan of a pair. Raises ``UsageError`` as ``pairing`` and ``ranked_pairs``, and for a plan of another."""
    from tilewright.library import choose
    from tilewright.planner.family import priced

    laid, batch = pairing(question, given, machine), question.product.batch

    def us_of(plan: Plan) -> tuple[float, str]:
        wide = priced_as(_as_one(laid.problem), batch)
        one = priced(plan.with_(paired=False, batched=False), wide, machine)
        return choose.us_of(one) + laid.us, one.label

    def choice(plan: Plan, source: str, us: float, label: str, second: Any, shown: Planning | None = None) -> Choice:
        return choose.Choice(plan, source, laid.problem, laid.lines, laid.packs, us, label, second, shown)

    if given is not None:
        plan = _paired(given, bool(batch))
        return choice(plan, "given", *us_of(given), None)
    runs, planning = ranked_pairs(question, laid)
    best = runs[0]
    if question.batch_invariant:
        free = choose.choose(replace(question, batch_invariant=False))
        return choice(best.plan, "invariant", us_of(best.plan)[0], best.label, (free.label, free.us))
    runner_up = (runs[1].label, runs[1].us + laid.us) if len(runs) > 1 else None
    shown = planning if planning.ranked[0] is best.candidate else None  # what it says is of its own pick
    return choice(best.plan, "planned", best.us + laid.us, best.label, runner_up, shown)


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


def _narrower(plan: TensorPlan) -> TensorPlan:
    """With slabs of fewer columns and as many more of them, where those of the plan do not divide half of its tile."""
    columns = plan.epilogue_columns
    while columns > 16 and plan.bn // 2 % columns:
        columns //= 2
    return plan.with_(epilogue_columns=columns, epilogue_slabs=plan.epilogue_slabs * plan.epilogue_columns // columns)


def _paired(plan: Plan, batched: bool) -> TensorPlan:
    """A plan of one B as that of a pair, a tile of B half of each. Raises ``UsageError`` where no kernel has that."""
    if not isinstance(plan, TensorPlan) or plan.rung != LAST:
        raise UsageError(f"plan is of {plan.of}, which computes no pair; rung {LAST} does")
    return plan.with_(paired=True, batched=batched)
