"""Microbenchmarks of what an SM computes: wgmma by width, wgmma beside TMA, mma.sync, FMAs; and of a launch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.backends.base import Backend, Matrix
from tilewright.calibrate import probes
from tilewright.calibrate.memory import ACROSS, MiB, fill
from tilewright.calibrate.probes import BOX_BYTES, Laps, Probe, Stream, Tile, TileRun
from tilewright.calibrate.readings import Reading
from tilewright.dtypes import FP32
from tilewright.planner.calibration import WGMMA_WIDTHS

if TYPE_CHECKING:
    from tilewright.backends.cuda import CudaBackend

TILES = ((128, 128), (128, 192), (128, 256), (256, 128))


@dataclass(frozen=True)
class Effort:
    """How long a timed run is, in clocks, and how often it is repeated; bytes of the set that L2 holds."""

    clocks: int = 300_000
    repeats: int = 5
    resident: int = 8 * MiB
    nodes: int = 200


# ---- wgmma ---------------------------------------------------------------------------------------------------------


def _rate_tile(n: int, warpgroups: int) -> Tile:
    return Tile(64 * warpgroups, n, warpgroups, sets=4, stages=1)


def wgmma_probes() -> list[Probe]:
    """The kernels of ``wgmma_rate``."""
    return [_rate_tile(n, warpgroups).probe for n in WGMMA_WIDTHS for warpgroups in (1, 2)]


def wgmma_rate(
    backend: Backend, sms: int, effort: Effort = Effort(), widths: tuple[int, ...] = WGMMA_WIDTHS
) -> Iterator[Reading]:
    """Clocks of one m64nNk16, A and B in shared memory, random data, one and two warpgroups issuing; no loads."""
    region = probes.allocate(backend, ACROSS * BOX_BYTES, ACROSS)
    for n in widths:
        for warpgroups in (1, 2):
            run = TileRun(_rate_tile(n, warpgroups), backend, sms, region)
            passes = passes_in(run.tile, effort.clocks)
            for _ in range(effort.repeats):
                laps, _ = run.run(passes)
                clocks = laps.clocks / (laps.work * float(run.tile.wgmmas_per_pass))
                values = {"clk": float(np.median(clocks)), "slowest_clk": float(clocks.max()), "clock_mhz": laps.mhz}
                yield Reading("wgmma_rate", {"n": n, "warpgroups": warpgroups, "sms": sms}, values)


def passes_in(tile: Tile, clocks: float) -> int:
    """Passes that take about so many clocks at the tensor cores' rate."""
    return max(2, int(clocks / (tile.wgmmas_per_pass * tile.bn / 2)))


# ---- wgmma beside TMA ----------------------------------------------------------------------------------------------


def _contention_tile(bm: int, bn: int) -> Tile:
    return Tile(bm, bn, 2, sets=2, stages=5)


def contention_probes() -> list[Probe]:
    """The kernels of ``tma_beside_wgmma``."""
    return [Stream(load=True, store=True).probe, *(_contention_tile(*tile).probe for tile in TILES)]


def tma_beside_wgmma(
    backend: Backend, sms: int, effort: Effort = Effort(), tiles: tuple[tuple[int, int], ...] = TILES
) -> Iterator[Reading]:
    """Wgmmas alone, TMA loads that hit L2 alone, both at once, neither waiting for the other: one SM, and all.

    ``k_block_clk`` is what a K block of 64 of the tile takes, ``port_read_bytes`` what its wgmmas read of shared
    memory, ``loaded_bytes_per_clk`` what TMA writes into it.
    """
    region = probes.allocate(backend, effort.resident, ACROSS)
    fill(backend, sms, region, effort.resident)
    for bm, bn in tiles:
        run = TileRun(_contention_tile(bm, bn), backend, sms, region)
        passes = passes_in(run.tile, effort.clocks)
        for blocks in (1, sms):
            run.run(0, probes.NO_LIMIT, effort.clocks * 4, blocks)  # brings the region into L2
            for _ in range(effort.repeats):
                alone, _ = run.run(passes, blocks=blocks)
                _, loads = run.run(0, probes.NO_LIMIT, effort.clocks, blocks)
                both, both_loads = run.run(passes, probes.NO_LIMIT, blocks=blocks)
                values = {
                    "alone_k_block_clk": _k_block(alone, run.tile),
                    "alone_loaded_bytes_per_clk": _loaded(loads),
                    "k_block_clk": _k_block(both, run.tile),
                    "loaded_bytes_per_clk": _loaded(both_loads),
                    "port_read_bytes": float(port_read_bytes(bm, bn)),
                    "clock_mhz": both.mhz,
                }
                yield Reading("tma_beside_wgmma", {"tile": [bm, bn], "warpgroups": 2, "sms": blocks}, values)


def port_read_bytes(bm: int, bn: int, bk: int = 64) -> int:
    """Bytes that the wgmmas of a K block read of shared memory: each of 64 rows reads its A and all of B."""
    return bm // 64 * (64 + bn) * bk * 2


def _k_block(laps: Laps, tile: Tile) -> float:
    return float(np.median(laps.clocks / (laps.work * float(tile.sets))))


def _loaded(laps: Laps) -> float:
    return float(laps.work_per_clk.mean()) * BOX_BYTES


# ---- mma.sync and FMAs ---------------------------------------------------------------------------------------------


def core_probes() -> list[Probe]:
    """The kernels of ``core_rate``."""
    return [probes.MMA, probes.FMA]


def core_rate(backend: Backend, sms: int, effort: Effort = Effort()) -> Iterator[Reading]:
    """FLOPs a clock of an SM by mma.sync m16n8k16 and FMAs a clock, from registers, 8 warps an SM."""
    kinds = (
        ("mma_sync", probes.MMA, probes.mma_operands(backend), probes.MMA_FLOP_PER_PASS, "flop_per_clk", 4096),
        ("fma", probes.FMA, probes.fma_operands(backend), probes.FMA_PER_PASS, "fma_per_clk", 128),
    )
    for name, probe, operands, work, unit, peak in kinds:
        passes = max(2, effort.clocks * peak // work)
        for _ in range(effort.repeats):
            laps, _ = probes.rate(backend, probe, operands, sms, passes)
            values = {unit: float(np.median(laps.work_per_clk)) * work, "clock_mhz": laps.mhz}
            yield Reading("core_rate", {"does": name, "sms": sms}, values)


# ---- launch --------------------------------------------------------------------------------------------------------


def launch_probes() -> list[Probe]:
    """The kernels of ``graph_launch``."""
    return [probes.empty_kernel(cluster) for cluster in (1, 2)]


def graph_launch(backend: CudaBackend, sms: int, effort: Effort = Effort()) -> Iterator[Reading]:
    """Microseconds of a CUDA graph's node that does nothing, a block an SM with 200 KB; also in clusters of 2."""
    from tilewright.backends.cuda_timer import CudaTimer

    timer = CudaTimer(backend)
    met = backend.empty(1, sms, FP32)
    for cluster in (1, 2):
        probe, blocks = probes.empty_kernel(cluster), sms // cluster * cluster
        prepared = timer.prepare([partial(_meet, backend, probe, blocks, met)], effort.nodes)
        for _ in range(effort.repeats):
            slot = timer.slot(prepared, 3, 10)
            yield Reading(
                "graph_launch",
                {"cluster": cluster, "blocks": blocks, "method": prepared.method},
                {"us": slot.time_us},
            )


def _meet(backend: CudaBackend, probe: Probe, blocks: int, met: Matrix, stream: Any) -> None:
    probe.launch(backend, blocks, [met], stream)
