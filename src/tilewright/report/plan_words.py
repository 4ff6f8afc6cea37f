"""A planning in words: what was asked, what limits the pick, and the figures that tables and pages both show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tilewright.errors import UsageError
from tilewright.gpu import get_gpu
from tilewright.planner.candidate import INSIDE, Candidate
from tilewright.planner.judgement import Finding, Judgement
from tilewright.planner.planning import Clock, Planning, Regime
from tilewright.planner.why import time_us, waves_said, words
from tilewright.problem import Problem
from tilewright.roofline import amount, held

REGIMES: dict[Regime, str] = {
    "compute": "compute-limited: the main loop waits for what the SMs do themselves: multiply, read operands, issue",
    "L2": "L2-limited: the main loop waits for operands from the L2 cache",
    "HBM": "HBM-limited: the main loop waits for memory",
    "latency": "latency-limited: launch, first load and epilogue are what costs most beside the work itself",
    "power": "power-limited: the lower clock that the power limit leaves is what costs most beside the work itself",
    "wave": "wave-limited: places idle in the last wave or beyond C's edges are what costs most beside the work itself",
}


def gpu_name(key: str) -> str:
    """The name of a GPU for people; what was given where the tables do not know it."""
    try:
        return get_gpu(key).name
    except UsageError:
        return key


def asked(planning: Planning | Judgement) -> str:
    """The question in a line: the GPU and whether it was assumed, its SMs, the problem.

    ``H200 SXM (assumed: no GPU here, none named), 132 SMs: 4096x4096x4096 bf16``.
    """
    here = planning.present_gpu
    why = "no GPU here, none named" if here is None else f"the GPU here, {here}, is not known"
    assumed = f" (assumed: {why})" if planning.assumed_gpu else ""
    return f"{gpu_name(planning.gpu)}{assumed}, {planning.sms} SM{'s' * (planning.sms != 1)}: {planning.problem}"


def basis(planning: Planning | Judgement) -> str:
    """What the times rest on: the constants and the state of the clock."""
    state = {"sustained": "under sustained load", "burst": "in a short burst on a cool card"}[planning.clock]
    if planning.pdl:
        state += ", dependent launches where a kernel can"
    return f"times {state}, predicted from constants: {planning.calibration}"


def nothing(problem: Problem) -> str:
    """What there is to say of a problem whose C has no elements."""
    return f"C is {problem.m} x {problem.n}: it has no elements, so there is nothing to launch"


def verdict(judgement: Judgement) -> str:
    """Whether a tile fits, and its time where it has a kernel."""
    if not judgement.fits:
        return "does not fit"
    candidate = judgement.candidate
    if candidate is None or candidate.predicted_us is None:
        return "fits"
    us, reached = time_us(candidate, judgement.clock), tflops(candidate, judgement.problem, judgement.clock)
    return f"fits: {microseconds(us)} us {judgement.clock}, {speed(reached)} TFLOPS"


def mark(finding: Finding) -> str:
    """A finding in a word: a limit kept, one that no kernel breaks, one that costs speed, or a figure alone."""
    if finding.ok is None:
        return "-"
    return "ok" if finding.ok else "NO" if finding.hard else "slow"


def gain(judgement: Judgement, other: Candidate) -> str:
    """How much faster another candidate is predicted to be; empty where the tile has no kernel."""
    factor = judgement.gain(other)
    return "" if factor is None else f"{factor:.3f}x"


def tflops(candidate: Candidate, problem: Problem, clock: Clock) -> float | None:
    """The predicted speed, counting the problem's own operations alone; None where there is no time."""
    if candidate.predicted_us is None or not time_us(candidate, clock):
        return None
    return problem.flops / time_us(candidate, clock) / 1e6


def speed(value: float | None) -> str:
    """TFLOPS at a tenth, whole from 1,000 on; ``-`` for none."""
    return "-" if value is None else f"{value:,.0f}" if value >= 1e3 else f"{value:.1f}"


