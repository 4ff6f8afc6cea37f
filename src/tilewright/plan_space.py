"""The plans that a tensor-core rung can have, as a finite space; and those of it that are built and checked.

The space of a rung is the product of these values, less what ``TensorPlan`` refuses and what the rung does not have:

- dtype: bf16, fp16; layout of A, layout of B: row, column;
- tile: 64, 128, 192, 256 or 384 rows by 16, 32, 48, ..., 256 columns;
- who multiplies: 1, 2 or 3 warpgroups on one tile, or 2 in ping-pong, with 248, 232 or 152 registers a thread and 40,
  40 or 56 for those that load (rung 5: seven ways to lay warps over the tile);
- cluster: 1x1, 2x1, 1x2, 2x2, 4x1; half tail: no, yes (``plan_grid`` says why no others);
- epilogue: slabs of 16, 32 or 64 columns, 1 to 4 of them for each consumer;
- stages: as many as then fit into shared memory, though at most 8, or one or two fewer;
- super-rows of 1, 2, 3 or 8 cluster tiles, along M or along N;
- alternating K, evict-first stores, dependent launch: off or on; before rung 11, rows on 16-byte boundaries or not.

The first four lines decide which code there is: each of their combinations is a *kind*. The others only count, order
or hint. ``legal_plans`` has every kind once and deals it a value of each of the others, so that every tile has all
values that are legal with it about equally often. Of the main kernel, rung 11, these are about 4,000 of 6 million
plans: scripts/check_plan_space.py builds, lints and runs each.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import product
from typing import Any, TypeVar

from tilewright.dtypes import BF16, FP16
from tilewright.errors import UsageError
from tilewright.plan_grid import CLUSTER_SHAPES, TILE_ROWS, WARPS, WIDEST
from tilewright.plan_tensor import CLUSTERS, FIRST, LAST, PERSISTENT, SHARED_LIMIT, SMS, SPECIALISED, TensorPlan

MOST_STAGES = 8

_Changes = Mapping[str, Any]
_Value = TypeVar("_Value")
_LAYOUTS = tuple(product(("row", "column"), repeat=2))
TILES = tuple(product(TILE_ROWS, range(16, WIDEST + 1, 16)))
# Warpgroups that multiply, whether they take turns, and the registers of the loading threads and of theirs.
TEAMS = ((1, False, 40, 248), (2, False, 40, 232), (3, False, 56, 152), (2, True, 40, 232))


@cache
def legal_plans(number: int) -> tuple[TensorPlan, ...]:
    """Every kind of plan of rung ``number`` once, each tile with all values of what else there is."""
    dealer = _Dealer()
    return tuple(dealer.finished(kind) for kind in _kinds(number))


def sample_plans(number: int, count: int, seed: int = 0) -> list[TensorPlan]:
    """``count`` of the rung's ``legal_plans``, drawn with ``seed``; all of them where there are fewer."""
    plans = legal_plans(number)
    return random.Random(seed).sample(plans, min(count, len(plans)))


def plan_name(plan: TensorPlan) -> str:
    """A plan of the space of rung 11 in one short line, no two of them alike."""
    team = "pingpong" if plan.pingpong else f"{plan.consumers}wg"
    switches = {"half": plan.half_tail, "altk": plan.alternate_k, "evict": plan.store_evict_first}
    words = [
        f"{plan.dtype}-{plan.a_layout[0]}{plan.b_layout[0]}",
        f"{plan.bm}x{plan.bn}",
        team,
        f"{plan.producer_registers}/{plan.consumer_registers}",
        f"c{plan.cluster_m}x{plan.cluster_n}",
        f"s{plan.stages}",
        f"e{plan.epilogue_slabs}x{plan.epilogue_columns}",
        f"g{plan.group}{'n' if plan.along_n else 'm'}",
        *(word for word, on in {**switches, "pdl": plan.dependent_launch}.items() if on),
    ]
    return " ".join(words)


def _kinds(number: int) -> Iterator[TensorPlan]:
    """Every kind of plan, the rest of it as small as can be."""
    if number == FIRST:
        teams = [{"warps_m": m, "warps_n": n} for m, n in WARPS]
    elif number < SPECIALISED:
        teams = [{"consumers": count} for count in (1, 2, 3)]
    else:
        names = ("consumers", "pingpong", "producer_registers", "consumer_registers")
        teams = [dict(zip(names, team, strict=True)) for team in TEAMS if number == LAST or not team[1]]
    clusters = CLUSTER_SHAPES if number >= CLUSTERS else CLUSTER_SHAPES[:1]
    halves = (False, True) if number == LAST else (False,)
    for dtype, (a, b), (bm, bn), team, (cm, cn), half in product(
        (BF16, FP16), _LAYOUTS, TILES, teams, clusters, halves
    ):
        rest: dict[str, Any] = {"cluster_m": cm, "cluster_n": cn, "half_tail": half, **team}
        rest["stages"] = 3 if number == FIRST + 1 else 2
        if number >= PERSISTENT:
            rest["blocks"] = SMS // (cm * cn) * (cm * cn)
        if number == LAST:
            rest |= {"epilogue_columns": 16, "epilogue_slabs": 1}
        with suppress(UsageError):
            yield TensorPlan(number, dtype, bm, bn, 64, a_layout=a, b_layout=b, **rest)


class _Dealer:
    """Gives each kind the values that the plans of its tile have had least often."""

    def __init__(self) -> None:
        self._rng = random.Random(0)
        self._dealt: Counter[tuple[int, int, str, int]] = Counter()

    def finished(self, kind: TensorPlan) -> TensorPlan:
        """The kind with a value of everything that does not make it another kind."""
        number, plan = kind.rung, kind
        if number == LAST:
            plan = self._changed(plan, "columns", [{"epilogue_columns": width} for width in (16, 32, 64)])
            plan = self._changed(plan, "slabs", [{"epilogue_slabs": count} for count in (1, 2, 3, 4)])
        most = _most_stages(plan)
        plan = self._changed(plan, "stages", [{"stages": most - fewer} for fewer in (0, 1, 2)])
        switches = ("alternate_k", "store_evict_first", "dependent_launch") if number == LAST else ("aligned",)
        free: dict[str, Sequence[int]] = dict.fromkeys(switches, (False, True))
        if number >= PERSISTENT:
            free |= {"along_n": (False, True), "group": (1, 2, 3, 8)}
        return plan.with_(**{name: next(self._deal(plan, name, values)) for name, values in free.items()})

    def _changed(self, plan: TensorPlan, what: str, changes: Sequence[_Changes]) -> TensorPlan:
        """The plan with the first of the changes, in the order they are due, that it can have."""
        for change in self._deal(plan, what, changes):
            with suppress(UsageError):
                return plan.with_(**change)
        raise AssertionError(f"no {what} for {plan}")

    def _deal(self, plan: TensorPlan, what: str, values: Sequence[_Value]) -> Iterator[_Value]:
        """The values in the order in which they are due; the last one taken counts as dealt."""
        keys = [(plan.bm, plan.bn, what, index) for index in range(len(values))]
        for key in sorted(keys, key=lambda key: (self._dealt[key], self._rng.random())):
            self._dealt[key] += 1
            yield values[key[-1]]
            self._dealt[key] -= 1  # it was not wanted


def _most_stages(plan: TensorPlan) -> int:
    """How many fit into shared memory, each with its two mbarriers; 8 at most."""
    return min(MOST_STAGES, plan.stages + (SHARED_LIMIT - plan.shared_bytes) // (plan.tile_bytes + 16))
