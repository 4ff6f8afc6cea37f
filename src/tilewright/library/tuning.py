"""``Matmul.tune``: the planner's first candidates of a call measured as that call, and the winner kept."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

from tilewright.errors import UsageError
from tilewright.library import hot, ready
from tilewright.library.arrange import Arranged
from tilewright.library.calls import laid_out
from tilewright.library.choose import Question, Ranked, operand_lines, ways
from tilewright.library.fused import After
from tilewright.library.pair import pairing, ranked_pairs
from tilewright.library.request import Request
from tilewright.library.trial import Trial
from tilewright.library.winners import named
from tilewright.planner.contenders import contenders
from tilewright.planner.machine import Machine
from tilewright.planner.plan import machine_of
from tilewright.problem import Problem
from tilewright.tune.key import PLAIN, What
from tilewright.tune.rows import Row
from tilewright.tune.session import Contest, Entry, schedule_of, tune_each
from tilewright.tune.store import Store


def tune_call(
    request: Request, top: int, limit_s: float, again: bool, store: Store | None = None, **options: Any
) -> list[Row]:
    """Measure the candidates of a request, for every later call of its kind; a row for each kind of its launches.

    ``store`` is the database, None for that of the cache folder, and ``options`` are those of
    ``tune.session.tune_each``. Raises as ``Matmul.tune`` says.
    """
    o = request.options
    for name, given, why in (
        ("plan", o.plan is not None, "is what would be found"),
        ("batch_invariant", o.batch_invariant, "has one plan for every number of rows"),
        ("sms", o.sms is not None, "leaves SMs to others, and candidates are measured on all of them"),
    ):
        if given:
            raise UsageError(f"{name} {why}: a call with it cannot be tuned")
    if top < 1:
        raise UsageError(f"top is {top}; at least 1 candidate is measured")
    every = [each for each in laid_out(request) if not each.empty]
    if not every:
        raise UsageError("the result has no elements, and there is nothing to tune")
    asked = {}
    for laid in every:
        problem, kind, letters = named(laid.question)
        what = What.of(problem, kind, letters)
        asked[what] = (what, partial(contest, laid, request.after, problem, kind, top))
    found = tune_each(asked, store or Store(), lambda *_: None, limit_s=limit_s, again=again, **options)
    ready.forget()
    hot.forget()
    for error in found.errors.values():
        raise UsageError(error)
    rows = list(found.rows.values())
    for row in rows:
        for each in row.wrong:
            warnings.warn(
                f"{row.what}: {each.label} is left out, as it computes wrong results: {each.reason}", stacklevel=3
            )
        if row.best is None:
            raise UsageError(f"{row.what}: no candidate could be timed; {row.tried[0].label}: {row.tried[0].reason}")
    return rows


def contest(laid: Arranged, after: After | None, problem: Problem, kind: str, top: int) -> Contest:
    """The candidates of a launch. Raises ``UsageError`` where there are none."""
    question, (machine, _) = laid.question, machine_of(None, None, None)
    (way, runs, planning), *others = _ranked(question, machine)
    by_candidate = {id(run.candidate): run for run in runs}
    some = contenders([run.candidate for run in runs], max(top - len(others), 1))
    chosen = [(way, by_candidate[id(each)]) for each in some]
    for way, runs, _ in others:  # a plan that reads everything as it lies is the same with and without a copy
        chosen += [(way, runs[0])] if all(runs[0].plan != run.plan for _, run in chosen) else []
    plain, numbers = kind == PLAIN, {}
    entries = [
        Entry(run.label, run.candidate.family, run.plan, run.us + (0 if plain else way.us)) for way, run in chosen[:top]
    ]
    if laid.after is not None and after is not None:
        scalars = [each.name for each in laid.after.bound.code.args if each.kind == "scalar"]
        numbers = {name: after.pointers[name] for name in scalars}
    work = problem if plain else Trial(question, laid.after, numbers)
    return Contest(work, entries, schedule_of(planning))


def _ranked(question: Question, machine: Machine) -> Sequence[Ranked]:
    """What computes a question by each way of packing, the fastest way first."""
    if question.product.second is not None:
        way = pairing(question, None, machine)
        return [(way, *ranked_pairs(question, way))]
    found = sorted(ways(question, operand_lines(question), machine), key=lambda each: each[0].us + each[1][0].us)
    if not found:
        raise UsageError(f"no kernel computes {question.dtype} with a result in {question.out_dtype}")
    return found
