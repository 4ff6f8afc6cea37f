"""The constants that the planner's model needs of a GPU, each from a named microbenchmark or publication.

A calibration is a JSON file. ``shipped`` reads those that come with the package; ``tilewright calibrate --out FILE``
measures one on the GPU that is present (``tilewright.calibrate``). No measured one is fitted to the times of GEMMs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.planner.raster import Floats, Ints

SCHEMA = "tilewright.calibration/1"
FOLDER = Path(__file__).parent / "calibrations"
WGMMA_WIDTHS = (8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)
MOST_RESIDUALS = 3  # of a kernel family
Curve = tuple[tuple[float, float], ...]
Residuals = tuple[tuple[str, str, float], ...]


@dataclass(frozen=True)
class Calibration:
    """What one GPU does, apart from what its datasheet says. Clocks in MHz, ``_clk`` in SM clocks, bytes a second.

    ``key`` is the short name of the GPU (``gpu.get_gpu``). ``measured`` is True where every constant was measured on
    that GPU, and ``label`` says so in words. ``sources`` has, by field name, the microbenchmark or the publication that
    a constant comes from, ``spreads`` the lower and upper quartile of its readings where there were several.

    ``burst_clock_mhz``
        The clock that kernels see when a cool card has just begun to multiply.
    ``launch_us``, ``cluster_launch_us``
        Fixed cost of one kernel of 132 blocks with 200 KB of shared memory in a CUDA graph; with clusters of 2.
    ``tma_latency_l2_clk``, ``tma_latency_hbm_clk``
        From the issue of a TMA load of 128 bytes to its mbarrier's answer.
    ``l2_bytes_per_clk_per_sm``, ``l2_multicast_bytes_per_clk_per_sm``, ``l2_alone_bytes_per_clk``
        What TMA brings into one SM's shared memory of what L2 holds: while all SMs read; the same in clusters of 2 that
        share each load (bytes received); while one SM reads.
    ``l2_curve``
        ``(bytes of the working set, bytes a second)`` of all SMs, ascending: past what L2 holds, the second falls.
    ``hbm_read_bytes_per_s``, ``hbm_write_bytes_per_s``, ``hbm_copy_bytes_per_s``
        By TMA, all SMs, far more than L2 holds; a copy counts the bytes read and those written.
    ``wgmma_clk``
        N -> clocks of one m64nNk16, bf16 in and fp32 out, A and B in shared memory.
    ``port_contention``
        Of the time that TMA's writes into shared memory take at 128 bytes a clock, the part by which they delay the
        wgmmas beside them: 1 if they stopped while it writes, 0 if they did not meet.
    ``mma_sync_share``, ``fma_share``
        What mma.sync m16n8k16 from registers reaches of the tensor cores' dense rate; fp32 FMAs, of 128 a clock.
    ``idle_power_w``, ``power_limit_w``
        Of a card whose SMs are clocked and wait; and what it draws where its limit holds its clock down.
    ``energy_clock_mhz``, ``power_clock_exponent``
        Energy an operation grows as ``(clock / energy_clock_mhz) ** power_clock_exponent`` above that clock, and is
        constant below it.
    ``energy_pj_per_flop``, ``energy_pj_per_l2_byte``, ``energy_pj_per_hbm_byte``
        Picojoules on top of idling, at or below ``energy_clock_mhz``, on random data: of a FLOP of wgmma with its
        operands' reads; of a byte from L2 to shared memory; of a byte from HBM to L2, whose energy no SM clock moves.
    ``residuals``
        ``(family, name, factor)``: what a family's model leaves out, as factors on parts of it that the family names.
        The only numbers here that are fitted to times of kernels (scripts/planner_report.py --fit); a calibration as
        measured has none, and a family has at most three.
    """

    key: str
    label: str
    measured: bool
    boost_clock_mhz: float
    burst_clock_mhz: float
    launch_us: float
    cluster_launch_us: float
    tma_latency_l2_clk: float
    tma_latency_hbm_clk: float
    l2_bytes_per_clk_per_sm: float
    l2_multicast_bytes_per_clk_per_sm: float
    l2_alone_bytes_per_clk: float
    l2_curve: Curve
    hbm_read_bytes_per_s: float
    hbm_write_bytes_per_s: float
    hbm_copy_bytes_per_s: float
    wgmma_clk: Mapping[int, float] = field(hash=False)
    port_contention: float
    mma_sync_share: float
    fma_share: float
    idle_power_w: float
    power_limit_w: float
    energy_clock_mhz: float
    power_clock_exponent: float
    energy_pj_per_flop: float
    energy_pj_per_l2_byte: float
    energy_pj_per_hbm_byte: float
    sources: Mapping[str, str] = field(repr=False, compare=False)
    spreads: Mapping[str, tuple[float, float]] = field(default_factory=dict, repr=False, compare=False)
    residuals: Residuals = ()

    def __post_init__(self) -> None:
        """Freeze the mappings. Raises ``UsageError`` naming the constant that cannot be one."""
        for name in ("wgmma_clk", "sources", "spreads"):
            object.__setattr__(self, name, MappingProxyType(dict(sorted(getattr(self, name).items()))))
        for complaint in _complaints(self):
            raise UsageError(f"calibration {self.label!r}: {complaint}")

    def wgmma_clocks(self, n: int) -> float:
        """Clocks of one m64nNk16 for any N from 8 to 256, between its measured neighbours in a straight line."""
        widths = list(self.wgmma_clk)
        if not widths[0] <= n <= widths[-1]:
            raise UsageError(f"n is {n}; wgmma has widths {widths[0]} to {widths[-1]}")
        upper = next(width for width in widths if width >= n)
        if upper == n:
            return self.wgmma_clk[n]
        lower = widths[widths.index(upper) - 1]
        share = (n - lower) / (upper - lower)
        return self.wgmma_clk[lower] * (1 - share) + self.wgmma_clk[upper] * share

    @cached_property
    def _every_width(self) -> Floats:
        """``wgmma_clocks`` of all N up to the widest, none below the first."""
        first, *_, last = self.wgmma_clk
        return np.array([math.nan] * first + [self.wgmma_clocks(n) for n in range(first, last + 1)])

    def wgmma_clocks_of(self, n: Ints) -> Floats:
        """``wgmma_clocks`` of each."""
        found: Floats = self._every_width[n]
        return found

    def residual(self, family: str, name: str) -> float:
        """The fitted factor on a part of a family's model; 1 where none is."""
        return next((factor for of, called, factor in self.residuals if (of, called) == (family, name)), 1.0)

    def l2_bytes_per_s(self, working_set: float) -> float:
        """What all SMs read a second of a working set of so many bytes: ``l2_curve``, straight between its points."""
        first, last = self.l2_curve[0], self.l2_curve[-1]
        if working_set <= first[0]:
            return first[1]
        for (low, rate_low), (high, rate_high) in zip(self.l2_curve, self.l2_curve[1:], strict=False):
            if working_set <= high:
                share = (working_set - low) / (high - low)
                return rate_low * (1 - share) + rate_high * share
        return last[1]

    def energy_growth(self, clock_mhz: float) -> float:
        """What an SM's operation costs at a clock, relative to ``energy_clock_mhz``."""
        growth: float = max(1.0, clock_mhz / self.energy_clock_mhz) ** self.power_clock_exponent
        return growth

    def power_w(
        self, clock_mhz: float, flop_per_s: float, l2_bytes_per_s: float = 0.0, hbm_bytes_per_s: float = 0.0
    ) -> float:
        """Watts of a card that does so much a second at that clock. No limit is applied."""
        sm = self.energy_pj_per_flop * flop_per_s + self.energy_pj_per_l2_byte * l2_bytes_per_s
        hbm = self.energy_pj_per_hbm_byte * hbm_bytes_per_s
        return self.idle_power_w + (sm * self.energy_growth(clock_mhz) + hbm) * 1e-12

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values: a constant with its source, and its spread where there is one, under its name."""
        constants = {}
        for name in constant_names():
            entry: dict[str, Any] = {"value": _plain(getattr(self, name)), "source": self.sources[name]}
            if name in self.spreads:
                entry["quartiles"] = list(self.spreads[name])
            constants[name] = entry
        return {
            "schema": SCHEMA,
            "key": self.key,
            "label": self.label,
            "measured": self.measured,
            "constants": constants,
            **({"residuals": [list(each) for each in self.residuals]} if self.residuals else {}),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Calibration:
        """The inverse of ``to_dict``. Raises ``UsageError`` for what is no calibration, naming what is wrong."""
        schema = values.get("schema")
        if schema != SCHEMA:
            raise UsageError(f"a calibration has schema {schema!r}; this version reads {SCHEMA!r}")
        try:
            constants = values["constants"]
            missing = [name for name in constant_names() if name not in constants]
            unknown = [name for name in constants if name not in constant_names()]
            if missing or unknown:
                wrong = f"lacks {', '.join(missing)}" if missing else f"has unknown {', '.join(unknown)}"
                raise UsageError(f"a calibration {wrong}")
            given = {name: _parsed(name, constants[name]["value"]) for name in constant_names()}
            for name, kind in (("key", str), ("label", str), ("measured", bool)):
                if type(values[name]) is not kind:
                    raise UsageError(f"a calibration's {name} is {values[name]!r}, which is no {kind.__name__}")
            return cls(
                key=values["key"],
                label=values["label"],
                measured=values["measured"],
                sources={name: str(constants[name]["source"]) for name in constant_names()},
                spreads={
                    name: (float(entry["quartiles"][0]), float(entry["quartiles"][1]))
                    for name, entry in constants.items()
                    if "quartiles" in entry
                },
                residuals=tuple(
                    (str(of), str(name), float(factor)) for of, name, factor in values.get("residuals", ())
                ),
                **given,
            )
        except UsageError:
            raise
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
            raise UsageError(f"a calibration is not of schema {SCHEMA}: {error!r}") from error

    def save(self, path: Path) -> None:
        """Write it as JSON. Raises ``UsageError`` when the file cannot be written."""
        try:
            path.write_text(json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"the calibration cannot be written to {path}: {error.strerror or error}") from error

    @classmethod
    def load(cls, path: Path) -> Calibration:
        """Read a file that ``save`` wrote. Raises ``UsageError`` naming the file when it is none."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:  # of no JSON, of no text, of lists without end
            reason = getattr(error, "strerror", None) or error
            raise UsageError(f"the calibration {path} cannot be read: {reason}") from error
        if not isinstance(values, dict):
            raise UsageError(f"the calibration {path} is no JSON object")
        try:
            return cls.from_dict(values)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from error


