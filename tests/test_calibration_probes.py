"""The microbenchmarks in the emulator: their kernels move and multiply what they say, and every reading comes."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from tilewright.backends.base import Backend
from tilewright.backends.emulator import EmulatorBackend
from tilewright.calibrate import memory, power, probes, rates
from tilewright.calibrate.memory import MiB, Sizes
from tilewright.calibrate.probes import BOX_BYTES, Pattern, Stream, Tile, TileRun
from tilewright.calibrate.rates import Effort
from tilewright.dtypes import BF16, FP32
from tilewright.errors import UsageError
from tilewright.telemetry import Snapshot

Array = np.ndarray[Any, Any]


def region(backend: Backend, boxes: int, across: int) -> probes.Region:
    """Boxes of random numbers."""
    values = probes.normal_bf16(boxes * BOX_BYTES // 2).view(BF16.numpy).reshape(-1, across * 64)
    return probes.Region(backend.upload(values), across, boxes)


@pytest.mark.parametrize("across", [1, 4])
def test_a_copy_moves_every_box(backend: Backend, across: int) -> None:
    origin, target = region(backend, 24, across), probes.allocate(backend, 24 * BOX_BYTES, across)
    stream = Stream(load=True, store=True, stages=4)
    laps = stream.run(backend, 3, (origin, target), Pattern.swept(3), most=8)
    assert laps.work.tolist() == [8, 8, 8]
    np.testing.assert_array_equal(
        backend.download(target.memory).view(np.uint16), backend.download(origin.memory).view(np.uint16)
    )


@pytest.mark.parametrize("policy", ["eager", "lazy", "random"])
def test_clusters_share_what_they_load(policy: Any) -> None:
    backend = EmulatorBackend(policy)
    origin = region(backend, 8, 2)
    laps = Stream(stages=3, cluster=2).run(backend, 4, (origin, origin), Pattern.swept(2), warm=2, most=9)
    assert laps.work.tolist() == [9] * 4


def test_a_part_of_a_row_of_boxes_is_no_region(backend: Backend) -> None:
    whole = region(backend, 8, 4)
    assert whole.first(4 * BOX_BYTES).boxes == 4
    with pytest.raises(UsageError, match="6 boxes are no whole rows of 4"):
        whole.first(6 * BOX_BYTES)


@pytest.mark.parametrize("step", [1, 3, 5, 7])
def test_a_walk_takes_every_step_th_box(backend: Backend, step: int) -> None:
    """8 boxes in rows of 2: an odd step comes to each of them, whatever it passes on the way round."""
    origin, target = region(backend, 8, 2), probes.allocate(backend, 8 * BOX_BYTES, 2)
    Stream(load=True, store=True, stages=4).run(backend, 1, (origin, target), Pattern(1, step), most=8)
    np.testing.assert_array_equal(
        backend.download(target.memory).view(np.uint16), backend.download(origin.memory).view(np.uint16)
    )


def test_fill_repeats_the_seed_everywhere(backend: Backend) -> None:
    filled = memory.random_region(backend, 2, 2 * MiB, MiB // 2, across=4)
    words = backend.download(filled.memory).view(np.uint16)
    np.testing.assert_array_equal(words[: len(words) // 4], words[len(words) // 4 : len(words) // 2])
    assert np.unique(words).size > 1000


@pytest.mark.parametrize(("bm", "bn", "consumers"), [(64, 8, 1), (128, 64, 2), (256, 128, 2)])
def test_a_tile_is_multiplied_while_boxes_arrive(backend: Backend, bm: int, bn: int, consumers: int) -> None:
    tile = Tile(bm, bn, consumers, sets=2, stages=2)
    run = TileRun(tile, backend, 2, region(backend, 4, 2))
    multiplied, loaded = run.run(3, most=5)
    assert multiplied.work.tolist() == [3, 3]
    assert all(0 < boxes <= 5 for boxes in loaded.work)
    image = backend.download(run.operands).view(BF16.numpy).astype(np.float64).reshape(2, -1)
    total = 0.0
    for stage in image:  # the sum over all of A B needs only the sums of A's and B's columns, chunks unswizzled
        a, b = (unswizzled(part) for part in (stage[: bm * 64], stage[bm * 64 :]))
        total += float(a.sum(0) @ b.sum(0))
    sums = backend.download(run.sums).astype(np.float64).sum(1)
    scale = float(np.abs(image).sum())
    np.testing.assert_allclose(sums, 3 * total, atol=1e-4 * scale)


def unswizzled(tile: Array) -> Array:
    """A K-major tile's rows of 64 from how they lie under the 128-byte swizzle."""
    rows = tile.reshape(-1, 8, 8)
    out = np.empty_like(rows)
    for row in range(len(rows)):
        for chunk in range(8):
            out[row, chunk] = rows[row, chunk ^ row % 8]
    return out.reshape(len(rows), 64)


