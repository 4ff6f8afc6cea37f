"""The clock that the power limit leaves: energy from bytes and FLOPs, and where it and the time meet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tilewright.planner.calibration import Calibration
from tilewright.planner.raster import Bools, Floats

LEAST_CLOCK_HZ = 345e6  # NVML's lowest SM clock of an H100 and H200
STEPS = 11  # each halves the interval: the clock is then known to 1 MHz


@dataclass(frozen=True)
class Energy:
    """What each candidate takes on top of idling, in joules: ``sm`` at ``energy_clock_mhz``, ``hbm`` at any clock."""

    sm: Floats
    hbm: Floats


def sustained_clock_hz(
    energy: Energy, seconds: Callable[[Floats], Floats], most_hz: float, calibration: Calibration
) -> Floats:
    """The highest clock, up to ``most_hz``, at which each candidate draws no more than the power limit.

    Power is ``idle + (sm x growth(clock) + hbm) / seconds(clock)``: more clock costs more energy an operation and
    leaves less time. It grows with the clock, so the limit is met at one clock, found by bisection; a kernel that
    exceeds the limit at the lowest clock gets that one.
    """
    c = calibration
    low = np.full_like(energy.sm, min(LEAST_CLOCK_HZ, most_hz))
    high = np.full_like(energy.sm, most_hz)
    room = c.power_limit_w - c.idle_power_w

    def fits(hertz: Floats) -> Bools:
        growth = np.maximum(1.0, hertz / (c.energy_clock_mhz * 1e6)) ** c.power_clock_exponent
        within: Bools = energy.sm * growth + energy.hbm <= room * seconds(hertz)
        return within

    low = np.where(fits(high), high, low)
    for _ in range(STEPS):
        middle = (low + high) / 2
        ok = fits(middle)
        low, high = np.where(ok, middle, low), np.where(ok, high, middle)
    return low
