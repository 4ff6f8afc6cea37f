"""A tile that somebody chose, completed to a kernel where there is one, and every constraint of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from tilewright import roofline
from tilewright.dtypes import FP32
from tilewright.errors import UsageError
from tilewright.plan_base import Plan
from tilewright.plan_branch import BranchPlan
from tilewright.plan_space import MOST_STAGES, TEAMS
from tilewright.plan_tensor import LAST, TensorPlan
from tilewright.planner import constraints
from tilewright.planner.candidate import Candidate, Schedule
from tilewright.planner.family import families, family_of, priced
from tilewright.planner.judgement import Finding
from tilewright.planner.machine import Machine
from tilewright.planner.planning import Planning
from tilewright.problem import Problem
from tilewright.roofline_tensor import WARPGROUP_ROWS

FAMILY = "wgmma"
# Slabs of C that a kernel is tried with, as columns and count for a consumer: the planner's rule first prefers two, so
# that one drains while the next is filled, then width.
_SLABS = ((64, 2), (32, 2), (64, 1), (32, 1), (16, 2), (16, 1))  # the last is the least that an epilogue needs


@dataclass(frozen=True)
class Choice:
    """A tile and the team that computes it, whether a kernel can have it or not.

    ``registers`` are those of a loading and of a multiplying thread; the epilogue has ``slabs`` a consumer, 64 rows by
    ``columns`` each. ``other`` is the kernel that another family has of a tile that the main kernel has not, or for a
    problem that it refuses: then team, registers and slabs mean nothing.
    """

    problem: Problem
    machine: Machine
    tile: tuple[int, int, int]
    stages: int
    cluster: tuple[int, int]
    consumers: int
    schedule: Schedule
    registers: tuple[int, int]
    columns: int = 16
    slabs: int = 1
    half_tail: bool = False
    other: Candidate | None = None

    @property
    def epilogue_bytes(self) -> int:
        """Of the slabs of all consumers."""
        return self.consumers * self.slabs * WARPGROUP_ROWS * self.columns * self.problem.dtype.itemsize

    @property
    def places(self) -> int:
        """Clusters that run at the same time, one at least; of another family's kernel as many as its waves have."""
        if self.other is not None and self.other.waves and self.other.wave_efficiency:
            return max(1, round(self.other.tiles / (self.other.waves * self.other.wave_efficiency)))
        with suppress(UsageError):
            return self.machine.places(self.cluster[0] * self.cluster[1])
        return 1

    def plan(self) -> TensorPlan:
        """The plan of the main kernel, tiles in rows. Raises ``UsageError`` with the reason where no kernel has it."""
        p = self.problem
        return TensorPlan(
            LAST, p.dtype, *self.tile, True, p.a_layout, p.b_layout, stages=self.stages, consumers=self.consumers,
            producer_registers=self.registers[0], consumer_registers=self.registers[1], cluster_m=self.cluster[0],
            cluster_n=self.cluster[1], pingpong=self.schedule == "pingpong", half_tail=self.half_tail,
            blocks=self.places * self.cluster[0] * self.cluster[1], epilogue_columns=self.columns,
            epilogue_slabs=self.slabs,
        ).storing(p.out_dtype)  # fmt: skip

    @property
    def refusal(self) -> str | None:
        """Why no kernel has it, in a sentence; None where one has."""
        try:
            self.plan()
        except UsageError as error:
            return str(error)
        if self.cluster[0] * self.cluster[1] > self.machine.sms:
            return f"a cluster of {self.cluster[0]}x{self.cluster[1]} blocks does not fit on {self.machine.sms} SMs"
        return _refused(self.problem)


def _refused(problem: Problem) -> str | None:
    """Why the main kernel computes no problem of this kind; None where it does."""
    return next(family.refusal(problem) for family in families() if family.name == FAMILY)


