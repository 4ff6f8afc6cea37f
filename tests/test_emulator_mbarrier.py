"""mbarriers and cluster barriers in the emulator: phases, parities, arrivals from other blocks, rings of TMA loads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from observed import kernel_source

from tilewright.backends.base import TensorMap
from tilewright.backends.emulator import EmulatorBackend
from tilewright.backends.emulator_runtime import POLICIES, LaunchStats
from tilewright.dtypes import FP32

Array = np.ndarray[Any, Any]


def emulators() -> Iterator[Any]:
    for policy in POLICIES:
        for seed in range(4) if policy == "random" else [0]:
            yield pytest.param((policy, seed), id=f"{policy}-{seed}")


@pytest.fixture(params=emulators())
def emulator(request: pytest.FixtureRequest) -> EmulatorBackend:
    return EmulatorBackend(request.param[0], seed=request.param[1])


@pytest.fixture
def plain() -> EmulatorBackend:
    return EmulatorBackend()


def run(emulator: EmulatorBackend, case: int, rounds: int, *, cluster: int = 1) -> tuple[Array, LaunchStats]:
    """A row of words for each block, of 64 threads."""
    source = kernel_source("core/mbarriers.cu", SHARED_BYTES=32, CASE=case, CLUSTER=cluster)
    out = emulator.empty(cluster, 64, FP32)
    args = [np.int32(rounds), out]
    emulator.launch(emulator.compile(source), (cluster, 1, 1), (64, 1, 1), args, 32, cluster=cluster)
    assert emulator.last_launch is not None
    return emulator.download(out).view(np.uint32), emulator.last_launch


def test_polls_know_the_phase_under_way_and_the_one_before(plain: EmulatorBackend) -> None:
    out, stats = run(plain, 0, 301)
    assert out[0, 0] == 3 * 301
    assert stats.mbarrier_waits == 3 * 301
    assert stats.mbarrier_blocked == 0  # a poll that is refused has not waited


def test_warps_take_turns(plain: EmulatorBackend) -> None:
    out, stats = run(plain, 1, 100)
    value = 1
    for i in range(100):
        value = (value + i) * 3 % 2**32
    np.testing.assert_array_equal(out[0], [value] * 32 + [0] * 32)
    assert stats.mbarrier_waits == 64 * 100
    assert 0 < stats.mbarrier_blocked <= stats.mbarrier_waits


@pytest.mark.parametrize("cluster", [2, 4, 8])
def test_arrivals_from_other_blocks(plain: EmulatorBackend, cluster: int) -> None:
    out, _ = run(plain, 2, 9, cluster=cluster)
    for rank in range(cluster):
        value = 0
        for i in range(9):
            value = value * 3 + (rank + 1) % cluster + i
        np.testing.assert_array_equal(out[rank], np.full(64, value))


@pytest.mark.parametrize("cluster", [1, 2, 4])
def test_the_cluster_waits_for_its_live_threads(plain: EmulatorBackend, cluster: int) -> None:
    out, stats = run(plain, 3, 5, cluster=cluster)
    np.testing.assert_array_equal(out[:, :48], np.full((cluster, 48), 10))
    assert stats.dependency_waits == 64 * cluster
    assert stats.dependency_launches == 48 * cluster


@pytest.mark.parametrize("poll", [False, True])
@pytest.mark.parametrize("cluster", [1, 2, 4])
@pytest.mark.parametrize("loads", [0, 1, 3, 50])
def test_a_ring_of_loads(emulator: EmulatorBackend, loads: int, cluster: int, poll: bool) -> None:
    stages, readers = 3, 256
    shared_bytes = 1024 * (stages + 1)
    words = np.random.default_rng(loads).integers(1, 2**32, (max(loads, 1), readers), np.uint32)
    source = kernel_source(
        "core/tma_ring.cu",
        SHARED_BYTES=shared_bytes,
        THREADS=readers + 32,
        STAGES=stages,
        CLUSTER=cluster,
        POLL=int(poll),
    )
    matrix = emulator.upload(words.view(np.float32).reshape(-1, 8))
    out, polls = emulator.empty(cluster, readers, FP32), emulator.upload(np.zeros((1, 1), np.float32))
    box = (8, readers // cluster // 8)
    args = [TensorMap(matrix, box, swizzle_bytes=0), np.int32(loads), out, polls]
    grid, block = (cluster, 1, 1), (readers + 32, 1, 1)
    emulator.launch(emulator.compile(source), grid, block, args, shared_bytes, cluster=cluster)
    weights = np.arange(1, max(loads, 1) + 1, dtype=np.uint32)[:, None]
    expected = (words * weights).sum(axis=0, dtype=np.uint32) * np.uint32(loads > 0)
    np.testing.assert_array_equal(emulator.download(out).view(np.uint32), np.tile(expected, (cluster, 1)))
    stats = emulator.last_launch
    assert stats is not None
    assert stats.tma_loads == loads * cluster
    assert stats.mbarrier_waits == loads * cluster * (readers + 1)
    refused = emulator.download(polls).view(np.uint32)[0, 0]
    if emulator.policy != "random":
        assert (refused > 0) == (poll and loads > 0 and emulator.policy == "lazy")
