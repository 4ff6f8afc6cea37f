"""Which candidates are timed where only a few can be."""

from __future__ import annotations

from dataclasses import replace

from tilewright.planner.candidate import Candidate, Predicted
from tilewright.planner.contenders import contenders
from tilewright.planner.plan import plan

PICK = plan(4096, 4096, 4096, layout="rc", gpu="h200").pick


def near(percent: float, **changes: object) -> Candidate:
    us = 100 + percent
    return replace(PICK, predicted_us=Predicted(us, us, us, us), **changes)  # type: ignore[arg-type]


def test_half_of_them_are_the_first() -> None:
    ranked = [near(place, tile=(128, 16 + place, 64)) for place in range(8)]
    for count in (1, 2, 3, 4, 9):
        assert contenders(ranked, count) == tuple(ranked[:count])


def test_the_others_differ_in_kind_if_they_are_near() -> None:
    same = [near(place, tile=(128, 16 + place, 64)) for place in range(3)]
    other, cut = near(3.5, schedule="pingpong"), near(4.5, split=2)
    again, far = near(4.8, schedule="pingpong"), near(6.0, family="streamk")
    ranked = [*same, other, cut, again, far]
    assert contenders(ranked, 4) == (*same[:2], other, cut)
    assert contenders([*same, other, far], 4) == (*same, other)
    assert contenders(ranked, 2) == (same[0], other)


def test_of_a_planning() -> None:
    ranked = plan(64, 8192, 8192, layout="rc", gpu="h200").ranked
    some = contenders(ranked, 4)
    assert some[0] == ranked[0]
    places = [ranked.index(each) for each in some]
    assert places == sorted(places)
    assert len({each.family for each in some}) > 1
