"""Readings of a GPU whose constants are known, as the microbenchmarks would give them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tilewright.calibrate.power import STATES
from tilewright.calibrate.rates import TILES, port_read_bytes
from tilewright.calibrate.readings import Reading
from tilewright.planner.calibration import WGMMA_WIDTHS
from tilewright.results import Provenance

SMS = 132
MiB = 1 << 20
PROVENANCE = Provenance(gpu="NVIDIA H200", date="2026-11-30T12:00:00Z", driver="580.1", before={"power_limit_w": 700.0})
# What the readings are made from.
IDLE_W, FLOP_PJ, L2_PJ, HBM_PJ, EXPONENT, LOWEST_MHZ, BOOST_MHZ, LIMIT_W = (
    120.0,
    0.55,
    12.0,
    45.0,
    1.4,
    1300.0,
    1980.0,
    690.0,
)
TENSOR_SHARE = 11 / 12  # of the clock that NVML tells, the one that SMs have while wgmmas run
FLOP_PER_CLK, L2_PER_CLK, HBM_RATE = 4096.0, 36.0, 4.2e12


def readings(contention: float = 1.0) -> list[Reading]:
    """All of one calibration."""
    found = [*_memory(), *_rates(contention), *_power()]
    return [reading.of(PROVENANCE) for reading in found]


def _memory() -> Iterator[Reading]:
    for size, sms, cluster, per_clk in (
        *((mib * MiB, SMS, 1, L2_PER_CLK if mib <= 40 else 20.0) for mib in (8, 16, 40, 64)),
        (16 * MiB, SMS, 2, 55.0),
        (16 * MiB, 1, 1, 61.0),
    ):
        for wobble in (0.99, 1.0, 1.01):
            conditions = {"working_set_bytes": size, "sms": sms, "cluster": cluster, "pattern": "swept"}
            rate = per_clk * wobble
            values = {"bytes_per_clk_per_sm": rate, "bytes_per_s": rate * sms * BOOST_MHZ * 1e6}
            yield Reading("l2_read", conditions, values)
    # Another pattern's readings, which no constant may come from.
    other = {"working_set_bytes": 16 * MiB, "sms": SMS, "cluster": 1, "pattern": "together"}
    yield Reading("l2_read", other, {"bytes_per_clk_per_sm": 99.0, "bytes_per_s": 99e12})
    for does, rate in (("read", HBM_RATE), ("write", 4.0e12), ("copy", 3.9e12)):
        yield Reading("hbm_stream", {"does": does}, {"bytes_per_s": rate})
    for level, clocks in (("l2", 640.0), ("hbm", 1010.0)):
        for box_bytes, more in ((128, 0.0), (16384, 300.0)):
            conditions = {"level": level, "box_bytes": box_bytes}
            yield Reading("tma_latency", conditions, {"median_clk": clocks + more})


def _rates(contention: float) -> Iterator[Reading]:
    for n in WGMMA_WIDTHS:
        for warpgroups, slower in ((1, 1.5), (2, 1.0)):
            clocks = max(n / 2, 16 + n / 4) * slower
            yield Reading("wgmma_rate", {"n": n, "warpgroups": warpgroups}, {"clk": clocks})
    for bm, bn in TILES:
        yield Reading("tma_beside_wgmma", {"tile": [bm, bn]}, beside(bm, bn, contention))
    yield Reading("core_rate", {"does": "mma_sync"}, {"flop_per_clk": 2560.0})
    yield Reading("core_rate", {"does": "fma"}, {"fma_per_clk": 124.0})
    for cluster, us in ((1, 1.5), (2, 2.2)):
        for wobble in (-0.1, 0.0, 0.1):
            yield Reading("graph_launch", {"cluster": cluster}, {"us": us + wobble})
    clocks_mhz = [1500.0, 1720.0, 1735.0, 1400.0, 1980.0]
    yield Reading("burst_clock", {"repeat": 0}, {"clock_mhz": clocks_mhz, "begun_ms": [0.0, 5.0, 10.0, 15.0, 30.0]})


def beside(bm: int, bn: int, contention: float, supply: float = 60.0) -> dict[str, Any]:
    """A run of ``tma_beside_wgmma`` where writes at 128 bytes a clock delay wgmma by a share of their time."""
    alone = bm * bn / 32
    return {
        "alone_k_block_clk": alone,
        "alone_loaded_bytes_per_clk": supply,
        "k_block_clk": alone / (1 - contention * supply / 128),
        "loaded_bytes_per_clk": supply,
        "port_read_bytes": float(port_read_bytes(bm, bn)),
    }


def _power() -> Iterator[Reading]:
    for order, state in enumerate(STATES):
        sms = round(state.share * SMS) if state.share else SMS
        hbm = HBM_RATE if state.working_set > 1 << 30 else 0.0
        clock, watts, flop, loaded = BOOST_MHZ, 0.0, 0.0, 0.0
        while True:  # down until the limit is kept
            flop = sms * FLOP_PER_CLK * clock * 1e6 if state.share else 0.0
            loaded = (hbm or L2_PER_CLK * SMS * clock * 1e6) if state.working_set else 0.0
            growth = (clock / LOWEST_MHZ) ** EXPONENT
            watts = IDLE_W + growth * (FLOP_PJ * flop + L2_PJ * loaded) * 1e-12 + HBM_PJ * hbm * 1e-12
            if watts <= LIMIT_W or clock <= LOWEST_MHZ:
                break
            clock -= 5.0
        conditions = {"state": state.name, "order": order, "sms": sms, "working_set_bytes": state.working_set}
        values = {
            "power_w": watts,
            "clock_mhz": clock * (TENSOR_SHARE if state.share else 1.0),
            "nvml_clock_mhz": clock,
            "flop_per_s": flop,
            "loaded_bytes_per_s": loaded,
        }
        yield Reading("power", conditions, values)
