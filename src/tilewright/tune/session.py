"""``tilewright tune`` from start to end: shape after shape, each kept in the database as soon as it is known."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tilewright.errors import TilewrightError, UsageError
from tilewright.gpu import GpuSpec, query_gpu
from tilewright.measure import SUSTAINED, Schedule
from tilewright.plan_base import Plan
from tilewright.planner.calibration import Calibration
from tilewright.planner.contenders import contenders
from tilewright.planner.plan import plan
from tilewright.planner.planning import Planning
from tilewright.problem import Problem
from tilewright.results import now
from tilewright.tune import lookup
from tilewright.tune.decide import FLOOR, decide
from tilewright.tune.key import What, Where, here
from tilewright.tune.measurer import CHILD, Measurer, Outcome
from tilewright.tune.rows import Row, Tried
from tilewright.tune.store import Store

if TYPE_CHECKING:
    from tilewright.library.trial import Trial

TOP, LIMIT_S = 4, 30.0
MOST_ROUNDS = 24
SHORT = Schedule(slot_ms=20.0, warm_fraction=0.25, rounds=MOST_ROUNDS, graph_ms=4.0)
"""For kernels that leave the card cool: short slots, so that the candidates of a round share their conditions."""
HOT = replace(SUSTAINED, rounds=MOST_ROUNDS // 2)
"""For those that the power limit holds back, which short slots rank wrongly (``measure.SUSTAINED``)."""
HELD_BACK = 0.98  # the sustained clock over the burst's below which the power limit is taken to matter

Progress = Callable[[float, int, str], None]  # shapes done, shapes in all, what is being done


K = TypeVar("K", bound=Hashable)


@dataclass
class Tuned(Generic[K]):
    """What came of it: rows by problem as they were asked for, those found in the database, and what went wrong."""

    rows: dict[K, Row] = field(default_factory=dict)
    known: set[K] = field(default_factory=set)
    errors: dict[K, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether every shape has a winner and no candidate computed a wrong element."""
        return not self.errors and all(row.best is not None and not row.wrong for row in self.rows.values())


@dataclass(frozen=True)
class Entry:
    """A candidate, in the words of the planner."""

    label: str
    family: str
    plan: Plan
    predicted_us: float


@dataclass(frozen=True)
class Contest:
    """What is computed, who competes in the planner's order, and how they are timed."""

    work: Problem | Trial
    entries: Sequence[Entry]
    schedule: Schedule


def tune(
    problems: Sequence[Problem],
    store: Store,
    progress: Progress,
    *,
    top: int = TOP,
    calibration: Calibration | None = None,
    gpu: GpuSpec | None = None,
    where: Where | None = None,
    **options: Any,
) -> Tuned[Problem]:
    """Measure the planner's ``top`` candidates of each problem, and keep each row as soon as it is known.

    ``where`` and ``gpu`` are those of the GPU that is present, ``options`` those of ``tune_each``, which it raises as.
    """
    where = where or here()  # without a GPU that is what is said
    spec = gpu or query_gpu()
    asked = {problem: (What.of(problem), partial(_contest, problem, top, spec, calibration)) for problem in problems}
    return tune_each(asked, store, progress, where=where, **options)


