"""Why a planning's pick has the tile it has: the constraints that decide, with their numbers."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.errors import UsageError
from tilewright.gpu import get_gpu
from tilewright.planner import constraints
from tilewright.planner.calibration import Calibration, shipped
from tilewright.planner.choice import bandwidths, of_family
from tilewright.planner.judgement import Finding
from tilewright.planner.machine import Machine
from tilewright.planner.planning import Planning


def reasons(planning: Planning, calibration: Calibration | None = None) -> tuple[Finding, ...]:
    """The constraints of the pick in the order in which one would reckon; those of ``choice`` are all of them.

    ``calibration`` is that of the planning, the shipped one of its GPU when left out. None where nothing is picked or
    where the GPU is none of the tables.
    """
    try:
        return tuple(_reasons(planning, calibration or shipped(planning.gpu)))
    except UsageError:
        return ()


def _reasons(planning: Planning, constants: Calibration) -> Iterator[Finding]:
    problem, pick, gpu = planning.problem, planning.pick, get_gpu(planning.gpu)
    (bm, bn, bk), cluster, itemsize = pick.tile, pick.cluster, problem.dtype.itemsize
    machine = Machine(gpu, constants, planning.sms, planning.pdl)
    yield from bandwidths(problem, pick.tile, cluster, machine)
    yield from of_family(pick, problem, machine)
    if pick.register_split is not None and pick.plan is not None:
        # Of C on its way out: slabs, and of parts of K what blocks tell and send each other.
        out = sum(size for name, size in pick.plan.shared_parts.items() if name not in ("stages", "barriers"))
        yield constraints.stages(bm, bn, bk, itemsize, pick.stages, gpu, out)
        yield constraints.accumulators(bm, bn, pick.consumers, pick.schedule, gpu)
        yield constraints.register_file(pick.consumers, *pick.register_split, gpu)
    yield constraints.edge_waste(problem, bm, bn)
