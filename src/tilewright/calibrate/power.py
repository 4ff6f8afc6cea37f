"""Microbenchmarks of clock and power: what a card draws, and how fast it runs, while it does one thing for seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tilewright.backends.base import Backend
from tilewright.calibrate import probes
from tilewright.calibrate.memory import ACROSS, MiB, random_region
from tilewright.calibrate.probes import BOX_BYTES, LAP_WORDS, Laps, Probe, Stream, Tile, TileRun
from tilewright.calibrate.rates import passes_in
from tilewright.calibrate.readings import Reading
from tilewright.telemetry import Snapshot

TILE = Tile(128, 256, 2, sets=3, stages=4)


class Meter(Protocol):
    """What reads the card's power: ``telemetry.Telemetry``."""

    def energy_j(self) -> float | None:
        """A counter that only grows."""
        ...

    def snapshot(self) -> Snapshot:
        """Power, clocks and temperature now."""
        ...


@dataclass(frozen=True)
class State:
    """Something to do for seconds: wgmmas on ``share`` of the SMs, and loads from a working set, both or neither."""

    name: str
    share: float = 0.0  # of the SMs that multiply; 0: all of them do what else there is
    working_set: int = 0  # bytes; 0: no loads
    planned_mhz: float = 1950.0  # about what it will run at: launches are queued before anything is known


BURST_MHZ = 1750.0
L2_SET = 24 * MiB
HBM_SET = 4 << 30
# One that idles stands at both ends: the second is warm.
STATES = (
    State("spin"),
    State("hbm", working_set=HBM_SET),
    State("l2", working_set=L2_SET),
    State("wgmma 1/4", 0.25),
    State("wgmma 1/2", 0.5),
    State("wgmma", 1.0, planned_mhz=1450.0),
    State("wgmma + l2", 1.0, L2_SET, 1350.0),
    State("wgmma 3/4", 0.75, planned_mhz=1700.0),
    State("wgmma + hbm", 1.0, HBM_SET, 1400.0),
    State("wgmma 7/8", 0.875, planned_mhz=1550.0),
    State("wgmma 5/8", 0.625, planned_mhz=1850.0),
    State("spin"),
)


@dataclass(frozen=True)
class Pace:
    """Seconds: of one launch, until the card has settled, of the measurement, of a rest, between looks at the power."""

    launch_s: float = 0.05
    settle_s: float = 1.25
    measure_s: float = 1.55
    rest_s: float = 2.0
    burst_s: float = 0.005
    sample_s: float = 0.001


def power_probes() -> list[Probe]:
    """The kernels of ``power`` and ``burst_clock``."""
    return [Stream(load=True, store=True).probe, TILE.probe]


def power(
    backend: Backend,
    sms: int,
    meter: Meter,
    pace: Pace = Pace(),
    states: tuple[State, ...] = STATES,
    seed: int = 16 * MiB,
) -> Iterator[Reading]:
    """Watts, the SMs' clock and the rates of each state, steady."""
    largest = max(state.working_set for state in states)
    region = random_region(backend, sms, max(largest, ACROSS * BOX_BYTES), seed)
    for order, state in enumerate(states):
        part = region.first(state.working_set) if state.working_set else region
        run = TileRun(TILE, backend, sms, part)
        blocks = max(1, round(state.share * sms)) if state.share else sms
        values = _steady(run, state, blocks, meter, pace)
        conditions = {"state": state.name, "order": order, "sms": blocks, "working_set_bytes": state.working_set}
        yield Reading("power", conditions, values)


