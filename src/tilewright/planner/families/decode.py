"""The decode branch: one to sixteen tokens against weights that pass through registers, read once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

import numpy as np

from tilewright.dtypes import DType
from tilewright.errors import UsageError
from tilewright.plan_base import Plan
from tilewright.plan_decode import LOAD_BYTES, SPARE_REGISTERS, DecodePlan, GemvPlan, MmaPlan
from tilewright.planner import decode_space
from tilewright.planner import stream_constraints as limits
from tilewright.planner.candidate import Candidate, Predicted
from tilewright.planner.facts import Shape, candidate
from tilewright.planner.families.mma_sync import MMA_CLK
from tilewright.planner.family import Family, Offer, register
from tilewright.planner.judgement import Finding
from tilewright.planner.lazy import LazySequence, chained
from tilewright.planner.machine import Machine
from tilewright.planner.raster import Bools, Floats, Ints, columns_of
from tilewright.planner.stream import Stream, StreamEstimate, latency_source
from tilewright.planner.supply import AS_ALONE, BEFORE_FIRST
from tilewright.problem import Layout, Problem

SPREAD = (0.90, 1.15)
SLOTS = 128  # lanes that an SM issues for in a clock
ISSUE_LATENCY_CLK = 4  # from an instruction of a warp to one that needs its result
# Registers beside those that ``DecodePlan`` knows of, a token: its pointer, and its elements made fp32. With them the
# blocks an SM are as many as scripts/check_kernels.py found to have room without spilling.
TOKEN_REGISTERS = 6
BLOCK_REGISTERS = 16  # the same of mma.sync, a block of 16x8 sums beyond the first
_ROWS_AND_LOADS = ((1, 4), (1, 8), (2, 2), (2, 4), (4, 1), (4, 2))  # of a warp, 4 to 8 loads in flight
_WARPS = tuple((wk, wr) for wk, wr in product((1, 2, 4, 8, 16), (1, 2, 4)) if 4 <= wk * wr <= 16)


@dataclass(frozen=True)
class _Table:
    """Plans, with what of them no problem changes."""

    plans: tuple[DecodePlan, ...]
    columns: dict[str, Ints]
    crowded: tuple[DecodePlan, ...] = ()  # that a kernel has, and no room for without spilling


def _table(plans: Sequence[DecodePlan], crowded: Sequence[DecodePlan] = ()) -> _Table:
    each = {
        "bm": [p.bm for p in plans],
        "bn": [p.bn for p in plans],
        "bk": [p.bk for p in plans],
        "wk": [p.wk for p in plans],
        "wr": [p.wr for p in plans],
        "rows": [p.bn // p.wr for p in plans],  # of weights a warp
        "un": [p.un for p in plans],
        "batches": [p.batches if isinstance(p, MmaPlan) else 1 for p in plans],
        "threads": [p.threads for p in plans],
        "blocks": [p.blocks_per_sm for p in plans],
        "in_flight": [p.in_flight for p in plans],
    }
    return _Table(tuple(plans), columns_of(each), tuple(crowded))


class Decode(Family):
    """What both kernels have. ``residuals`` are factors on the constants of the same names."""

    residuals = ("turnaround", "fixed")
    kind: type[DecodePlan]
    fixed_us: float  # beside launch, loads and products
    same: float  # factor on what L2 gives an SM of lines of its own
    most_blocks: int  # an SM
    tail_us = 0.0  # of a block whose K ends within a step: loads that are not all in flight at once

    @abstractmethod
    def table(self, problem: Problem) -> _Table:
        """Its plans for a problem that it does not refuse."""

    @abstractmethod
    def issued(self, t: dict[str, Ints], aligned: bool) -> Floats:
        """Instructions of a lane for 16 bytes of weights, those for the tokens with them."""

    @abstractmethod
    def shape(self, plan: DecodePlan, sms: int) -> Shape:
        """What is exact of a plan."""

    def prices(self, plan: Plan) -> bool:
        """Those of its kernel."""
        return isinstance(plan, self.kind)

    def refusal(self, problem: Problem) -> str | None:
        """What the plan says: of the tokens, the dtype and the layouts."""
        try:
            self.kind.default(problem, aligned=problem.aligned)
        except UsageError as error:
            return str(error)
        return None

    def refused(self, problem: Problem, machine: Machine, reason: str) -> Candidate:
        """The tile of its default plan for one token, with the reason."""
        plan = self.kind.default(Problem(1, 4096, 4096, "bf16", b_layout="column"), aligned=True)
        return candidate(problem, self.shape(plan, machine.sms), rejected=reason)

    def offer(self, problem: Problem, machine: Machine) -> Offer:
        """Every plan."""
        every = self.table(problem)
        (rows,), dependent = machine.launches(list(range(len(every.plans))))
        found = _Table(
            tuple(every.plans[row] for row in rows), {name: each[rows] for name, each in every.columns.items()}
        )
        crowded = LazySequence(len(every.crowded), lambda index: self._crowded(every.crowded[index], problem, machine))
        left_out = [(plan, said) for plan, said in decode_space.PASSED_OVER if isinstance(plan, self.kind)]
        passed_over = LazySequence(len(left_out), lambda index: self._left_out(*left_out[index], problem, machine))
        return replace(self._offered(found, problem, machine, dependent), rejected=chained([crowded, passed_over]))

    def _left_out(self, plan: DecodePlan, said: str, problem: Problem, machine: Machine) -> Candidate:
        return candidate(problem, self.shape(plan, machine.sms), rejected=said)

    def kernels(self, tile: tuple[int, int, int], problem: Problem, machine: Machine) -> Iterator[Plan]:
        """Of other rows, loads and warps than the candidates'."""
        for plan in decode_space.of_tile(self.kind, tile, problem, self.most_blocks, self.spare):
            yield plan.with_(dependent_launch=machine.dependent_launch)

    def unlisted(self, tile: tuple[int, int, int], problem: Problem) -> str | None:
        """Why the tile of such a kernel is no candidate."""
        listed = any((plan.bm, plan.bn, plan.bk) == tile for plan in self.table(problem).plans)
        return None if listed else decode_space.UNLISTED

    def _crowded(self, plan: DecodePlan, problem: Problem, machine: Machine) -> Candidate:
        reason = limits.lane_registers(plan.registers, self.spare(plan), plan.available_registers, 1, plan.threads)
        return candidate(problem, self.shape(plan, machine.sms), rejected=f"{plan.of}: {reason.sentence}")

    def priced(self, plan: Plan, problem: Problem, machine: Machine) -> Offer:
        """An offer of one plan, as it is."""
        assert isinstance(plan, DecodePlan)
        return self._offered(_table([plan]), problem, machine, np.array([plan.dependent_launch]))

    def source(self, term: str, candidate: Candidate, said: str) -> str:
        """A latency before the loop, and what is beside both in launch and epilogue."""
        return latency_source(term, candidate, said, self.fixed_us)

    def findings(self, candidate: Candidate, problem: Problem, machine: Machine) -> Iterator[Finding]:
        """Tokens, registers, what is in flight, and how often tokens are read."""
        plan = candidate.plan
        assert isinstance(plan, DecodePlan)
        c = machine.calibration
        yield limits.tokens(problem.m, plan.bm, self.kind.most_tokens, "which a lane holds against its weights")
        yield limits.lane_registers(  # plans of rows that are not aligned are candidates without that room: _fitted
            plan.registers, self.spare(plan), plan.available_registers, plan.blocks_per_sm, plan.threads,
            hard=plan.aligned,
        )  # fmt: skip
        blocks = plan.grid(problem)[0]
        resident = min(plan.blocks_per_sm, -(-blocks // machine.sms))
        turnaround = float(self.turnaround_us(_table([plan]).columns, problem, machine)[0])
        moving = min(plan.in_flight, min(plan.bn, problem.n) * problem.k * plan.dtype.itemsize)
        yield limits.in_flight(resident, moving, blocks, machine.sms, turnaround, c.hbm_read_bytes_per_s)
        yield limits.tokens_read(problem, plan.bm, plan.bn // plan.wr, "a warp")
        if plan.wk > 1:
            yield limits.k_shares(problem.k, plan.bk, plan.wk, "warps")

    def spare(self, plan: DecodePlan) -> int:
        """Registers of a thread beside those that hold loads and sums."""
        return SPARE_REGISTERS

    def _offered(self, found: _Table, problem: Problem, machine: Machine, dependent: Bools) -> Offer:
        t, c, gpu = found.columns, machine.calibration, machine.gpu
        itemsize = problem.dtype.itemsize
        bm, bn, bk, wk = t["bm"], t["bn"], t["bk"], t["wk"]
        across = -(-problem.n // bn)
        tiles = -(-problem.m // bm) * across
        line = problem.k * itemsize
        weights = problem.n / across * line
        # Each warp along the weights asks for its tokens; they come from L2, as the weights leave L1 no room for them.
        tokens = np.minimum(bm, problem.m) * line * (t["wr"] if self.kind is MmaPlan else 1)
        steps = -(-np.maximum(1, -(-problem.k // bk)) // wk)
        chunks = weights / 16
        read = weights + np.minimum(bm, problem.m) * line * t["wr"]
        ones = np.ones(len(bm))
        fixed_us = self.fixed_us * c.residual(self.name, "fixed")
        tail = np.where(problem.k % bk, self.tail_us, 0.0) * -(-tiles // (machine.sms * t["blocks"]))
        stream = Stream(
            tiles=tiles,
            split=np.ones_like(tiles),
            places=machine.sms * t["blocks"],
            reached=np.full_like(tiles, machine.sms),
            own_bytes=weights + tokens,
            shared_bytes=0 * weights,
            weight_bytes=weights,
            run_bytes=bk * wk * itemsize,
            chain=steps / t["batches"],
            turnaround_us=self.turnaround_us(t, problem, machine),
            tensor_clk=self.multiply_clk(t, problem, machine),
            port_clk=read / gpu.shared_bytes_per_clock,
            issue_clk=chunks * self.issued(t, problem.aligned) / SLOTS,
            ring_clk=0 * weights,
            last_part=ones,
            launch_us=ones * c.launch_us,
            ramp_us=BEFORE_FIRST * fixed_us,
            first_clk=ones * c.tma_latency_hbm_clk,
            end_us=(1 - BEFORE_FIRST) * fixed_us + tail,
            end_clk=self.sum_clk(t) + bm * bn * wk * 4 / gpu.shared_bytes_per_clock,
            dependent=dependent,
            shown_clk=c.tma_latency_hbm_clk,  # blocks find room on an SM as those of the kernel before leave it
            flows=tiles > 0,
            round_us=self.round_us(t, problem, machine),
            same=self.same,
            apart=0.0 * weights,
            again_bytes=0.0 * weights,
            useful_elements=problem.m * problem.n / (tiles * bm * bn),
            flop=(2 * bm * bn * problem.k).astype(float),
            pj_per_flop=c.energy_pj_per_flop,
        )
        estimate = StreamEstimate(stream, problem, machine)

        def make(index: int, terms: dict[str, float], predicted: Predicted) -> Candidate:
            plan = found.plans[index].with_(dependent_launch=bool(dependent[index]))
            shape = self.shape(plan, machine.sms)
            return candidate(problem, shape, plan=plan, terms_us=terms, predicted_us=predicted)

        # Of the same time the plan whose warps have the longer run of K, then the fewer warps.
        ties = np.stack([dependent, wk, t["threads"], -t["rows"], np.arange(len(bm))], axis=1)
        nothing: LazySequence[Candidate] = LazySequence(0, lambda index: make(index, {}, Predicted(0, 0, 0, 0)))
        return Offer(estimate.sustained(), estimate.burst(), ties, stream.useful, make, nothing, SPREAD, dependent)

    def turnaround_us(self, t: dict[str, Ints], problem: Problem, machine: Machine) -> Floats:
        """From when a warp has asked for a batch of weights until it asks for the one that takes its place."""
        c = machine.calibration
        used = self.used_clk(t, problem, machine) / c.burst_clock_mhz
        return machine.turnaround_us(np.zeros_like(t["bm"])) + used * c.residual(self.name, "turnaround")

    @abstractmethod
    def used_clk(self, t: dict[str, Ints], problem: Problem, machine: Machine) -> Floats:
        """Clocks in which a warp uses a batch that has come, and asks for nothing."""

    def round_us(self, t: dict[str, Ints], problem: Problem, machine: Machine) -> Floats:
        """Between a block's last loads and its successor's first, how long less is asked for than HBM gives.

        Twice the latency of HBM, as far as the SM's other blocks do not ask for enough: for what HBM delivers to an SM
        in that time. A warp asks for the share of a turnaround in which it does not use a batch.
        """
        latency = machine.turnaround_us(np.zeros_like(t["bm"]))
        enough = machine.calibration.hbm_read_bytes_per_s * 2 * latency * 1e-6 / machine.sms
        asked = (t["blocks"] - 1) * t["in_flight"] * latency / self.turnaround_us(t, problem, machine)
        found: Floats = 2 * latency * np.maximum(0.0, 1 - asked / enough)
        return found

    def sum_clk(self, t: dict[str, Ints]) -> Floats:
        """Clocks in which an SM's warps bring the sums of their lanes together."""
        return np.zeros(len(t["bm"]))

    def multiply_clk(self, t: dict[str, Ints], problem: Problem, machine: Machine) -> Floats:
        """Clocks of an SM's arithmetic for a block's tile."""
        raise NotImplementedError


@lru_cache(maxsize=64)
def _gemv_table(dtype: DType, tokens: int, a: Layout, b: Layout, aligned: bool) -> _Table:
    """A plan of each shape of warps and loads that fits, as many blocks an SM as have room."""
    found: list[GemvPlan] = []
    for (rw, un), (wk, wr) in product(_ROWS_AND_LOADS, _WARPS):
        with suppress(UsageError):
            found.append(
                GemvPlan(dtype, aligned=aligned, a_layout=a, b_layout=b, bm=tokens, rw=rw, un=un, wk=wk, wr=wr)
            )
    return _table(*decode_space.fitted(found, GEMV.most_blocks, GEMV.spare))


class Gemv(Decode):
    """One to four tokens, multiplied on the CUDA cores."""

    name = "decode_gemv"
    kind = GemvPlan
    fixed_us = 0.85  # both fitted to the sweep
    tail_us = 1.0
    same = AS_ALONE  # blocks ask for the same tokens
    most_blocks = 8

    def table(self, problem: Problem) -> _Table:
        """With a row of the tile for each token."""
        return _gemv_table(problem.dtype, problem.m, problem.a_layout, problem.b_layout, problem.aligned)

    def spare(self, plan: DecodePlan) -> int:
        """With what each token takes."""
        return SPARE_REGISTERS + TOKEN_REGISTERS * plan.bm

    def issued(self, t: dict[str, Ints], aligned: bool) -> Floats:
        """A load and 8 conversions of weights, 8 FMAs a token; a token's load and conversions serve all rows."""
        load = 1 if aligned else 8
        found: Floats = load + 8 + t["bm"] * (8 + (load + 8) / t["rows"])
        return found

    def used_clk(self, t: dict[str, Ints], problem: Problem, machine: Machine) -> Floats:
        """All that a warp does with a step's weights, an instruction after the other: it has one batch of registers."""
        loads = t["in_flight"] / (t["threads"] * LOAD_BYTES)
        found: Floats = ISSUE_LATENCY_CLK * loads * self.issued(t, problem.aligned)
        return found

    def sum_clk(self, t: dict[str, Ints]) -> Floats:
        """Five shuffles for each sum that a warp has, one of a warp a clock."""
        return (5 * t["wk"] * t["bn"] * t["bm"] * t["blocks"]).astype(float)

    def multiply_clk(self, t: dict[str, Ints], problem: Problem, machine: Machine) -> Floats:
        """FMAs over what the CUDA cores do."""
        macs = t["bm"] * t["bn"] * problem.k
        found: Floats = macs / (machine.gpu.fp32_fma_per_clock * machine.calibration.fma_share)
        return found

    def shape(self, plan: DecodePlan, sms: int) -> Shape:
        """Sums of each row and token a thread."""
        assert isinstance(plan, GemvPlan)
        return _shape(self.name, plan, 1, plan.rw * plan.bm, sms)


@lru_cache(maxsize=64)
def _mma_table(dtype: DType, nt: int, a: Layout, b: Layout, aligned: bool) -> _Table:
    found: list[MmaPlan] = []
    for rb, un, batches, wk, wr in product((1, 2), (1, 2, 4), (1, 2), (4, 8, 16), (1, 2)):
        with suppress(UsageError):
            found.append(
                MmaPlan(
                    dtype, aligned=aligned, a_layout=a, b_layout=b, nt=nt, rb=rb, un=un, batches=batches, wk=wk, wr=wr
                )
            )
    return _table(*decode_space.fitted(found, MMA.most_blocks, MMA.spare))


class Mma(Decode):
    """Up to sixteen tokens, multiplied by mma.sync from registers that loads fill."""

    name = "decode_mma"
    kind = MmaPlan
    fixed_us = 1.7  # both fitted to the sweep
    most_blocks = 4
    same = 0.7  # a warp's load has 64 bytes of each of 8 lines, where a request of L2's has 128

    def table(self, problem: Problem) -> _Table:
        """With as many blocks of 8 tokens as there are."""
        nt = 1 if problem.m <= 8 else 2
        return _mma_table(problem.dtype, nt, problem.a_layout, problem.b_layout, problem.aligned)

    def spare(self, plan: DecodePlan) -> int:
        """With what each block of 16x8 beyond the first takes, and the order of loads where there is one batch."""
        assert isinstance(plan, MmaPlan)
        return SPARE_REGISTERS + BLOCK_REGISTERS * (plan.nt * plan.rb - 1) + (8 if plan.batches == 1 else 0)

    def issued(self, t: dict[str, Ints], aligned: bool) -> Floats:
        """A load, a mma.sync for each 8 tokens, and the loads of these, which serve all rows."""
        load = 1 if aligned else 12
        groups = t["bm"] / 8
        found: Floats = load + groups * (1 + load * 8 / t["rows"])
        return found

    def used_clk(self, t: dict[str, Ints], problem: Problem, machine: Machine) -> Floats:
        """The tokens' loads, from L2, which a warp issues when its weights have come, and mma.sync one by one."""
        products = t["un"] * (t["rows"] // 16) * (t["bm"] // 8) * 2.0  # of 16 weights, 8 tokens and 16 of K
        return np.asarray(machine.calibration.tma_latency_l2_clk + MMA_CLK * products, dtype=np.float64)

    def multiply_clk(self, t: dict[str, Ints], problem: Problem, machine: Machine) -> Floats:
        """Of the rate that mma.sync reaches."""
        rate = machine.gpu.bf16_tensor_flop_per_clock
        assert rate is not None
        flop = 2 * t["bm"] * t["bn"] * problem.k
        found: Floats = flop / (rate * machine.calibration.mma_sync_share)
        return found

    def shape(self, plan: DecodePlan, sms: int) -> Shape:
        """Four sums of each 16x8 block a thread."""
        assert isinstance(plan, MmaPlan)
        return _shape(self.name, plan, plan.batches, 4 * plan.rb * plan.nt, sms)


def _shape(name: str, plan: DecodePlan, batches: int, accumulators: int, sms: int) -> Shape:
    return Shape(
        family=name,
        tile=(plan.bm, plan.bn, plan.bk),
        stages=batches,
        max_stages=batches,
        max_stages_no_epilogue=batches,
        shared_bytes=plan.shared_bytes,
        accumulator_registers_per_thread=accumulators,
        consumers=max(1, plan.threads // 128),
        schedule="gemv" if name == Gemv.name else "mma",
        places=sms * plan.blocks_per_sm,
    )


GEMV = Gemv()
MMA = Mma()
register(GEMV)
register(MMA)
