"""What a call limits plans to: those of a batch, and those that leave SMs to others."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.errors import UsageError
from tilewright.plan_base import Plan
from tilewright.problem import Problem

Run = tuple[Plan, float, str]


def of_batch_or_none(plan: Plan) -> Plan | None:
    """The plan for a batch, where its kernel computes batches."""
    try:
        return plan.with_(batched=True) if plan.takes_batch else None
    except UsageError:
        return None


def blocks_of(plan: Plan, problem: Problem, batch: Sequence[int]) -> int:
    """The blocks of a launch for a batch of such products."""
    return prod(plan.grid(problem, prod(batch)))


def within(sms: int | None, runs: Sequence[Run], problem: Problem, batch: Sequence[int]) -> list[Run]:
    """The plans whose grids have no more blocks than that, where there are any; else all.

    A GPU puts the blocks of a grid on as many SMs as are free: only so few blocks keep to so few SMs.
    """
    fit = [run for run in runs if sms is None or blocks_of(run[0], problem, batch) <= sms]
    return fit or list(runs)


def excess(sms: int | None, plan: Plan, problem: Problem, batch: Sequence[int]) -> str | None:
    """What to say of a plan that takes more SMs than it may; None of one that does not."""
    blocks = blocks_of(plan, problem, batch)
    if sms is None or blocks <= sms:
        return None
    return f"its grid has {blocks} blocks, more than sms={sms}: no kernel that computes this keeps to so few"
