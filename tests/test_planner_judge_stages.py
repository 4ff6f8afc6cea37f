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
    assert shipped("h200").wgmma_clocks(16) == pytest.approx(20, abs=0.01)
    narrow = judged(*CUBE, layout="rc", tile=(128, 16, 64), stages=8)
    depth = found(narrow)["pipeline depth"]
    assert depth.value == 7 * 2 * 4 * 20
    assert depth.ok
    assert "(8 - 1) x 160 clk a stage = 1,120 clk; " in depth.sentence
    assert depth.sentence.endswith("; a wgmma of 16 columns takes 20.01 clk")
    assert "too few stages" not in names(narrow)
    few = judged(*CUBE, layout="rc", tile=(128, 16, 64), stages=4)
    advice = next(each.instead for each in few.mistakes if each.name == "too few stages")
    assert advice == "7 stages, which fit"  # ceil(849 / 160) + 1
    wide = found(judged(*CUBE, layout="rc", tile=(64, 64, 64), stages=8))["pipeline depth"]
    assert (wide.value, "wgmma" in wide.sentence) == (7 * 128, False)


def test_fewer_stages_are_no_advice_for_a_tile_that_registers_refuse() -> None:
    assert names(judged(*CUBE, layout="rc", tile=(192, 256, 64), stages=4)) == []


def test_of_one_sm_the_ridge_and_the_words_are_those_of_one() -> None:
    one = judged(4096, 4096, 4096, tile=(128, 256, 64), cluster=(2, 1), sms=1)
    # 989.4 / 132 = 7.495 TFLOPS over 4.8 TB/s
    assert "stand against a ridge of 1.56, no tile's do" in found(one)["HBM bandwidth"].sentence
    assert found(one)["kernel"].sentence == "a cluster of 2x1 blocks does not fit on 1 SM"
    assert found(one)["clusters"].sentence == "0 clusters of 2 run at a time on 1 SM"