def _steady(run: TileRun, state: State, blocks: int, meter: Meter, pace: Pace) -> dict[str, float | list[float]]:
    clocks = int(pace.launch_s * state.planned_mhz * 1e6)
    passes = passes_in(TILE, clocks) if state.share else 0
    most = probes.NO_LIMIT if state.working_set else 0
    # Faster than planned is possible, and then there must still be enough launches.
    count = int((pace.settle_s + pace.measure_s) / pace.launch_s * 1.15) + 2
    backend = run.backend
    memory = probes.words(backend, count, blocks * 2 * LAP_WORDS)
    begin = time.monotonic()
    for number in range(count):
        run.start(np.uint64(memory.pointer + number * blocks * 2 * LAP_WORDS * 8), passes, most, clocks, blocks)
    _wait(begin + pace.settle_s)
    watts, seconds, snapshots = _watch(meter, pace)
    words = probes.read_words(backend, memory).reshape(count, blocks, 2, LAP_WORDS)
    which = 0 if state.share or not state.working_set else 1
    started = words[:, :, which, 3].min(1).astype(np.int64)
    timed = words[started - started[0] >= int(pace.settle_s * 1e9)]
    settled = timed if len(timed) else words[-1:]
    multiplied, loaded = Laps.of(settled[:, :, 0]), Laps.of(settled[:, :, 1])
    of_one = 1 / len(settled)  # laps of several launches are added up
    ran_s = float(words[-1, :, which, 4].max() - words[0, :, which, 3].min()) * 1e-9
    return {
        "power_w": watts,
        "measured_s": seconds,
        "nvml_power_w": float(np.median([s.power_w for s in snapshots if s.power_w is not None] or [0.0])),
        "nvml_clock_mhz": float(np.median([s.sm_clock_mhz for s in snapshots if s.sm_clock_mhz is not None] or [0])),
        "temperature_c": float(np.median([s.temperature_c for s in snapshots if s.temperature_c is not None] or [0])),
        "clock_mhz": (loaded if which else multiplied).mhz,
        "flop_per_s": multiplied.work_per_s * TILE.flop_per_pass * of_one if state.share else 0.0,
        "loaded_bytes_per_s": loaded.work_per_s * BOX_BYTES * of_one if state.working_set else 0.0,
        "launches_s": ran_s,
    }


def _watch(meter: Meter, pace: Pace) -> tuple[float, float, list[Snapshot]]:
    """Average watts over so many seconds, between steps of the energy counter; else the average of power readings."""
    end = time.monotonic() + pace.measure_s
    steps: list[tuple[float, float]] = []
    snapshots: list[tuple[float, Snapshot]] = []
    while time.monotonic() < end:
        energy, now = meter.energy_j(), time.monotonic()
        stepped = energy is not None and (not steps or energy != steps[-1][1])
        if energy is not None and stepped:
            steps.append((now, energy))
        # A look takes long enough to miss a step: just after one there is time (NVML steps every 0.1 s).
        if not snapshots or (stepped and now - snapshots[-1][0] > 0.05) or now - snapshots[-1][0] > 0.25:
            snapshots.append((now, meter.snapshot()))
        time.sleep(pace.sample_s)
    seen = [snapshot for _, snapshot in snapshots]
    steps = steps[1:]  # the first was no step, only the first look
    if len(steps) > 1:
        seconds = steps[-1][0] - steps[0][0]
        return (steps[-1][1] - steps[0][1]) / seconds, seconds, seen
    found = [snapshot.power_w for snapshot in seen if snapshot.power_w is not None]
    return float(np.mean(found)) if found else 0.0, pace.measure_s, seen


def _wait(until: float) -> None:
    left = until - time.monotonic()
    if left > 0:
        time.sleep(left)


def burst_clock(
    backend: Backend, sms: int, rest: Callable[[float], None] = time.sleep, pace: Pace = Pace(), repeats: int = 5
) -> Iterator[Reading]:
    """The clock of wgmmas on all SMs, launch after launch from rest on; the first is the burst's."""
    region = probes.allocate(backend, ACROSS * BOX_BYTES, ACROSS)
    run = TileRun(TILE, backend, sms, region)
    passes = passes_in(TILE, pace.burst_s * BURST_MHZ * 1e6)
    run.run(2)  # loads the kernel
    count = 24
    for repeat in range(repeats):
        rest(pace.rest_s)
        memory = probes.words(backend, count, sms * 2 * LAP_WORDS)
        for number in range(count):
            run.start(np.uint64(memory.pointer + number * sms * 2 * LAP_WORDS * 8), passes, 0)
        words = probes.read_words(backend, memory).reshape(count, sms, 2, LAP_WORDS)
        clocks = [Laps.of(launch[:, 0]).mhz for launch in words]
        begun = [float(launch[:, 0, 3].min() - words[0, :, 0, 3].min()) * 1e-6 for launch in words]
        yield Reading("burst_clock", {"repeat": repeat, "sms": sms}, {"clock_mhz": clocks, "begun_ms": begun})