def test_mma_sums(backend: Backend) -> None:
    operands = probes.mma_operands(backend)
    laps, sums = probes.rate(backend, probes.MMA, operands, 2, 3)
    assert laps.work.tolist() == [3, 3]
    fragments = backend.download(operands).view(BF16.numpy).astype(np.float64).reshape(8, 32, 2, 4, 4, 2)
    # k of a fragment: 2 (lane % 4) + element, 8 further in registers 2 and 3 of A, 1 and 3 of B.
    total = 0.0
    for warp in fragments:
        k_a, k_b = np.zeros(16), np.zeros(16)
        for lane, (a, b) in enumerate(warp):
            for register in range(4):
                for element in range(2):
                    k_a[2 * (lane % 4) + element + 8 * (register // 2)] += a[:, register, element].sum()
                    k_b[2 * (lane % 4) + element + 8 * (register % 2)] += b[:, register, element].sum()
        total += float(k_a @ k_b)
    np.testing.assert_allclose(sums.astype(np.float64).sum(1), 3 * total, rtol=1e-4)


def test_fma_sums(backend: Backend) -> None:
    operands = probes.fma_operands(backend)
    laps, sums = probes.rate(backend, probes.FMA, operands, 1, 2)
    assert laps.work.tolist() == [2]
    values = backend.download(operands).astype(np.float64).reshape(-1, 66)
    expected = values[:, :64].sum(1) + 2 * 8 * 64 * values[:, 64] * values[:, 65]
    np.testing.assert_allclose(sums[0], expected, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("cluster", [1, 2])
def test_blocks_of_the_empty_kernel_meet(backend: Backend, cluster: int) -> None:
    met = backend.empty(1, 4, FP32)
    probes.empty_kernel(cluster).launch(backend, 4, [met])
    assert backend.download(met).view(np.uint32)[0].tolist() == [1, 2, 3, 4]


# ---- whole microbenchmarks, small: their figures mean nothing here, but every reading has to be there --------------

TINY = Sizes(
    sets=(MiB, 2 * MiB), few=(MiB,), alone=MiB, hbm=2 * MiB, seed=MiB, budget=20_000, repeats=1, loads=8
)  # fmt: skip
BRIEF = Effort(clocks=2_000, repeats=1, resident=MiB)


def finite(values: Any) -> bool:
    return all(np.isfinite(each).all() for each in values.values())


def test_memory_readings(emulator: Backend) -> None:
    found = [
        *memory.l2_read(emulator, 2, TINY), *memory.hbm_stream(emulator, 2, TINY),
        *memory.tma_latency(emulator, 2, TINY),
    ]  # fmt: skip
    names = [reading.microbenchmark for reading in found]
    assert [names.count(name) for name in ("l2_read", "hbm_stream", "tma_latency")] == [6, 3, 4]
    assert all(finite(reading.values) for reading in found)


@pytest.fixture
def patient() -> Backend:
    """An emulator in which a load is done when it is waited for: one that is done at once lets nobody else run."""
    return EmulatorBackend("lazy")


def test_rate_readings(patient: Backend) -> None:
    found = [
        *rates.wgmma_rate(patient, 1, BRIEF, (8, 32)), *rates.tma_beside_wgmma(patient, 1, BRIEF, ((128, 64),)),
        *rates.core_rate(patient, 1, BRIEF),
    ]  # fmt: skip
    assert len(found) == 4 + 2 + 2
    assert all(finite(reading.values) for reading in found)


class FakeMeter:
    """300 watts, by a counter that advances at each look."""

    def __init__(self) -> None:
        self.looks = 0

    def energy_j(self) -> float:
        return 300 * time.monotonic()

    def snapshot(self) -> Snapshot:
        return Snapshot(sm_clock_mhz=1500, power_w=290.0, temperature_c=40)


def test_burst_readings(emulator: Backend) -> None:
    rests: list[float] = []
    pace = power.Pace(burst_s=1e-9, rest_s=7.0)
    found = list(power.burst_clock(emulator, 1, rests.append, pace, repeats=2))
    assert rests == [7.0, 7.0]
    assert [len(reading.values["clock_mhz"]) for reading in found] == [24, 24]
    assert found[0].values["begun_ms"] == sorted(found[0].values["begun_ms"])


def test_power_readings(patient: Backend) -> None:
    pace = power.Pace(launch_s=0.01, settle_s=0, measure_s=0.03, rest_s=0, burst_s=1e-6, sample_s=0.001)
    states = (power.STATES[0], *power.STATES[5:7])
    few = tuple(power.State(s.name, s.share, s.working_set and MiB, 0.001) for s in states)
    found = list(power.power(patient, 2, FakeMeter(), pace, few, seed=MiB))
    assert [reading.conditions["state"] for reading in found] == ["spin", "wgmma", "wgmma + l2"]
    assert [reading.values["power_w"] for reading in found] == pytest.approx([300] * 3, rel=0.02)
    assert [reading.values["flop_per_s"] > 0 for reading in found] == [False, True, True]
    assert [reading.values["loaded_bytes_per_s"] > 0 for reading in found] == [False, False, True]
