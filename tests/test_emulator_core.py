"""The emulator's core: what a kernel computes, and what it is told when it does what a GPU would not forgive."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright.backends.base import Matrix
from tilewright.backends.emulator import EmulatorBackend, EmulatorKernel
from tilewright.backends.emulator_runtime import POLICIES, Policy
from tilewright.backends.host_compiler import HostCompiler, available_compilers
from tilewright.dtypes import BF16, FP32
from tilewright.errors import CompileError, EmulatorFault, UsageError
from tilewright.source import KernelSource, flatten

KERNELS = Path(__file__).parent / "kernels" / "core"
Array = np.ndarray[Any, Any]
Build = Callable[..., EmulatorKernel]


@pytest.fixture(params=available_compilers(), ids=lambda c: c.kind)
def compiler(request: pytest.FixtureRequest) -> HostCompiler:
    """Every compiler found here."""
    found: HostCompiler = request.param
    return found


@pytest.fixture
def emulator(compiler: HostCompiler) -> EmulatorBackend:
    return EmulatorBackend(compiler=compiler)


def kernel(backend: EmulatorBackend, name: str, **plan: int) -> EmulatorKernel:
    """A kernel of tests/kernels/core with its plan values."""
    return backend.compile(source(name, **plan))


def source(name: str, **plan: int) -> KernelSource:
    values = "".join(f"constexpr int {key} = {value};\n" for key, value in {"SHARED_BYTES": 0, **plan}.items())
    header = f"namespace plan {{\n{values}}}\n"
    return KernelSource(name, flatten(KERNELS / f"{name}.cu", "host", header), "host")


def row(backend: EmulatorBackend, values: Array) -> Matrix:
    return backend.upload(values.reshape(1, -1))


def numbers(count: int) -> Array:
    return np.arange(count, dtype=np.float32)


# ---- what a kernel computes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cluster", [1, 2, 4])
def test_indices_in_three_dimensions(emulator: EmulatorBackend, cluster: int) -> None:
    grid, block = (4, 2, 2), (5, 3, 2)
    count = 16 * 30
    out = row(emulator, np.zeros(count, np.float32))
    emulator.launch(kernel(emulator, "indices"), grid, block, [out], 0, cluster=cluster)
    np.testing.assert_array_equal(emulator.download(out)[0], numbers(count))


def test_only_the_named_blocks_run(emulator: EmulatorBackend) -> None:
    expected = np.zeros((4, 32), np.float32)
    out = row(emulator, expected)
    emulator.launch(kernel(emulator, "indices"), (4, 1, 1), (32, 1, 1), [out], 0, blocks=[3, 1])
    expected[[1, 3]] = numbers(128).reshape(4, 32)[[1, 3]]
    np.testing.assert_array_equal(emulator.download(out).reshape(4, 32), expected)
    assert emulator.last_launch is not None
    assert emulator.last_launch.blocks == 2


def test_conversions_and_wide_access(emulator: EmulatorBackend) -> None:
    ties = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -0.0, np.inf, -np.inf, np.nan, 3.4e38], np.float32)
    random = np.random.default_rng(1).standard_normal(24).astype(np.float32)
    values = np.concatenate([ties, random])
    narrow, wide = emulator.empty(1, 32, BF16), emulator.empty(1, 32, FP32)
    emulator.launch(kernel(emulator, "types"), (1, 1, 1), (4, 1, 1), [row(emulator, values), narrow, wide], 0)
    expected = values.astype(ml_dtypes.bfloat16)
    got = emulator.download(narrow)[0]
    np.testing.assert_array_equal(got.view(np.uint16)[~np.isnan(values)], expected.view(np.uint16)[~np.isnan(values)])
    assert np.isnan(got[6].astype(np.float32))
    np.testing.assert_array_equal(emulator.download(wide)[0], expected.astype(np.float32))


@pytest.mark.parametrize("threads", [32, 96, 1024])
def test_syncthreads(emulator: EmulatorBackend, threads: int) -> None:
    rounds = 7
    rotate = kernel(emulator, "barriers", CASE=0, THREADS=threads, SHARED_BYTES=threads * 4)
    out = emulator.empty(1, 2 * threads, FP32)
    emulator.launch(rotate, (2, 1, 1), (threads, 1, 1), [np.int32(rounds), out], threads * 4)
    expected = np.tile((np.arange(threads) + rounds) % threads, 2)
    np.testing.assert_array_equal(emulator.download(out)[0], expected)


def test_named_barriers(emulator: EmulatorBackend) -> None:
    threads, rounds = 128, 5
    hand_over = kernel(emulator, "barriers", CASE=1, THREADS=threads, SHARED_BYTES=threads * 4)
    out = emulator.empty(1, threads, FP32)
    emulator.launch(hand_over, (1, 1, 1), (threads, 1, 1), [np.int32(rounds), out], threads * 4)
    expected = rounds * np.arange(64) + sum(range(rounds))
    np.testing.assert_array_equal(emulator.download(out)[0, :64], expected)


def test_syncthreads_after_threads_returned_is_a_warning(emulator: EmulatorBackend) -> None:
    early = kernel(emulator, "barriers", CASE=2, THREADS=64, SHARED_BYTES=256)
    out = emulator.empty(1, 64, FP32)
    with pytest.warns(RuntimeWarning, match="after threads of the block had returned"):
        emulator.launch(early, (1, 1, 1), (64, 1, 1), [np.int32(0), out], 256)
    np.testing.assert_array_equal(emulator.download(out)[0, ::2], numbers(64)[::2])


def test_shuffles_and_atomics(emulator: EmulatorBackend) -> None:
    threads = 64
    warps = kernel(emulator, "warps", THREADS=threads, SHARED_BYTES=8)
    out = emulator.empty(5, threads, FP32)
    emulator.launch(warps, (1, 1, 1), (threads, 1, 1), [out], 8)
    got = emulator.download(out)
    thread = np.arange(threads)
    np.testing.assert_array_equal(got[0], np.repeat(thread.reshape(2, 32).sum(axis=1), 32))
    np.testing.assert_array_equal(got[1], thread // 32 * 32 + thread % 32 // 2)
    np.testing.assert_array_equal(got[2], np.where(thread % 32 < 29, thread + 3, thread))
    np.testing.assert_array_equal(got[3], np.full(threads, thread.sum()))
    np.testing.assert_array_equal(got[4], np.full(threads, threads))


# ---- memory of matrices ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
def test_a_matrix_comes_back_and_its_padding_is_poison(emulator: EmulatorBackend, dtype: Any) -> None:
    values = np.arange(15).reshape(3, 5).astype(dtype)
    matrix = emulator.upload(values, ld=8)
    np.testing.assert_array_equal(emulator.download(matrix), values)
    assert matrix.pointer % 16 == 0
    assert emulator.padding_intact(matrix)
    matrix.owner.bytes()[8 * matrix.dtype.itemsize - 1] = 0
    assert not emulator.padding_intact(matrix)
    np.testing.assert_array_equal(emulator.download(matrix), values)


@pytest.mark.parametrize(("rows", "cols"), [(0, 0), (0, 5), (5, 0), (1, 1)])
def test_an_empty_matrix_is_poisoned_and_may_have_no_elements(emulator: EmulatorBackend, rows: int, cols: int) -> None:
    matrix = emulator.empty(rows, cols, FP32, ld=8)
    assert emulator.download(matrix).shape == (rows, cols)
    assert np.isnan(emulator.download(matrix)).all()
    assert emulator.padding_intact(matrix)
    assert emulator.download(emulator.upload(np.zeros((rows, cols), np.float32))).shape == (rows, cols)


def test_what_is_no_matrix_is_refused(emulator: EmulatorBackend) -> None:
    with pytest.raises(UsageError, match="int64"):
        emulator.upload(np.zeros((2, 2), np.int64))
    with pytest.raises(UsageError, match="1 dimensions"):
        emulator.upload(np.zeros(2, np.float32))
    with pytest.raises(UsageError, match="ld at least the columns"):
        emulator.upload(np.zeros((2, 4), np.float32), ld=3)


def test_a_launch_that_no_gpu_takes_is_refused(emulator: EmulatorBackend) -> None:
    indices, out = kernel(emulator, "indices"), emulator.empty(1, 1, FP32)
    with pytest.raises(UsageError, match="grid is"):
        emulator.launch(indices, (0, 1, 1), (1, 1, 1), [out], 0)
    with pytest.raises(UsageError, match="block is"):
        emulator.launch(indices, (1, 1, 1), (1025, 1, 1), [out], 0)
    with pytest.raises(UsageError, match="shared_bytes is"):
        emulator.launch(indices, (1, 1, 1), (1, 1, 1), [out], 233 << 10)
    with pytest.raises(UsageError, match="argument 0 is 3"):
        emulator.launch(indices, (1, 1, 1), (1, 1, 1), [3], 0)
    with pytest.raises(UsageError, match="blocks 0 to 0"):
        emulator.launch(indices, (1, 1, 1), (1, 1, 1), [out], 0, blocks=[1])


# ---- cp.async --------------------------------------------------------------------------------------------------------


def copy(
    compiler: HostCompiler, policy: Policy, case: int, *, threads: int = 32, offset: int = 0, seed: int = 0
) -> tuple[Array, Array]:
    """Run a case of copies.cu; its input and its output."""
    backend = EmulatorBackend(policy, compiler=compiler, seed=seed)
    plan = {"CASE": case, "THREADS": threads, "SHARED_BYTES": threads * 32}
    values = np.random.default_rng(case).standard_normal(threads * 8).astype(np.float32)
    out = backend.empty(1, threads * 8, FP32)
    args = [np.int32(offset), row(backend, values), out]
    backend.launch(kernel(backend, "copies", **plan), (1, 1, 1), (threads, 1, 1), args, threads * 32)
    return values, backend.download(out)[0]


@pytest.mark.parametrize("policy", POLICIES)
def test_copies_that_are_waited_for_are_whole(compiler: HostCompiler, policy: Policy) -> None:
    values, got = copy(compiler, policy, 0)
    read = np.arange(4) <= np.arange(32)[:, None] % 4  # thread t reads t % 4 + 1 elements of 4
    np.testing.assert_array_equal(got[:128].reshape(32, 4), np.where(read, values[:128].reshape(32, 4), 0))
    values, got = copy(compiler, policy, 1)
    np.testing.assert_array_equal(got, values)
    _, got = copy(compiler, policy, 2, offset=10**6)
    np.testing.assert_array_equal(got[:128], 0)


def test_each_policy_shows_a_missing_wait_in_its_own_way(compiler: HostCompiler) -> None:
    values, got = copy(compiler, "eager", 10)
    np.testing.assert_array_equal(got[:128], values[:128])
    assert np.isnan(copy(compiler, "lazy", 10)[1][:128]).all()
    seen = [np.isnan(copy(compiler, "random", 10, seed=seed)[1][:128:4]).sum() for seed in (1, 1, 2)]
    assert 0 < seen[0] < 32
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    ("case", "offset", "kind", "text"),
    [
        (11, 0, "cp.async", "returns with 1 copies it has not waited for, 1 of them not committed"),
        (12, 0, "cp.async", "returns with 1 copies it has not waited for, 0 of them not committed"),
        (13, 0, "cp.async", "the shared destination is not 16-byte aligned: shared\\+4"),
        (14, 0, "cp.async", "the global source 0x\\w+ is not 16-byte aligned"),
        (15, 0, "cp.async", "20 valid bytes of a copy of 16"),
        (16, 0, "cp.async", "not in this block's 1024 bytes of dynamic shared memory"),
        (17, 0, "cp.async", "not in this block's 1024 bytes of dynamic shared memory"),
        (18, 256, "out-of-bounds", "cp.async reads 16 bytes at address 0x\\w+: 0 bytes past the end of matrix 0"),
    ],
)
@pytest.mark.parametrize("policy", POLICIES)
def test_misused_copies(compiler: HostCompiler, policy: Policy, case: int, offset: int, kind: str, text: str) -> None:
    with pytest.raises(EmulatorFault, match=text) as caught:
        copy(compiler, policy, case, offset=offset)
    assert caught.value.kind == kind
    assert "[block 0,0,0 thread 0]" in caught.value.detail


# ---- faults ----------------------------------------------------------------------------------------------------------


def stray(backend: EmulatorBackend, case: int, at: int) -> None:
    """One access of stray.cu at element ``at``, by thread 5 of block 1; the input is 3 x 6, the output 4 x 5."""
    source = backend.upload(np.ones((3, 6), np.float32), ld=7)
    out = backend.empty(4, 5, FP32)
    args = [np.int64(at), source, out]
    code = kernel(backend, "stray", CASE=case, SHARED_BYTES=1000)
    backend.launch(code, (2, 1, 1), (32, 1, 1), args, 1000)


@pytest.mark.parametrize(
    ("case", "at", "kind", "text"),
    [
        (0, 20, "out-of-bounds", "0 bytes past the end of matrix 0 of 3x6 elements .*row 2, column 6"),
        (0, 3 * 7 + 5, "out-of-bounds", "24 bytes past the end of matrix 0 .*row 3, column 5"),
        (0, -2000, "out-of-bounds", "bytes before matrix 0 of 3x6 elements of 4 bytes"),
        (1, 20, "out-of-bounds", "0 bytes past the end of matrix 1 of 4x5 elements .*row 4, column 0"),
        (1, -4096, "out-of-bounds", "bytes before matrix 1"),
        (2, 20, "out-of-bounds", "past the end of matrix 1"),
        (2, 1, "misaligned", "wide load or store"),
        (3, 1024, "out-of-bounds", "shared\\+4096 of block rank 0, which has 1000 shared bytes"),
        (4, 0, "misuse", "division by zero"),
        (5, (1 << 20) - 1, "out-of-bounds", "local memory of 512 KB has overflowed"),
    ],
)
def test_a_stray_access_is_named(emulator: EmulatorBackend, case: int, at: int, kind: str, text: str) -> None:
    with pytest.raises(EmulatorFault, match=text) as caught:
        stray(emulator, case, at)
    assert caught.value.kind == kind
    assert "[block 1,0,0 thread 5]" in caught.value.detail


def test_several_faults_and_then_a_good_launch(emulator: EmulatorBackend) -> None:
    for _ in range(3):
        with pytest.raises(EmulatorFault, match="out-of-bounds"):
            stray(emulator, 1, 20)
        with pytest.raises(EmulatorFault, match="no thread can run"):
            stuck(emulator, 0)
    stray(emulator, 1, 19)
    test_syncthreads(emulator, 96)


def stuck(backend: EmulatorBackend, case: int) -> None:
    out = backend.empty(1, 96, FP32)
    backend.launch(kernel(backend, "stuck", CASE=case), (1, 1, 1), (96, 1, 1), [out], 0)


def test_a_deadlock_says_who_waits_where(emulator: EmulatorBackend) -> None:
    with pytest.raises(EmulatorFault) as caught:
        stuck(emulator, 0)
    assert caught.value.kind == "deadlock"
    assert caught.value.detail.splitlines()[1:4] == [
        "  warp 0 lanes 0-31: __syncthreads (barrier 0: 64 of 96 threads arrived)",
        "  warp 1 lanes 0-31: barrier_sync (barrier 3: 32 of 64 threads arrived)",
        "  warp 2 lanes 0-31: __syncthreads (barrier 0: 64 of 96 threads arrived) [block 0,0,0]",
    ]
    with pytest.raises(EmulatorFault) as caught:
        stuck(emulator, 1)
    assert "warp 0 lanes 8-31: __syncwarp (24 of 32 live lanes arrived)" in caught.value.detail
    assert "warps 1-2: exited" in caught.value.detail


@pytest.mark.parametrize(
    ("case", "kind", "text"),
    [
        (2, "divergence", "lane 1 is at shfl while others of warp 0 wait at shfl_xor"),
        (3, "divergence", "shfl: lane 1 reads lane 0, which has returned or does not exist"),
        (4, "misuse", "barrier 16: a block has barriers 0 to 15"),
        (5, "misuse", "barrier 1 for 33 threads: a multiple of 32 up to the block's 96"),
        (6, "misuse", "barrier 1 is used with 96 and with 64 threads at the same time"),
    ],
)
def test_misused_collectives(emulator: EmulatorBackend, case: int, kind: str, text: str) -> None:
    with pytest.raises(EmulatorFault, match=text) as caught:
        stuck(emulator, case)
    assert caught.value.kind == kind


def test_shared_memory_is_poisoned_before_each_block(emulator: EmulatorBackend, tmp_path: Path) -> None:
    path = tmp_path / "peek.cu"
    path.write_text(
        "#include <tw/memory.cuh>\nstruct S { float v[2]; };\n"
        'extern "C" __global__ void tw_gemm(float* out) {\n'
        "  S& s = tw::shared<S>();\n  out[blockIdx.x] = s.v[1];\n  s.v[1] = 1.0f;\n}\n"
    )
    text = flatten(path, "host", "namespace plan { constexpr int SHARED_BYTES = 8; }")
    peek = emulator.compile(KernelSource("peek", text, "host"))
    out = emulator.upload(np.zeros((1, 3), np.float32))
    emulator.launch(peek, (3, 1, 1), (1, 1, 1), [out], 8)
    assert np.isnan(emulator.download(out)).all()


def test_a_compile_error_shows_the_compilers_log(emulator: EmulatorBackend) -> None:
    with pytest.raises(CompileError, match=r"broken\.cu:7") as caught:
        emulator.compile(KernelSource("broken", '#line 7 "broken.cu"\nint x = nothing;\n', "host"))
    assert "nothing" in caught.value.log
    with pytest.raises(CompileError, match="not the size of the shared struct"):
        kernel(emulator, "stray", CASE=0, SHARED_BYTES=1001)
    with pytest.raises(UsageError, match="flattened for the gpu"):
        emulator.compile(KernelSource("x", "", "gpu", "sm_90a"))


def test_instrumented_kernels_count_multiply_adds(emulator: EmulatorBackend) -> None:
    counted = emulator.compile(source("types"), instrumented=True)
    values = row(emulator, numbers(32))
    args = [values, emulator.empty(1, 32, BF16), emulator.empty(1, 32, FP32)]
    stats = emulator.launch_instrumented(counted, (1, 1, 1), (4, 1, 1), args, 0)
    assert stats.fmas == 16
    with pytest.raises(UsageError, match="not compiled with instrumented"):
        emulator.launch_instrumented(kernel(emulator, "types"), (1, 1, 1), (4, 1, 1), args, 0)
