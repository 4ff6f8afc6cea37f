"""How fast a tensor-core kernel can be: what it asks of shared memory and of the L2 cache, and its waves.

Pure arithmetic like ``roofline``, in bytes and clocks of one SM. The model of the tensor cores: an SM does
``bf16_tensor_flop_per_clock`` (4096 on Hopper), so that m64nNk16 takes N / 2 clocks; microbenchmarks agree for N of 64
and more (Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking", arXiv
2402.13499). wgmma reads its operands through the port of shared memory, 128 B a clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.errors import UsageError
from tilewright.gpu import GpuSpec
from tilewright.problem import Problem
from tilewright.roofline import (
    Derived,
    figure,
    number,
    peak_tflops,
    positive,
    shared_load_bytes_per_mac,
    tile_intensity,
)

WARPGROUP_ROWS = 64  # PTX ISA, "Asynchronous warpgroup level matrix instructions": M of every wgmma
WARPGROUP_THREADS = 128
# What mma.sync reaches on Hopper, as a share of the roof: measured, not derived. The average over its shapes and types
# in arXiv 2402.13499 is about 63%.
MMA_SYNC_SHARE = 0.63


@dataclass(frozen=True)
class Waves:
    """How the tiles of a problem fall on the places that compute them, one tile each at a time."""

    tiles: int
    places: int
    waves: int
    """Rounds, the last one included."""
    last: float
    """Share of the places with a tile in the last round."""
    use: float
    """Share of all places and rounds with a tile: tiles / (waves x places)."""

    def __str__(self) -> str:
        return f"{self.tiles:,} tiles / {self.places} at a time = {number(self.tiles / self.places)} waves"


def macs_per_clock(gpu: GpuSpec) -> float:
    """Multiply-adds a clock of one SM's tensor cores. Raises ``UsageError`` where they are not known."""
    if gpu.bf16_tensor_flop_per_clock is None:
        raise UsageError(f"the tensor cores of {gpu.name} are not known")
    return gpu.bf16_tensor_flop_per_clock / 2


def tensor_clocks(multiply_adds: float, gpu: GpuSpec) -> Derived:
    """Clocks in which one SM's tensor cores do so many multiply-adds: ``N / 2`` for m64nNk16 on Hopper."""
    rate = macs_per_clock(gpu)
    return figure(multiply_adds / rate, "clk", f"{number(multiply_adds)} MAC / {number(rate)} MAC/clk")


def mma_sync_tflops(gpu: GpuSpec) -> Derived:
    """What mma.sync can reach on Hopper: ``MMA_SYNC_SHARE`` of the roof. Only wgmma reaches the roof itself."""
    peak = peak_tflops(gpu, "bf16_tensor")
    return figure(MMA_SYNC_SHARE * peak, "TFLOPS", f"{MMA_SYNC_SHARE} x {number(peak)} TFLOPS")


# ---- from global memory


def cluster_intensity(bm: int, bn: int, cluster_m: int, cluster_n: int, itemsize: int) -> Derived:
    """FLOP/B from L2 of a cluster whose blocks share by multicast: that of its tiles as one large tile.

    ``cluster_m x cluster_n`` blocks of ``bm x bn``; 1 x 1 is ``tile_intensity``. Multicast reads once what blocks in a
    row of the cluster need of A, and blocks in a column of B.
    """
    positive(cluster_m=cluster_m, cluster_n=cluster_n)
    return tile_intensity(cluster_m * bm, cluster_n * bn, itemsize)


def l2_demand(intensity: float, gpu: GpuSpec) -> Derived:
    """B/clk of one SM from L2 when its tensor cores never wait, at ``intensity`` FLOP/B."""
    positive(intensity=intensity)
    flop = 2 * macs_per_clock(gpu)
    return figure(flop / intensity, "B/clk/SM", f"{number(flop)} FLOP/clk/SM / {number(intensity)} FLOP/B")


