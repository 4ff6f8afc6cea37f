"""What the arithmetic says of a rung's plan before anything runs."""

from __future__ import annotations

from typing import Any

from tilewright import roofline
from tilewright.derive_simt import derived_simt
from tilewright.derive_tensor import derived_tensor
from tilewright.gpu import GpuSpec
from tilewright.plan_base import Plan
from tilewright.plan_branch import BranchPlan
from tilewright.plan_simt import SimtPlan
from tilewright.plan_tensor import TensorPlan
from tilewright.problem import Problem


def derived(plan: Plan, gpu: GpuSpec, problem: Problem | None = None) -> dict[str, Any]:
    """FLOP per byte requested from global memory, shared bytes a MAC, and the bottleneck in words on ``gpu``.

    ``formula`` is the arithmetic as text. A tensor-core plan has more: see ``derive_tensor``. So has a branch's, which
    is for a ``problem`` of few rows or tiles: see its plans' ``derived``.
    """
    if isinstance(plan, BranchPlan):
        assert problem is not None
        return plan.derived(gpu, problem)
    if isinstance(plan, TensorPlan):
        return derived_tensor(plan, gpu)
    assert isinstance(plan, SimtPlan)
    return derived_simt(plan, gpu)


def problem_arithmetic(problem: Problem) -> dict[str, Any]:
    """Work of a whole problem in FLOP, its least traffic in bytes (A and B read once, C written once), and FLOP/B.

    Work and traffic are exact; ``flop_per_byte`` is None for a problem that moves nothing.
    """
    intensity = roofline.problem_intensity(problem)
    return {
        "flops": roofline.flops(problem).value,
        "bytes": roofline.minimum_traffic(problem).value,
        "flop_per_byte": None if intensity is None else intensity.value,
    }