def microseconds(value: float) -> str:
    """A time at four digits, whole from 10,000 us on."""
    return f"{value:,.0f}" if value >= 1e4 else f"{value:,.1f}" if value >= 100 else f"{value:.2f}"


def predicted(planning: Planning) -> str:
    """The times of the pick, each with its clock: that which ranks with its interval, and the other."""
    pick = planning.pick
    times = pick.predicted_us
    if times is None:
        raise UsageError(f"{pick.label} has no predicted time: {pick.rejected}")
    first = (
        f"{microseconds(time_us(pick, planning.clock))} us {planning.clock} at {planning.clock_mhz / 1e3:.2f} GHz "
        f"(assumed range {microseconds(times.low)} to {microseconds(times.high)})"
    )
    other = f"{microseconds(time_us(pick, planning.other_clock))} us {planning.other_clock}"
    at = f"{other} at {planning.other_clock_mhz / 1e3:.2f} GHz"
    return f"{first}, {speed(tflops(pick, planning.problem, planning.clock))} TFLOPS; {at}"


def time_goes(candidate: Candidate) -> str:
    """The terms that add up, and what of the main loop is the largest."""
    terms = candidate.terms_us
    adding = [f"{words(name)} {microseconds(value)}" for name, value in terms.items() if name not in INSIDE]
    inside = {name: terms[name] for name in INSIDE if name in terms}
    largest = sorted(inside, key=lambda name: -inside[name])[:2]
    within = ", ".join(f"{words(name)} {microseconds(inside[name])}" for name in largest)
    return " + ".join(adding) + (f" us; the main loop alone by {within}" if within else " us")


def facts(candidate: Candidate) -> Iterator[tuple[str, str]]:
    """What is exact about a candidate, by name."""
    yield "operands", f"{candidate.intensity_flop_per_byte:.4g} FLOP/B, {_traffic(candidate)}"
    yield "waves", f"{waves_said(candidate)}; super-rows of {candidate.raster}"
    staged = candidate.plan is None or "stages" in candidate.plan.shared_parts
    some = f"{candidate.stages} batch{'es' if candidate.stages != 1 else ''} of loads in registers"
    if staged:
        some = (
            f"{candidate.stages} of {held(candidate.stage_bytes)}; {candidate.max_stages} fit, "
            f"{candidate.max_stages_no_epilogue} without the epilogue's buffers"
        )
    yield "stages", some
    split = candidate.register_split
    threads = "" if split is None else f" of {split[1]}; {split[0]} for those that load"
    yield "registers", f"{candidate.accumulator_registers_per_thread} accumulators a thread{threads}"


def explained(candidate: Candidate, reasons: Sequence[Finding]) -> list[tuple[str, str]]:
    """What is exact about a candidate and the ``reasons`` for it, by name; a reason stands for the fact of its name."""
    said = [(reason.name, reason.sentence) for reason in reasons]
    names = {_COVERS.get(reason.name, reason.name) for reason in reasons}
    return [*said, *(fact for fact in facts(candidate) if fact[0] not in names)]


_COVERS = {
    "operand traffic": "operands", "accumulators": "registers", "lane registers": "registers", "ring": "stages"
}  # fmt: skip


def _traffic(candidate: Candidate) -> str:
    alone, shared = candidate.operand_traffic_bytes, candidate.operand_traffic_bytes_multicast
    saved = f", {amount(shared)} with multicast" if shared < alone else ""
    return f"{amount(alone)} of A and B read by tiles{saved}"


def by_reason(rejected: Iterable[Candidate]) -> list[tuple[str, list[str]]]:
    """The labels of rejected candidates under each reason, in the order in which the reasons come."""
    reasons: dict[str, list[str]] = {}
    for each in rejected:
        reasons.setdefault(str(each.rejected), []).append(each.label)
    return list(reasons.items())
