"""What the judgement of a tile says of its stages, and what would do."""

from __future__ import annotations

import pytest
from test_planner_judge import CUBE, found, judged, names

from tilewright.planner.calibration import shipped


def test_how_many_stages_would_do() -> None:
    small = judged(*CUBE, tile=(64, 64, 64), stages=2)
    told = {each.name: each.instead for each in small.mistakes}
    latency = found(small)["pipeline depth"].limit
    assert latency is not None
    needed = int(-(-latency // 128)) + 1
    assert told["too few stages"].startswith(f"{needed} stages, ")
    for stages in range(2, 13):
        short = "too few stages" in names(judged(*CUBE, tile=(64, 64, 64), stages=stages))
        assert short is (stages < needed)


def test_narrow_tiles_are_multiplied_at_the_rate_of_their_wgmma() -> None:
    """16 columns take 20 clocks, not 8: two of 64 rows and 4 of K = 16 are 160 a stage, and 7 of them cover a load."""
    clk = shipped("h200").wgmma_clocks(16)
    narrow = judged(*CUBE, layout="rc", tile=(128, 16, 64), stages=8)
    depth = found(narrow)["pipeline depth"]
    assert depth.value == pytest.approx(7 * 2 * 4 * clk)
    assert depth.ok
    assert "(8 - 1) x 160" in depth.sentence
    assert depth.sentence.endswith("; a wgmma of 16 columns takes 20.01 clk")
    assert "too few stages" not in names(narrow)
    few = judged(*CUBE, layout="rc", tile=(128, 16, 64), stages=4)
    advice = next(each.instead for each in few.mistakes if each.name == "too few stages")
    assert advice == "7 stages, which fit"  # ceil(849 / 160) + 1
    wide = found(judged(*CUBE, layout="rc", tile=(64, 64, 64), stages=8))["pipeline depth"]
    assert (wide.value, "wgmma" in wide.sentence) == (7 * 128, False)


def test_fewer_stages_are_no_advice_for_a_tile_that_registers_refuse() -> None:
    assert names(judged(*CUBE, layout="rc", tile=(192, 256, 64), stages=4)) == []
