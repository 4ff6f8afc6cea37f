"""Rung 4: fp32 multiply-adds on the CUDA cores, of fp32 or bf16 operands."""

from __future__ import annotations

import numpy as np

from tilewright import ladder, roofline
from tilewright.dtypes import DType
from tilewright.errors import UsageError
from tilewright.plan_simt import SimtPlan
from tilewright.plan_tensor import SHARED_LIMIT
from tilewright.planner.candidate import Candidate, Predicted
from tilewright.planner.facts import Shape, candidate
from tilewright.planner.family import Family, Offer, register
from tilewright.planner.lazy import LazySequence
from tilewright.planner.machine import Machine
from tilewright.planner.one_tile import one_tile_work
from tilewright.planner.terms import Estimate
from tilewright.problem import Layout, Problem

RUNG = 4
STEP_CLK = 100  # a barrier of the block and A's way through registers, each K-step
LANES = 32  # elements that an SM's threads load at a time where rows do not start on 16-byte boundaries
ENERGY = 7.0  # of a FLOP beside wgmma's: of its record on an H200 (4096^3, fp32, 51 TFLOPS at 392 W)
SPREAD = (0.95, 1.35)

# Beside the rung's default tile: what the kernel's arrangement of warps and lanes allows of smaller ones. Each thread
# keeps 8 x 8 outputs, and the blocks of an SM have 512 threads.
TILES: tuple[dict[str, int], ...] = (
    {},
    {"bm": 128, "bn": 128, "threads": 256, "tm": 8, "tn": 8, "warps_m": 2, "warps_n": 4, "blocks_per_sm": 2},
    {"bm": 64, "bn": 128, "threads": 128, "tm": 8, "tn": 8, "warps_m": 1, "warps_n": 4, "blocks_per_sm": 4},
    {"bm": 64, "bn": 64, "threads": 64, "tm": 8, "tn": 8, "warps_m": 1, "warps_n": 2, "blocks_per_sm": 8},
)


def plans(dtype: DType, a: Layout, b: Layout, aligned: bool) -> list[SimtPlan]:
    """The plans of the family. Raises ``UsageError`` for a dtype or layout that the rung does not run."""
    default = ladder.rung(RUNG).plan(dtype, aligned=aligned, a_layout=a, b_layout=b)
    assert isinstance(default, SimtPlan)
    return [default.with_(**changes) for changes in TILES]


class Simt(Family):
    """Rung 4 in four tiles."""

    name = "simt"

    def refusal(self, problem: Problem) -> str | None:
        """The rung knows its dtypes and its layout."""
        try:
            plans(problem.dtype, problem.a_layout, problem.b_layout, problem.aligned)
        except UsageError as error:
            return str(error)
        return None

    def refused(self, problem: Problem, machine: Machine, reason: str) -> Candidate:
        """The tile of its default plan, with the reason."""
        default = ladder.rung(RUNG).plan(ladder.rung(RUNG).dtypes[0])
        assert isinstance(default, SimtPlan)
        return candidate(problem, _shape(default, machine.sms), rejected=reason)

    def offer(self, problem: Problem, machine: Machine) -> Offer:
        """Its tiles."""
        found = plans(problem.dtype, problem.a_layout, problem.b_layout, problem.aligned)
        bm, bn, shared_by, stages = (
            np.array(values) for values in zip(*((p.bm, p.bn, p.blocks_per_sm, p.stages) for p in found), strict=True)
        )
        bk, itemsize = found[0].bk, problem.dtype.itemsize
        macs = bm * bn * bk
        per_mac = np.array([roofline.shared_load_bytes_per_mac(p.tm, p.tn, itemsize).value for p in found])
        c, gpu = machine.calibration, machine.gpu
        fills = (bm + bn) * bk * itemsize
        work = one_tile_work(
            problem,
            machine,
            bm=bm,
            bn=bn,
            bk=bk,
            shared_by=shared_by,
            tensor_clk=macs / (gpu.fp32_fma_per_clock * c.fma_share),
            port_clk=(macs * per_mac + fills) / gpu.shared_bytes_per_clock,
            issue_clk=STEP_CLK + (bm + bn) * bk * (0.0 if problem.aligned else 1 / LANES),
            stages=stages,
            pj_per_flop=ENERGY * c.energy_pj_per_flop,
            most_mhz=c.boost_clock_mhz,
        )
        estimate = Estimate(work, problem, machine)

        def make(index: int, terms: dict[str, float], predicted: Predicted) -> Candidate:
            shape = _shape(found[index], machine.sms)
            return candidate(problem, shape, plan=found[index], terms_us=terms, predicted_us=predicted)

        ties = np.stack([-bm * bn, bm], axis=1)
        useful = problem.m * problem.n / (work.waves * machine.sms * (bm * bn))
        nothing: LazySequence[Candidate] = LazySequence(0, lambda index: make(index, {}, Predicted(0, 0, 0, 0)))
        return Offer(estimate.sustained(), estimate.burst(), ties, useful, make, nothing, SPREAD)


def _shape(plan: SimtPlan, sms: int) -> Shape:
    stage = plan.shared_bytes // plan.stages
    return Shape(
        family=Simt.name,
        tile=(plan.bm, plan.bn, plan.bk),
        stages=plan.stages,
        max_stages=SHARED_LIMIT // stage,
        max_stages_no_epilogue=SHARED_LIMIT // stage,
        shared_bytes=plan.shared_bytes,
        accumulator_registers_per_thread=plan.tm * plan.tn,
        consumers=max(1, plan.threads // 128),
        schedule="simt",
        places=sms,
    )


register(Simt())