def choose(
    planning: Planning,
    machine: Machine,
    tile: tuple[int, int, int],
    stages: int | None,
    cluster: tuple[int, int],
    consumers: int | None,
    schedule: Schedule | None,
) -> tuple[Choice, Candidate | None]:
    """The choice with what was left open filled in, and its kernel with a time, None where there is none.

    What is left open is the planner's own: of its candidates with this tile and cluster the fastest. Where it has none,
    it is two warpgroups, one for fewer than 128 rows, with as many stages as fit beside the least epilogue. No kernel
    has such a tile: the planner's candidates are all that are legal.
    """
    refused = _refused(planning.problem) is not None
    for rank, own in enumerate(planning.ranked):
        same = (own.tile, own.cluster) == (tile, cluster) and consumers in (None, own.consumers)
        if not same or schedule not in (None, own.schedule):
            continue
        found = own if stages in (None, own.stages) else None
        if own.family != FAMILY:
            # Of tiles that the main kernel might have it is asked, unless a kernel of another kind has it as the pick.
            best = rank == 0 and own.register_split is None
            if found is not None and (refused or best or tile[0] % WARPGROUP_ROWS):
                made = Choice(planning.problem, machine, tile, own.stages, cluster, own.consumers, own.schedule, (0, 0))
                return replace(made, other=own), own
            continue
        if found is None and stages is not None:
            found = _with_stages(planning, machine, own, stages)
        if found is not None:
            return _choice_of(planning, machine, found), found
        return replace(_choice_of(planning, machine, own), stages=stages or 0, columns=16, slabs=1), None
    count, pingpong, *registers = _team(tile, consumers, schedule)
    asked = Choice(
        planning.problem, machine, tile, 0, cluster, count, "pingpong" if pingpong else "cooperative",
        (registers[0], registers[1]),
    )  # fmt: skip
    if stages is None:
        stage = roofline.k_step_bytes(*tile, planning.problem.dtype.itemsize)
        fit = constraints.stages_that_fit(int(stage.value), machine.gpu, asked.epilogue_bytes)
        stages = max(constraints.LEAST_STAGES, min(fit, MOST_STAGES))
    for columns, slabs in _SLABS:
        asked = replace(asked, stages=stages, columns=columns, slabs=slabs)
        if asked.refusal is None:
            break  # a C without elements has no candidate, and so no time
    return asked, None


def _with_stages(planning: Planning, machine: Machine, own: Candidate, stages: int) -> Candidate | None:
    """The kernel with other stages, and slabs for the epilogue in what they leave; None where none has them."""
    assert isinstance(own.plan, TensorPlan)
    for columns, slabs in ((own.plan.epilogue_columns, own.plan.epilogue_slabs), *_SLABS):
        with suppress(UsageError):
            plan = own.plan.with_(stages=stages, epilogue_columns=columns, epilogue_slabs=slabs)
            return priced(plan, planning.problem, machine, planning.clock)
    return None


def _choice_of(planning: Planning, machine: Machine, own: Candidate) -> Choice:
    assert isinstance(own.plan, TensorPlan)
    plan = own.plan
    return Choice(
        planning.problem, machine, own.tile, own.stages, own.cluster, own.consumers, own.schedule,
        (plan.producer_registers, plan.consumer_registers), plan.epilogue_columns, plan.epilogue_slabs, plan.half_tail,
    )  # fmt: skip


def _team(tile: tuple[int, int, int], consumers: int | None, schedule: Schedule | None) -> tuple[int, bool, int, int]:
    """Who would multiply a tile that no kernel has: two warpgroups, or one for a tile of fewer than 128 rows."""
    count = consumers or (1 if tile[0] < 128 and schedule != "pingpong" else 2)
    pingpong = schedule == "pingpong"
    fitting = [team for team in TEAMS if team[0] == count]
    return (count, pingpong, *(fitting[0][2:] if fitting else TEAMS[1][2:]))


def findings(choice: Choice) -> tuple[Finding, ...]:
    """Every constraint of a choice, in the order in which one would reckon."""
    return tuple(_findings(choice))


