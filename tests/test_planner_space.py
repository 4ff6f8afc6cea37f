"""Which candidates there are: all that a kernel can have, each a plan that can be built; the others have a reason."""

from __future__ import annotations

import math
import re
from collections import Counter
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright
from tilewright.dtypes import BF16, FP16, DType
from tilewright.errors import UsageError
from tilewright.gpu import clusters_that_fit, get_gpu
from tilewright.plan_grid import CLUSTER_SHAPES
from tilewright.plan_space import MOST_STAGES, TEAMS, TILES, legal_plans
from tilewright.plan_tensor import SHARED_LIMIT, TensorPlan
from tilewright.planner.candidate import Candidate
from tilewright.planner.families.wgmma import COVER_CLK, MOST_SLABS
from tilewright.planner.planning import Planning
from tilewright.problem import Layout

LAYOUTS: dict[str, tuple[Layout, Layout]] = {
    "rr": ("row", "row"), "rc": ("row", "column"), "cr": ("column", "row"), "cc": ("column", "column"),
}  # fmt: skip
MAIN = 11
sizes = st.integers(1, 2000).map(lambda each: 8 * each)


def main_kernels(planning: Planning) -> list[Candidate]:
    return [each for each in planning.ranked if each.family == "wgmma"]


def kind(candidate: Candidate) -> tuple[object, ...]:
    return (*candidate.tile[:2], candidate.consumers, candidate.schedule, candidate.cluster, candidate.tail)


@pytest.mark.parametrize(("dtype", "layout"), list(product((BF16, FP16), LAYOUTS)))
def test_every_legal_kind_is_a_candidate(dtype: DType, layout: str) -> None:
    planning = tilewright.plan(4096, 4096, 4096, dtype=dtype, layout=layout, gpu="h200")
    legal = {
        (
            p.bm, p.bn, p.consumers, "pingpong" if p.pingpong else "cooperative", (p.cluster_m, p.cluster_n),
            "half" if p.half_tail else "whole",
        )
        for p in legal_plans(MAIN)
        if (p.dtype, p.a_layout, p.b_layout) == (dtype, *LAYOUTS[layout])
    }  # fmt: skip
    ranked = [kind(each) for each in main_kernels(planning)]
    twins = [kind(each) for each in planning.rejected if "no tile is cut" in str(each.rejected)]
    assert len(legal) > 150
    assert {*ranked, *twins} == legal
    assert len({*ranked, *twins}) == len(set(ranked)) + len(twins), "each once"
    rings = Counter((kind(each), each.stages) for each in main_kernels(planning))
    assert set(rings.values()) == {1}
    assert {each[-2] for each, count in Counter(ranked).items() if count > 1} == {(1, 1)}
    # A half tail that cuts nothing is the kernel without one, which is ranked.
    assert twins
    assert {(*twin[:-1], "whole") for twin in twins} <= set(ranked)
    lone = [each for each in planning.ranked if each.tail == "half" and math.prod(each.cluster) == 1]
    assert lone
    cuts = [2 * (each.tiles - (each.waves - 1) * 132) <= 132 for each in lone]
    assert all(cut or each.tile[0] == 384 for cut, each in zip(cuts, lone, strict=True))  # whole, no TMA box is so long


def test_every_legal_kind_of_rung_5_is_a_candidate() -> None:
    ranked = tilewright.plan(4096, 4096, 4096, layout="rc", gpu="h200").ranked
    found = [each.plan for each in ranked if each.family == "mma_sync"]
    legal = [p for p in legal_plans(5) if (p.dtype, p.a_layout, p.b_layout) == (BF16, "row", "column")]
    names = ("bm", "bn", "warps_m", "warps_n")
    kinds = [tuple(getattr(plan, name) for name in names) for plan in found]
    assert len(set(kinds)) == len(kinds) > 50
    assert set(kinds) == {tuple(getattr(plan, name) for name in names) for plan in legal}


