"""Who wins: by rule within the noise, by time beyond it."""

from __future__ import annotations

import math

import pytest
from fake_tune_child import rounds_of

from tilewright.measure import AGAIN
from tilewright.tune.decide import CONFIDENCE, FLOOR, LEAST_ROUNDS, decide, interval, noise_band

NAMES = ("1", "2", "3", "4")


def times(*us: float, noise: float) -> dict[str, dict[str, float]]:
    return {str(rank): {"us": each, "noise": noise} for rank, each in enumerate(us, 1)}


@pytest.mark.parametrize("noise", [0.002, 0.01, 0.05])
def test_of_equals_the_planners_first_wins_whatever_the_noise(noise: float) -> None:
    ends = []
    for seed in range(150):
        found = rounds_of(times(10, 10, 10, 10, noise=noise), 24, seed)
        assert decide(found, NAMES).winner == "1"
        ends.append(len(found))
    assert min(ends) == LEAST_ROUNDS, "some end as soon as they may"


@pytest.mark.parametrize(("slower", "noise"), [(1.02, 0.002), (1.05, 0.01), (1.5, 0.05)])
def test_one_that_is_faster_beyond_the_noise_always_wins(slower: float, noise: float) -> None:
    for seed in range(100):
        found = rounds_of(times(10 * slower, 10 * slower, 10, 10, noise=noise), 24, seed)
        assert decide(found, NAMES).winner == "3", "the first of the two that tie"
        alone = rounds_of(times(10 * slower, 10, noise=noise), 24, seed)
        assert decide(alone, NAMES[:2]).winner == "2"
        assert len(alone) < 24, "which is soon known"


def test_a_difference_inside_the_band_is_none_however_often_it_is_seen() -> None:
    for seed in range(50):
        found = rounds_of(times(10 * (1 + FLOOR / 2), 10, noise=0.0005), 24, seed)
        assert decide(found, NAMES[:2]).winner == "1"


def test_what_cannot_be_told_goes_on_to_the_limit_and_then_to_the_planners_order() -> None:
    found = rounds_of(times(10.15, 10, noise=0.01), 24, 3)
    assert len(found) == 24
    decision = decide(found, NAMES[:2])
    assert (decision.winner, decision.settled) == ("1", False)


def test_one_alone_is_measured_no_longer_than_its_time_needs() -> None:
    assert len(rounds_of(times(10, noise=0.01), 24)) == LEAST_ROUNDS


def test_the_same_rounds_give_the_same_answer_in_any_order_of_names_that_do_not_tie() -> None:
    found = rounds_of(times(12, 10, 11, noise=0.001), 24)
    for order in (["1", "2", "3"], ["1", "3", "2"]):
        assert decide(found, order).winner == "2"


def test_ratios_are_of_one_round_so_that_a_clock_which_falls_changes_nothing() -> None:
    falling = [{"1": 10.0 * f, "1" + AGAIN: 10.0 * f, "2": 9.0 * f} for f in (1, 1.2, 1.4, 1.6, 1.8, 2, 2.2, 2.4, 2.6)]
    assert decide(falling, ["1", "2"]) == decide(falling[::-1], ["1", "2"])
    assert decide(falling, ["1", "2"]).winner == "2"


def test_the_band_is_what_one_candidate_differs_from_itself_by() -> None:
    steady = [{"1": 10.0, "1" + AGAIN: 10.001}] * 10
    assert noise_band(steady, "1") == FLOOR
    noisy = [{"1": 10.0, "1" + AGAIN: 10.0 * (1.03 if number % 2 else 1 / 1.03)} for number in range(10)]
    assert noise_band(noisy, "1") == pytest.approx(0.03)
    once = [*steady, {"1": 10.0, "1" + AGAIN: 20.0}]
    assert noise_band(once, "1") == FLOOR, "a single hiccup is not the noise"


def test_the_interval_holds_the_median_as_often_as_it_says() -> None:
    assert interval([1.0] * (LEAST_ROUNDS - 1)) == (-math.inf, math.inf)
    assert interval([float(each) for each in range(LEAST_ROUNDS)]) == (0.0, 7.0)
    assert interval([float(each) for each in range(24)]) == (5.0, 18.0)
    for count in (8, 13, 24):
        low, high = (int(each) for each in interval([float(each) for each in range(count)]))
        outside = sum(math.comb(count, below) for below in [*range(low + 1), *range(high + 1, count + 1)]) / 2**count
        assert outside <= 1 - CONFIDENCE
        more = sum(math.comb(count, below) for below in [*range(low + 2), *range(high, count + 1)]) / 2**count
        assert more > 1 - CONFIDENCE, "no narrower one would do"
