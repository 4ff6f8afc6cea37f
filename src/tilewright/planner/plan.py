"""``tilewright.plan``: from a problem to its candidates, ranked by predicted time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import get_args

from tilewright.dtypes import DType
from tilewright.dtypes import dtype as lookup_dtype
from tilewright.errors import UnavailableError, UsageError
from tilewright.gpu import GpuSpec, get_gpu, known_gpus, query_gpu, stand_in
from tilewright.planner.calibration import Calibration, shipped
from tilewright.planner.candidate import Candidate
from tilewright.planner.family import Family, Offer, families
from tilewright.planner.lazy import LazySequence, chained
from tilewright.planner.machine import Machine
from tilewright.planner.planning import Clock, Planning
from tilewright.planner.rank import ranked, ranking, regime
from tilewright.problem import Layout, Problem

ASSUMED = "h200"
LAYOUTS: dict[str, tuple[Layout, Layout]] = {
    "rr": ("row", "row"), "rc": ("row", "column"), "cr": ("column", "row"), "cc": ("column", "column"),
}  # fmt: skip


def plan(
    m: int | None = None,
    n: int | None = None,
    k: int | None = None,
    *,
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
) -> Planning:
    """Every way to compute ``C (m, n) = A (m, k) B (k, n)``, ranked by predicted time. Nothing is run or measured.

    ``layout`` has a letter for A and one for B: ``r``ow- or ``c``olumn-major. ``lda``, ``ldb`` and ``ldc`` count
    elements and are tight when left out. ``problem`` takes the place of all that describes one. ``gpu`` is a key or a
    name; None is that of ``calibration``, else the GPU that is present where it is known, else an H200 (the answer's
    ``assumed_gpu`` says so). Where one is present that is not known, it is that of its model, or an H200, with no more
    SMs than a present one of the architecture has; ``present_gpu`` is its name.
    ``pdl``: kernels that can are planned, and their times predicted, as dependent launches too (programmatic dependent
    launch): they start under the kernel before, which must not write B. Others of the kernels for few tokens then rank
    as if they took a launch more, which the kernel behind cannot hide under them: a chain is as fast as that.
    ``sms`` limits the kernel to so many SMs. ``clock`` ranks by the clock that the power limit leaves
    (``"sustained"``), or by that of a cool card (``"burst"``). Times are in microseconds.

    The same question gives the same object. Raises ``UsageError`` for what is no problem, for an unknown GPU, listing
    the known ones, where the GPU has no calibration and none is given, and for matrices larger than its memory.
    """
    try:
        if problem is None:
            return _planned_sizes(m, n, k, dtype, layout, gpu, sms, calibration, clock, pdl, lda, ldb, ldc, out_dtype)
        if not isinstance(problem, Problem):
            raise UsageError(f"problem is a {type(problem).__name__}; it must be a Problem")
        if (m, n, k) != (None, None, None):
            raise UsageError("m, n and k are given beside a problem, which has its own: give one or the other")
        return _planned(problem, gpu, sms, calibration, clock, pdl)
    except TypeError as error:
        if "unhashable" not in str(error):
            raise
        raise UsageError(
            f"an argument cannot be looked up: {error}; they are numbers, names and plain objects"
        ) from None


@lru_cache(maxsize=1024, typed=True)
def _planned_sizes(
    m: int | None,
    n: int | None,
    k: int | None,
    dtype: DType | str,
    layout: str,
    gpu: GpuSpec | str | None,
    sms: int | None,
    calibration: Calibration | None,
    clock: Clock,
    pdl: bool,
    lda: int | None,
    ldb: int | None,
    ldc: int | None,
    out_dtype: DType | str | None,
) -> Planning:
    sizes = {"m": m, "n": n, "k": k}
    for name, size in sizes.items():
        if size is None:
            raise UsageError(f"{name} is missing: a plan needs m, n and k, or a problem")
    if layout not in LAYOUTS:
        raise UsageError(f"layout {layout!r} is not one of {', '.join(LAYOUTS)} (A then B, row- or column-major)")
    a, b = LAYOUTS[layout]
    kind = lookup_dtype(dtype)
    problem = Problem(**sizes, dtype=kind, out_dtype=out_dtype, a_layout=a, b_layout=b, lda=lda, ldb=ldb, ldc=ldc)  # type: ignore[arg-type]
    return _planned(problem, gpu, sms, calibration, clock, pdl)


@lru_cache(maxsize=1024, typed=True)
def _planned(
    problem: Problem,
    gpu: GpuSpec | str | None,
    sms: int | None,
    calibration: Calibration | None,
    clock: Clock,
    pdl: bool,
) -> Planning:
    if clock not in get_args(Clock):
        raise UsageError(f"clock {clock!r} is not one of {', '.join(get_args(Clock))}")
    if type(pdl) is not bool:
        raise UsageError(f"pdl is {pdl!r}; it must be True or False")
    machine, assumed = machine_of(gpu, sms, calibration, pdl)
    memory = machine.gpu.memory_bytes
    if memory is not None and problem.bytes_moved > memory:
        raise UsageError(
            f"A, B and C of {problem} are {problem.bytes_moved / 1e9:,.0f} GB; {machine.gpu.name} has "
            f"{memory / 1e9:,.0f} GB of memory"
        )
    offers: list[Offer] = []
    refused: list[Sequence[Candidate]] = []
    if problem.m and problem.n:  # else there is nothing to launch
        for family in families():
            reason = family.refusal(problem)
            if reason is None:
                offers.append(family.offer(problem, machine))
            else:
                refused.append(_refused(family, problem, machine, reason))
    common = {
        "problem": problem,
        "gpu": machine.gpu.name if machine.gpu.key is None else machine.gpu.key,
        "assumed_gpu": assumed,
        "present_gpu": here.name if assumed and (here := _present_gpu()) is not None else None,
        "sms": machine.sms,
        "clock": clock,
        "pdl": pdl,
        "calibration": machine.calibration.label,
    }
    rejected = chained([*(offer.rejected for offer in offers), *refused])
    if not offers:
        mhz = machine.calibration.burst_clock_mhz
        common |= {"clock_mhz": mhz, "other_clock_mhz": mhz, "regime": "latency"}
        return Planning(**common, ranked=(), rejected=rejected)  # type: ignore[arg-type]
    rows = ranking(offers, clock, machine.calibration.launch_us if pdl else 0.0)
    best, index = offers[rows[0, 0]], int(rows[0, 1])
    return Planning(
        **common,  # type: ignore[arg-type]
        clock_mhz=float(best.times(clock).mhz[index]),
        other_clock_mhz=float(best.times("burst" if clock == "sustained" else "sustained").mhz[index]),
        regime=regime(best, index, clock),
        ranked=ranked(offers, rows, clock),
        rejected=rejected,
    )


def _refused(family: Family, problem: Problem, machine: Machine, reason: str) -> LazySequence[Candidate]:
    return LazySequence(1, lambda _: family.refused(problem, machine, reason))


def machine_of(
    gpu: GpuSpec | str | None, sms: int | None, calibration: Calibration | None, pdl: bool = False
) -> tuple[Machine, bool]:
    """What times are predicted on, and whether its GPU was assumed. Raises ``UsageError`` as ``plan`` does."""
    assumed, most = False, None
    if calibration is not None and not isinstance(calibration, Calibration):
        raise UsageError(f"calibration is a {type(calibration).__name__}; it must be a Calibration, or None")
    if gpu is None and calibration is not None and calibration.key in known_gpus():
        gpu = calibration.key
    if gpu is None:
        present = _present_gpu()
        if present is not None and present.key is not None:
            spec = present
        else:
            spec, assumed = (present and stand_in(present)) or get_gpu(ASSUMED), True
            if present is not None and present.compute_capability == spec.compute_capability:
                most = min(present.sm_count, spec.sm_count)
    else:
        if not isinstance(gpu, (GpuSpec, str)):
            raise UsageError(f"gpu is a {type(gpu).__name__}; it must be a name such as h200, or a GpuSpec")
        spec = get_gpu(gpu) if isinstance(gpu, str) else gpu
    if calibration is not None and spec.key is not None and calibration.key != spec.key:
        raise UsageError(
            f"the calibration is of {calibration.key} ({calibration.label}); the plan is for {spec.key} ({spec.name})"
        )
    if calibration is None:
        if spec.key is None:
            raise UsageError(
                f"GPU {spec.name!r} has no calibration; {', '.join(known_gpus())} have one, calibration takes another"
            )
        calibration = shipped(spec.key)
    most = (most or spec.sm_count) if sms is None else sms
    if type(most) is not int or not 1 <= most <= spec.sm_count:
        raise UsageError(f"sms is {sms!r}; {spec.name} has 1 to {spec.sm_count}")
    return Machine(spec, calibration, most, pdl), assumed


@cache
def _present_gpu() -> GpuSpec | None:
    """The GPU of this machine, whose constants may not be known."""
    try:
        return query_gpu()
    except UnavailableError:
        return None


__all__ = ["Candidate", "Planning", "plan"]
