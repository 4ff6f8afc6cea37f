"""From raw readings to a calibration: medians, quartiles and two small fits, in plain Python. Needs no GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.calibrate.fit_power import PowerFit, Steady, fit_power
from tilewright.calibrate.readings import Reading
from tilewright.errors import UsageError
from tilewright.gpu import GpuSpec
from tilewright.planner.calibration import Calibration

PORT = 128  # bytes a clock of an SM's shared memory (GpuSpec.shared_bytes_per_clock of every Hopper)
LARGER_THAN_L2 = 1 << 30  # bytes
BURST_MS = 25.0  # the power limit takes longer than that to bite
HELD = 0.99  # of the boost clock: below it the power limit holds a state down
RESIDENT = 16 << 20  # bytes that L2 holds with ease; where rates of L2 are taken


@dataclass(frozen=True)
class Figure:
    """A median with its quartiles and the readings it comes from."""

    value: float
    low: float
    high: float
    count: int


def figure(values: Sequence[float]) -> Figure:
    """Of at least one value."""
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
    return Figure(float(middle), float(low), float(high), len(values))


class Readings:
    """Readings of one calibration, asked for by microbenchmark and conditions."""

    def __init__(self, readings: Iterable[Reading]) -> None:
        self.all = list(readings)

    def of(self, microbenchmark: str, **conditions: Any) -> list[Mapping[str, Any]]:
        """The values of those that meet the conditions, at least one. Raises ``UsageError`` when there is none."""
        return [reading.values for reading in self._chosen(microbenchmark, conditions)]

    def figure(self, microbenchmark: str, value: str, **conditions: Any) -> Figure:
        """Median and quartiles of one value."""
        return figure([values[value] for values in self.of(microbenchmark, **conditions)])

    def conditions(self, microbenchmark: str, name: str, **conditions: Any) -> list[Any]:
        """The values that a condition takes among the readings that meet others, ascending, at least one."""
        return sorted({reading.conditions[name] for reading in self._chosen(microbenchmark, conditions)})

    def _chosen(self, microbenchmark: str, conditions: Mapping[str, Any]) -> list[Reading]:
        found = [
            reading
            for reading in self.all
            if reading.microbenchmark == microbenchmark
            and all(reading.conditions.get(name) == value for name, value in conditions.items())
        ]
        if not found:
            told = ", ".join(f"{name} {value}" for name, value in conditions.items())
            raise UsageError(f"there are no readings of {microbenchmark}{' with ' + told if told else ''}")
        return found


@dataclass(frozen=True)
class Fitted:
    """A calibration and how the power model came out."""

    calibration: Calibration
    power: PowerFit
    states: tuple[Steady, ...]


def calibrate(readings: Iterable[Reading], spec: GpuSpec, label: str, power_limit_w: float) -> Fitted:
    """The constants of a GPU from one calibration's readings.

    Raises ``UsageError`` naming the microbenchmark whose readings are missing.
    """
    found = Readings(readings)
    sms = max(found.conditions("l2_read", "sms"))
    values: dict[str, Any] = {"boost_clock_mhz": spec.boost_clock_mhz}
    sources = {"boost_clock_mhz": spec.sources.get("boost_clock_mhz", "reported by the device")}
    spreads: dict[str, tuple[float, float]] = {}

    def put(name: str, got: Figure, source: str) -> None:
        values[name], sources[name], spreads[name] = got.value, f"{source}; {got.count} runs", (got.low, got.high)

    bursts = [burst(reading) for reading in found.of("burst_clock")]
    put(
        "burst_clock_mhz",
        figure(bursts),
        "burst_clock: wgmmas on all SMs, the fastest 5 ms of the first 25 after a rest",
    )
    for cluster, name in ((1, "launch_us"), (2, "cluster_launch_us")):
        source = "graph_launch: an empty kernel of a CUDA graph" + (", clusters of 2" if cluster == 2 else "")
        put(name, found.figure("graph_launch", "us", cluster=cluster), source)
    for level in ("l2", "hbm"):
        got = found.figure("tma_latency", "median_clk", level=level, box_bytes=128)
        put(f"tma_latency_{level}_clk", got, f"tma_latency: 128 bytes from {level.upper()}, median")
    per_clk = "bytes_per_clk_per_sm"
    swept = {"working_set_bytes": RESIDENT, "pattern": "swept"}
    all_read = found.figure("l2_read", per_clk, cluster=1, sms=sms, **swept)
    put("l2_bytes_per_clk_per_sm", all_read, "l2_read: all SMs, 16 MiB")
    put(
        "l2_multicast_bytes_per_clk_per_sm",
        found.figure("l2_read", per_clk, cluster=2, **swept),
        "l2_read: clusters of 2, 16 MiB",
    )
    put("l2_alone_bytes_per_clk", found.figure("l2_read", per_clk, cluster=1, sms=1), "l2_read: one SM alone, 16 MiB")
    sets = found.conditions("l2_read", "working_set_bytes", pattern="swept", cluster=1, sms=sms)
    at = {
        size: found.figure("l2_read", "bytes_per_s", pattern="swept", cluster=1, sms=sms, working_set_bytes=size)
        for size in sets
    }
    values["l2_curve"] = tuple((float(size), rate.value) for size, rate in at.items())
    sources["l2_curve"] = "l2_read: all SMs, working sets of 8 to 128 MiB"
    for does in ("read", "write", "copy"):
        put(
            f"hbm_{does}_bytes_per_s",
            found.figure("hbm_stream", "bytes_per_s", does=does),
            f"hbm_stream: {does}, 4 GiB",
        )
    widths = found.conditions("wgmma_rate", "n")
    values["wgmma_clk"] = {n: found.figure("wgmma_rate", "clk", n=n, warpgroups=2).value for n in widths}
    sources["wgmma_clk"] = "wgmma_rate: two warpgroups, random data"
    put(
        "port_contention",
        port_contention(found.of("tma_beside_wgmma")),
        "tma_beside_wgmma: clocks a K block beyond those alone, of those of TMA's writes",
    )
    for does, name, unit, peak in (
        ("mma_sync", "mma_sync_share", "flop_per_clk", spec.bf16_tensor_flop_per_clock or 4096),
        ("fma", "fma_share", "fma_per_clk", spec.fp32_fma_per_clock),
    ):
        got = found.figure("core_rate", unit, does=does)
        share = Figure(got.value / peak, got.low / peak, got.high / peak, got.count)
        put(name, share, f"core_rate: {does} from registers, of {peak} a clock")
    held = [each["power_w"] for each in found.of("power") if each["nvml_clock_mhz"] < HELD * spec.boost_clock_mhz]
    under = f"the enforced limit of {power_limit_w:.0f} W"
    if held:
        put("power_limit_w", figure(held), f"power: drawn by the states whose clock {under} holds down")
    else:
        values["power_limit_w"], sources["power_limit_w"] = power_limit_w, f"power: no state was held down by {under}"
    states = steady_states(found)
    power = fit_power(states)
    for name in ("idle_power_w", "energy_clock_mhz", "power_clock_exponent", "energy_pj_per_flop",
                 "energy_pj_per_l2_byte", "energy_pj_per_hbm_byte"):  # fmt: skip
        values[name] = getattr(power, name)
        sources[name] = f"power: least squares over {len(states)} steady states, {power.rms_w:.1f} W rms"
    calibration = Calibration(
        key=spec.key or spec.name, label=label, measured=True, sources=sources, spreads=spreads, **values
    )
    return Fitted(calibration, power, tuple(states))


def burst(reading: Mapping[str, Any]) -> float:
    """The highest clock among the launches begun within 25 ms of a rest: the very first may still see it rise."""
    pairs = zip(reading["clock_mhz"], reading["begun_ms"], strict=True)
    return max(float(mhz) for mhz, begun in pairs if begun < BURST_MS)


def steady_states(found: Readings) -> list[Steady]:
    """The steady states of ``power``; loads come from L2, and from HBM too where the working set is larger than L2.

    While wgmmas run an SM's clock is lower than the one that the card asks for, and that its voltage follows: 1,815 of
    1,980 MHz on an H200. Other states count as at the clock that wgmmas would have: theirs times the ratio of the two
    highest.
    """
    clocks: dict[bool, list[float]] = {True: [], False: []}
    for each in found.of("power"):
        clocks[each["flop_per_s"] > 0].append(each["clock_mhz"])
    slower = max(clocks[True]) / max(clocks[False]) if all(clocks.values()) else 1.0
    states = []
    for reading in found.all:
        if reading.microbenchmark == "power":
            values, loaded = reading.values, reading.values["loaded_bytes_per_s"]
            hbm = loaded if reading.conditions["working_set_bytes"] > LARGER_THAN_L2 else 0.0
            clock = values["clock_mhz"] * (1 if values["flop_per_s"] > 0 else slower)
            states.append(
                Steady(reading.conditions["state"], values["power_w"], clock, values["flop_per_s"], loaded, hbm)
            )
    return states


# ---- the shared-memory port ----------------------------------------------------------------------------------------


def port_contention(runs: Sequence[Mapping[str, Any]]) -> Figure:
    """Of the time that TMA's writes take of the port, the share by which wgmma is slower beside them than alone.

    Per K block: (clocks - clocks alone) x 128 / bytes written. Raises ``UsageError`` where TMA wrote nothing.
    """
    shares = [
        max(0.0, run["k_block_clk"] - run["alone_k_block_clk"])
        * PORT
        / (run["k_block_clk"] * run["loaded_bytes_per_clk"])
        for run in runs
        if run["loaded_bytes_per_clk"] > 0
    ]
    if not shares:
        raise UsageError("there are no readings of tma_beside_wgmma in which TMA wrote anything")
    return figure(shares)


def table(fitted: Fitted, names: Sequence[str], render: Callable[[str, Any], str]) -> list[tuple[str, str, str, str]]:
    """Rows of constant, value, quartiles and source, each value as ``render`` says."""
    calibration = fitted.calibration
    rows = []
    for name in names:
        low_high = calibration.spreads.get(name)
        spread = "" if low_high is None else " to ".join(render(name, value) for value in low_high)
        rows.append((name, render(name, getattr(calibration, name)), spread, calibration.sources[name]))
    return rows
