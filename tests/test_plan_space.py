"""The space of plans: what is in it, a sample of the main kernel's in the emulator, and the check of them all."""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import check_plan_space
import pytest
from check_plan_space import OK, Results, check_run, products

from tilewright import ladder
from tilewright.backends.base import Backend
from tilewright.backends.emulator import EmulatorBackend
from tilewright.checked import check
from tilewright.dtypes import BF16, FP16
from tilewright.errors import UsageError
from tilewright.operands import random_operands
from tilewright.plan_space import legal_plans, plan_name, sample_plans
from tilewright.plan_tensor import SHARED_LIMIT, TensorPlan
from tilewright.problem import Layout, Problem
from tilewright.run import make_operands

MAIN = 11
KIND = (
    "dtype", "a_layout", "b_layout", "bm", "bn", "warps_m", "warps_n", "consumers", "pingpong", "cluster_m",
    "cluster_n", "half_tail",
)  # fmt: skip
REST = (
    "consumer_registers", "epilogue_columns", "epilogue_slabs", "group", "along_n", "alternate_k", "store_evict_first",
    "dependent_launch",
)  # fmt: skip
VALUES: dict[str, Sequence[Any]] = {
    "epilogue_columns": (16, 32, 64), "epilogue_slabs": (1, 2, 3, 4), "group": (1, 2, 3, 8), "along_n": (False, True),
    "alternate_k": (False, True), "store_evict_first": (False, True), "dependent_launch": (False, True),
}  # fmt: skip


def kind(plan: TensorPlan) -> tuple[Any, ...]:
    return tuple(getattr(plan, name) for name in KIND)


# ---- what is in it ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(5, 12))
def test_every_kind_is_there_once(number: int) -> None:
    plans = legal_plans(number)
    kinds = {kind(plan) for plan in plans}
    assert len(kinds) == len(plans) == len({plan.header() for plan in plans})
    assert all(plan.rung == number and plan.shared_bytes <= SHARED_LIMIT for plan in plans)
    assert {(p.dtype, p.a_layout, p.b_layout) for p in plans} == {
        (dtype, a, b) for dtype in (BF16, FP16) for a in ("row", "column") for b in ("row", "column")
    }
    if number < MAIN:
        assert {plan.aligned for plan in plans} == {False, True}
    if number >= 10:
        assert {(p.cluster_m, p.cluster_n) for p in plans} == {(1, 1), (2, 1), (1, 2), (2, 2), (4, 1)}


def test_what_a_plan_may_have_is_of_a_kind_that_is_there() -> None:
    """Whatever its tile, team, registers and cluster are: none is legal but those that are checked and planned with."""
    rng = random.Random(0)
    kinds = {kind(plan) for plan in legal_plans(MAIN)}
    found: Counter[str] = Counter()
    layouts: tuple[Layout, Layout] = ("row", "column")
    for _ in range(20_000):
        consumers = rng.randint(1, 4)
        pingpong = consumers == 2 and rng.random() < 0.5
        few, many = rng.choice(((40, 248), (40, 232), (56, 152), (8 * rng.randint(3, 10), 8 * rng.randint(12, 32))))
        m, n = rng.choice(((1, 1), (2, 1), (rng.randint(1, 8), rng.randint(1, 8))))
        values = {name: rng.choice(choices[:2]) for name, choices in VALUES.items()}
        try:
            plan = TensorPlan(
                MAIN, rng.choice((BF16, FP16)), 64 * rng.randint(1, 13), 16 * rng.randint(1, 18), 64,
                a_layout=rng.choice(layouts), b_layout=rng.choice(layouts), consumers=consumers, pingpong=pingpong,
                half_tail=rng.random() < 0.3, stages=rng.randint(2, 4), producer_registers=few,
                consumer_registers=many, cluster_m=m, cluster_n=n, blocks=m * n, **values,
            )  # fmt: skip
        except UsageError as error:
            found[re.sub(r"[0-9].*", "", str(error).removeprefix("rung 11: "))] += 1
            continue
        found["legal"] += 1
        assert kind(plan) in kinds, plan_name(plan)
    assert found["legal"] > 100
    assert min(found[each] for each in ("bm is ", "bn is ", "the cluster is ", "consumers is ")) > 100, found


def test_every_tile_has_every_value_and_every_two_values_meet() -> None:
    plans = legal_plans(MAIN)
    of_tile: dict[tuple[int, int], list[TensorPlan]] = defaultdict(list)
    for plan in plans:
        of_tile[plan.bm, plan.bn].append(plan)
    for tile, found in of_tile.items():
        for name, values in VALUES.items():
            legal = {value for value in values if name != "epilogue_columns" or tile[1] % value == 0}
            assert {getattr(plan, name) for plan in found} == legal, (tile, name)
    for (one, firsts), (other, seconds) in combinations(VALUES.items(), 2):
        assert len({(getattr(p, one), getattr(p, other)) for p in plans}) == len(firsts) * len(seconds), (one, other)
    assert {plan.stages for plan in plans} == set(range(2, 9))
    assert {(p.consumers, p.pingpong) for p in plans} == {(1, False), (2, False), (3, False), (2, True)}
    assert {plan.half_tail for plan in plans} == {False, True}