def tune_each(
    asked: Mapping[K, tuple[What, Callable[[], Contest]]],
    store: Store,
    progress: Progress,
    *,
    limit_s: float = LIMIT_S,
    again: bool = False,
    where: Where | None = None,
    command: Sequence[str] | None = None,
) -> Tuned[K]:
    """Hold each contest, made when its turn comes, and keep each row as soon as it is known.

    Those that the database has a winner for, by the same key, are taken from there, unless ``again``. ``where`` is that
    of the GPU that is present. Raises ``UnavailableError`` where there is none, and ``UsageError``
    where the database cannot be written; what goes wrong with one problem is told in ``Tuned.errors``.
    """
    where = where or here()
    store.put(())  # a database that cannot be written is told before anything is measured
    kept = {} if again else {row.what: row for row in store.rows(where) if row.best is not None}
    unique = {what: (key, make) for key, (what, make) in asked.items()}
    found = Tuned[K]()
    missing = [what for what in unique if what not in kept]
    measurer = Measurer(limit_s, command or CHILD)
    begin = time.monotonic()
    try:
        for what, (key, make) in unique.items():
            if what in kept:
                found.rows[key] = kept[what]
                found.known.add(key)
                continue
            number = missing.index(what)
            told = _told(progress, number, len(missing), str(key), begin)
            told(0.0, "planning")
            try:
                row = _held(make(), what, measurer, where, told)
            except TilewrightError as error:
                found.errors[key] = str(error)
                continue
            store.put([row])
            lookup.forget()
            found.rows[key] = row
    finally:
        measurer.close()
    return found


def schedule_of(planning: Planning) -> Schedule:
    """How to time the candidates: long slots where the power limit sets the clock, by the planner's word."""
    clocks = (planning.clock_mhz, planning.other_clock_mhz)
    return HOT if min(clocks) < HELD_BACK * max(clocks) else SHORT


def _contest(problem: Problem, top: int, gpu: GpuSpec, calibration: Calibration | None) -> Contest:
    planning = plan(problem=problem, gpu=gpu, calibration=calibration)
    entries = [
        Entry(each.label, each.family, each.plan, getattr(each.predicted_us, planning.clock))
        for each in contenders(planning.ranked, top)
        if each.plan is not None
    ]
    if not entries:
        why = planning.rejected[0].rejected if len(planning.rejected) else "C has no elements"
        raise UsageError(f"no kernel computes {planning.problem}: {why}")
    return Contest(problem, entries, schedule_of(planning))


def _held(contest: Contest, what: What, measurer: Measurer, where: Where, told: Callable[[float, str], None]) -> Row:
    entries = {f"{place} {each.label}": each for place, each in enumerate(contest.entries, 1)}
    plans = {name: each.plan.to_dict() for name, each in entries.items()}
    outcome = measurer.compete(contest.work, plans, contest.schedule, told)
    timed = [name for name in entries if name in outcome.time_us]
    decision = decide(outcome.rounds, timed) if timed else None
    return Row(
        where=where,
        what=what,
        tried=tuple(_tried(each, name, outcome) for name, each in entries.items()),
        winner=None if decision is None else list(entries).index(decision.winner),
        band=FLOOR if decision is None else decision.band,
        decided=decision is not None and decision.settled,
        rounds=len(outcome.rounds),
        method=f"{contest.schedule}; {outcome.l2}",
        date=now(),
    )


def _tried(each: Entry, name: str, outcome: Outcome) -> Tried:
    verdict, reason = outcome.lost.get(name, ("timed", None))
    return Tried(
        label=each.label,
        family=each.family,
        plan=each.plan.to_dict(),
        predicted_us=each.predicted_us,
        verdict=verdict,  # type: ignore[arg-type]
        reason=reason,
        error_over_bound=outcome.checked.get(name),
        time_us=outcome.time_us.get(name),
    )


def _told(progress: Progress, number: int, count: int, name: str, begin: float) -> Callable[[float, str], None]:
    furthest = 0.0

    def told(share: float, doing: str) -> None:
        nonlocal furthest
        furthest = max(furthest, share)  # after a child was lost some is done again, and a bar does not go back
        done = number + furthest
        left = time_left(time.monotonic() - begin, done, count)
        progress(done, count, f"{left}{name}: {doing}")

    return told


def time_left(elapsed_s: float, done: float, count: int) -> str:
    """About how long the rest takes, at the pace so far; nothing before a tenth of a shape is done."""
    if done < 0.1:
        return ""
    left = elapsed_s * (count - done) / done
    shown = f"{left:.0f} s" if left < 90 else f"{left / 60:.0f} min" if left < 5400 else f"{left / 3600:.1f} h"
    return f"about {shown} left, "
