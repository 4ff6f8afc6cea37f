"""Who wins, and when there is no more to learn: rules under which noise does not flip a winner.

Candidates are compared by the ratio of their times within a round, whose slots share heat and clock. Three rules:

1. *The band.* The first candidate runs twice a round. The band is what nine of ten of these pairs differ by at most
   (their 90th percentile), or ``FLOOR`` where that is more. A difference inside it is none.
2. *Displacing.* One candidate displaces another where the median ratio of their times exceeds 1 by more than the band
   for certain: the lower end of its confidence interval does. The interval is that of the order statistics, which
   supposes nothing of the distribution (H. A. David and H. N. Nagaraja, Order Statistics, 3rd ed., 2003, section 7.1).
3. *The winner* is the first in the planner's order that none displaces. So within the band the planner's order wins,
   and so it does where the rounds end before anything is certain.

The rounds may end when the winner is settled: none that might still displace it is left.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from tilewright.measure import AGAIN

FLOOR = 0.005  # half a percent: what two runs of one kernel may differ by where a single run shows less
CONFIDENCE = 0.99  # looked at after each round, so that it has to be more than what one look would ask for
LEAST_ROUNDS = 8  # fewer have no interval of that confidence: 1 - 2 / 2**8 = 0.992

Rounds = Sequence[Mapping[str, float]]


@dataclass(frozen=True)
class Decision:
    """``winner`` by name; ``settled`` when further rounds need not be run; ``band`` as a share of a time."""

    winner: str
    settled: bool
    band: float


def decide(rounds: Rounds, order: Sequence[str]) -> Decision:
    """The winner among ``order``, the candidates' names as the planner ranks them.

    ``rounds`` have microseconds by name, and of the first under its name with ``measure.AGAIN`` as well.
    """
    band = noise_band(rounds, order[0])
    more = math.log1p(band)
    surely: dict[tuple[str, str], bool] = {}
    perhaps: dict[tuple[str, str], bool] = {}
    for slow in order:
        for fast in order:
            low, high = interval(log_ratios(rounds, slow, fast)) if slow != fast else (0.0, 0.0)
            surely[slow, fast], perhaps[slow, fast] = low > more, high > more
    left = [name for name in order if not any(surely[name, other] for other in order)]
    # Medians of ratios need not be transitive: were all displaced, in a circle, the planner's order would decide alone.
    winner = (left or list(order))[0]
    open_ = any(perhaps[winner, other] for other in left)
    return Decision(winner, len(rounds) >= LEAST_ROUNDS and not open_, band)


def noise_band(rounds: Rounds, name: str) -> float:
    """Rule 1, from the rounds in which ``name`` ran twice."""
    pairs = [(each[name], each[name + AGAIN]) for each in rounds if name in each and name + AGAIN in each]
    apart = sorted(abs(math.log(second / first)) for first, second in pairs)
    if len(apart) < 2:
        return max([FLOOR, *map(math.expm1, apart)])
    return max(FLOOR, math.expm1(statistics.quantiles(apart, n=10, method="inclusive")[-1]))


def log_ratios(rounds: Rounds, slow: str, fast: str) -> list[float]:
    """The logarithm of the one's time over the other's, of each round that has both; first slots only.

    A mean of two slots would be steadier than one, and so flatter whoever runs twice.
    """
    return [math.log(each[slow] / each[fast]) for each in rounds if slow in each and fast in each]


def interval(samples: Sequence[float]) -> tuple[float, float]:
    """A confidence interval of the median; from minus to plus infinity where there are too few samples for one."""
    rank = _rank(len(samples))
    if rank is None:
        return -math.inf, math.inf
    found = sorted(samples)
    return found[rank - 1], found[-rank]


@cache
def _rank(count: int) -> int | None:
    """The largest r for which the r-th smallest and the r-th largest of ``count`` hold the median between them."""
    below, best = 0.0, None
    for rank in range(1, count // 2 + 1):
        below += math.comb(count, rank - 1) / 2.0**count  # P(fewer than ``rank`` of the samples lie below the median)
        if 2 * below > 1 - CONFIDENCE:
            break
        best = rank
    return best