def l2_supply(gpu: GpuSpec) -> Derived | None:
    """B/clk of one SM that L2 delivers to all of them at once, at the clock of the tensor roof; None where unknown."""
    if gpu.l2_bytes_per_s is None:
        return None
    clocks_per_s = peak_tflops(gpu, "bf16_tensor") * 1e12 / (2 * macs_per_clock(gpu))  # of all SMs together
    return figure(
        gpu.l2_bytes_per_s / clocks_per_s,
        "B/clk/SM",
        f"{number(gpu.l2_bytes_per_s / 1e12)} TB/s / ({gpu.sm_count} SMs x "
        f"{number(clocks_per_s / gpu.sm_count / 1e9)} GHz)",
    )


# ---- from shared memory


def operand_bytes_per_mac(rows: int, columns: int, itemsize: int) -> Derived:
    """Bytes read from shared memory per MAC of a ``rows x columns`` piece of C; its depth cancels.

    For ldmatrix and mma.sync the piece is a warp's part of the tile, whose A and B it loads once for each k. For wgmma
    it is 64 x N: an instruction of depth 16 reads 2 KB of A and 32 N bytes of B, once for its four warps, and each
    further 64 rows read B again.
    """
    return shared_load_bytes_per_mac(rows, columns, itemsize)


def port_demand(bytes_per_mac: float, gpu: GpuSpec, *, share: float = 1.0) -> Derived:
    """B/clk/SM of shared memory that the tensor cores read at ``share`` of their rate, of ``shared_bytes_per_clock``.

    wgmma of n256 asks 80 B/clk and of n128 96; below n64 the port, not the tensor core, sets its speed. What arrives
    from L2 is written through shared memory too (``l2_demand``); whether that competes with the reads is not in here.
    """
    positive(share=share)
    rate = share * macs_per_clock(gpu)
    return figure(bytes_per_mac * rate, "B/clk/SM", f"{number(bytes_per_mac)} B/MAC x {number(rate)} MAC/clk/SM")


def accumulator_port_demand(gpu: GpuSpec, *, depth: int = 16) -> Derived:
    """B/clk/SM if each instruction read its 4-byte sums from shared memory and wrote them back, instead of registers.

    ``depth`` is the K of an instruction: so many multiply-adds share the 8 bytes of an element of C.
    """
    positive(depth=depth)
    rate = macs_per_clock(gpu)
    return figure(8 * rate / depth, "B/clk/SM", f"(4 + 4) B x {number(rate)} MAC/clk/SM / {depth}")


def bytes_in_flight(stages: int, stage_bytes: int, *, held: int = 1) -> Derived:
    """The most bytes under way while ``held`` of ``stages`` are being multiplied."""
    positive(stages=stages, stage_bytes=stage_bytes, held=held)
    return figure((stages - held) * stage_bytes, "B", f"({stages} - {held}) stages x {number(stage_bytes)} B")


def accumulator_registers(bm: int, bn: int, warpgroups: int) -> Derived:
    """fp32 registers of a thread that hold a tile of C, shared by ``warpgroups`` of 128 threads."""
    positive(bm=bm, bn=bn, warpgroups=warpgroups)
    threads = WARPGROUP_THREADS * warpgroups
    return figure(bm * bn / threads, "registers a thread", f"{bm} x {bn} / {threads} threads")


# ---- over the SMs


def waves(problem: Problem, bm: int, bn: int, places: int) -> Waves:
    """The tiles of a problem over ``places``: SMs, times the blocks that one holds; or tiles and places of clusters."""
    positive(bm=bm, bn=bn, places=places)
    tiles = math.ceil(problem.m / bm) * math.ceil(problem.n / bn)
    rounds = math.ceil(tiles / places)
    last = tiles - (rounds - 1) * places if tiles else 0
    return Waves(tiles, places, rounds, last / places, tiles / (rounds * places) if rounds else 0.0)
