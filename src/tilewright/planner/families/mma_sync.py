"""Rung 5: cp.async and mma.sync. It reads any leading dimension, so it has what TMA cannot read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np

from tilewright import derive_tensor
from tilewright.dtypes import DType
from tilewright.errors import UsageError
from tilewright.gpu import GpuSpec
from tilewright.plan_base import Plan
from tilewright.plan_grid import WARPS
from tilewright.plan_space import TILES
from tilewright.plan_tensor import FIRST, SHARED_LIMIT, SWIZZLE_ROW, TensorPlan
from tilewright.planner.candidate import Candidate, Predicted
from tilewright.planner.facts import Shape, candidate
from tilewright.planner.family import Family, Offer, register
from tilewright.planner.lazy import LazySequence
from tilewright.planner.machine import Machine
from tilewright.planner.one_tile import one_tile_work
from tilewright.planner.persistent import STORE_BYTES_PER_CLK
from tilewright.planner.raster import Floats, Ints, columns_of
from tilewright.planner.terms import Estimate, useful_share
from tilewright.problem import Layout, Problem

STAGES = 3  # of its default plan: one multiplied, two on their way
STEP_CLK = 150  # a barrier of the block and the wait for cp.async, each K-step
MMA_MACS = 16 * 8 * 16  # of an instruction of a warp
MMA_CLK = 12  # from one of them to the next of the same warp, its operands' loads between; sweep, development third
LANES = 32  # copies of 16 bytes that an SM's threads issue a clock
ELEMENT_LANES = 2.2  # the same of one element each, through registers, where rows are not aligned; sweep
SPREAD = (0.85, 1.40)

Kind = tuple[int, int, int, int]
KINDS: tuple[Kind, ...] = tuple((bm, bn, m, n) for (bm, bn), (m, n) in product(TILES, WARPS))
DEFAULT: Kind = (256, 128, 4, 2)


def kind_plan(kind: Kind, dtype: DType, a: Layout, b: Layout, aligned: bool, stages: int | None = None) -> TensorPlan:
    """A plan of a tile and its warps, with ``STAGES`` or the two that fit. Raises ``UsageError`` where none can be."""
    bm, bn, warps_m, warps_n = kind
    most = SHARED_LIMIT // ((bm + bn) * SWIZZLE_ROW * dtype.itemsize)
    return TensorPlan(
        FIRST, dtype, bm, bn, SWIZZLE_ROW, aligned=aligned, a_layout=a, b_layout=b, warps_m=warps_m, warps_n=warps_n,
        stages=max(2, min(STAGES, most)) if stages is None else stages,
    )  # fmt: skip


@dataclass(frozen=True)
class _Table:
    """The legal plans of a dtype, two layouts and an alignment on a GPU, with what of them no problem changes."""

    plans: tuple[TensorPlan, ...]
    refused: tuple[Kind, ...]
    columns: dict[str, Ints]
    port_bytes: Floats


@cache
def table(dtype: DType, a: Layout, b: Layout, aligned: bool, gpu: GpuSpec) -> _Table:
    """Every tile with every arrangement of warps once."""
    plans, refused = [], []
    for kind in KINDS:
        try:
            plans.append(kind_plan(kind, dtype, a, b, aligned))
        except UsageError:
            refused.append(kind)
    return _table(plans, refused, gpu)


def _table(plans: list[TensorPlan], refused: list[Kind], gpu: GpuSpec) -> _Table:
    each = {
        "bm": [p.bm for p in plans],
        "bn": [p.bn for p in plans],
        "stages": [p.stages for p in plans],
        "shared_by": [derive_tensor.blocks_per_sm(p, gpu) for p in plans],
        "threads": [p.threads for p in plans],
    }
    columns = columns_of(each)
    step = columns["bm"] * columns["bn"] * SWIZZLE_ROW
    reads = np.array([derive_tensor.operand_bytes(p).value for p in plans]) * step
    fills = np.array([p.tile_bytes for p in plans])
    return _Table(tuple(plans), tuple(refused), columns, reads + fills)


class MmaSync(Family):
    """Rung 5, every tile and arrangement of warps of ``plan_space``."""

    name = "mma_sync"
    rungs = (FIRST,)
    residuals = ("energy",)  # of a FLOP beside wgmma's, whose operands pass no register file

    def refusal(self, problem: Problem) -> str | None:
        """``TensorPlan`` knows the dtypes."""
        try:
            kind_plan(DEFAULT, problem.dtype, problem.a_layout, problem.b_layout, problem.aligned)
        except UsageError as error:
            return str(error)
        return None

    def refused(self, problem: Problem, machine: Machine, reason: str) -> Candidate:
        """The tile of its default plan, with the reason."""
        return candidate(problem, _shape(problem.dtype, DEFAULT, STAGES, machine.sms), rejected=reason)

    def priced(self, plan: Plan, problem: Problem, machine: Machine) -> Offer:
        """An offer of one plan, as it is."""
        assert isinstance(plan, TensorPlan)
        return self._offered(_table([plan], [], machine.gpu), problem, machine)

    def staged(self, candidate: Candidate, stages: int) -> Plan:
        """What is legal of them the plan knows."""
        assert candidate.plan is not None
        return candidate.plan.with_(stages=stages)

    def offer(self, problem: Problem, machine: Machine) -> Offer:
        """All legal tiles and warps of the problem's dtype and layouts."""
        found = table(problem.dtype, problem.a_layout, problem.b_layout, problem.aligned, machine.gpu)
        return self._offered(found, problem, machine)

    def _offered(self, found: _Table, problem: Problem, machine: Machine) -> Offer:
        t, c = found.columns, machine.calibration
        macs = t["bm"] * t["bn"] * SWIZZLE_ROW
        tiles = -(-problem.m // t["bm"]) * -(-problem.n // t["bn"])
        resident = np.minimum(t["shared_by"], -(-tiles // machine.sms))
        alone = macs / MMA_MACS / (t["threads"] / 32) * MMA_CLK / resident  # a warp waits for its own instructions
        copies = (t["bm"] + t["bn"]) * SWIZZLE_ROW / (LANES * 8 if problem.aligned else ELEMENT_LANES)
        work = one_tile_work(
            problem,
            machine,
            bm=t["bm"],
            bn=t["bn"],
            bk=SWIZZLE_ROW,
            shared_by=t["shared_by"],
            tensor_clk=np.maximum(macs / (2048 * c.mma_sync_share), alone),
            port_clk=found.port_bytes / machine.gpu.shared_bytes_per_clock,
            issue_clk=STEP_CLK + copies,
            stages=t["stages"],
            store_bytes_per_clk=STORE_BYTES_PER_CLK,
            pj_per_flop=c.residual(self.name, "energy") * c.energy_pj_per_flop,
            most_mhz=c.burst_clock_mhz,
            alike=1024 * t["bm"] + t["bn"],
        )
        estimate = Estimate(work, problem, machine)

        def make(index: int, terms: dict[str, float], predicted: Predicted) -> Candidate:
            plan = found.plans[index]
            kind = (plan.bm, plan.bn, plan.warps_m, plan.warps_n)
            shape = _shape(problem.dtype, kind, plan.stages, machine.sms * int(t["shared_by"][index]))
            return candidate(problem, shape, plan=plan, terms_us=terms, predicted_us=predicted)

        def reject(index: int) -> Candidate:
            kind = found.refused[index]
            try:
                kind_plan(kind, problem.dtype, problem.a_layout, problem.b_layout, problem.aligned)
            except UsageError as error:
                return candidate(problem, _shape(problem.dtype, kind, 2, machine.sms), rejected=str(error))
            raise AssertionError(f"{kind} was refused and is legal")

        ties = np.stack([-t["bm"] * t["bn"], t["bm"], t["threads"], np.arange(len(t["bm"]))], axis=1)
        rejected = LazySequence(len(found.refused), reject)
        useful = useful_share(work, problem)
        return Offer(estimate.sustained(), estimate.burst(), ties, useful, make, rejected, SPREAD)


def _shape(dtype: DType, kind: Kind, stages: int, places: int) -> Shape:
    bm, bn, warps_m, warps_n = kind
    stage = (bm + bn) * SWIZZLE_ROW * dtype.itemsize
    threads = 32 * warps_m * warps_n
    return Shape(
        family=MmaSync.name,
        tile=(bm, bn, SWIZZLE_ROW),
        stages=stages,
        max_stages=SHARED_LIMIT // stage,
        max_stages_no_epilogue=SHARED_LIMIT // stage,
        shared_bytes=stages * stage,
        accumulator_registers_per_thread=bm * bn // threads,
        consumers=max(1, threads // 128),
        schedule="cooperative",
        places=places,
    )


register(MmaSync())
