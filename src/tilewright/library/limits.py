"""What a call limits plans to: those of a batch, and those that leave SMs to others."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.errors import UsageError
from tilewright.plan_base import Plan
from tilewright.problem import Problem


def of_batch_or_none(plan: Plan) -> Plan | None:
    """The plan for a batch, where its kernel computes batches."""
    try:
        return plan.with_(batched=True) if plan.takes_batch else None
    except UsageError:
        return None


def blocks_of(plan: Plan, problem: Problem, batch: Sequence[int]) -> int:
    """The blocks of a launch for a batch of such products."""
    return prod(plan.grid(problem, prod(batch)))


def keeps_to(sms: int | None, plan: Plan, problem: Problem, batch: Sequence[int]) -> bool:
    """Whether a plan's grid has no more blocks than that.

    A GPU puts the blocks of a grid on as many SMs as are free: only so few blocks keep to so few SMs.
    """
    return sms is None or blocks_of(plan, problem, batch) <= sms


def excess(sms: int | None, plan: Plan, problem: Problem, batch: Sequence[int]) -> str | None:
    """What to say of a plan that takes more SMs than it may; None of one that does not."""
    if keeps_to(sms, plan, problem, batch):
        return None
    blocks = blocks_of(plan, problem, batch)
    return f"its grid has {blocks} blocks, more than sms={sms}: no kernel that computes this keeps to so few"
