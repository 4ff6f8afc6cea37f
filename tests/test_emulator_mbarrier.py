"""mbarriers and cluster barriers in the emulator: phases, parities, arrivals from other blocks, rings of TMA loads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from observed import Call, kernel_source

from tilewright.backends.base import TensorMap
from tilewright.backends.emulator import EmulatorBackend
from tilewright.backends.emulator_checks import check_bounds, check_races
from tilewright.backends.emulator_runtime import POLICIES, LaunchStats, Policy
from tilewright.backends.host_compiler import HostCompiler, available_compilers
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


READERS, STAGES = 256, 3


def ring(emulator: EmulatorBackend, loads: int, cluster: int, *, poll: bool = False) -> tuple[Call, Array]:
    """A ring's launch, and the sums that it has to give each block."""
    words = np.random.default_rng(loads).integers(1, 2**32, (max(loads, 1), READERS), np.uint32)
    weights = np.arange(1, max(loads, 1) + 1, dtype=np.uint32)[:, None]
    sums = (words * weights).sum(axis=0, dtype=np.uint32) * np.uint32(loads > 0)
    shared_bytes = 1024 * (STAGES + 1)
    threads = READERS + 32
    plan = {"THREADS": threads, "STAGES": STAGES, "CLUSTER": cluster, "POLL": int(poll)}
    source = kernel_source("core/tma_ring.cu", SHARED_BYTES=shared_bytes, **plan)
    matrix = emulator.upload(words.view(np.float32).reshape(-1, 8))
    map_ = TensorMap(matrix, (8, READERS // cluster // 8), swizzle_bytes=0)
    out, polls = emulator.empty(cluster, READERS, FP32), emulator.upload(np.zeros((1, 1), np.float32))
    args = [map_, np.int32(loads), out, polls]
    return Call(source, (cluster, 1, 1), (threads, 1, 1), args, shared_bytes), np.tile(sums, (cluster, 1))


@pytest.mark.parametrize("poll", [False, True])
@pytest.mark.parametrize("cluster", [1, 2, 4])
@pytest.mark.parametrize("loads", [0, 1, 3, 50])
def test_a_ring_of_loads(emulator: EmulatorBackend, loads: int, cluster: int, poll: bool) -> None:
    call, expected = ring(emulator, loads, cluster, poll=poll)
    source, *rest, _ = call
    emulator.launch(emulator.compile(source), *rest, cluster=cluster)
    np.testing.assert_array_equal(emulator.download(call.args[2]).view(np.uint32), expected)
    stats = emulator.last_launch
    assert stats is not None
    assert stats.tma_loads == loads * cluster
    assert stats.mbarrier_waits == loads * cluster * (READERS + 1)
    refused = emulator.download(call.args[3]).view(np.uint32)[0, 0]
    if emulator.policy != "random":
        assert (refused > 0) == (poll and loads > 0 and emulator.policy == "lazy")


@pytest.mark.parametrize("compiler", available_compilers(), ids=lambda c: c.kind)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_watched_ring(policy: Policy, compiler: HostCompiler) -> None:
    emulator = EmulatorBackend(policy, compiler=compiler)
    for check in (check_bounds, check_races):
        call, expected = ring(emulator, 8, 2)
        check(emulator, *call, cluster=2)
        np.testing.assert_array_equal(emulator.download(call.args[2]).view(np.uint32), expected)
