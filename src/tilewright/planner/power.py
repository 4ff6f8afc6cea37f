"""The clock that the power limit leaves: energy from bytes and FLOPs, and where it and the time meet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tilewright.planner.calibration import Calibration
from tilewright.planner.raster import Floats, Ints

LEAST_CLOCK_HZ = 345e6  # NVML's lowest SM clock of an H100 and H200
STEPS = 2**11  # of the clock between that and the highest: it is then known to 1 MHz
SECANTS = 6  # as many guesses as find it nearly always; what is then still between two steps is halved


@dataclass(frozen=True)
class Energy:
    """What each candidate takes on top of idling, in joules: ``sm`` at ``energy_clock_mhz``, ``hbm`` at any clock."""

    sm: Floats
    hbm: Floats


def sustained_clock_hz(
    energy: Energy,
    fastest_s: Floats,
    seconds: Callable[[Ints], Callable[[Floats], Floats]],
    most_hz: float,
    calibration: Calibration,
) -> Floats:
    """The highest clock, up to ``most_hz``, at which each candidate draws no more than the power limit.

    ``fastest_s`` is what each takes at ``most_hz``; ``seconds(chosen)`` what some take, as a function of the clock of
    each. Power is ``idle + (sm x growth(clock) + hbm) / seconds(clock)``: more clock costs more energy an operation and
    leaves less time. It grows with the clock, so the limit is met at one clock: that of ``STEPS`` which is the last
    below it, sought for those that draw too much at the highest. A kernel that exceeds the limit at the lowest clock
    gets that one.
    """
    c = calibration
    room = c.power_limit_w - c.idle_power_w

    def spent(hertz: Floats, sm: Floats, hbm: Floats) -> Floats:
        growth = np.maximum(1.0, hertz / (c.energy_clock_mhz * 1e6)) ** c.power_clock_exponent
        return sm * growth + hbm

    clocks = np.full_like(energy.sm, most_hz)
    too_much = spent(clocks, energy.sm, energy.hbm) / (room * fastest_s)
    limited = np.flatnonzero(too_much > 1)
    if not len(limited) or most_hz <= LEAST_CLOCK_HZ:
        return clocks
    least, step = LEAST_CLOCK_HZ, (most_hz - LEAST_CLOCK_HZ) / STEPS
    took, sm, hbm = seconds(limited), energy.sm[limited], energy.hbm[limited]
    # Numbers of steps: the highest that is known to do, the lowest that is known to be too much. What is spent over
    # what there is for the time is nearly a straight line of them: that through two clocks finds the third.
    low, high = np.zeros(len(limited)), np.full(len(limited), float(STEPS))
    x, f = high, too_much[limited] - 1
    slope = 2 * (f + 1) * step / most_hz
    tries = 0
    while np.any(high - low > 1):
        guess = np.floor(x - f / slope) if tries < SECANTS else (low + high) // 2
        at = np.maximum(np.minimum(np.maximum(guess, low + 1), high - 1), low)  # again the lower of two neighbours
        hertz = least + at * step
        excess = spent(hertz, sm, hbm) / (room * took(hertz)) - 1
        fits, away = excess <= 0, at - x
        low, high = np.where(fits, at, low), np.where(fits | (at == low), high, at)
        slope = np.where(away == 0, slope, (excess - f) / (away + (away == 0)))
        x, f, tries = at, excess, tries + 1
    clocks[limited] = least + low * step
    return clocks
