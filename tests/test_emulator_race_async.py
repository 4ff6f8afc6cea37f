"""Kernels with TMA and tensor cores, each broken in one way: what finds it, and what does not.

``tests/kernels/broken/async`` has a few small kernels. ``plan::FAULT`` picks what each does wrong, by the place of its
name in the kernel's ``enum Fault``; with ``NONE`` it is right.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from observed import KERNELS, kernel_source

from tilewright.backends.base import Dim3, Matrix, TensorMap
from tilewright.backends.emulator import EmulatorBackend
from tilewright.backends.emulator_checks import check_races
from tilewright.backends.emulator_runtime import POLICIES, Policy
from tilewright.dtypes import BF16, FP32
from tilewright.errors import EmulatorFault

Array = np.ndarray[Any, Any]
FOLDER = KERNELS / "broken" / "async"
TILE_BYTES = 64 * 64 * 2


@dataclass(frozen=True)
class Launch:
    """What a kernel is launched with; ``expected`` is what ``result`` holds after a correct run."""

    block: Dim3
    args: list[Any]
    shared_bytes: int
    result: Matrix
    expected: Array
    grid: Dim3 = (1, 1, 1)
    cluster: int = 1


def integers(*shape: int) -> Array:
    """Small ones: their products and sums are exact in bf16."""
    return np.random.default_rng(sum(shape)).integers(-1, 2, shape).astype(BF16.numpy)


def product(emulator: EmulatorBackend, m: int, n: int, k: int) -> tuple[TensorMap, TensorMap, Array]:
    """K-major A and B in 64-wide boxes of all their rows, and their product."""
    a, b = integers(m, k), integers(n, k)
    maps = [TensorMap(emulator.upload(x), (64, min(len(x), 64))) for x in (a, b)]
    return maps[0], maps[1], a.astype(np.float32) @ b.astype(np.float32).T


def ring(emulator: EmulatorBackend) -> Launch:
    a, b, c = product(emulator, 64, 64, 5 * 64)
    out = emulator.empty(64, 64, BF16)
    return Launch((256, 1, 1), [a, b, np.int32(5 * 64), out], 4 * TILE_BYTES + 32, out, c)


def generic_operand(emulator: EmulatorBackend) -> Launch:
    a, b, c = product(emulator, 64, 64, 64)
    out = emulator.empty(64, 64, BF16)
    return Launch((128, 1, 1), [b, a.matrix, out], 2 * TILE_BYTES + 8, out, 2 * c)


def store(emulator: EmulatorBackend) -> Launch:
    image = integers(3 * 64, 64)
    out = emulator.empty(3 * 64, 64, BF16)
    args = [TensorMap(out, (64, 64)), emulator.upload(image), np.int32(3)]
    return Launch((128, 1, 1), args, TILE_BYTES, out, image)


def multicast(emulator: EmulatorBackend) -> Launch:
    a, b, c = product(emulator, 64, 128, 3 * 64)
    out = emulator.empty(64, 128, BF16)
    args = [a, b, np.int32(3 * 64), out]
    return Launch((128, 1, 1), args, 2 * TILE_BYTES + 16, out, c, (2, 1, 1), 2)


def remote_arrive(emulator: EmulatorBackend) -> Launch:
    out = emulator.empty(1, 32, FP32)
    return Launch((32, 1, 1), [out], 8, out, np.ones((1, 32)), (2, 1, 1), 2)


def ldmatrix_ring(emulator: EmulatorBackend) -> Launch:
    a, b, c = product(emulator, 16, 8, 3 * 64)
    out = emulator.empty(16, 8, FP32)
    return Launch((64, 1, 1), [a, b, np.int32(3 * 64), out], 24 * 128 + 16, out, c)


KERNELS_OF: dict[str, Callable[[EmulatorBackend], Launch]] = {
    f.__name__: f for f in (ring, generic_operand, store, multicast, remote_arrive, ldmatrix_ring)
}


def faults_of(kernel: str) -> list[str]:
    """The names of its ``enum Fault``, in order."""
    names = re.search(r"enum Fault \{(.*?)\}", (FOLDER / f"{kernel}.cu").read_text(), re.S)
    assert names is not None
    return [name.strip() for name in names[1].split(",")]


def source(kernel: str, fault: str, launch: Launch) -> Any:
    return kernel_source(
        f"broken/async/{kernel}.cu", FAULT=faults_of(kernel).index(fault), SHARED_BYTES=launch.shared_bytes
    )


def outcome(kernel: str, fault: str, policy: Policy, seed: int = 1) -> str:
    """``"right"``, ``"wrong"``, or the kind of fault that ended the run."""
    emulator = EmulatorBackend(policy, seed=seed)
    launch = KERNELS_OF[kernel](emulator)
    compiled = emulator.compile(source(kernel, fault, launch))
    try:
        emulator.launch(compiled, launch.grid, launch.block, launch.args, launch.shared_bytes, cluster=launch.cluster)
    except EmulatorFault as ended:
        return ended.kind
    result = emulator.download(launch.result).astype(np.float32)
    return "right" if np.array_equal(result, launch.expected.astype(np.float32)) else "wrong"


def findings(kernel: str, fault: str, policy: Policy = "eager") -> EmulatorFault | None:
    emulator = EmulatorBackend(policy, seed=3)
    launch = KERNELS_OF[kernel](emulator)
    try:
        check_races(
            emulator,
            source(kernel, fault, launch),
            launch.grid,
            launch.block,
            launch.args,
            launch.shared_bytes,
            cluster=launch.cluster,
        )
    except EmulatorFault as found:
        return found
    return None
