"""``winner``: what was measured to be fastest for a problem, from the database, remembered by this process."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.errors import UsageError
from tilewright.plan_base import Plan
from tilewright.problem import Problem
from tilewright.tune.key import PLAIN, Key, What, Where, here
from tilewright.tune.store import Store

MOST_ANSWERS = 65536

_Question = tuple[Problem, Where | None, str, str | None, Path | None]
_answers: dict[_Question, Plan | None] = {}
_tables: dict[Path | None, Mapping[Key, Mapping[str, Any]]] = {}


def winner(
    problem: Problem,
    gpu: Where | None = None,
    *,
    epilogue: str = PLAIN,
    alignment: str | None = None,
    db: Path | None = None,
) -> Plan | None:
    """The plan that ``tilewright tune`` found to be fastest for a problem; None where none was tuned.

    ``gpu`` is where it is to run, None the GPU that is present. ``alignment`` names the matrices whose lines start on
    16-byte boundaries (``key.What``); None is those of the problem, for matrices that start on one themselves.
    ``db`` is None for the database of the cache folder.

    The database is read once a process; a question asked before is answered from memory, in microseconds. ``forget``
    has it read again. Raises ``UnavailableError`` where ``gpu`` is None and there is none.
    """
    question = (problem, gpu, epilogue, alignment, db)
    try:
        return _answers[question]
    except KeyError:
        pass
    if len(_answers) >= MOST_ANSWERS:
        _answers.clear()
    what = What.of(problem, epilogue, alignment)
    found = _answers[question] = _plan(_table(db).get((gpu or here(), what)), problem, what)
    return found


def measured(problem: Problem, *, epilogue: str = PLAIN, alignment: str | None = None, db: Path | None = None) -> bool:
    """Whether the database has a winner for such a problem, of whatever GPU: none is asked for."""
    what = What.of(problem, epilogue, alignment)
    return any(key[1] == what for key in _table(db))


def forget() -> None:
    """Forget what was read, so that the next question finds what was tuned since."""
    _answers.clear()
    _tables.clear()


def _table(db: Path | None) -> Mapping[Key, Mapping[str, Any]]:
    if db not in _tables:
        try:
            rows = Store(db).rows()
        except UsageError as error:  # that of a later version: no reason not to multiply
            warnings.warn(str(error), stacklevel=4)
            rows = []
        _tables[db] = {row.key: row.best.plan for row in rows if row.best is not None}
    return _tables[db]


def _plan(values: Mapping[str, Any] | None, problem: Problem, what: What) -> Plan | None:
    """The plan, where it is one of this version's kernels that takes the problem: a table may come from anywhere."""
    if values is None:
        return None
    try:
        plan = Plan.from_dict(values)
        _require_fit(plan, problem, what)
    except UsageError as error:
        warnings.warn(f"the tuned plan for {what} is not used: {error}", stacklevel=3)
        return None
    return plan


def _require_fit(plan: Plan, problem: Problem, what: What) -> None:
    if what.epilogue != PLAIN and plan.dtype == problem.dtype:
        return  # a call may pack operands for its plan
    own = (plan.dtype, plan.a_layout, plan.b_layout)
    if own != (problem.dtype, problem.a_layout, problem.b_layout):
        raise UsageError(f"it is for {plan.dtype}, A {plan.a_layout}- and B {plan.b_layout}-major")
    needed = {box.operand for box in plan.tensor_boxes} | (set(plan.wide) if plan.aligned else set())
    if what.alignment != "abc" and not needed <= set(what.alignment):
        raise UsageError(f"it needs 16-byte lines of {', '.join(sorted(needed)).upper()}")
