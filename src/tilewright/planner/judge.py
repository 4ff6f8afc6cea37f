"""``tilewright.judge``: what the planner says of a tile that somebody brings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from tilewright.dtypes import DType
from tilewright.errors import UsageError
from tilewright.gpu import GpuSpec
from tilewright.planner.calibration import Calibration
from tilewright.planner.candidate import Candidate, Schedule
from tilewright.planner.choice import choose, findings
from tilewright.planner.judgement import Judgement
from tilewright.planner.mistakes import mistakes
from tilewright.planner.plan import machine_of, plan
from tilewright.planner.planning import Clock, Planning
from tilewright.planner.rank import TIE
from tilewright.planner.why import time_us
from tilewright.problem import Problem

SCHEDULES = tuple(each for each in get_args(Schedule) if each in ("cooperative", "pingpong"))
LARGEST = 2**16  # of a side of a tile, of stages, of a cluster: far more than any kernel has


def judge(
    m: int | None = None,
    n: int | None = None,
    k: int | None = None,
    *,
    tile: Sequence[int],
    stages: int | None = None,
    cluster: Sequence[int] = (1, 1),
    consumers: int | None = None,
    schedule: Schedule | None = None,
    dtype: DType | str = "bf16",
    layout: str = "rr",
    gpu: GpuSpec | str | None = None,
    sms: int | None = None,
    calibration: Calibration | None = None,
    clock: Clock = "sustained",
    pdl: bool = False,
    lda: int | None = None,
    ldb: int | None = None,
    ldc: int | None = None,
    out_dtype: DType | str | None = None,
    problem: Problem | None = None,
    top: int = 3,
) -> Judgement:
    """Judge a tile for ``C (m, n) = A (m, k) B (k, n)``: each limit with its numbers, mistakes, and what is better.

    ``tile`` is BM, BN, BK; ``cluster`` blocks along M and N. ``consumers`` warpgroups share a tile (``schedule``
    ``"cooperative"``) or each has its own (``"pingpong"``). What is None is as the planner would have it. At most
    ``top`` better candidates are named. The rest is as for ``tilewright.plan``.

    Raises ``UsageError`` for what is no tile or no team, and as ``plan`` does. A tile that does not fit is no error.
    """
    sizes = _whole("tile", tile, 3, "BM, BN and BK")
    blocks = _whole("cluster", cluster, 2, "blocks along M and along N")
    for name, value in (("stages", stages), ("consumers", consumers)):
        if value is not None:
            _whole(name, (value,), 1, name)
    if schedule not in (None, *SCHEDULES):
        raise UsageError(f"schedule is {schedule!r}; {' and '.join(SCHEDULES)} are possible")
    if type(top) is not int or top < 0:
        raise UsageError(f"top is {top!r}; it must be a whole number, 0 or more")
    planning = plan(
        m, n, k, dtype=dtype, layout=layout, gpu=gpu, sms=sms, calibration=calibration, clock=clock, pdl=pdl, lda=lda,
        ldb=ldb, ldc=ldc, out_dtype=out_dtype, problem=problem,
    )  # fmt: skip
    machine, _ = machine_of(gpu, sms, calibration, pdl)
    chosen, candidate = choose(planning, machine, sizes, stages, blocks, consumers, schedule)
    found = findings(chosen)
    return Judgement(
        problem=planning.problem,
        gpu=planning.gpu,
        assumed_gpu=planning.assumed_gpu,
        present_gpu=planning.present_gpu,
        sms=planning.sms,
        clock=planning.clock,
        pdl=planning.pdl,
        calibration=planning.calibration,
        tile=sizes,
        stages=chosen.stages,
        cluster=blocks,
        consumers=chosen.consumers,
        schedule=chosen.schedule,
        findings=found,
        mistakes=mistakes(chosen, found, candidate, planning),
        candidate=candidate,
        better=_better(planning, candidate, top),
    )


def _better(planning: Planning, candidate: Candidate | None, top: int) -> tuple[Candidate, ...]:
    """Of the planner's first ``top`` those that are faster by a difference that shows; all where there is no kernel."""
    first = planning.ranked[:top]
    if candidate is None:
        return tuple(first)
    least = time_us(candidate, planning.clock) * (1 - TIE)
    return tuple(each for each in first if time_us(each, planning.clock) < least)


def _whole(name: str, values: Any, count: int, what: str) -> Any:
    """So many whole numbers above 0, as a tuple."""
    given = tuple(values) if isinstance(values, Sequence) and not isinstance(values, str) else (values,)
    if len(given) != count or not all(type(each) is int and 0 < each <= LARGEST for each in given):
        shown = given[0] if count == 1 else values
        possible = "a whole number" if count == 1 else f"{count} whole numbers ({what})"
        raise UsageError(f"{name} is {shown!r}; it must be {possible} from 1 to {LARGEST}")
    return given
