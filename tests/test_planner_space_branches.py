"""Which kernels of the branches are candidates: all that are legal, but for those that by rule gain nothing."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from functools import cache
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright
from tilewright import plan_space
from tilewright.dtypes import BF16, DType
from tilewright.errors import UsageError
from tilewright.plan_decode import DecodePlan, GemvPlan, MmaPlan
from tilewright.plan_grid import CLUSTER_SHAPES
from tilewright.plan_parts import PartsPlan
from tilewright.plan_splitk import SplitKPlan, with_clusters
from tilewright.plan_streamk import StreamKPlan
from tilewright.plan_swapab import CLUSTERS, SwapAbPlan
from tilewright.planner.decode_space import has_room
from tilewright.planner.families.decode import GEMV, MMA
from tilewright.planner.families.splitk import SplitK
from tilewright.planner.families.streamk import StreamK
from tilewright.planner.families.swapab import DEPTHS, SWAP_AB, kind_plan
from tilewright.planner.family import priced
from tilewright.planner.parts import Bases, base_plan
from tilewright.planner.plan import LAYOUTS, machine_of
from tilewright.problem import Layout, Problem

H200 = machine_of("h200", None, None)[0]
TOKENS = range(8, 129, 8)
sizes = st.integers(1, 1024).map(lambda each: 8 * each)
layouts = st.sampled_from(sorted(LAYOUTS))


@pytest.mark.parametrize(("m", "layout"), [(40, "rc"), (200, "rr"), (104, "cr"), (1111, "rc")])
def test_every_legal_kind_of_swap_ab_is_a_candidate_or_no_faster_than_one(m: int, layout: str) -> None:
    """A kind is tokens, weights, depth of a stage and blocks that share K; tiles of as many tokens less are as good."""
    a, b = LAYOUTS[layout]
    legal = set()
    for bm, bn, bk, split in product(TOKENS, (64, 128), DEPTHS, CLUSTERS):
        with suppress(UsageError):
            SwapAbPlan(BF16, bm, bn, bk, a_layout=a, b_layout=b, stages=2, cluster_k=split, blocks=split)
            legal.add((bm, bn, bk, split))
    planning = tilewright.plan(m, 1024, 2048, layout=layout, gpu="h200")
    ranked = {(*each.tile, each.split) for each in planning.ranked if each.family == "swapab"}
    rejected = [each for each in planning.rejected if each.family == "swapab"]
    assert ranked <= legal
    assert len(legal) > (80 if layout[0] == "r" else 10)
    over = {(*each.tile, each.split) for each in rejected if "never slower" in str(each.rejected)}
    assert ranked | over == legal
    assert not ranked & over
    tokens = {bm for bm, *_ in legal}
    for bm in tokens:
        fewer = {each for each in tokens if each < bm and -(-m // each) == -(-m // bm)}
        assert (not any(kind[0] == bm for kind in ranked)) is bool(fewer)
    # What is refused is so once, for a reason that somebody can act on: blocks an SM are no part of a label.
    seen = Counter((each.label, each.rejected) for each in rejected if (*each.tile, each.split) not in over)
    assert set(seen.values()) == {1}
    assert not any("stages is" in str(reason) for _, reason in seen)


@given(
    m=st.integers(1, 700), n=sizes, k=sizes, layout=layouts, bm=st.sampled_from(TOKENS), bn=st.sampled_from((64, 128)),
    slices=st.integers(1, 9), split=st.sampled_from(CLUSTERS), per_sm=st.sampled_from((1, 2)),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_what_of_swap_ab_is_no_candidate_is_not_faster(
    m: int, n: int, k: int, layout: str, bm: int, bn: int, slices: int, split: int, per_sm: int
) -> None:
    a, b = LAYOUTS[layout]
    problem = Problem(m, n, k, "bf16", a_layout=a, b_layout=b).padded()
    tile = (bm, bn, 64 * slices)
    plans = list(SWAP_AB.kernels(tile, problem, H200))
    blocks = H200.places(split) * split * per_sm
    try:
        legal = kind_plan((*tile, split, per_sm), BF16, a, b, problem.aligned).with_(blocks=blocks)
    except UsageError:
        assert not any(
            isinstance(each, SwapAbPlan) and (each.cluster_k, each.blocks) == (split, blocks) for each in plans
        )
        return
    assert legal in plans
    us = SWAP_AB.priced(legal, problem, H200).sustained.us[0]
    reason = SWAP_AB.unlisted(tile, problem)
    fastest = SWAP_AB.offer(problem, H200).sustained.us.min()
    if reason is None:
        assert fastest <= us
    elif "never slower" in reason:
        least = int(reason.split("as many of ")[1].split(",")[0])
        smaller = kind_plan((least, *tile[1:], split, per_sm), BF16, a, b, problem.aligned).with_(blocks=blocks)
        assert SWAP_AB.priced(smaller, problem, H200).sustained.us[0] <= us * (1 + 1e-12)
    else:
        assert fastest <= 1.02 * us


def test_a_tile_that_is_no_candidate_is_judged_with_the_reason() -> None:
    for tile, reason in (
        ((48, 64, 256), "M = 40 is 1 tile of 48 tokens and as many of 40, which are never slower"),
        ((40, 64, 192), "stages of 64, 128, 256 k are the candidates: of 192 k they are not 2% faster"),
    ):
        judgement = tilewright.judge(40, 4096, 4096, tile=tile, gpu="h200")
        assert judgement.candidate is not None
        assert judgement.candidate.plan is not None
        assert judgement.candidate == priced(judgement.candidate.plan, judgement.problem, H200)
        assert f"it is no candidate: {reason}" in judgement.findings[-1].sentence


# ---- split-K and stream-K


@cache
def parts_space(plan_kind: type[PartsPlan], a: Layout, b: Layout) -> Bases:
    """Every tile of rung 11 with every team and cluster, and for split-K with blocks along K."""
    found: list[PartsPlan] = []
    for tile, team, cluster in product(plan_space.TILES, (1, 2, 3), CLUSTER_SHAPES):
        with suppress(UsageError):
            found.append(base_plan(plan_kind, BF16, a, b, ((*tile, team), cluster)))
    return Bases(tuple(with_clusters(found)) if plan_kind is SplitKPlan else tuple(found))


class Whole(SplitK):
    """Split-K with all of the space."""

    def uncut(self, dtype: DType, a: Layout, b: Layout) -> Bases:
        return parts_space(SplitKPlan, a, b)


class WholeStream(StreamK):
    """Stream-K with all of the space."""

    def uncut(self, dtype: DType, a: Layout, b: Layout) -> Bases:
        return parts_space(StreamKPlan, a, b)


@pytest.mark.parametrize("layout", ["rc", "cr"])
def test_every_tile_with_parts_is_a_candidate(layout: str) -> None:
    a, b = LAYOUTS[layout]
    planning = tilewright.plan(384, 1000, 8192, layout=layout, gpu="h200")
    for name, plan_kind in (("splitk", SplitKPlan), ("streamk", StreamKPlan)):
        legal = {(p.bm, p.bn) for p in parts_space(plan_kind, a, b).plans if p.cluster_m * p.cluster_n == 1}
        own = [each for each in planning.ranked if each.family == name]
        assert {each.tile[:2] for each in own} == legal
        assert len(legal) > (50 if layout == "rc" else 10)
        assert {each.consumers for each in own if each.tile[0] in (64, 192)} == {1, 3}
        over = {str(each.rejected) for each in planning.rejected if each.family == name}
        assert len(over) == (4 if name == "streamk" else 3)
        assert sum("none is 5% faster than the planner's first candidate" in reason for reason in over) == 3


def test_what_of_the_parts_is_no_candidate_gains_less_than_it_says() -> None:
    """On problems where parts can be worth it, and others."""
    rng, families = random.Random(7), (Whole(), WholeStream())
    for _ in range(16):
        m, n, k = (
            max(1, int(2 ** rng.uniform(3, 11))),
            8 * int(2 ** rng.uniform(0, 8)),
            64 * int(2 ** rng.uniform(1, 9)),
        )
        problem = Problem(m, n, k, "bf16", b_layout="column").padded()
        planning = tilewright.plan(problem=problem, gpu="h200")
        first = planning.pick.predicted_us
        assert first is not None
        for family, own in zip(families, (SplitK(), StreamK()), strict=True):
            offer, listed = family.offer(problem, H200), own.offer(problem, H200)
            assert len(offer.useful) > 3 * len(listed.useful)
            assert offer.sustained.us.min() * 1.05 >= first.sustained, problem
            assert offer.sustained.us.max() > first.sustained


def test_each_candidate_has_a_workspace_that_there_can_be() -> None:
    for sizes in ((8192, 8192, 8192), (16384, 16384, 16384), (512, 512, 65536)):
        planning = tilewright.plan(*sizes, layout="rc", gpu="h200")
        needed = [each.plan.workspace_bytes(planning.problem) for each in planning.ranked if each.plan is not None]
        assert len(needed) == len(planning.ranked)


def test_parts_that_k_has_no_blocks_for_are_no_candidates() -> None:
    one = tilewright.plan(64, 64, 64, layout="rc", gpu="h200")
    assert "splitk" not in {each.family for each in one.ranked}
    assert "splitk split-k: K = 64 is one block of 64, which has no parts" in {each.rejected for each in one.rejected}
    for k in (72, 192, 1000):
        own = [each for each in tilewright.plan(64, 1024, k, layout="rc", gpu="h200").ranked if each.family == "splitk"]
        assert own
        assert all(2 <= each.split * getattr(each.plan, "cluster_k", 1) <= -(-k // 64) for each in own)
    full = tilewright.plan(1536, 1536, 1536, layout="rc", gpu="h200")  # 132 tiles of 128x144 leave nothing to share
    assert not [each for each in full.ranked if each.family == "streamk" and each.tile == (128, 144, 64)]


# ---- decode


@pytest.mark.parametrize("m", [1, 3, 7, 16])
def test_every_plan_of_the_decode_space_is_a_candidate(m: int) -> None:
    """4 to 8 loads of a lane in flight, 4 to 16 warps; refused where registers leave no room for a block."""
    problem = Problem(m, 4096, 4096, "bf16", b_layout="column")
    planning = tilewright.plan(problem=problem, gpu="h200")
    found = [each.plan for each in planning.ranked if each.family.startswith("decode")]
    legal: set[tuple[object, ...]] = set()
    if m <= 4:
        for rw, un, wk, wr in product((1, 2, 4), (1, 2, 4, 8), (1, 2, 4, 8, 16), (1, 2, 4)):
            if 4 <= rw * un <= 8 and 4 <= wk * wr <= 16:
                with suppress(UsageError):
                    GemvPlan(BF16, bm=m, rw=rw, un=un, wk=wk, wr=wr)
                    legal.add(("gemv", rw, un, wk, wr))
    for rb, un, batches, wk, wr in product((1, 2), (1, 2, 4), (1, 2), (4, 8, 16), (1, 2)):
        with suppress(UsageError):
            MmaPlan(BF16, nt=1 if m <= 8 else 2, rb=rb, un=un, batches=batches, wk=wk, wr=wr)
            legal.add(("mma", rb, un, batches, wk, wr))
    refused = [each for each in planning.rejected if each.family.startswith("decode")]
    kinds = [
        ("gemv", p.rw, p.un, p.wk, p.wr) if isinstance(p, GemvPlan) else ("mma", p.rb, p.un, p.batches, p.wk, p.wr)
        for p in found
        if isinstance(p, GemvPlan | MmaPlan)
    ]
    assert len(set(kinds)) == len(kinds)
    assert set(kinds) < legal
    crowded = [each for each in refused if "on an SM leave" in str(each.rejected)]
    assert len(kinds) + len(crowded) == len(legal)
    assert len(kinds) > len(crowded)


@pytest.mark.parametrize(("m", "k"), [(3, 4096), (16, 4096), (2, 1026), (12, 921)])
def test_decode_kernels_that_are_no_candidates_are_named_and_can_be_judged(m: int, k: int) -> None:
    """Of all rows, loads and warps that a plan may have: each is a candidate, without room, or of a kind left out."""
    problem = Problem(m, 4096, k, "bf16", b_layout="column")
    planning = tilewright.plan(problem=problem, gpu="h200")

    def key(plan: DecodePlan) -> tuple[object, ...]:
        return type(plan), plan.bm, plan.bn, plan.bk, plan.traits[:-1]  # whatever the blocks an SM

    listed = {key(each.plan) for each in planning.ranked if isinstance(each.plan, DecodePlan)}
    said = [str(each.rejected) for each in planning.rejected if "are left out" in str(each.rejected)]
    given: dict[str, Any] = {"aligned": problem.aligned, "b_layout": "column"}
    apart: Counter[str] = Counter()
    for un, wk, wr in product((1, 2, 4, 8), (1, 2, 4, 8, 16), (1, 2, 4, 8, 16)):
        for rows, batches in product((1, 2, 4, 8), (1, 2, 4)):
            with suppress(UsageError):
                if m <= 4 and batches == 1:
                    gemv = GemvPlan(BF16, bm=m, rw=rows, un=un, wk=wk, wr=wr, **given)
                    if rows > 4 or not 4 <= rows * un <= 8:
                        apart["more than 4 rows of a warp, and fewer than 4 loads of a lane or more than 8,"] += 1
                    elif not 4 <= wk * wr <= 16 or wr > 4:
                        apart["fewer than 4 warps, or more than 4 along the weights,"] += 1
                    elif key(gemv) not in listed:
                        assert not has_room(gemv, GEMV.spare)
            with suppress(UsageError):
                mma = MmaPlan(BF16, nt=-(-m // 8), rb=rows, un=un, batches=batches, wk=wk, wr=wr, **given)
                if rows > 2:
                    apart["warps of 64 rows of weights and more"] += 1
                elif batches > 2 or un > 4:
                    apart["more than 2 batches of a warp, or more than 4 loads of each,"] += 1
                elif wk < 4 or wr > 2:
                    apart["fewer than 4 warps along K, or more than 2 along the weights,"] += 1
                elif key(mma) not in listed:
                    assert not has_room(mma, MMA.spare)
    assert apart
    for what, count in apart.items():
        assert count > 0, what
        assert any(each.startswith(f"{what} are left out") for each in said), what


def test_a_decode_tile_that_is_left_out_has_a_kernel_all_the_same() -> None:
    judgement = tilewright.judge(16, 11464, 921, layout="rc", gpu="h200", tile=(16, 128, 32))
    assert judgement.fits
    assert judgement.candidate is not None
    plan = judgement.candidate.plan
    assert isinstance(plan, MmaPlan)
    assert (plan.bm, plan.bn, plan.bk) == (16, 128, 32)
    assert has_room(plan, MMA.spare)
    kernel = next(each for each in judgement.findings if each.name == "kernel")
    assert "it is no candidate: its rows, loads or warps are none of the candidates'" in kernel.sentence
    listed = tilewright.judge(16, 4096, 4096, layout="rc", gpu="h200", tile=(16, 64, 128))
    assert "no candidate" not in listed.findings[-1].sentence
