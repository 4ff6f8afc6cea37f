"""What is exact of a candidate, be it a choice or rejected: bytes, intensity, waves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tilewright import roofline, roofline_tensor
from tilewright.plan_base import Plan
from tilewright.planner.candidate import Candidate, Predicted, Raster, Schedule
from tilewright.problem import Problem


@dataclass(frozen=True)
class Shape:
    """What a family knows of a plan before there is one: the fields of ``Candidate`` of the same names.

    ``places`` are the clusters that run at the same time.
    """

    family: str
    tile: tuple[int, int, int]
    stages: int
    max_stages: int
    max_stages_no_epilogue: int
    shared_bytes: int
    accumulator_registers_per_thread: int
    consumers: int
    schedule: Schedule
    places: int
    cluster: tuple[int, int] = (1, 1)
    register_split: tuple[int, int] | None = None
    half_tail: bool = False


def candidate(
    problem: Problem,
    shape: Shape,
    *,
    raster: Raster | None = None,
    k_alternates: bool = False,
    plan: Plan | None = None,
    terms_us: dict[str, float] | None = None,
    predicted_us: Predicted | None = None,
    rejected: str | None = None,
    **more: Any,
) -> Candidate:
    """A candidate of this shape for a problem. ``more`` are further fields of ``Candidate``.

    ``plan`` becomes one that writes C in the problem's type.
    """
    if plan is not None and plan.c_dtype != problem.out_dtype:
        plan = plan.storing(problem.out_dtype)
        shape = replace(shape, shared_bytes=plan.shared_bytes)
    (bm, bn, bk), (cluster_m, cluster_n) = shape.tile, shape.cluster
    itemsize = problem.dtype.itemsize
    rounds = roofline_tensor.waves(problem, cluster_m * bm, cluster_n * bn, shape.places)
    cut = shape.half_tail and 2 * round(rounds.last * shape.places) <= shape.places
    full_waves = rounds.waves - (0.5 if cut else 0)
    return Candidate(
        family=shape.family,
        tile=shape.tile,
        stages=shape.stages,
        max_stages=shape.max_stages,
        max_stages_no_epilogue=shape.max_stages_no_epilogue,
        cluster=shape.cluster,
        consumers=shape.consumers,
        schedule=shape.schedule,
        raster=Raster() if raster is None else raster,
        tail="half" if shape.half_tail else "whole",
        k_alternates=k_alternates,
        intensity_flop_per_byte=roofline.tile_intensity(bm, bn, itemsize).value,
        operand_traffic_bytes=int(roofline.tiled_traffic(problem, bm, bn).value),
        operand_traffic_bytes_multicast=int(roofline.tiled_traffic(problem, cluster_m * bm, cluster_n * bn).value),
        stage_bytes=int(roofline.k_step_bytes(bm, bn, bk, itemsize).value),
        shared_bytes=shape.shared_bytes,
        accumulator_registers_per_thread=shape.accumulator_registers_per_thread,
        register_split=shape.register_split,
        tiles=roofline_tensor.waves(problem, bm, bn, 1).tiles,
        waves=rounds.waves,
        wave_efficiency=rounds.tiles / (full_waves * shape.places) if rounds.waves else 0.0,
        plan=plan,
        terms_us=terms_us or {},
        predicted_us=predicted_us,
        rejected=rejected,
        **more,
    )
