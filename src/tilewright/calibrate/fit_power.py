"""From watts, clocks and rates to joules an operation, by least squares.

The model is ``Calibration.power_w``: watts = idle + growth(clock) (e_flop FLOP/s + e_l2 L2 bytes/s) + e_hbm HBM
bytes/s, with growth(clock) = (clock / reference) ** exponent and the reference the lowest clock that was seen. For a
given exponent it is linear in the four others; the exponent is looked for in steps of 0.01.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.errors import UsageError

EXPONENTS = np.arange(0.0, 4.001, 0.01)


@dataclass(frozen=True)
class Steady:
    """A steady state: what was drawn, at which clock, and what was done a second."""

    state: str
    power_w: float
    clock_mhz: float
    flop_per_s: float
    l2_bytes_per_s: float
    hbm_bytes_per_s: float


@dataclass(frozen=True)
class PowerFit:
    """The model's constants, and by how many watts it misses each state (model less measured), in their order."""

    idle_power_w: float
    energy_clock_mhz: float
    power_clock_exponent: float
    energy_pj_per_flop: float
    energy_pj_per_l2_byte: float
    energy_pj_per_hbm_byte: float
    residuals_w: tuple[float, ...]

    @property
    def rms_w(self) -> float:
        """Root of the mean square of the residuals."""
        return float(np.sqrt(np.mean(np.square(self.residuals_w))))


def fit_power(states: Sequence[Steady]) -> PowerFit:
    """The constants that miss the states by the least sum of squares.

    Raises ``UsageError`` when the states cannot tell the constants apart, or no physical ones fit.
    """
    if len(states) < 5:
        raise UsageError(f"{len(states)} steady states of power; 5 constants need 5 or more")
    reference = min(state.clock_mhz for state in states)
    watts = np.array([state.power_w for state in states])
    best: tuple[float, float, np.ndarray] | None = None
    for exponent in EXPONENTS:
        matrix = _matrix(states, reference, float(exponent))
        scale = np.abs(matrix).max(0)
        if not scale.all() or np.linalg.matrix_rank(matrix / scale) < matrix.shape[1]:
            raise UsageError("the steady states of power do not tell FLOPs, L2 bytes and HBM bytes apart")
        found, *_ = np.linalg.lstsq(matrix / scale, watts, rcond=None)
        found = found / scale
        missed = float(np.square(matrix @ found - watts).sum())
        if (found > 0).all() and (best is None or missed < best[0]):
            best = missed, float(exponent), found
    if best is None:
        raise UsageError("no energies above 0 fit the steady states of power")
    _, exponent, found = best
    residuals = _matrix(states, reference, exponent) @ found - watts
    return PowerFit(
        idle_power_w=float(found[0]),
        energy_clock_mhz=reference,
        power_clock_exponent=round(exponent, 2),
        energy_pj_per_flop=float(found[1]) * 1e12,
        energy_pj_per_l2_byte=float(found[2]) * 1e12,
        energy_pj_per_hbm_byte=float(found[3]) * 1e12,
        residuals_w=tuple(float(r) for r in residuals),
    )


def _matrix(states: Sequence[Steady], reference: float, exponent: float) -> np.ndarray:
    growth = [(state.clock_mhz / reference) ** exponent for state in states]
    rows = [
        (1.0, g * state.flop_per_s, g * state.l2_bytes_per_s, state.hbm_bytes_per_s)
        for g, state in zip(growth, states, strict=True)
    ]
    return np.array(rows)