def test_what_is_no_candidate_is_rejected_with_the_sentence_of_the_plan() -> None:
    planning = tilewright.plan(4096, 4096, 4096, layout="rc", gpu="h200")
    rejected = [each for each in planning.rejected if each.family == "wgmma"]
    space = len(TILES) * len(TEAMS) * len(CLUSTER_SHAPES) * 2
    assert len(rejected) + len({kind(each) for each in main_kernels(planning)}) == space
    assert all(each.rejected and each.plan is None and each.predicted_us is None for each in rejected)
    square = next(each for each in rejected if each.tile[:2] == (256, 256) and each.consumers == 2)
    assert "takes 256 accumulators and about 40 other registers" in str(square.rejected)
    narrow = next(each for each in rejected if each.tile[0] == 64 and each.consumers == 2)
    assert "2 warpgroups of 64 rows" in str(narrow.rejected)


@given(m=sizes, n=sizes, k=sizes, layout=st.sampled_from(sorted(LAYOUTS)), number=st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_a_candidates_plan_is_what_the_candidate_says(m: int, n: int, k: int, layout: str, number: int) -> None:
    planning = tilewright.plan(m, n, k, layout=layout, gpu="h200")
    candidate = planning.ranked[number % len(planning.ranked)]
    plan = candidate.plan
    assert plan is not None
    header = dict(re.findall(r"constexpr \w+ (\w+) = (\w+);", plan.header()))
    assert candidate.tile == tuple(int(header[name]) for name in ("BM", "BN", "BK"))
    assert candidate.shared_bytes == plan.shared_bytes == int(header["SHARED_BYTES"]) <= SHARED_LIMIT
    assert candidate.rejected is None
    if not isinstance(plan, TensorPlan):
        return
    assert candidate.stages == int(header["STAGES"]) <= candidate.max_stages <= candidate.max_stages_no_epilogue
    assert candidate.accumulator_registers_per_thread == plan.accumulators
    assert candidate.stage_bytes == plan.tile_bytes
    if plan.rung == MAIN:
        assert candidate.cluster == (plan.cluster_m, plan.cluster_n)
        assert candidate.register_split == (plan.producer_registers, plan.consumer_registers)
        assert candidate.raster.group == plan.group
        assert (candidate.raster.along == "n") == plan.along_n
        assert candidate.k_alternates == plan.alternate_k
        assert plan.blocks == plan.cluster * clusters_that_fit(plan.cluster, get_gpu("h200"))
        assert plan.grid(planning.problem)[0] <= plan.blocks


def test_stages_are_as_many_as_fit() -> None:
    """Or as many as the space has; of a lone block also one fewer, whose room holds all of C, with its own price."""
    rings: dict[tuple[object, ...], list[Candidate]] = {}
    for candidate in main_kernels(tilewright.plan(4096, 4096, 4096, layout="rc", gpu="h200")):
        rings.setdefault(kind(candidate), []).append(candidate)
    for found in rings.values():
        plans = [each.plan for each in found]
        assert all(isinstance(plan, TensorPlan) for plan in plans)
        deep, *fewer = sorted((plan for plan in plans if isinstance(plan, TensorPlan)), key=lambda plan: -plan.stages)
        if deep.stages < MOST_STAGES:
            with pytest.raises(UsageError, match="shared memory"):
                deep.with_(stages=deep.stages + 1, epilogue_slabs=min(2, deep.epilogue_slabs))
        for plan in fewer:
            assert (plan.stages, plan.cluster) == (deep.stages - 1, 1)
            assert (plan.stages - 1) * plan.bm * plan.bn * plan.bk / 2048 >= COVER_CLK
            tile = plan.bm // 64 * plan.bn // plan.epilogue_columns // (1 if plan.pingpong else plan.consumers)
            assert plan.epilogue_slabs == min(tile, MOST_SLABS) > deep.epilogue_slabs
    (wide,) = (found for key, found in rings.items() if key == (128, 256, 2, "cooperative", (1, 1), "whole"))
    assert {each.stages for each in wide} == {3, 4}
    # and a tile without stages has those of the faster ring
    judged = tilewright.judge(4096, 4096, 4096, layout="rc", gpu="h200", tile=(128, 256, 64))
    assert judged.candidate == wide[0]


def test_buffers_of_the_plans_that_were_measured() -> None:
    """results/ holds the plans found by measuring; the rule gives their stages and slabs."""
    found: dict[Any, Any] = {
        (each.tile[:2], each.schedule, each.cluster, each.tail): each.plan
        for each in main_kernels(tilewright.plan(8192, 8192, 8192, layout="rc", gpu="h200"))
    }
    wanted: dict[Any, tuple[int, int, int]] = {
        ((256, 192), "cooperative", (2, 1), "half"): (3, 64, 3),
        ((128, 256), "cooperative", (1, 1), "whole"): (3, 64, 4),
        ((128, 256), "cooperative", (2, 1), "whole"): (4, 64, 2),
        ((128, 176), "pingpong", (1, 1), "whole"): (5, 16, 8),
        ((128, 192), "pingpong", (2, 1), "whole"): (5, 32, 3),
    }
    for shape, buffers in wanted.items():
        plan = found[shape]
        assert isinstance(plan, TensorPlan)
        assert (plan.stages, plan.epilogue_columns, plan.epilogue_slabs) == buffers


def test_clusters_of_4_fit_30_times() -> None:
    h200 = get_gpu("h200")
    assert [clusters_that_fit(size, h200) for size in (1, 2, 4)] == [132, 66, 30]
    assert [clusters_that_fit(4, h200, sms) for sms in (131, 120, 119, 4)] == [30, 30, 29, 1]
    assert clusters_that_fit(8, h200) == 15
    with pytest.raises(UsageError, match="a cluster of 4 blocks does not fit on 3 SMs"):
        clusters_that_fit(4, h200, 3)
    with pytest.raises(UsageError, match="sms is 133; H200 SXM has 1 to 132"):
        clusters_that_fit(1, h200, 133)
    big = next(each for each in main_kernels(tilewright.plan(8192, 8192, 8192, gpu="h200")) if each.cluster == (2, 2))
    assert big.plan is not None
    assert big.plan.grid(tilewright.Problem(8192, 8192, 8192, "bf16"))[0] == 120


def test_few_sms_have_no_large_clusters() -> None:
    planning = tilewright.plan(512, 512, 512, gpu="h200", sms=1)
    assert {each.cluster for each in main_kernels(planning)} == {(1, 1)}
    reasons = {each.rejected for each in planning.rejected if each.cluster == (2, 1) and each.tile[:2] == (128, 128)}
    assert "a cluster of 2 blocks does not fit on 1 SM" in reasons


def test_a_family_that_cannot_read_the_problem_says_why() -> None:
    odd = tilewright.plan(1000, 1000, 777, gpu="h200")
    assert {each.family for each in odd.ranked} == {"mma_sync", "simt"}
    (reason,) = {each.rejected for each in odd.rejected if each.family == "wgmma"}
    assert reason == "lda makes lines of A 1,554 B apart; TMA steps multiples of 16 B below 2^40"
    single = tilewright.plan(1024, 1024, 1024, dtype="fp32", gpu="h200")
    assert {each.family for each in single.ranked} == {"simt"}
    assert {each.rejected for each in single.rejected} == {
        "rung 11: dtype is fp32; tensor cores multiply bf16 or fp16",
        "rung 5: dtype is fp32; tensor cores multiply bf16 or fp16",
        "swapab swap-ab: dtype is fp32; bf16 and fp16 are possible",
        "splitk split-k: dtype is fp32; bf16 and fp16 are possible",
        "streamk stream-k: dtype is fp32; bf16 and fp16 are possible",
        "decode gemv takes M of 1 to 4, and M is 1024: it would read the weights again for the rest",
        "decode mma takes M of 1 to 16, and M is 1024: the branch for it is swapab",
    }
    columns = tilewright.plan(64, 64, 64, layout="rc", gpu="h200")
    assert any("rung 4 reads row-major operands" in str(each.rejected) for each in columns.rejected)
