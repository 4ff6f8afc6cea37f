"""Split-K: its cut of K, and its rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ladder_cases import product
from part_cases import SPLIT, small_plan, tight

from tilewright.backends.base import Backend
from tilewright.errors import UsageError
from tilewright.operands import random_operands
from tilewright.plan_base import Plan
from tilewright.plan_splitk import SplitKPlan
from tilewright.problem import Problem


def split_plan(**changes: Any) -> SplitKPlan:
    plan = small_plan("splitk", **changes)
    assert isinstance(plan, SplitKPlan)
    return plan


@pytest.mark.parametrize("interleave", [False, True])
def test_every_number_of_parts(backend: Backend, interleave: bool) -> None:
    """Even or not, and more than there are K blocks."""
    problem = tight(70, 65, 520)  # 9 K blocks
    for splits in (4, 50):
        product(backend, SPLIT, problem, split_plan(splits=splits, interleave_k=interleave), fill="integers")


def test_one_part_is_no_sum(backend: Backend) -> None:
    problem = tight(130, 72, 520)
    pair = random_operands(problem)
    whole = product(backend, SPLIT, problem, split_plan(splits=1), pair=pair)
    few = product(backend, SPLIT, problem, split_plan(splits=1, blocks=1), pair=pair)
    np.testing.assert_array_equal(few, whole)
    assert split_plan(splits=1).places(problem) == (0, 0)
    assert split_plan(splits=50).places(Problem(64, 64, 130)) == (3, 1)


def test_the_bits_do_not_depend_on_the_grid(backend: Backend) -> None:
    problem = tight(130, 72, 1000)
    pair = random_operands(problem)
    found = [product(backend, SPLIT, problem, split_plan(blocks=blocks), pair=pair) for blocks in (1, 4, 132)]
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@pytest.mark.parametrize(("splits", "blocks", "cluster_k"), [(2, 5, 1), (3, 7, 1), (50, 4, 1), (2, 6, 2), (1, 4, 4)])
def test_a_tile_is_done_in_the_wave_of_its_last_part(splits: int, blocks: int, cluster_k: int) -> None:
    plan = split_plan(splits=splits, blocks=blocks, cluster_k=cluster_k)
    problem = Problem(64, 64 * 9, 64 * 8)
    clusters, tiles, parts = plan.clusters(problem), 9, plan.parts(problem)
    waves: dict[int, int] = {}
    work = [0] * (-(-tiles * parts // clusters))
    for number in range(tiles * parts):  # as the kernel numbers them: part after part, all tiles of one together
        waves[number % tiles] = number // clusters
        work[number // clusters] += 1
    turns = plan.turns(problem)
    assert turns.of(np.arange(tiles)).tolist() == [waves[tile] for tile in range(tiles)]
    assert (turns.waves, turns.odd, turns.busy, turns.length) == (len(work), len(work) - 1, work[-1], 1)
    assert ("parts" in turns.said) == (parts > 1)


def test_blocks_of_a_tile_are_neighbours() -> None:
    problem = tight(130, 64, 520)  # 3 tiles of 3 parts
    assert list(split_plan(blocks=132).neighbours(problem)) == [0, 3, 6, 1, 4, 7, 2, 5, 8]


@pytest.mark.parametrize("splits", [0, 2**15 + 1])
def test_plans_that_no_kernel_has(splits: int) -> None:
    with pytest.raises(UsageError, match=f"splits is {splits}; 1 to 32768 parts are possible"):
        split_plan(splits=splits)


@pytest.mark.parametrize(
    ("shape", "blocks"), [((1024, 1024, 8192), 128), ((512, 512, 65536), 128), ((256, 256, 131072), 112)]
)
def test_the_rule_fills_one_round(shape: tuple[int, int, int], blocks: int) -> None:
    plan = SplitKPlan.default(tight(*shape), aligned=True)
    assert plan.grid(tight(*shape))[0] >= blocks
    assert plan.work(tight(*shape)) <= plan.blocks // plan.cluster
    assert plan.cluster_k <= 4
    assert Plan.from_dict(plan.to_dict()) == plan


def test_the_rule_leaves_whole_what_fills_the_machine() -> None:
    for shape in ((4096, 4096, 4096), (4096, 7168, 2048), (2048, 2048, 64)):
        assert SplitKPlan.default(tight(*shape), aligned=True).splits == 1


def test_many_parts_are_added_up_in_two_steps() -> None:
    problem = tight(128, 128, 16384)
    plan = split_plan(splits=66).two_levels(problem)
    assert plan.fan_in == 9
    assert plan.estimate(problem) < plan.with_(fan_in=0).estimate(problem)
    assert "parts of" in plan.said(problem)
