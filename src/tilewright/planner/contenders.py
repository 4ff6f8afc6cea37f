"""Which candidates to time where only a few can be: the first of them, and some that differ in kind."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from tilewright.planner.candidate import Candidate

NEAR = 1.05
"""Times the pick's predicted time: up to there the model, whose own error is about that, may have the order wrong."""


def contenders(ranked: Sequence[Candidate], count: int) -> tuple[Candidate, ...]:
    """``count`` of candidates that are in the planner's order, in that order, the first among them.

    Half of them are the first ones. These are near relatives, of which one is wrong where the others are; so the other
    half are the first of other kinds that are predicted ``NEAR`` the pick, or the next in order where there are none.
    """
    chosen = list(range(min((count + 1) // 2, len(ranked))))
    kinds = {_kind(ranked[at]) for at in chosen}
    for at in range(len(chosen), len(ranked)):
        if len(chosen) == count or not _near(ranked[at], ranked[0]):
            break
        if _kind(ranked[at]) not in kinds:
            kinds.add(_kind(ranked[at]))
            chosen.append(at)
    rest = (at for at in range(len(ranked)) if at not in set(chosen))
    chosen += [at for at, _ in zip(rest, range(count - len(chosen)), strict=False)]
    return tuple(ranked[at] for at in sorted(chosen))


def _kind(candidate: Candidate) -> Hashable:
    """What sets one way to compute a problem apart: family, schedule, clusters or none, K cut or whole."""
    return candidate.family, candidate.schedule, candidate.cluster != (1, 1), candidate.split > 1


def _near(candidate: Candidate, pick: Candidate) -> bool:
    if candidate.predicted_us is None or pick.predicted_us is None:
        return False
    return candidate.predicted_us.sustained <= NEAR * pick.predicted_us.sustained
