"""A tile that somebody chose, completed to a kernel where there is one, and every constraint of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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
from tilewright.planner.persistent import SLABS
from tilewright.planner.planning import Planning
from tilewright.planner.rank import TIE
from tilewright.planner.why import time_us
from tilewright.problem import Problem
from tilewright.roofline_tensor import WARPGROUP_ROWS

FAMILY = "wgmma"


@dataclass(frozen=True)
class Choice:
    """A tile and the team that computes it, whether a kernel can have it or not.

    ``registers`` are those of a loading and of a multiplying thread; the epilogue has ``slabs`` a consumer, 64 rows by
    ``columns`` each. ``other`` is the kernel that another family has of a tile that the main kernel has not, or for a
    problem that it refuses: then registers and slabs mean nothing. ``unfit`` says why that kernel is not as it was
    asked for.
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
    unfit: str | None = None

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

    @property
    def wgmma_clk(self) -> float | None:
        """Clocks of a wgmma as wide as the tile; None where there is none."""
        with suppress(UsageError):
            return None if self.problem.dtype == FP32 else self.machine.calibration.wgmma_clocks(self.tile[1])
        return None

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
            sms = self.machine.sms
            return f"a cluster of {self.cluster[0]}x{self.cluster[1]} blocks does not fit on {sms} SM{'s' * (sms != 1)}"
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

    What is left open is the planner's own: of its candidates with this tile and cluster the fastest. Where no family
    has such a tile, it is two warpgroups, one for fewer than 128 rows, with as many stages as fit beside the least
    epilogue.
    """
    every = _of_tile(planning, machine, tile)
    kernels = [
        each
        for each in every
        if each.cluster == cluster and consumers in (None, each.consumers) and schedule in (None, each.schedule)
    ]
    # Of tiles that the main kernel has it is asked, unless a kernel of another kind has it as the pick; of teams and
    # clusters that it has not the branches are, not the rungs before it.
    if any(each.family == FAMILY for each in every):
        kernels = [each for each in kernels if each.family == FAMILY or isinstance(each.plan, BranchPlan)]
    main = [each for each in kernels if each.family == FAMILY]
    best = bool(kernels) and kernels[0] is planning.ranked[0] and kernels[0].register_split is None
    if main and not best:
        kernels = main
    if not kernels:
        if every and all(each.family != FAMILY for each in every):
            return _of_another_team(planning, machine, every, stages, cluster, consumers, schedule), None
        return _without_kernel(planning, machine, tile, stages, cluster, consumers, schedule), None
    found, unfit = (kernels[0], None) if stages is None else _with_stages(planning, machine, kernels, stages)
    own = found or kernels[0]
    if own.family != FAMILY:
        return _choice_of_other(planning, machine, own, stages or own.stages, unfit), found
    made = _choice_of(planning, machine, own)
    return (made if found else replace(made, stages=stages or 0, columns=16, slabs=1)), found


def _of_tile(planning: Planning, machine: Machine, tile: tuple[int, int, int]) -> list[Candidate]:
    """The kernels of a tile, the fastest first: candidates, or where none is those that a family lists no tile of."""
    found = [each for each in planning.ranked if each.tile == tile]
    if found or not planning.ranked:
        return found
    problem = planning.problem
    plans = (
        plan for each in families() if each.refusal(problem) is None for plan in each.kernels(tile, problem, machine)
    )
    more = [priced(plan, problem, machine, planning.clock) for plan in plans]
    return sorted(more, key=lambda each: time_us(each, planning.clock))


def _with_stages(
    planning: Planning, machine: Machine, kernels: Sequence[Candidate], stages: int
) -> tuple[Candidate | None, str | None]:
    """The fastest of the kernels with other stages; None and the reason of the one with most room where none has them.

    Of times that differ by less than ``TIE`` the first's.
    """
    found: list[Candidate] = []
    reasons: dict[int, str] = {}
    for each in kernels:
        family = family_of(each)
        assert family is not None
        try:
            plan = None if each.stages == stages else family.staged(each, stages)
        except UsageError as error:
            reasons.setdefault(each.max_stages, str(error))
            continue
        found.append(each if plan is None else priced(plan, planning.problem, machine, planning.clock))
    if not found:
        return None, reasons[max(reasons)]
    return min(found, key=lambda each: math.floor(math.log(time_us(each, planning.clock)) / TIE)), None


def _choice_of_other(
    planning: Planning, machine: Machine, own: Candidate, stages: int, unfit: str | None = None
) -> Choice:
    return Choice(
        planning.problem, machine, own.tile, stages, own.cluster, own.consumers, own.schedule, (0, 0), other=own,
        unfit=unfit,
    )  # fmt: skip


def _of_another_team(
    planning: Planning, machine: Machine, every: Sequence[Candidate], stages: int | None, cluster: tuple[int, int],
    consumers: int | None, schedule: Schedule | None,
) -> Choice:  # fmt: skip
    """Of a tile whose kernels have other clusters or teams than is asked for: the fastest, and what there is."""
    teams = {
        f"{each.consumers} warpgroup{'' if each.consumers == 1 else 's'}, {each.schedule}, "
        f"cluster {each.cluster[0]}x{each.cluster[1]} ({each.family})"
        for each in every
    }
    bm, bn, bk = every[0].tile
    made = _choice_of_other(planning, machine, every[0], stages or every[0].stages)
    return replace(
        made,
        cluster=cluster,
        consumers=consumers or made.consumers,
        schedule=schedule or made.schedule,
        unfit=f"{bm}x{bn}x{bk} has kernels of {'; '.join(sorted(teams))}, and no others",
    )


def _without_kernel(
    planning: Planning, machine: Machine, tile: tuple[int, int, int], stages: int | None, cluster: tuple[int, int],
    consumers: int | None, schedule: Schedule | None,
) -> Choice:  # fmt: skip
    """As the main kernel would have a tile that none has."""
    count, pingpong, *registers = _team(tile, consumers, schedule)
    asked = Choice(
        planning.problem, machine, tile, 0, cluster, count, "pingpong" if pingpong else "cooperative",
        (registers[0], registers[1]),
    )  # fmt: skip
    if stages is None:
        stage = roofline.k_step_bytes(*tile, planning.problem.dtype.itemsize)
        fit = constraints.stages_that_fit(int(stage.value), machine.gpu, asked.epilogue_bytes)
        stages = max(constraints.LEAST_STAGES, min(fit, MOST_STAGES))
    for columns, slabs in SLABS:
        asked = replace(asked, stages=stages, columns=columns, slabs=slabs)
        if asked.refusal is None:
            break  # a C without elements has no candidate, and so no time
    return asked


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
        if choice.unfit is None:
            yield from of_family(choice.other, problem, machine)
        yield constraints.waves(problem, bm, bn, cluster, choice.places)
        yield constraints.edge_waste(problem, bm, bn)
        yield _kernel(choice)
        return
    yield constraints.stages(bm, bn, bk, itemsize, choice.stages, gpu, choice.epilogue_bytes)
    latency = constants.tma_latency_hbm_clk
    source = constants.sources["tma_latency_hbm_clk"]
    yield constraints.pipeline(bm, bn, bk, choice.stages, gpu, latency, source, choice.wgmma_clk)
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
    if choice.unfit is not None:
        return Finding("kernel", False, 0.0, 1, "kernels", choice.unfit, "tilewright.planner.families")
    if choice.other is not None:
        said = f"family {choice.other.family} has it, {_whose(choice.other.plan)} kernel"
        family = family_of(choice.other)
        unlisted = None if family is None else family.unlisted(choice.tile, choice.problem)
        said += "" if unlisted is None else f"; it is no candidate: {unlisted}"
        return Finding("kernel", True, 1.0, 1, "kernels", said, "tilewright.planner.families")
    refusal = choice.refusal
    said = refusal or f"rung {LAST} has a kernel of it"
    return Finding("kernel", refusal is None, float(refusal is None), 1, "kernels", said, "tilewright.plan_tensor")
