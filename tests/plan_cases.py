"""Candidates and plannings made by hand, whose numbers tests know."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilewright.dtypes import BF16
from tilewright.plan_tensor import TensorPlan
from tilewright.planner.candidate import Candidate, Predicted, Raster
from tilewright.planner.judgement import Finding, Judgement, Mistake
from tilewright.planner.planning import Planning
from tilewright.problem import Problem

SMS = 132
# What the JSON of each is documented to have.
CANDIDATE_KEYS = {
    "family",
    "tile",
    "stages",
    "max_stages",
    "max_stages_no_epilogue",
    "cluster",
    "consumers",
    "schedule",
    "raster",
    "split",
    "swap_ab",
    "tail",
    "k_alternates",
    "intensity_flop_per_byte",
    "operand_traffic_bytes",
    "operand_traffic_bytes_multicast",
    "stage_bytes",
    "shared_bytes",
    "accumulator_registers_per_thread",
    "register_split",
    "tiles",
    "waves",
    "wave_efficiency",
    "terms_us",
    "predicted_us",
    "rejected",
    "label",
    "plan",
}
PLANNING_KEYS = {
    "schema",
    "problem",
    "gpu",
    "assumed_gpu",
    "present_gpu",
    "clock",
    "regime",
    "pick",
    "candidates",
    "calibration",
    "sms",
    "clock_mhz",
    "other_clock_mhz",
    "pdl",
}
TERMS = ("launch", "first_load", "tensor", "shared_port", "l2", "hbm", "issue", "main_loop", "epilogue")


def tensor_plan(bm: int = 128, bn: int = 256, **more: Any) -> TensorPlan:
    """A plan of the main kernel with clusters of 2 along M."""
    values: dict[str, Any] = {
        "stages": 4, "consumers": 2, "producer_registers": 40, "consumer_registers": 232, "group": 8, "blocks": SMS,
        "cluster_m": 2, "epilogue_columns": 32, "epilogue_slabs": 1, "b_layout": "column",
    }  # fmt: skip
    return TensorPlan(11, BF16, bm, bn, 64, **{**values, **more})


def candidate(
    problem: Problem, plan: TensorPlan, terms: tuple[float, ...] = (3, 1, 90, 80, 70, 60, 5, 92, 4), **more: Any
) -> Candidate:
    """A candidate of the plan; the times are the terms' sum, a tenth less of it in a burst."""
    down, across = plan.tiles(problem)
    rounds = -(-down * across // SMS)
    adding = terms[0] + terms[1] + terms[7] + terms[8]
    values: dict[str, Any] = {
        "family": "wgmma",
        "tile": (plan.bm, plan.bn, plan.bk),
        "stages": plan.stages,
        "max_stages": plan.stages,
        "max_stages_no_epilogue": plan.stages,
        "cluster": (plan.cluster_m, plan.cluster_n),
        "consumers": plan.consumers,
        "schedule": "pingpong" if plan.pingpong else "cooperative",
        "raster": Raster(plan.group, "n" if plan.along_n else "m"),
        "tail": "half" if plan.half_tail else "whole",
        "k_alternates": plan.alternate_k,
        "intensity_flop_per_byte": plan.bm * plan.bn / (plan.bm + plan.bn),
        "operand_traffic_bytes": 12_884_901_888,
        "operand_traffic_bytes_multicast": 8_589_934_592,
        "stage_bytes": plan.tile_bytes,
        "shared_bytes": plan.shared_bytes,
        "accumulator_registers_per_thread": plan.accumulators,
        "register_split": (plan.producer_registers, plan.consumer_registers),
        "tiles": down * across,
        "waves": rounds,
        "wave_efficiency": down * across / (rounds * SMS) if rounds else 0.0,
        "plan": plan,
        "terms_us": dict(zip(TERMS, map(float, terms), strict=True)),
        "predicted_us": Predicted(0.9 * adding, float(adding), 0.93 * adding, 1.08 * adding),
    }
    return Candidate(**{**values, **more})


def planning(problem: Problem | None = None, **more: Any) -> Planning:
    """Three candidates and one that was rejected."""
    posed = Problem(4096, 4096, 4096, "bf16", b_layout="column") if problem is None else problem
    first = candidate(posed, tensor_plan())
    second = candidate(posed, tensor_plan(256, 128, half_tail=True), (3, 1, 90, 95, 100, 60, 5, 100, 4))
    third = candidate(posed, tensor_plan(pingpong=True, bn=192, stages=5), (3, 1, 120, 80, 70, 60, 5, 121, 0.5))
    none = replace(
        first, tile=(256, 256, 64), plan=None, terms_us={}, predicted_us=None, stage_bytes=64 * 1024,
        shared_bytes=256 * 1024, accumulator_registers_per_thread=256,
        rejected="256 accumulators do not fit the 255 registers of a thread",
    )  # fmt: skip
    values: dict[str, Any] = {
        "problem": posed, "gpu": "h200", "assumed_gpu": True, "sms": SMS, "clock": "sustained", "clock_mhz": 1310.0,
        "other_clock_mhz": 1755.0,
        "regime": "compute", "calibration": "H200, measured", "ranked": (first, second, third), "rejected": (none,),
    }  # fmt: skip
    return Planning(**{**values, **more})


def judgement(fits: bool = True) -> Judgement:
    """A tile that fits, beaten by one candidate; or one that does not."""
    asked = planning()
    tile = asked.ranked[1] if fits else asked.rejected[0]
    findings = (
        Finding("stages", True, 4, 4, "", "4 stages of 48 KB take 192 KB of 227 KB.", "the arithmetic"),
        Finding("registers", fits, 128, 255, "", "An accumulator register for each of 128 values.", "the guide"),
        Finding("waves", False, 0.5, 1.0, "", "Half of the last wave is idle.", "the raster", hard=False),
        Finding("intensity", None, 85.3, None, "FLOP/B", "128 x 256 / (128 + 256) = 85.3 FLOP/B.", "the tile"),
    )
    return Judgement(
        problem=asked.problem,
        gpu="h200",
        assumed_gpu=False,
        sms=132,
        clock="sustained",
        calibration="H200, measured",
        tile=tile.tile,
        stages=tile.stages,
        cluster=tile.cluster,
        consumers=tile.consumers,
        schedule=tile.schedule,
        findings=findings,
        mistakes=(Mistake("intensity against the HBM ridge", "It is held against 206.", "Hold it against L2."),),
        candidate=tile if fits else None,
        better=(asked.pick,),
    )
