"""What the arithmetic says of a rung's plan before anything runs."""

from __future__ import annotations

from typing import Any

from tilewright import roofline
from tilewright.gpu import GpuSpec
from tilewright.plan import Plan
from tilewright.plan_simt import SimtPlan
from tilewright.problem import Problem


def derived(plan: Plan, gpu: GpuSpec) -> dict[str, Any]:
    """FLOP per byte requested from global memory, shared bytes a MAC, and the bottleneck in words on ``gpu``.

    ``formula`` is the arithmetic as text.
    """
    return _simt(plan, gpu) if isinstance(plan, SimtPlan) else _tensor(plan, gpu)


def _simt(plan: SimtPlan, gpu: GpuSpec) -> dict[str, Any]:
    itemsize = plan.dtype.itemsize
    if plan.stages == 0:
        intensity, shared = roofline.naive_intensity(itemsize), None
    else:
        intensity = roofline.tile_intensity(plan.bm, plan.bn, itemsize)
        shared = roofline.shared_load_bytes_per_mac(plan.tm or 1, plan.tn or 1, itemsize)
    wide = 16 if plan.tm else itemsize
    return {
        "flop_per_byte": intensity.value,
        "shared_load_bytes_per_mac": 0.0 if shared is None else shared.value,
        "bottleneck": roofline.bottleneck(
            intensity.value, None if shared is None else shared.value, itemsize, gpu, load_bytes=wide
        ),
        "formula": "; ".join(str(part) for part in (intensity, shared) if part is not None),
    }


def _tensor(plan: Plan, gpu: GpuSpec) -> dict[str, Any]:
    intensity = roofline.tile_intensity(plan.bm, plan.bn, plan.dtype.itemsize)
    limit = roofline.bound(gpu, roofline.roof_of(plan.dtype, tensor_cores=True), intensity=intensity.value)
    return {
        "flop_per_byte": intensity.value,
        "shared_load_bytes_per_mac": None,
        "bottleneck": limit.limited_by,
        "formula": f"{intensity}; {limit.formula}",
    }


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
