"""``tilewright tune`` from start to end: shape after shape, each kept in the database as soon as it is known."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tilewright.errors import TilewrightError, UsageError
from tilewright.gpu import GpuSpec, query_gpu
from tilewright.measure import SUSTAINED, Schedule
from tilewright.planner.calibration import Calibration
from tilewright.planner.candidate import Candidate
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

TOP, LIMIT_S = 4, 30.0
MOST_ROUNDS = 24
SHORT = Schedule(slot_ms=20.0, warm_fraction=0.25, rounds=MOST_ROUNDS, graph_ms=4.0)
"""For kernels that leave the card cool: short slots, so that the candidates of a round share their conditions."""
HOT = replace(SUSTAINED, rounds=MOST_ROUNDS // 2)
"""For those that the power limit holds back, which short slots rank wrongly (``measure.SUSTAINED``)."""
HELD_BACK = 0.98  # the sustained clock over the burst's below which the power limit is taken to matter

Progress = Callable[[float, int, str], None]  # shapes done, shapes in all, what is being done


@dataclass
class Tuned:
    """What came of it: rows by problem as they were asked for, those found in the database, and what went wrong."""

    rows: dict[Problem, Row] = field(default_factory=dict)
    known: set[Problem] = field(default_factory=set)
    errors: dict[Problem, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether every shape has a winner and no candidate computed a wrong element."""
        return not self.errors and all(row.best is not None and not row.wrong for row in self.rows.values())


def tune(
    problems: Sequence[Problem],
    store: Store,
    progress: Progress,
    *,
    top: int = TOP,
    limit_s: float = LIMIT_S,
    again: bool = False,
    calibration: Calibration | None = None,
    where: Where | None = None,
    gpu: GpuSpec | None = None,
    command: Sequence[str] | None = None,
) -> Tuned:
    """Measure the planner's ``top`` candidates of each problem, and keep each row as soon as it is known.

    Those that the database has a winner for, by the same key, are taken from there, unless ``again``. ``where`` and
    ``gpu`` are those of the GPU that is present. Raises ``UnavailableError`` where there is none, and ``UsageError``
    where the database cannot be written; what goes wrong with one problem is told in ``Tuned.errors``.
    """
    where = where or here()
    spec = gpu or query_gpu()
    store.put(())  # a database that cannot be written is told before anything is measured
    kept = {} if again else {row.what: row for row in store.rows(where) if row.best is not None}
    unique = {What.of(problem): problem for problem in problems}
    found = Tuned()
    missing = [what for what in unique if what not in kept]
    measurer = Measurer(limit_s, command or CHILD)
    begin = time.monotonic()
    try:
        for what, problem in unique.items():
            if what in kept:
                found.rows[problem] = kept[what]
                found.known.add(problem)
                continue
            number = missing.index(what)
            told = _told(progress, number, len(missing), str(problem), begin)
            told(0.0, "planning")
            try:
                planning = plan(problem=problem, gpu=spec, calibration=calibration)
                row = _tuned(planning, top, measurer, where, told)
            except TilewrightError as error:
                found.errors[problem] = str(error)
                continue
            store.put([row])
            lookup.forget()
            found.rows[problem] = row
    finally:
        measurer.close()
    return found


def schedule_of(planning: Planning) -> Schedule:
    """How to time the candidates: long slots where the power limit sets the clock, by the planner's word."""
    clocks = (planning.clock_mhz, planning.other_clock_mhz)
    return HOT if min(clocks) < HELD_BACK * max(clocks) else SHORT


def _tuned(planning: Planning, top: int, measurer: Measurer, where: Where, told: Callable[[float, str], None]) -> Row:
    some = contenders(planning.ranked, top)
    candidates = {f"{place} {each.label}": each for place, each in enumerate(some, 1) if each.plan}
    if not candidates:
        why = planning.rejected[0].rejected if len(planning.rejected) else "C has no elements"
        raise UsageError(f"no kernel computes {planning.problem}: {why}")
    schedule = schedule_of(planning)
    plans = {name: each.plan.to_dict() for name, each in candidates.items() if each.plan is not None}
    outcome = measurer.compete(planning.problem, plans, schedule, told)
    timed = [name for name in candidates if name in outcome.time_us]
    decision = decide(outcome.rounds, timed) if timed else None
    return Row(
        where=where,
        what=What.of(planning.problem),
        tried=tuple(_tried(each, name, planning, outcome) for name, each in candidates.items()),
        winner=None if decision is None else list(candidates).index(decision.winner),
        band=FLOOR if decision is None else decision.band,
        decided=decision is not None and decision.settled,
        rounds=len(outcome.rounds),
        method=f"{schedule}; {outcome.l2}",
        date=now(),
    )


def _tried(each: Candidate, name: str, planning: Planning, outcome: Outcome) -> Tried:
    assert each.plan is not None
    assert each.predicted_us is not None
    verdict, reason = outcome.lost.get(name, ("timed", None))
    return Tried(
        label=each.label,
        family=each.family,
        plan=each.plan.to_dict(),
        predicted_us=getattr(each.predicted_us, planning.clock),
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
