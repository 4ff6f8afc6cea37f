"""Kernels of the decode branch that are no candidates: those of a tile that somebody brings, and what stands for them.

The branch has a kernel of any rows, loads and warps that registers and a block's threads allow. Those in ``families.
decode`` are the kinds that have been timed, and their neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import product
from typing import Any, TypeVar

from tilewright.dtypes import BF16
from tilewright.errors import UsageError
from tilewright.plan_decode import LOAD_BYTES, DecodePlan, GemvPlan, MmaPlan
from tilewright.problem import Problem

_UNTIMED = "results/ has no time of one"
# A plan that stands for what is legal and no candidate, and which that is.
PASSED_OVER: tuple[tuple[DecodePlan, str], ...] = (
    (
        GemvPlan(BF16, rw=1, un=1, wk=4),
        f"more than 4 rows of a warp, and fewer than 4 loads of a lane or more than 8, are left out: {_UNTIMED}",
    ),
    (
        GemvPlan(BF16, rw=2, un=2, wk=2),
        f"fewer than 4 warps, or more than 4 along the weights, are left out: {_UNTIMED}",
    ),
    (MmaPlan(BF16, rb=4, un=1, wk=4), f"warps of 64 rows of weights and more are left out: {_UNTIMED}"),
    (
        MmaPlan(BF16, un=2, batches=4, wk=4),
        f"more than 2 batches of a warp, or more than 4 loads of each, are left out: {_UNTIMED}",
    ),
    (
        MmaPlan(BF16, rb=2, un=2, wk=2),
        f"fewer than 4 warps along K, or more than 2 along the weights, are left out: {_UNTIMED}",
    ),
)
UNLISTED = f"its rows, loads or warps are none of the candidates', and {_UNTIMED}"
WARPS = (1, 2, 4, 8, 16)


Spare = Callable[[Any], int]
"""Registers of a thread of a plan beside those that hold loads and sums."""
P = TypeVar("P", bound=DecodePlan)


def fitted(plans: Sequence[P], most: int, spare: Spare) -> tuple[list[P], list[P]]:
    """Each with as many blocks an SM, at most ``most``, as have room beside its spare registers; and those without.

    Where rows are not aligned it is one block, and ptxas finds the room or spills the rest.
    """
    found, crowded = [], []
    for plan in plans:
        for blocks in range(most if plan.aligned else 1, 0, -1):
            with suppress(UsageError):
                roomy = plan.with_(blocks_per_sm=blocks)
                if not plan.aligned or has_room(roomy, spare):
                    found.append(roomy)
                    break
        else:
            crowded.append(plan)
    return found, crowded


def has_room(plan: DecodePlan, spare: Spare) -> bool:
    """Whether its threads have registers for all they hold."""
    return plan.registers + spare(plan) <= plan.available_registers


def of_tile(
    kind: type[DecodePlan], tile: tuple[int, int, int], problem: Problem, most: int, spare: Spare
) -> list[DecodePlan]:
    """The plans of a kind that have a tile of tokens, rows of weights and K, of warps in powers of two.

    Of those of rows that are not aligned the ones with room for registers, if there are any.
    """
    found, _ = fitted(list(_of_tile(kind, tile, problem)), most, spare)
    return [plan for plan in found if has_room(plan, spare)] or found


def _of_tile(kind: type[DecodePlan], tile: tuple[int, int, int], problem: Problem) -> Iterator[DecodePlan]:
    given: dict[str, Any] = {"aligned": problem.aligned, "a_layout": problem.a_layout, "b_layout": problem.b_layout}
    for wk, wr, own in product(WARPS, WARPS, _own(kind, tile, problem)):
        with suppress(UsageError):
            rows = {"rw": tile[1] // wr} if kind is GemvPlan else {"rb": tile[1] // (16 * wr)}
            plan = kind(problem.dtype, wk=wk, wr=wr, **rows, **own, **given)
            if (plan.bm, plan.bn, plan.bk) == tile:
                yield plan


def _own(kind: type[DecodePlan], tile: tuple[int, int, int], problem: Problem) -> Iterator[dict[str, Any]]:
    bm, _, bk = tile
    if kind is GemvPlan:
        if bm == problem.m:
            yield {"bm": bm, "un": bk // (32 * LOAD_BYTES // problem.dtype.itemsize)}
    elif problem.m <= bm and bm % 8 == 0:
        yield from ({"nt": bm // 8, "un": bk // 32, "batches": batches} for batches in (1, 2, 4))