def _findings(choice: Choice) -> Iterator[Finding]:
    problem, machine, gpu = choice.problem, choice.machine, choice.machine.gpu
    (bm, bn, bk), cluster, itemsize = choice.tile, choice.cluster, problem.dtype.itemsize
    team = (choice.consumers, choice.schedule)
    constants = machine.calibration
    yield from bandwidths(problem, choice.tile, cluster, machine)
    if choice.other is not None:
        if problem.dtype != FP32 and _refused(problem) is not None:
            yield replace(constraints.tma_lines(problem), hard=False)  # why it is not the main kernel's
        yield from of_family(choice.other, problem, machine)
        yield constraints.waves(problem, bm, bn, cluster, choice.places)
        yield constraints.edge_waste(problem, bm, bn)
        yield _kernel(choice)
        return
    yield constraints.stages(bm, bn, bk, itemsize, choice.stages, gpu, choice.epilogue_bytes)
    latency = constants.tma_latency_hbm_clk
    yield constraints.pipeline(bm, bn, bk, choice.stages, gpu, latency, constants.sources["tma_latency_hbm_clk"])
    yield constraints.swizzle_row(bk, itemsize)
    yield constraints.instruction(bm, bn, *team)
    yield constraints.accumulators(bm, bn, *team, gpu)
    yield constraints.thread_registers(bm, bn, *team, choice.registers[1])
    yield constraints.register_file(choice.consumers, *choice.registers, gpu)
    yield constraints.tma_lines(problem)
    halves = 2 if choice.half_tail else 1
    yield constraints.tma_box(bm // halves, bn, bk, cluster, (problem.a_layout, problem.b_layout))
    yield constraints.clusters(cluster, gpu, machine.sms)
    if problem.m and problem.n:
        if cluster[0] * cluster[1] <= machine.sms:
            yield constraints.waves(problem, bm, bn, cluster, choice.places, half_tail=choice.half_tail)
        yield constraints.edge_waste(problem, bm, bn)
        yield constraints.rows_of_m(problem, bm)
    yield _kernel(choice)


def of_family(candidate: Candidate, problem: Problem, machine: Machine) -> Iterator[Finding]:
    """What the candidate's own family says limits it; nothing of a candidate without a plan."""
    family = family_of(candidate)
    if family is not None and candidate.plan is not None:
        yield from family.findings(candidate, problem, machine)


def bandwidths(
    problem: Problem, tile: tuple[int, int, int], cluster: tuple[int, int], machine: Machine
) -> Iterator[Finding]:
    """What a tile asks of L2 and HBM, at the roof of the SMs that the kernel may use."""
    (bm, bn, _), constants = tile, machine.calibration
    yield constraints.intensity(bm, bn, problem.dtype.itemsize, cluster)
    if not problem.flops:
        return
    share, peak = machine.sms / machine.gpu.sm_count, machine.gpu.bf16_tensor_tflops
    used = replace(
        machine.gpu,
        fp32_tflops=machine.gpu.fp32_tflops * share,
        bf16_tensor_tflops=None if peak is None else peak * share,
    )
    roof = roofline.roof_of(problem.dtype, tensor_cores=problem.dtype != FP32)
    one = constants.l2_alone_bytes_per_clk * constants.boost_clock_mhz * 1e6
    supply = min(max(rate for _, rate in constants.l2_curve), machine.sms * one)
    yield constraints.operand_traffic(problem, bm, bn, cluster)
    yield constraints.l2_bandwidth(problem, bm, bn, cluster, used, supply, constants.sources["l2_curve"], roof)
    yield constraints.hbm_bandwidth(problem, used, roof)


def _whose(plan: Plan | None) -> str:
    if isinstance(plan, BranchPlan):
        return f"branch {plan.branch}'s"
    return "its" if plan is None else f"rung {plan.rung}'s"


def _kernel(choice: Choice) -> Finding:
    """The verdict of the plan itself, which knows all that a kernel of this project cannot have."""
    if choice.other is not None:
        said = f"family {choice.other.family} has it, {_whose(choice.other.plan)} kernel"
        return Finding("kernel", True, 1.0, 1, "kernels", said, "tilewright.planner.families")
    refusal = choice.refusal
    said = refusal or f"rung {LAST} has a kernel of it"
    return Finding("kernel", refusal is None, float(refusal is None), 1, "kernels", said, "tilewright.plan_tensor")
