"""The same bits a thousand times: what a race that a run does not always lose would change. Needs a GPU.

C has several tiles for each block, is no multiple of a tile, and K is long enough for the pipeline to wrap around; so
every barrier passes through both of its phases many times in a launch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright import ladder
from tilewright.backends.cuda import CudaBackend
from tilewright.dtypes import BF16
from tilewright.operands import random_operands
from tilewright.plan_base import Plan
from tilewright.problem import Layout, Problem
from tilewright.run import make_operands, prepare
from tilewright.verify import verify

LAUNCHES = 1000
POISONED = 10  # every so many launches C is filled with NaN before
SHAPE = (2312, 2568, 1096)

_WIDE = {"bm": 256, "bn": 192, "stages": 3}
SCHEDULES: dict[str, dict[str, Any]] = {
    "cooperative": {},
    "cooperative without a cluster": {"cluster_m": 1},
    "cluster along N": {"cluster_m": 1, "cluster_n": 2},
    "cluster of 4": {"cluster_m": 2, "cluster_n": 2, "blocks": 120},
    "256 x 128": {"bm": 256, "bn": 128},
    "half-tile tail": {**_WIDE, "half_tail": True},
    "half-tile tail, K to and fro": {**_WIDE, "half_tail": True, "alternate_k": True},
    "super-rows along N": {"group": 3, "along_n": True, "store_evict_first": True},
    "ping-pong": {"pingpong": True, "bn": 128, "stages": 5, "epilogue_slabs": 1},
    "ping-pong without a cluster": {"pingpong": True, "bn": 192, "cluster_m": 1, "epilogue_columns": 32},
    "ping-pong, K to and fro": {"pingpong": True, "bn": 128, "alternate_k": True, "epilogue_slabs": 1},
    "the next kernel early": {"dependent_launch": True},
}


def plans() -> dict[str, Plan]:
    """The default plan of rungs 5 and up, every schedule of the last, and its default for the other layouts."""
    found = {f"rung {r.number}": r.plan(BF16, b_layout="column") for r in ladder.rungs().values() if r.any_layout}
    last = ladder.rung(11)
    found |= {name: last.plan(BF16, b_layout="column").with_(**changes) for name, changes in SCHEDULES.items()}
    layouts: tuple[tuple[Layout, Layout], ...] = (("row", "row"), ("column", "row"), ("column", "column"))
    return found | {f"A {a}-major, B {b}-major": last.plan(BF16, a_layout=a, b_layout=b) for a, b in layouts}


@pytest.mark.cuda
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", plans())
def test_a_thousand_launches_give_the_same_bits(cuda: Any, name: str) -> None:
    assert isinstance(cuda, CudaBackend)
    plan = plans()[name]
    problem = Problem(*SHAPE, BF16, None, plan.a_layout, plan.b_layout)
    a, b = random_operands(problem, seed=7)
    operands = make_operands(cuda, problem, a, b)
    launch = prepare(cuda, ladder.rung(plan.rung), plan, operands)
    launch(cuda)
    first = cuda.download(operands.c)
    verify(first, a, b).require()
    bits = first.view(np.uint16)
    different = []
    for number in range(1, LAUNCHES):
        if number % POISONED == 0:
            cuda.poison(operands.c)
        launch(cuda)
        if not np.array_equal(cuda.download(operands.c).view(np.uint16), bits):
            different.append(number)
    assert not different, f"{len(different)} of {LAUNCHES} launches differ, the first of them {different[0]}"


def test_every_schedule_has_a_plan() -> None:
    assert len(plans()) == 7 + len(SCHEDULES) + 3