def shipped_keys() -> tuple[str, ...]:
    """The GPUs whose calibration comes with the package."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


@lru_cache
def shipped(key: str) -> Calibration:
    """The calibration that comes with the package for a GPU's key. Raises ``UsageError`` listing those there are."""
    if key not in shipped_keys():
        raise UsageError(
            f"no calibration of GPU {key!r} is shipped; there are {', '.join(shipped_keys())}, and "
            "`tilewright calibrate --out FILE` measures the GPU that is present"
        )
    return Calibration.load(FOLDER / f"{key}.json")


@lru_cache
def constant_names() -> tuple[str, ...]:
    """The constants of a calibration in their order, each with a source."""
    apart = ("key", "label", "measured", "sources", "spreads", "residuals")
    return tuple(each.name for each in fields(Calibration) if each.name not in apart)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(width): clocks for width, clocks in value.items()}
    return [list(point) for point in value] if isinstance(value, tuple) else value


def _parsed(name: str, value: Any) -> Any:
    if name == "wgmma_clk":
        return {int(width): float(clocks) for width, clocks in value.items()}
    if name == "l2_curve":
        return tuple((float(working_set), float(rate)) for working_set, rate in value)
    return float(value)


def _complaints(calibration: Calibration) -> list[str]:
    """Why these are no constants of a GPU, the first of each kind."""
    found = []
    shares = ("port_contention", "power_clock_exponent")  # which may be nothing
    for name in constant_names():
        value = getattr(calibration, name)
        if isinstance(value, float | int):
            least = value >= 0 if name in shares else value > 0
            if not (math.isfinite(value) and least):
                found.append(f"{name} is {value}; it must be {'at least' if name in shares else 'above'} 0")
        if name not in calibration.sources:
            found.append(f"{name} has no source")
    if calibration.idle_power_w >= calibration.power_limit_w:
        found.append(
            f"idle_power_w is {calibration.idle_power_w}; it must be below power_limit_w, {calibration.power_limit_w}"
        )
    clocks, ends = calibration.wgmma_clk, {WGMMA_WIDTHS[0], WGMMA_WIDTHS[-1]}
    if not ends <= set(clocks) <= set(range(8, 257, 8)) or not all(0 < each < math.inf for each in clocks.values()):
        found.append(
            f"wgmma_clk is {dict(clocks)}; it has clocks above 0 for some widths, multiples of 8, {min(ends)} and "
            f"{max(ends)} among them"
        )
    for family in {of for of, _, _ in calibration.residuals}:
        names = [(name, factor) for of, name, factor in calibration.residuals if of == family]
        if len(names) > MOST_RESIDUALS:
            found.append(f"family {family!r} has {len(names)} residuals; at most {MOST_RESIDUALS} may be fitted")
        found += [
            f"residual {name} of {family} is {factor}; it must be above 0"
            for name, factor in names
            if not 0 < factor < math.inf
        ]
    sets = [working_set for working_set, _ in calibration.l2_curve]
    numbers = [number for point in calibration.l2_curve for number in point]
    if not sets or sets != sorted(set(sets)) or not all(0 < number < math.inf for number in numbers):
        found.append("l2_curve must have ascending working sets and rates above 0")
    return found
