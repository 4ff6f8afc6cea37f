"""fp32 multiply-adds on the CUDA cores: the SIMT branch for fp32 operands, rung 4 for bf16."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from tilewright import ladder, roofline
from tilewright.dtypes import DType
from tilewright.errors import UsageError
from tilewright.gpu import GpuSpec
from tilewright.plan_base import Plan
from tilewright.plan_simt import SimtPlan
from tilewright.plan_simt32 import SCHEDULERS, Simt32Plan
from tilewright.plan_tensor import SHARED_LIMIT
from tilewright.planner.candidate import Candidate, Predicted
from tilewright.planner.facts import Shape, candidate
from tilewright.planner.family import Family, Offer, register
from tilewright.planner.lazy import LazySequence
from tilewright.planner.machine import Machine
from tilewright.planner.one_tile import one_tile_work
from tilewright.planner.raster import Floats
from tilewright.planner.terms import Estimate, useful_share
from tilewright.problem import Layout, Problem

RUNG = 4
STEP_CLK = 100  # a barrier of the block and A's way through registers, each K-step
LANES = 32  # elements that an SM's threads load at a time where rows do not start on 16-byte boundaries
SPREAD = (0.95, 1.35)

# Beside the rung's default tile: what the kernel's arrangement of warps and lanes allows of smaller ones. Each thread
# keeps 8 x 8 outputs; an SM has as many blocks as registers without spilling much.
TILES: tuple[dict[str, int], ...] = (
    {},
    {"bm": 128, "bn": 128, "threads": 256, "tm": 8, "tn": 8, "warps_m": 2, "warps_n": 4, "blocks_per_sm": 2},
    {"bm": 64, "bn": 128, "threads": 128, "tm": 8, "tn": 8, "warps_m": 1, "warps_n": 4, "blocks_per_sm": 3},
    {"bm": 64, "bn": 64, "threads": 64, "tm": 8, "tn": 8, "warps_m": 1, "warps_n": 2, "blocks_per_sm": 6},
)


AnyPlan = SimtPlan | Simt32Plan


def plans(problem: Problem) -> Sequence[AnyPlan]:
    """The plans of the family. Raises ``UsageError`` for a dtype or layout that none of its kernels runs."""
    if problem.dtype in Simt32Plan.dtypes:
        return Simt32Plan.choices(problem, aligned=problem.aligned)
    return rung_plans(problem.dtype, problem.a_layout, problem.b_layout, problem.aligned)


def rung_plans(dtype: DType, a: Layout, b: Layout, aligned: bool) -> list[SimtPlan]:
    """Those of rung 4. Raises ``UsageError`` for a dtype or layout that the rung does not run."""
    default = ladder.rung(RUNG).plan(dtype, aligned=aligned, a_layout=a, b_layout=b)
    assert isinstance(default, SimtPlan)
    return [default.with_(**changes) for changes in TILES]


class Simt(Family):
    """The SIMT branch in the tiles it has, and rung 4 in four."""

    name = "simt"
    rungs = range(RUNG + 1)
    residuals = ("issue",)  # stalls, addresses and all else that its instructions have beside their number

    def refusal(self, problem: Problem) -> str | None:
        """The plans know their dtypes and layouts."""
        try:
            plans(problem)[0].storing(problem.out_dtype)
        except UsageError as error:
            return str(error)
        return None

    def refused(self, problem: Problem, machine: Machine, reason: str) -> Candidate:
        """The tile of its default plan, with the reason."""
        default = ladder.rung(RUNG).plan(ladder.rung(RUNG).dtypes[0])
        assert isinstance(default, SimtPlan)
        return candidate(problem, _shape(default, machine.sms), rejected=reason)

    def prices(self, plan: Plan) -> bool:
        """Those of the branch and of the rungs."""
        return isinstance(plan, AnyPlan)

    def priced(self, plan: Plan, problem: Problem, machine: Machine) -> Offer:
        """An offer of one plan, as it is: also those of rungs 0 to 3, which lead to rung 4."""
        assert isinstance(plan, AnyPlan)
        return self._offered([plan], problem, machine)

    def offer(self, problem: Problem, machine: Machine) -> Offer:
        """Its tiles, those of the branch as dependent launches where the machine has them."""
        found = plans(problem)
        if machine.dependent_launch:
            found = [*(p.with_(dependent_launch=True) for p in found if isinstance(p, Simt32Plan)), *found]
        return self._offered(found, problem, machine)

    def _offered(self, found: Sequence[AnyPlan], problem: Problem, machine: Machine) -> Offer:
        shared_by = [p.blocks_per_sm if p.tm else _blocks(p, machine.gpu) for p in found]

        def column(values: Iterable[float]) -> Floats:
            return np.array(list(values), dtype=np.float64)

        c, gpu = machine.calibration, machine.gpu
        bm, bn = (np.array([getattr(p, name) for p in found], dtype=np.int64) for name in ("bm", "bn"))
        bk, itemsize = found[0].bk, problem.dtype.itemsize
        macs = bm * bn * bk
        tiles = -(-problem.m // bm) * -(-problem.n // bn)
        resident = np.minimum(np.array(shared_by), -(-tiles // machine.sms))
        warps = np.array([p.threads // 32 for p in found]) * resident  # fewer than schedulers leave some without work
        fills = (bm + bn) * bk * itemsize
        port = column(_port_bytes_per_mac(p, gpu) for p in found) * macs
        issue = column(_instructions_per_mac(p) for p in found)
        width = 16 // itemsize if problem.aligned and found[0].tm else 1
        work = one_tile_work(
            problem,
            machine,
            bm=bm,
            bn=bn,
            bk=bk,
            shared_by=np.array(shared_by),
            tensor_clk=macs / (gpu.fp32_fma_per_clock * c.fma_share) * np.maximum(1.0, SCHEDULERS / warps),
            port_clk=(port + fills) / gpu.shared_bytes_per_clock,
            issue_clk=STEP_CLK
            + (bm + bn) * bk / (LANES * width)
            + macs * issue / gpu.fp32_fma_per_clock * c.residual(self.name, "issue"),
            stages=np.array([max(1, p.stages) for p in found]),
            store_bytes_per_clk=c.l2_bytes_per_clk_per_sm,
            pj_per_flop=c.energy_pj_per_flop,
            most_mhz=c.boost_clock_mhz,
        )
        dependent = np.array([p.dependent for p in found])
        launch_us = np.where(dependent, 0.0, work.launch_us)
        estimate = Estimate(replace(work, launch_us=launch_us), problem, machine)

        def make(index: int, terms: dict[str, float], predicted: Predicted) -> Candidate:
            shape = _shape(found[index], machine.sms * shared_by[index])
            return candidate(problem, shape, plan=found[index], terms_us=terms, predicted_us=predicted)

        ties = np.stack([dependent, -bm * bn, bm, np.arange(len(bm))], axis=1)
        useful = useful_share(work, problem)
        nothing: LazySequence[Candidate] = LazySequence(0, lambda index: make(index, {}, Predicted(0, 0, 0, 0)))
        return Offer(estimate.sustained(), estimate.burst(), ties, useful, make, nothing, SPREAD)


def _port_bytes_per_mac(plan: AnyPlan, gpu: GpuSpec) -> float:
    """What the port carries for a multiply-add, in bytes of its full width.

    From shared memory as ``roofline`` counts it. Rung 0 has none: its warps ask L1, the same port, for a word of A that
    all lanes want and a line of B; where ``swapped``, for 32 words of A in as many lines.
    """
    itemsize = plan.dtype.itemsize
    if plan.stages == 0:
        return (32 if isinstance(plan, SimtPlan) and plan.swapped else 1) * gpu.shared_bytes_per_clock / 32 + 4
    per_mac = roofline.shared_load_bytes_per_mac(plan.tm or 1, plan.tn or 1, itemsize)
    width = 16 if plan.tm else itemsize
    return roofline.shared_port_demand(per_mac.value, gpu, load_bytes=width).value / gpu.fp32_fma_per_clock


def _instructions_per_mac(plan: AnyPlan) -> float:
    """What a thread issues for a multiply-add: itself, and its part of loading a fragment and of making it fp32.

    An SM issues four instructions of 32 lanes a clock, as many as it has multiply-adds, so each other one takes the
    place of a multiply-add.
    """
    tm, tn = max(1, plan.tm), max(1, plan.tn)
    values = tm + tn
    loads = values / (16 // plan.dtype.itemsize) if plan.tm else values
    converted = values if plan.dtype.itemsize < 4 else 0
    return 1 + (loads + converted) / (tm * tn)


def _blocks(plan: AnyPlan, gpu: GpuSpec) -> int:
    """Blocks an SM holds of the rungs whose plans do not say, by their threads."""
    return max(1, gpu.max_threads_per_sm // plan.threads)


def _shape(plan: AnyPlan, places: int) -> Shape:
    stages = max(1, plan.stages)
    stage = max(1, plan.shared_bytes // stages)
    return Shape(
        family=Simt.name,
        tile=(plan.bm, plan.bn, plan.bk),
        stages=plan.stages,
        max_stages=SHARED_LIMIT // stage,
        max_stages_no_epilogue=SHARED_LIMIT // stage,
        shared_bytes=plan.shared_bytes,
        accumulator_registers_per_thread=plan.tm * plan.tn or plan.bm * plan.bn // plan.threads,
        consumers=max(1, plan.threads // 128),
        schedule="simt",
        places=places,
    )


register(Simt())
