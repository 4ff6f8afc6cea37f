"""The judgement of tiles that the branches have, and of what is asked of them."""

from __future__ import annotations

from typing import Any

import pytest
from test_planner_judge import found, judged, names

import tilewright
from tilewright.plan_swapab import SwapAbPlan
from tilewright.planner.candidate import Candidate
from tilewright.planner.judgement import Judgement
from tilewright.planner.why import time_us

FEW = (64, 4096, 4096)


def test_a_tile_of_a_branch_is_judged_wherever_it_ranks() -> None:
    """At few rows most of the tiles are of swap-AB, and a tile's fastest kernel is seldom the first of all."""
    ranked = tilewright.plan(*FEW, gpu="h200").ranked
    main = {(each.tile, each.cluster) for each in ranked if each.family == "wgmma"}
    fastest: dict[Any, Candidate] = {}
    for each in ranked:
        fastest.setdefault((each.tile, each.cluster), each)
    others = {key: each for key, each in fastest.items() if key not in main}
    assert len(others) > 25
    assert {each.family for each in others.values()} == {"swapab", "simt"}
    for (tile, cluster), each in others.items():
        assert judged(*FEW, tile=tile, cluster=cluster).candidate == each


@pytest.mark.parametrize(
    ("tile", "fit"), [((32, 64, 128), range(2, 10)), ((64, 64, 128), range(2, 7)), ((8, 128, 256), range(2, 4))]
)
def test_stages_that_are_named_are_the_kernels_or_refused_for_their_bytes(tile: Any, fit: range) -> None:
    times = []
    for stages in fit:
        own = judged(*FEW, tile=tile, stages=stages).candidate
        assert own is not None
        assert (own.family, own.stages, own.tile) == ("swapab", stages, tile)
        assert isinstance(own.plan, SwapAbPlan)
        assert own.plan.stages == stages
        times.append(time_us(own, "sustained"))
        others = [
            each for each in tilewright.plan(*FEW, gpu="h200").ranked if (each.tile, each.stages) == (tile, stages)
        ]
        assert all(times[-1] <= time_us(each, "sustained") * 1.001 for each in others)
    assert times[0] > times[-1]
    for stages, reason in ((1, "stages is 1;"), (fit.stop + 8, "shared memory is ")):
        refused = judged(*FEW, tile=tile, stages=stages)
        assert (refused.fits, refused.candidate, refused.stages) == (False, None, stages)
        assert found(refused)["kernel"].sentence.startswith(f"swapab swap-ab: {reason}")
        assert "instruction" not in found(refused)  # nor any other limit of the main kernel
        assert Judgement.from_dict(refused.to_dict()) == refused


def test_stages_of_kernels_without_a_ring() -> None:
    ring = judged(64, 64, 65, tile=(64, 64, 64), stages=2)  # rung 5, whose rows need no alignment
    assert ring.candidate is not None
    assert (ring.candidate.family, ring.candidate.stages) == ("mma_sync", 2)
    vector = judged(1, 4096, 4096, layout="rc", tile=(1, 16, 512), stages=7)
    assert found(vector)["kernel"].sentence == ("family decode_gemv: its kernels have no ring whose stages could be 7")


def test_a_team_that_a_branch_has_not_is_refused_with_those_it_has() -> None:
    for choices in ({"consumers": 3}, {"schedule": "pingpong"}, {"cluster": (2, 1)}):
        refused = judged(*FEW, tile=(8, 64, 128), **choices)
        assert found(refused)["kernel"].sentence == (
            "8x64x128 has kernels of 1 warpgroup, cooperative, cluster 1x1 (swapab), and no others"
        )
        assert not refused.fits
        assert names(refused) == []


def test_a_decode_kernel_of_lines_that_are_not_aligned_fits_though_its_estimate_of_registers_does_not() -> None:
    """It is a candidate: what its threads have no registers for, the compiler spills."""
    judgement = judged(9, 2142, 361, layout="rc", tile=(16, 64, 64), stages=1)
    assert judgement.candidate is not None
    assert judgement.candidate.family == "decode_mma"
    registers = found(judgement)["lane registers"]
    assert (registers.ok, registers.hard, registers.value, registers.limit) == (False, False, 148, 128)
    assert registers.sentence.endswith("leave 128; what finds no room there is spilled")
    assert judgement.fits
    aligned = judged(9, 2144, 4096, layout="rc", tile=(16, 32, 64))
    assert found(aligned)["lane registers"].hard


@pytest.mark.parametrize(
    ("shape", "how"),
    [
        ((16, 40, 368), {"layout": "cr", "gpu": "h100"}),  # stages of 128 k and of 64 in the same time
        ((3512, 24, 8), {"layout": "rc", "gpu": "h100", "sms": 115}),  # a tile turned has fewer elements, and is slower
        ((296, 4520, 7000), {}),  # clusters of 4, which leave SMs empty and win all the same
        ((7380, 792, 2112), {"layout": "cr", "gpu": "h100", "clock": "burst", "lda": 7381}),  # rung 5
        ((64, 4096, 4096), {"layout": "rc"}),
        ((1, 4096, 4096), {"layout": "rc"}),
        ((300, 5000, 777), {"layout": "rc"}),
    ],
)
def test_the_pick_makes_no_mistake(shape: tuple[int, int, int], how: dict[str, Any]) -> None:
    pick = tilewright.plan(*shape, **{"gpu": "h200", **how}).pick
    judgement = judged(*shape, tile=pick.tile, cluster=pick.cluster, **how)
    assert (judgement.candidate, judgement.better) == (pick, ())
    assert names(judgement) == []
