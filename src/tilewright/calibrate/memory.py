"""Microbenchmarks of the memory system: L2 and HBM by TMA, in rates and in latencies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.backends.base import Backend
from tilewright.calibrate import probes
from tilewright.calibrate.probes import BOX_BYTES, Laps, Pattern, Probe, Region, Stream
from tilewright.calibrate.readings import Reading
from tilewright.dtypes import BF16

MiB = 1 << 20
ACROSS = 64  # boxes in a row of the matrix that is read, as of one with K = 4096


@dataclass(frozen=True)
class Sizes:
    """How large and how long: working sets and HBM's region in bytes, clocks of a timed run, repeats."""

    sets: Sequence[int] = tuple(mib * MiB for mib in (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 128))
    few: Sequence[int] = tuple(mib * MiB for mib in (16, 48, 96))
    alone: int = 16 * MiB
    hbm: int = 4 << 30
    seed: int = 16 * MiB
    budget: int = 1_000_000
    repeats: int = 3
    loads: int = 2048


def fill(backend: Backend, sms: int, region: Region, seed_bytes: int) -> None:
    """Random numbers everywhere: some from the host, copied again and again by the GPU itself."""
    rows = max(1, min(seed_bytes, region.nbytes) // BOX_BYTES // region.across)
    count = rows * probes.BOX_ROWS * region.across * 64
    values = probes.normal_bf16(count).view(BF16.numpy).reshape(rows * probes.BOX_ROWS, region.across * 64)
    seed = Region(backend.upload(values), region.across, rows * region.across)
    copy = Stream(load=True, store=True)
    copy.run(backend, sms, (seed, region), Pattern.swept(sms), most=-(-region.boxes // sms))


def random_region(backend: Backend, sms: int, nbytes: int, seed_bytes: int, across: int = ACROSS) -> Region:
    """A region of random numbers."""
    region = probes.allocate(backend, nbytes, across)
    fill(backend, sms, region, seed_bytes)
    return region


# ---- L2 ------------------------------------------------------------------------------------------------------------


def l2_probes() -> list[Probe]:
    """The kernels of ``l2_read``."""
    return [Stream(load=True, store=True).probe, Stream().probe, Stream(cluster=2).probe]


def l2_read(backend: Backend, sms: int, sizes: Sizes = Sizes()) -> Iterator[Reading]:
    """What arrives of a working set that is read again and again: by all SMs, by one, in clusters of 2.

    ``swept``: all SMs together go through it; ``together``: each SM takes the same box at the same time; ``staggered``:
    each goes through all of it from a place of its own.
    """
    region = random_region(backend, sms, max(sizes.sets), sizes.seed)
    for nbytes in sizes.sets:
        yield from _l2(backend, sms, region.first(nbytes), "swept", Stream(), sizes)
    for nbytes in sizes.few:
        for pattern in ("together", "staggered"):
            yield from _l2(backend, sms, region.first(nbytes), pattern, Stream(), sizes)
        yield from _l2(backend, sms, region.first(nbytes), "swept", Stream(cluster=2), sizes)
    yield from _l2(backend, 1, region.first(sizes.alone), "swept", Stream(), sizes)


def _l2(backend: Backend, blocks: int, region: Region, name: str, stream: Stream, sizes: Sizes) -> Iterator[Reading]:
    units = blocks // stream.cluster
    patterns = {
        "swept": Pattern.swept(units),
        "together": Pattern(0, 1),
        "staggered": Pattern(max(1, region.boxes // units), 1),
    }
    rounds = region.boxes if name == "together" else -(-2 * region.boxes // units)
    most = probes.NO_LIMIT - 2 * rounds if stream.cluster == 1 else max(4, 64 * sizes.budget // BOX_BYTES // 2)
    for _ in range(sizes.repeats):
        laps = stream.run(
            backend,
            units * stream.cluster,
            (region, region),
            patterns[name],
            warm=rounds,
            most=most,
            budget=sizes.budget,
        )
        conditions = {
            "working_set_bytes": region.nbytes,
            "sms": units * stream.cluster,
            "cluster": stream.cluster,
            "pattern": name,
        }
        yield Reading("l2_read", conditions, rates(laps))


def rates(laps: Laps, bytes_per_box: int = BOX_BYTES) -> dict[str, float]:
    """Bytes a clock of the SMs (mean, least, most), bytes a second of all together, and the clock."""
    per_clk = laps.work_per_clk * bytes_per_box
    return {
        "bytes_per_clk_per_sm": float(per_clk.mean()),
        "least_bytes_per_clk": float(per_clk.min()),
        "most_bytes_per_clk": float(per_clk.max()),
        "bytes_per_s": laps.work_per_s * bytes_per_box,
        "clock_mhz": laps.mhz,
    }


# ---- HBM -----------------------------------------------------------------------------------------------------------

_HBM = {"read": Stream(), "write": Stream(load=False, store=True), "copy": Stream(load=True, store=True)}


def hbm_probes() -> list[Probe]:
    """The kernels of ``hbm_stream``."""
    return [stream.probe for stream in _HBM.values()]


def hbm_stream(backend: Backend, sms: int, sizes: Sizes = Sizes()) -> Iterator[Reading]:
    """Far more than L2 holds, read, written, and copied (bytes read and written both count)."""
    origin = random_region(backend, sms, sizes.hbm, sizes.seed)
    target = probes.allocate(backend, sizes.hbm, ACROSS)
    for _ in range(sizes.repeats):
        for name, stream in _HBM.items():
            most = probes.NO_LIMIT - stream.stages
            limits = {"warm": stream.stages, "most": most, "budget": 4 * sizes.budget}
            laps = stream.run(backend, sms, (origin, target), Pattern.swept(sms), **limits)
            yield Reading(
                "hbm_stream",
                {"does": name, "region_bytes": origin.nbytes},
                rates(laps, BOX_BYTES * (1 + (name == "copy"))),
            )


# ---- latency -------------------------------------------------------------------------------------------------------


def latency_probes() -> list[Probe]:
    """The kernels of ``tma_latency``."""
    return [Stream(load=True, store=True).probe, Stream().probe, probes.LATENCY]


def tma_latency(backend: Backend, sms: int, sizes: Sizes = Sizes()) -> Iterator[Reading]:
    """Clocks from the issue of a TMA load to its mbarrier, one load at a time: of 128 bytes and of 16 KB.

    HBM's reads follow a stream of other bytes through L2; L2's a run over the same rows.
    """
    region = random_region(backend, sms, sizes.hbm, sizes.seed)
    flush = max(1, region.boxes // sms)
    for box_rows in (1, probes.BOX_ROWS):
        for _ in range(sizes.repeats):
            Stream().run(backend, sms, (region, region), Pattern.swept(sms), most=flush)
            first = probes.latencies(backend, region, box_rows, sizes.loads)
            again = probes.latencies(backend, region, box_rows, sizes.loads)
            for level, clocks in (("hbm", first), ("l2", again)):
                if level == "l2" and box_rows * 128 * sizes.loads > 24 * MiB:
                    clocks = clocks[-(16 * MiB) // (box_rows * 128) :]  # no more than L2 holds of them
                shares = np.quantile(clocks, (0.1, 0.25, 0.5, 0.75, 0.9))
                values = {"median_clk": float(shares[2]), "deciles_clk": [float(share) for share in shares]}
                yield Reading("tma_latency", {"level": level, "box_bytes": box_rows * 128}, values)
