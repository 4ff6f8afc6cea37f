"""Timing that can be believed: rivals side by side in one run, and how far a figure may be trusted.

Each rival's launches are captured in a graph and replayed in slots of a fixed length, of which the first part is not
timed, in a new random order each round, so that heat, clocks and neighbours fall on all alike. Operand sets rotate so
that a launch does not find its own operands in the L2 cache. The baseline runs twice a round: the ratio of the two
is the noise band, and a difference inside it is none.

This module knows no GPU: a ``Timer`` runs the launches (``backends.cuda_timer`` on a GPU), and tests use a fake one.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from tilewright.errors import UsageError
from tilewright.telemetry import Snapshot

Launch = Callable[[Any], None]  # enqueues one launch on the stream it is given
L2Policy = Literal["cold", "warm"]
AGAIN = " (again)"  # names the baseline's second slot of a round


@dataclass(frozen=True)
class Slot:
    """What one slot took: microseconds a launch, and the SM clock in MHz that its timed part ran at.

    The clock is the kernels' own, from the SMs' cycle counters; None where it was not measured, for the reason in
    ``clock_note``.
    """

    time_us: float
    sm_clock_mhz: float | None = None
    clock_note: str = ""


class Prepared(Protocol):
    """What ``Timer.prepare`` returns."""

    launches: int
    method: str
    note: str


class Timer(Protocol):
    """Something that can run launches and say how long they took."""

    def prepare(self, launches: Sequence[Launch], count: int) -> Any:
        """Make ready ``count`` launches taken in turn from ``launches``."""
        ...

    def slot(self, prepared: Any, warm: int, timed: int, sample: Callable[[], None] | None = None) -> Slot:
        """Replay ``warm`` times untimed, then time ``timed`` replays; call ``sample`` now and then meanwhile."""
        ...


@dataclass(frozen=True)
class Rival:
    """One implementation: ``launches`` holds a launch for each operand set.

    ``estimate_us`` is about what a launch takes, where that is known: slots are then laid out by it, not by a trial.
    """

    name: str
    launches: Sequence[Launch] = field(repr=False)
    estimate_us: float | None = None


@dataclass(frozen=True)
class Schedule:
    """How to measure. Longer slots and more rounds are steadier; ``quick`` is for a first look.

    ``slot_ms`` is the least length of a slot, of which ``warm_fraction`` is not timed; a graph holds enough launches
    for ``graph_ms`` (at most ``max_launches``), so that the gaps between replays do not count. Before the first round
    come ``warm_slots`` slots of the baseline that leave no figure. ``sampled``: the GPU's state is read while a slot
    runs, for which one of a few milliseconds would have to wait.
    """

    slot_ms: float = 250.0
    warm_fraction: float = 0.4
    rounds: int = 5
    graph_ms: float = 8.0
    max_launches: int = 2048
    seed: int = 0
    warm_slots: int = 0
    sampled: bool = True

    def __post_init__(self) -> None:
        numbers = self.slot_ms > 0 and self.graph_ms > 0 and self.rounds >= 1 and self.warm_slots >= 0
        if not numbers or not 0 <= self.warm_fraction < 1:
            raise UsageError(f"{self} is not a way to measure: times and rounds are positive, 0 <= warm_fraction < 1")

    @classmethod
    def quick(cls) -> Schedule:
        """Short slots and three rounds: a figure within a few percent, in under a second a rival."""
        return cls(slot_ms=80.0, rounds=3)

    def __str__(self) -> str:
        """As records have it."""
        warmed = f" after {self.warm_slots} of the baseline" if self.warm_slots else ""
        return (
            f"CUDA graph replays in {self.slot_ms:g} ms slots{warmed}, the first {self.warm_fraction:.0%} untimed, "
            f"{self.rounds} rounds in random order"
        )


SUSTAINED = Schedule(slot_ms=250.0, warm_fraction=0.4, rounds=5, graph_ms=8.0, warm_slots=6)
"""For problems that take a GPU to its power limit. A card takes about 100 ms of load to settle at the clock that its
power allows, so that the first part of a slot would flatter whoever comes after a cooler rival, and seconds to warm up.
Slots of 80 ms have ranked variants wrongly by up to 7%."""


@dataclass(frozen=True)
class Summary:
    """A median and how far the samples lie apart: quartile distance (``iqr``), smallest and largest."""

    median: float
    low: float
    high: float
    iqr: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Summary:
        """Summarise at least one sample."""
        if not samples:
            raise UsageError("no samples to summarise")
        quarters = statistics.quantiles(samples, n=4, method="inclusive") if len(samples) > 1 else [samples[0]] * 3
        return cls(statistics.median(samples), min(samples), max(samples), quarters[2] - quarters[0])

    def to_dict(self) -> dict[str, float]:
        """JSON-ready values."""
        return {"median": self.median, "min": self.low, "max": self.high, "iqr": self.iqr}


@dataclass
class Timing:
    """One rival's samples, a slot each, in microseconds a launch, and the SM clocks of these slots in MHz.

    ``method`` is ``graph`` (``launches`` of them in one graph) or ``launches`` (one by one, because of ``note``: short
    kernels then show the host's time). ``error`` says why there are no samples, or no more.
    """

    name: str
    samples_us: list[float] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)
    clocks_mhz: list[float] = field(default_factory=list)
    clock_note: str = ""
    method: str = ""
    launches: int = 0
    note: str = ""
    error: str | None = None

    @property
    def time_us(self) -> Summary | None:
        """Microseconds a launch; None when nothing was measured."""
        return Summary.of(self.samples_us) if self.samples_us else None

    def tflops(self, flops: float) -> float | None:
        """Tera floating-point operations a second at the median, for a problem of ``flops`` operations."""
        summary = self.time_us
        return None if summary is None or summary.median <= 0 else flops / summary.median / 1e6

    def clock_mhz(self) -> float | None:
        """The median of NVML's SM clock while its slots ran."""
        clocks = [s.sm_clock_mhz for s in self.snapshots if s.sm_clock_mhz is not None]
        return statistics.median(clocks) if clocks else None

    def clock_mhz_in_kernel(self) -> float | None:
        """The median of the SM clocks that its slots ran at, by the SMs' own counters."""
        return statistics.median(self.clocks_mhz) if self.clocks_mhz else None

    def power_w(self) -> float | None:
        """The median of the card's power in watts while its slots ran."""
        powers = [s.power_w for s in self.snapshots if s.power_w is not None]
        return statistics.median(powers) if powers else None


@dataclass
class Measurement:
    """What ``measure`` saw: every rival's samples, and each round's, for ratios within a round."""

    timings: dict[str, Timing]
    rounds: list[dict[str, float]]
    baseline: str | None
    schedule: Schedule
    before: Snapshot
    after: Snapshot

    def ratio(self, name: str, baseline: str | None = None) -> Summary | None:
        """Time of the baseline over time of ``name``, round by round: above 1, ``name`` is faster.

        A baseline that ran twice counts with the mean of its two slots. None when they share no round.
        """
        base = baseline or self.baseline
        if base is None:
            return None
        pairs = [(_time_of(r, base), _time_of(r, name)) for r in self.rounds]
        ratios = [b / own for b, own in pairs if b is not None and own]
        return Summary.of(ratios) if ratios else None

    @property
    def noise(self) -> Summary | None:
        """The baseline's second slot over its first, round by round: the band inside which nothing differs."""
        if self.baseline is None:
            return None
        pairs = [(r.get(self.baseline), r.get(self.baseline + AGAIN)) for r in self.rounds]
        ratios = [second / first for first, second in pairs if first and second]
        return Summary.of(ratios) if ratios else None


def measure(
    rivals: Sequence[Rival],
    timer: Timer,
    *,
    baseline: str | None = None,
    schedule: Schedule | None = None,
    snapshot: Callable[[], Snapshot] = Snapshot,
    progress: Callable[[str, int, int], None] | None = None,
    enough: Callable[[Measurement], bool] | None = None,
) -> Measurement:
    """Time ``rivals`` against each other.

    ``baseline`` names the rival that ratios and the noise band refer to (default: the first). ``snapshot`` reads the
    GPU's state. ``progress(name, slot, slots)`` is called before each slot. ``enough`` is asked after each round
    whether the schedule's other rounds may be left out. A rival that raises is left out of later rounds and says so in
    ``Timing.error``; the others go on. Raises ``UsageError`` for no rivals, two of one name, one whose name ends as the
    baseline's second slot does, or an unknown baseline.
    """
    schedule = schedule or Schedule()
    names = [rival.name for rival in rivals]
    if not rivals or len(set(names)) != len(names) or any(name.endswith(AGAIN) for name in names):
        raise UsageError(f"rivals are {names}: there must be at least one, no two of one name, and none{AGAIN}")
    base = baseline or names[0]
    if base not in names:
        raise UsageError(f"baseline {base!r} is not one of {', '.join(names)}")
    timings = {name: Timing(name) for name in names}
    before = snapshot()
    ready = {r.name: made for r in rivals if (made := _make_ready(r, timer, schedule, timings[r.name])) is not None}
    if base in ready:
        _warm_up(timer, ready[base], schedule, timings[base])
    rounds: list[dict[str, float]] = []
    found = Measurement(timings, rounds, base, schedule, before, before)
    for number in range(schedule.rounds):
        order = round_order([*names, base + AGAIN], schedule.seed, number)
        rounds.append({})
        for position, label in enumerate(order):
            name = label.removesuffix(AGAIN)
            timing = timings[name]
            if timing.error is not None:
                continue
            if progress is not None:
                progress(label, number * len(order) + position, schedule.rounds * len(order))
            prepared, warm, timed = ready[name]
            try:
                sample = lambda kept=timing.snapshots: kept.append(snapshot())  # noqa: E731
                slot = timer.slot(prepared, warm, timed, sample if schedule.sampled else None)
            except Exception as error:  # whatever it is, the other rivals' figures must not be lost
                timing.error = _first_line(error)
                continue
            timing.samples_us.append(slot.time_us)
            timing.clock_note = slot.clock_note or timing.clock_note
            if slot.sm_clock_mhz is not None:
                timing.clocks_mhz.append(slot.sm_clock_mhz)
            rounds[-1][label] = slot.time_us
        if enough is not None and enough(found):
            break
    found.after = snapshot()
    return found


def _make_ready(rival: Rival, timer: Timer, schedule: Schedule, timing: Timing) -> tuple[Any, int, int] | None:
    """Estimate a launch's time, build the graph that the slots replay, and count the replays of a slot."""
    try:
        if not rival.launches:
            raise UsageError(f"rival {rival.name} has no launches")
        sets = len(rival.launches)
        if rival.estimate_us is not None:
            count = graph_launches(rival.estimate_us, sets, schedule)
            prepared, replay_us = timer.prepare(rival.launches, count), rival.estimate_us * count
        else:
            first = timer.prepare(rival.launches, sets)
            count = graph_launches(timer.slot(first, 1, 2).time_us, sets, schedule)
            prepared = first if count == sets else timer.prepare(rival.launches, count)
            replay_us = timer.slot(prepared, 1, 1).time_us * count
        timing.method, timing.launches, timing.note = prepared.method, count, prepared.note
        return (prepared, *replays(replay_us, schedule))
    except Exception as error:
        timing.error = _first_line(error)
        return None


def _warm_up(timer: Timer, ready: tuple[Any, int, int], schedule: Schedule, timing: Timing) -> None:
    try:
        for _ in range(schedule.warm_slots):
            timer.slot(*ready)
    except Exception as error:
        timing.error = _first_line(error)


def round_order(names: Sequence[str], seed: int, number: int) -> list[str]:
    """A random order of ``names`` for round ``number``, the same for the same seed."""
    order = list(names)
    random.Random(f"{seed}/{number}").shuffle(order)
    return order


def graph_launches(estimate_us: float, sets: int, schedule: Schedule) -> int:
    """Launches in a graph: enough for ``graph_ms``, a whole number of turns through the operand sets."""
    wanted = math.ceil(schedule.graph_ms * 1e3 / max(estimate_us, 1e-3))
    turns = math.ceil(min(wanted, schedule.max_launches) / sets)
    return max(turns, 1) * sets


def replays(replay_us: float, schedule: Schedule) -> tuple[int, int]:
    """Untimed and timed replays of a slot: at least one of each, so that a slot is never a cold run."""
    total = max(2, math.ceil(schedule.slot_ms * 1e3 / max(replay_us, 1e-3)))
    warm = min(max(1, round(total * schedule.warm_fraction)), total - 1)
    return warm, total - warm


@dataclass(frozen=True)
class Rotation:
    """How many operand sets to rotate, and whether that keeps a launch's operands out of the L2 cache."""

    sets: int
    footprint_bytes: int
    policy: L2Policy
    label: str


def rotation(
    bytes_per_set: int, l2_bytes: int, policy: L2Policy = "cold", max_sets: int = 512, least_bytes: int = 0
) -> Rotation:
    """Operand sets for a policy. ``cold``: at least two, and more than twice the L2 in all; ``warm``: one.

    Cold ones have at least ``least_bytes`` in all. A tiny problem would need more than ``max_sets``: then the label
    says that the sets fit in the cache.
    """
    if policy == "warm":
        return Rotation(1, bytes_per_set, "warm", "L2-warm: the same operands every launch")
    wanted = max(2 * l2_bytes, least_bytes) // max(bytes_per_set, 1) + 1
    sets = min(max(2, wanted), max_sets)
    footprint = sets * bytes_per_set
    size = f"{sets} operand sets in turn, {footprint / 2**20:.1f} MiB"
    if footprint <= 2 * l2_bytes:
        return Rotation(sets, footprint, "warm", f"L2-warm in part: {size}, no more than twice the L2")
    return Rotation(sets, footprint, "cold", f"L2-cold: {size}, more than twice the L2")


def _time_of(times: dict[str, float], name: str) -> float | None:
    found = [times[label] for label in (name, name + AGAIN) if label in times]
    return statistics.fmean(found) if found else None


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