def test_names_tell_plans_apart() -> None:
    plans = legal_plans(MAIN)
    assert len({plan_name(plan) for plan in plans}) == len(plans)
    base = next(plan for plan in plans if plan.bm == 256 and plan.bn == 64 and plan.half_tail and plan.stages > 2)
    changes: list[dict[str, Any]] = [{"stages": base.stages - 1}, {"half_tail": False}, {"group": 5}]
    changes += [{name: not getattr(base, name)} for name in VALUES if isinstance(getattr(base, name), bool)]
    names = {plan_name(base.with_(**change)) for change in changes}
    assert len(names | {plan_name(base)}) == len(changes) + 1


def test_a_sample_is_the_same_for_the_same_seed_and_no_other() -> None:
    assert sample_plans(MAIN, 20, 1) == sample_plans(MAIN, 20, 1) != sample_plans(MAIN, 20, 2)
    assert len(sample_plans(7, 10**6)) == len(legal_plans(7))


# ---- a sample in the emulator ----------------------------------------------------------------------------------------


def spread(count: int, seed: int) -> list[TensorPlan]:
    """Plans of the main kernel that have, one after another, the most values that none before has had."""
    values = {
        plan: {(name, getattr(plan, name)) for name in (*KIND, *REST, "stages")}
        | {(plan.a_layout, plan.b_layout), (plan.cluster_m, plan.cluster_n), (plan.consumers, plan.pingpong)}
        for plan in sample_plans(MAIN, 1000, seed)
    }
    chosen: list[TensorPlan] = []
    had: set[Any] = set()
    while len(chosen) < count:
        best = max(values, key=lambda plan: len(values[plan] - had))
        chosen.append(best)
        had |= values.pop(best)
    return chosen


@pytest.mark.parametrize("plan", spread(8, seed=3), ids=plan_name)
def test_legal_plans_are_exact_and_free_of_races(plan: TensorPlan) -> None:
    # Three cluster tiles for two clusters: both teams of a ping-pong have one, and half tiles share the last.
    few = plan.with_(blocks=2 * plan.cluster)
    shape = 2 * plan.cluster_m * plan.bm + 25, plan.cluster_n * plan.bn - 5, 2 * plan.bk + 21
    problem = Problem(*shape, plan.dtype, None, plan.a_layout, plan.b_layout).padded()
    for emulator in (EmulatorBackend("eager"), EmulatorBackend("lazy")):
        assert check_run(emulator, few, problem) == OK
    lazy = EmulatorBackend("lazy")
    check(lazy, ladder.rung(MAIN), few, make_operands(lazy, problem, *random_operands(problem, fill="integers")))


@pytest.mark.cuda
@pytest.mark.parametrize("plan", sample_plans(MAIN, 60, seed=2), ids=plan_name)
def test_legal_plans_are_exact_on_a_gpu(cuda: Backend, plan: TensorPlan) -> None:
    for chosen, problem, binary in products(plan):
        assert check_run(cuda, chosen, problem, binary) == OK


# ---- the check of them all -------------------------------------------------------------------------------------------


def require_all_right(path: Path) -> None:
    kept = Results(path, any_kernel=True)
    names = [plan_name(plan) for plan in legal_plans(MAIN)]
    assert list(kept.plans) == names, "the space has changed since: run scripts/check_plan_space.py"
    assert {name: kept.plans[name] for name in kept.missing(names)} == {}
    assert all(found["registers"] <= 255 and found["spill_bytes"] >= 0 for found in kept.plans.values())
    assert all(run["commit"] for run in kept.runs)
    assert any(run["gpu"] != "none" for run in kept.runs)
    assert path.stat().st_size < 1 << 20


def test_every_plan_was_built_linted_and_run() -> None:
    if not check_plan_space.OUT.exists():
        pytest.skip(f"{check_plan_space.OUT.name} is not there: scripts/check_plan_space.py writes it on a GPU")
    require_all_right(check_plan_space.OUT)


def test_a_stale_or_failed_check_shows(tmp_path: Path) -> None:
    kept, names = Results(tmp_path / "space.json"), [plan_name(plan) for plan in legal_plans(MAIN)]
    right = {"registers": 168, "spill_bytes": 0, "compile": OK, "lint": OK, "run": OK}
    kept.runs = [{"gpu": "NVIDIA H200", "commit": "0123456789ab"}]
    kept.plans = {name: dict(right) for name in names}
    kept.write(names)
    require_all_right(kept.path)
    for change in ({"run": "C[0, 0] is 1 and not 2"}, {"lint": None}):
        kept.plans[names[5]] = {**right, **change}
        kept.write(names)
        with pytest.raises(AssertionError):
            require_all_right(kept.path)
    kept.plans[names[5]] = right
    kept.write([*names[:7], *names[8:]])
    with pytest.raises(AssertionError, match="the space has changed since"):
        require_all_right(kept.path)
    kept.plans["another"] = right
    kept.write([*names, "another"])
    with pytest.raises(AssertionError, match="the space has changed since"):
        require_all_right(kept.path)
