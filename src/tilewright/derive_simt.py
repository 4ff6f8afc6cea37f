"""What the arithmetic says of a CUDA-core plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright import roofline

if TYPE_CHECKING:
    from tilewright.gpu import GpuSpec
    from tilewright.plan_simt import SimtPlan
    from tilewright.plan_simt32 import Simt32Plan


def derived_simt(plan: SimtPlan | Simt32Plan, gpu: GpuSpec) -> dict[str, Any]:
    """``derive.derived`` of a CUDA-core plan."""
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
