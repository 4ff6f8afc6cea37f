"""The kernel families that the planner knows, and how another one joins them.

A family is one kind of kernel: it says which of its plans there are for a problem, and what each takes. A module in
``planner.families`` makes one known with ``register``; nothing else names it. ``plan`` asks each and ranks all that
comes back together.
"""

from __future__ import annotations

import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from tilewright.errors import UsageError
from tilewright.plan_base import Plan
from tilewright.planner.candidate import Candidate, Predicted
from tilewright.planner.judgement import Finding
from tilewright.planner.machine import Machine
from tilewright.planner.planning import Clock
from tilewright.planner.raster import Bools, Floats, Ints
from tilewright.planner.supply import BEGIN_AND_END_US
from tilewright.planner.terms import TERMS, Times
from tilewright.problem import Problem


@dataclass(frozen=True)
class Offer:
    """What a family has for one problem.

    ``make(index, terms_us, predicted)`` makes a candidate; the times have an entry for each. ``ties`` are rows of
    integers, one for each candidate: of candidates of the same time the one with the smallest row ranks first.
    ``useful`` is the share of a candidate's places, waves and tile elements with work of the problem. ``spread`` are
    factors on a predicted time: the range in which 8 of 10 measured ones are assumed to lie.
    ``dependent`` says which are dependent launches, where the others are to stand back for the launch behind them.
    """

    sustained: Times
    burst: Times
    ties: Ints
    useful: Floats
    make: Callable[[int, dict[str, float], Predicted], Candidate]
    rejected: Sequence[Candidate]
    spread: tuple[float, float]
    dependent: Bools | None = None

    def times(self, clock: Clock) -> Times:
        """Those at a clock."""
        return self.sustained if clock == "sustained" else self.burst

    def candidate(self, index: int, clock: Clock) -> Candidate:
        """The candidate with its times, and its terms at the clock."""
        terms = {name: float(self.times(clock).terms_us[name][index]) for name in TERMS}
        burst, sustained = float(self.burst.us[index]), float(self.sustained.us[index])
        ranks = sustained if clock == "sustained" else burst
        low, high = self.spread
        least = self.times(clock).floor_us
        return self.make(index, terms, Predicted(burst, sustained, max(ranks * low, min(least, ranks)), ranks * high))


class Family(ABC):
    """One kind of kernel. ``name`` is what a candidate's ``family`` says, ``rungs`` those of the ladder it prices."""

    name: str
    rungs: Collection[int] = ()
    residuals: tuple[str, ...] = ()
    """Parts of its model that a calibration may have a fitted factor for (``Calibration.residual``), at most three."""

    @abstractmethod
    def refusal(self, problem: Problem) -> str | None:
        """Why none of its kernels computes the problem, in a sentence; None where one might."""

    @abstractmethod
    def offer(self, problem: Problem, machine: Machine) -> Offer:
        """Its candidates for a problem that it does not refuse, C having elements.

        On a machine with dependent launches those that can be one are there twice, first as such.
        """

    @abstractmethod
    def priced(self, plan: Plan, problem: Problem, machine: Machine) -> Offer:
        """An offer of one plan that it ``prices``, as it is, for a problem with elements in C that it can compute."""

    def prices(self, plan: Plan) -> bool:
        """Whether a plan is one of the family's kernels: of its ``rungs``, where it does not say otherwise."""
        return plan.rung in self.rungs

    def findings(self, candidate: Candidate, problem: Problem, machine: Machine) -> Iterator[Finding]:
        """What limits one of its candidates, beyond what holds of any tile; nothing where the family has none."""
        yield from ()

    def staged(self, candidate: Candidate, stages: int) -> Plan:
        """The plan of one of its candidates with other stages.

        Raises ``UsageError`` with the reason where no kernel has them.
        """
        raise UsageError(f"family {self.name}: its kernels have no ring whose stages could be {stages}")

    def kernels(self, tile: tuple[int, int, int], problem: Problem, machine: Machine) -> Iterator[Plan]:
        """Plans of a tile that it can compute a problem with and that are no candidates: others are never slower."""
        yield from ()

    def unlisted(self, tile: tuple[int, int, int], problem: Problem) -> str | None:
        """Why a tile of ``kernels`` is no candidate, in a sentence; None of one that is."""
        return None

    def source(self, term: str, candidate: Candidate, said: str) -> str:
        """What makes a term of one of its candidates, in words; ``said`` is what holds of any tile.

        Here of a kernel that ``terms`` prices; a family with another model says what its own puts in the term.
        """
        return f"{said}, and {BEGIN_AND_END_US:g} us to begin and end" if term == "first_load" else said

    @abstractmethod
    def refused(self, problem: Problem, machine: Machine, reason: str) -> Candidate:
        """A candidate that stands for the family where it refuses a problem."""


_FAMILIES: dict[str, Family] = {}


def register(family: Family) -> None:
    """Make a family known to ``plan``. Raises ``UsageError`` when there is one of its name."""
    if family.name in _FAMILIES:
        raise UsageError(f"family {family.name!r} is registered already")
    _FAMILIES[family.name] = family


def families() -> tuple[Family, ...]:
    """All that are known, by name: the order in which they were registered decides nothing."""
    _load()
    return tuple(_FAMILIES[name] for name in sorted(_FAMILIES))


def priced(plan: Plan, problem: Problem, machine: Machine, clock: Clock = "sustained") -> Candidate:
    """A plan that somebody brings, with its predicted time. Raises ``UsageError`` where no family has its kernel."""
    for family in families():
        if family.prices(plan):
            return family.priced(plan, problem, machine).candidate(0, clock)
    known = sorted(rung for family in families() for rung in family.rungs)
    raise UsageError(
        f"a {type(plan).__name__} of rung {plan.rung} has no model; rungs {', '.join(map(str, known))} have one"
    )


def family_of(candidate: Candidate) -> Family | None:
    """The family that a candidate says it is of; None where none of its name is known."""
    return next((family for family in families() if family.name == candidate.family), None)


@cache
def _load() -> None:
    home: Any = import_module("tilewright.planner.families")
    for found in sorted(each.name for each in pkgutil.iter_modules(home.__path__)):
        import_module(f"{home.__name__}.{found}")
