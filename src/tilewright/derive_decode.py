"""What the arithmetic says of a decode plan: the bytes of the weights over the bandwidth, and what keeps it busy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright import roofline
from tilewright.gpu import GpuSpec
from tilewright.problem import Problem
from tilewright.roofline import Derived, amount, figure, number

if TYPE_CHECKING:
    from tilewright.plan_decode import DecodePlan


def derived_decode(plan: DecodePlan, gpu: GpuSpec, problem: Problem) -> dict[str, Any]:
    """``derive.derived`` of a decode plan on a problem, with what only these have.

    ``least_us`` is the whole traffic at the bandwidth of the data sheet: a floor, and no time of a kernel, which has a
    fixed cost beside it. ``bytes_in_flight`` are those of weights on their way to one SM.
    """
    intensity, floor, flight = intensity_of(plan, problem), least_us(problem, gpu), in_flight(plan, problem, gpu)
    per_mac = partial_bytes(plan, problem)
    return {
        "flop_per_byte": intensity.value,
        "shared_load_bytes_per_mac": per_mac.value,
        "bytes_in_flight": int(flight.value),
        "least_us": floor.value,
        "blocks": plan.grid(problem)[0],
        "bottleneck": bottleneck(plan, gpu, problem),
        "formula": "; ".join(map(str, (intensity, floor, flight))),
    }


def intensity_of(plan: DecodePlan, problem: Problem) -> Derived:
    """FLOP a byte that a block asks for: every warp along the weights reads the tokens of its tile for itself."""
    rows, size = plan.wr * plan.bm + plan.bn, plan.dtype.itemsize
    tokens = max(min(problem.m, plan.bm), 1)
    text = f"2 x {tokens} x {plan.bn} / (({plan.wr} x {plan.bm} + {plan.bn}) x {size} B)"
    return figure(2 * tokens * plan.bn / (rows * size), "FLOP/B", text)


def partial_bytes(plan: DecodePlan, problem: Problem) -> Derived:
    """Bytes of partial sums read from shared memory for one multiply-add: a float a warp along K and element."""
    depth = min(max(problem.k, 1), plan.counted[2])
    return figure(4 * plan.wk / depth, "B/MAC", f"4 B x {plan.wk} warps / {depth}")


def least_us(problem: Problem, gpu: GpuSpec) -> Derived:
    """The least time of a problem's traffic in microseconds, at the data sheet's bandwidth; a kernel takes longer."""
    moved = roofline.minimum_traffic(problem).value
    text = f"{amount(moved)} / {number(gpu.hbm_bytes_per_s / 1e12)} TB/s"
    return figure(moved / gpu.hbm_bytes_per_s * 1e6, "us", text)


def in_flight(plan: DecodePlan, problem: Problem, gpu: GpuSpec) -> Derived:
    """Bytes of weights that an SM has on their way: a batch of every lane of the blocks that surely have room on it."""
    blocks = min(plan.blocks_per_sm, -(-plan.grid(problem)[0] // gpu.sm_count))
    loads = plan.un * plan.lines
    text = f"{blocks} blocks x {plan.threads} threads x {loads} loads x 16 B"
    return figure(blocks * plan.in_flight, "B in flight an SM", text)


def bottleneck(plan: DecodePlan, gpu: GpuSpec, problem: Problem) -> str:
    """In words: memory, and whether the grid has work for all SMs and enough on its way to them."""
    blocks = plan.grid(problem)[0]
    if blocks < gpu.sm_count:
        return f"{blocks} blocks for {gpu.sm_count} SMs: the rest read nothing"
    flight = roofline.held(round(in_flight(plan, problem, gpu).value))
    return f"memory: the weights once, {flight} in flight an SM; then a fixed cost"
