"""Stream-K: whole waves and shares, and its rule."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from ladder_cases import product
from part_cases import STREAM, small_plan, tight

from tilewright.backends.base import Backend
from tilewright.errors import UsageError
from tilewright.operands import random_operands
from tilewright.plan_base import Plan
from tilewright.plan_streamk import StreamKPlan
from tilewright.problem import Problem


def stream_plan(**changes: Any) -> StreamKPlan:
    plan = small_plan("streamk", **changes)
    assert isinstance(plan, StreamKPlan)
    return plan


@pytest.mark.parametrize("two_tiles", [False, True])
@pytest.mark.parametrize("shared_first", [False, True])
def test_every_last_wave(backend: Backend, two_tiles: bool, shared_first: bool) -> None:
    """Of 1 to 9 tiles on 4 blocks, with more K blocks than a share has, and fewer."""
    plan = stream_plan(blocks=4, two_tiles=two_tiles, shared_first=shared_first)
    for tiles, k in itertools.product(range(1, 10), (64, 200, 520)):
        product(backend, STREAM, tight(64, 64 * tiles, k), plan, fill="integers")


def test_whole_waves_are_no_sum(backend: Backend) -> None:
    """A wave that is full leaves nothing to share, and the bits are those of one block."""
    problem = tight(128, 128, 520)
    assert stream_plan(blocks=4).waves(problem) == (1, 0)
    assert stream_plan(blocks=4).places(problem) == (0, 0)
    pair = random_operands(problem)
    found = [product(backend, STREAM, problem, stream_plan(blocks=blocks), pair=pair) for blocks in (1, 2, 4)]
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@pytest.mark.parametrize(
    ("tiles", "blocks", "two_tiles", "expected"),
    [
        (140, 132, False, (1, 8)),
        (140, 132, True, (0, 140)),
        (132, 132, True, (1, 0)),
        (100, 132, True, (0, 100)),
        (512, 132, False, (3, 116)),
        (512, 132, True, (2, 248)),
    ],
)
def test_waves(tiles: int, blocks: int, two_tiles: bool, expected: tuple[int, int]) -> None:
    assert stream_plan(blocks=blocks, two_tiles=two_tiles).waves(Problem(64, 64 * tiles, 6400)) == expected


def test_a_walk_of_the_kernel_finds_the_slots_the_parts_and_the_turns() -> None:
    """Of all cuts of a few tiles: each part of a tile has a slot of its own, as the kernel numbers them.

    There are as many parts as ``parts`` says, and each tile is done in the wave that ``turns`` has.
    """
    for clusters, tiles, deep in itertools.product((1, 2, 3, 5, 8, 13), range(1, 27), (1, 2, 3, 7, 16)):
        for two_tiles in (False, True):
            plan = stream_plan(blocks=clusters, two_tiles=two_tiles)
            problem = Problem(64, 64 * tiles, 64 * deep)
            _, shared = plan.waves(problem)
            grid, row = plan.clusters(problem), shared * deep
            begins = [cluster * (row // grid) + min(cluster, row % grid) for cluster in range(grid + 1)]
            step = 3 if two_tiles else 2
            slots: Counter[int] = Counter()
            counted = 0
            for cluster, (begin, end) in enumerate(itertools.pairwise(begins)):
                for tile in range(begin // deep, (end - 1) // deep + 1) if end > begin else ():
                    counted += 1
                    if end - begin < deep or begin > tile * deep or end < (tile + 1) * deep:
                        slots[cluster * step + tile % step] += 1
            assert all(count == 1 for count in slots.values())
            assert max(slots, default=0) < max(plan.places(problem)[0], 1)
            assert plan.parts(problem) == (counted / shared if shared else 1)
            for first in (False, True):
                turns = plan.with_(shared_first=first).turns(problem)
                whole = tiles - shared
                expected = [tile // grid + (first and shared > 0) for tile in range(whole)]
                expected += [0 if first else whole // grid] * shared
                assert turns.of(np.arange(tiles)).tolist() == expected
                assert (turns.waves, turns.odd >= 0) == (max(expected) + 1, True)
                most, working = max(b - a for a, b in itertools.pairwise(begins)), len(set(begins)) - 1
                assert not shared or (turns.odd, turns.busy, turns.length) == (expected[-1], working, most / deep)


@pytest.mark.parametrize("shape", [(640, 7168, 7168), (2304, 2304, 4096), (3328, 3328, 4096)])
def test_the_rule_shares_a_poor_last_wave(shape: tuple[int, int, int]) -> None:
    problem = tight(*shape)
    plan = StreamKPlan.default(problem, aligned=True)
    waves, shared = plan.waves(problem)
    assert shared
    alone = -(-plan.cluster_tiles(problem) // plan.clusters(problem)) * plan.k_blocks(problem) * plan.block_clocks()
    assert plan.estimate(problem) < alone
    whole = f"{waves} whole wave{'s' * (waves != 1)}"
    assert f"{whole}, {shared} cluster tiles in shares" in plan.said(problem)  # clusters read less of A and B
    assert Plan.from_dict(plan.to_dict()) == plan


def test_the_rule_gives_each_share_some_depth() -> None:
    problem = tight(64, 64, 1024)  # 16 K blocks
    plan = StreamKPlan.default(problem, aligned=True)
    assert plan.clusters(problem) <= 4


def test_more_k_blocks_than_are_counted() -> None:
    with pytest.raises(UsageError, match="the kernel counts 2147483647"):
        stream_plan().grid(Problem(2**20, 2**20, 2**10))
