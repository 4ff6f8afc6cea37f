"""wgmma in the emulator: every width, layout and swizzle against NumPy, under each policy of asynchronous work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from fragments import Layout, a_fragments, accumulator_places
from observed import Call, kernel_source

from tilewright.backends.emulator import EmulatorBackend
from tilewright.backends.emulator_checks import check_bounds
from tilewright.backends.emulator_runtime import POLICIES, Policy
from tilewright.backends.host_compiler import HostCompiler, available_compilers
from tilewright.dtypes import BF16, FP16, DType

Array = np.ndarray[Any, Any]
WIDTHS = (8, 16, 64, 96, 176, 192, 256)
SWIZZLES = (0, 32, 64, 128)
POLICY_SEEDS: tuple[tuple[Policy, int], ...] = (*((policy, 0) for policy in POLICIES), ("random", 1), ("random", 2))


@pytest.fixture(params=available_compilers(), ids=lambda c: c.kind)
def compiler(request: pytest.FixtureRequest) -> HostCompiler:
    """Every compiler found here."""
    found: HostCompiler = request.param
    return found


@dataclass(frozen=True)
class Product:
    """D = A B or D += A B of 64 x K and K x N by wgmma.cu: the operands' layouts, and A from registers or not."""

    a: Layout
    b: Layout
    dtype: DType = BF16
    a_in_registers: bool = False
    accumulate: bool = True
    a_start: int = 0  # bytes: where A begins in shared memory; B follows, at the next multiple of 1024

    @property
    def b_start(self) -> int:
        return -(-(self.a_start + self.a.nbytes) // 1024) * 1024

    def call(self, backend: EmulatorBackend, a: Array, b: Array, c: Array) -> Call:
        """A launch; the last two matrices among the arguments are the accumulators and what was read too early."""
        shared_bytes = self.b_start + self.b.nbytes
        shared = np.zeros(-(-shared_bytes // 1024) * 1024, np.uint8)
        shared[self.a_start :][: self.a.nbytes] = self.a.image(a)
        shared[self.b_start :][: self.b.nbytes] = self.b.image(b.T.copy())
        steps = range(0, a.shape[1], 16)
        fragments = np.concatenate([a_fragments(a[:, k : k + 16]) for k in steps])
        descriptors = np.array(
            [(self.a.descriptor(self.a_start, k), self.b.descriptor(self.b_start, k)) for k in steps], np.uint64
        )
        threads, register = accumulator_places(64, b.shape[1])
        plan = {
            "N": b.shape[1],
            "TRANSPOSE_A": int(self.a.mn_major),
            "TRANSPOSE_B": int(self.b.mn_major),
            "A_IN_REGISTERS": int(self.a_in_registers),
            "SHARED_BYTES": shared.nbytes,
        }
        args = [
            *(backend.upload(words.view(np.float32).reshape(1, -1)) for words in (shared, fragments, descriptors)),
            backend.upload(c[threads, register]),
            backend.upload(np.zeros((1, 128), np.float32)),
            *map(np.int32, (len(steps), self.accumulate)),
        ]
        source = kernel_source("core/wgmma.cu", self.dtype, **plan)
        return Call(source, (1, 1, 1), (128, 1, 1), args, shared.nbytes)

    def run(self, backend: EmulatorBackend, a: Array, b: Array, c: Array) -> tuple[Array, Array]:
        """D, and the first accumulator register of each thread as it was before the wait."""
        launch = self.call(backend, a, b, c)
        source, *rest, _ = launch
        backend.launch(backend.compile(source), *rest)
        d = np.empty_like(c)
        d[accumulator_places(64, b.shape[1])] = backend.download(launch.args[3])
        return d, backend.download(launch.args[4])[0]


def integers(dtype: DType, depth: int, width: int) -> tuple[Array, Array, Array]:
    """Operands whose products and sums are small integers."""
    random = np.random.default_rng(depth + width)
    a = random.integers(-8, 9, (64, depth)).astype(dtype.numpy)
    b = random.integers(-8, 9, (depth, width)).astype(dtype.numpy)
    return a, b, random.integers(-99, 99, (64, width)).astype(np.float32)


def check(compiler: HostCompiler, product: Product) -> None:
    """Exact under every policy, with what was there added or not."""
    a, b, c = integers(product.dtype, product.a.depth, product.b.size)
    expected = a.astype(np.float32) @ b.astype(np.float32) + (c if product.accumulate else 0)
    for policy, seed in POLICY_SEEDS:
        d, early = product.run(EmulatorBackend(policy, seed=seed, compiler=compiler), a, b, c)
        np.testing.assert_array_equal(d, expected, err_msg=policy)
        if policy == "lazy":
            assert np.isnan(early).all()
        elif policy == "eager":
            np.testing.assert_array_equal(early, expected[accumulator_places(64, b.shape[1])][:, 0])


@pytest.mark.parametrize("a_in_registers", [False, True], ids=["shared", "registers"])
@pytest.mark.parametrize("width", WIDTHS)
def test_every_width(compiler: HostCompiler, width: int, a_in_registers: bool) -> None:
    check(compiler, Product(Layout(64, 64, 128, False), Layout(width, 64, 128, False), a_in_registers=a_in_registers))


@pytest.mark.parametrize("dtype", [BF16, FP16], ids=lambda d: d.name)
@pytest.mark.parametrize("b_mn_major", [False, True], ids=["b_k", "b_n"])
@pytest.mark.parametrize("a_mn_major", [False, True], ids=["a_k", "a_m"])
def test_every_layout(compiler: HostCompiler, a_mn_major: bool, b_mn_major: bool, dtype: DType) -> None:
    for swizzle in SWIZZLES:
        for b_swizzle in (swizzle, 128):
            a, b = Layout(64, 64, swizzle, a_mn_major), Layout(128, 64, b_swizzle, b_mn_major)
            check(compiler, Product(a, b, dtype, accumulate=swizzle == 64))


@pytest.mark.parametrize("mn_major", [False, True])
def test_core_matrices_without_a_swizzle_in_either_order(compiler: HostCompiler, mn_major: bool) -> None:
    for k_first in (False, True):
        a, b = (Layout(size, 32, 0, mn_major, k_first) for size in (64, 64))
        check(compiler, Product(a, b, a_start=16))


@pytest.mark.parametrize("width", [64, 192])
def test_b_along_n_with_a_in_registers(compiler: HostCompiler, width: int) -> None:
    check(compiler, Product(Layout(64, 64, 128, False), Layout(width, 64, 128, True), FP16, a_in_registers=True))


def test_steps_of_k_are_what_kernels_add_to_a_descriptor() -> None:
    for mn_major, step in ((False, 32), (True, 2048)):
        tile = Layout(128, 64, 128, mn_major)
        assert [tile.descriptor(1024, 16 * i) - tile.descriptor(1024) for i in range(4)] == [
            i * step >> 4 for i in range(4)
        ]


def test_random_numbers(compiler: HostCompiler) -> None:
    random = np.random.default_rng(3)
    product = Product(Layout(64, 64, 128, False), Layout(64, 64, 128, True), FP16)
    a, b = (random.standard_normal(shape).astype(np.float16) for shape in ((64, 64), (64, 64)))
    d, _ = product.run(EmulatorBackend(compiler=compiler), a, b, np.zeros((64, 64), np.float32))
    a, b = a.astype(np.float64), b.astype(np.float64)
    assert (np.abs(d - a @ b) <= 64 * 2.0**-24 * (np.abs(a) @ np.abs(b))).all()


def test_each_warpgroup_of_a_block_multiplies_for_itself(compiler: HostCompiler) -> None:
    a, b, c = integers(BF16, 64, 64)
    tile = Layout(64, 64, 128, False)
    backend = EmulatorBackend("random", compiler=compiler)
    source, grid, _, args, shared_bytes, _ = Product(tile, tile).call(backend, a, b, c)
    places = accumulator_places(64, 64)
    args[3] = backend.upload(np.concatenate([c[places], c[places] + 1]))
    args[4] = backend.upload(np.zeros((1, 256), np.float32))
    backend.launch(backend.compile(source), grid, (256, 1, 1), args, shared_bytes)
    expected = (a.astype(np.float32) @ b.astype(np.float32) + c)[places]
    np.testing.assert_array_equal(backend.download(args[3]), np.concatenate([expected, expected + 1]))


def test_the_watched_build_computes_the_same(compiler: HostCompiler) -> None:
    a, b, c = integers(BF16, 64, 64)
    product = Product(Layout(64, 64, 128, True), Layout(64, 64, 128, False))
    backend = EmulatorBackend("lazy", compiler=compiler)
    launch = product.call(backend, a, b, c)
    check_bounds(backend, *launch)
    places = accumulator_places(64, 64)
    expected = (a.astype(np.float32) @ b.astype(np.float32) + c)[places]
    np.testing.assert_array_equal(backend.download(launch.args[3]), expected)
