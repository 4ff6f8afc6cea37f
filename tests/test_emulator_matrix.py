"""ldmatrix, stmatrix, mma.sync and what goes with them, in the emulator: against the layouts of the PTX ISA."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from fragments import a_fragments, accumulator_places, b_fragments, pack_pairs
from observed import Call, kernel_source

from tilewright.backends.base import Matrix
from tilewright.backends.emulator import EmulatorBackend
from tilewright.backends.emulator_checks import check_bounds, check_races
from tilewright.backends.emulator_trace import trace
from tilewright.backends.host_compiler import HostCompiler, available_compilers
from tilewright.dtypes import BF16, FP16, FP32, DType
from tilewright.errors import EmulatorFault

Array = np.ndarray[Any, Any]
ROWS = (np.arange(32) * 5 + 3) % 32  # the row that each lane of matrix.cu names
MATRIX_ROWS = np.arange(256, dtype=np.uint16).reshape(32, 8) + 1000
REGISTERS = np.arange(128, dtype=np.uint32).reshape(32, 4) * 0x10003 + 7


@pytest.fixture(params=available_compilers(), ids=lambda c: c.kind)
def emulator(request: pytest.FixtureRequest) -> EmulatorBackend:
    """One with every compiler found here."""
    compiler: HostCompiler = request.param
    return EmulatorBackend(compiler=compiler)


def words(backend: EmulatorBackend, values: Array) -> Matrix:
    """32-bit values as a matrix, whatever their type."""
    return backend.upload(values.reshape(1, -1).view(np.float32))


def call(backend: EmulatorBackend, case: int, *, matrices: int = 4, transposed: bool = False, gone: int = 0) -> Call:
    """A case of matrix.cu on one warp; the last argument is 4 words a lane."""
    plan = {"CASE": case, "MATRICES": matrices, "TRANSPOSED": int(transposed), "PITCH": 80, "SHARED_BYTES": 32 * 80}
    halves = backend.upload(MATRIX_ROWS.reshape(1, -1).view(ml_dtypes.bfloat16))
    args = [np.int32(gone), halves, words(backend, REGISTERS), words(backend, np.zeros(128, np.uint32))]
    return Call(kernel_source("core/matrix.cu", **plan), (1, 1, 1), (32, 1, 1), args, 32 * 80)


def run(backend: EmulatorBackend, case: int, **how: Any) -> Array:
    launch = call(backend, case, **how)
    source, *rest, _ = launch
    backend.launch(backend.compile(source), *rest)
    out: Array = backend.download(launch.args[-1])[0].view(np.uint32).reshape(32, 4)
    return out


def fragment(matrices: Array, transposed: bool) -> Array:
    """``(32, n)`` registers of ``n`` 8x8 matrices, as ldmatrix gives them."""
    lane, half = np.arange(32)[:, None], np.arange(2)[None, :]
    columns = [m.T if transposed else m for m in matrices]
    return np.stack([pack_pairs(m[lane // 4 + 0 * half, lane % 4 * 2 + half])[:, 0] for m in columns], axis=1)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("matrices", [2, 4])
def test_ldmatrix(emulator: EmulatorBackend, matrices: int, transposed: bool) -> None:
    expected = REGISTERS.copy()
    expected[:, :matrices] = fragment(MATRIX_ROWS[ROWS].reshape(4, 8, 8)[:matrices], transposed)
    np.testing.assert_array_equal(run(emulator, 0, matrices=matrices, transposed=transposed), expected)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("matrices", [2, 4])
def test_stmatrix(emulator: EmulatorBackend, matrices: int, transposed: bool) -> None:
    shared = run(emulator, 1, matrices=matrices, transposed=transposed).view(np.uint16).reshape(32, 8)
    stored, untouched = ROWS[: 8 * matrices], ROWS[8 * matrices :]
    np.testing.assert_array_equal(fragment(shared[stored].reshape(matrices, 8, 8), transposed), REGISTERS[:, :matrices])
    np.testing.assert_array_equal(shared[untouched], MATRIX_ROWS[untouched])


@pytest.mark.parametrize("gone", [0, 1, 31])
def test_elect_one_elects_the_lowest_live_lane(emulator: EmulatorBackend, gone: int) -> None:
    elected = run(emulator, 2, gone=gone)[:, 0]
    np.testing.assert_array_equal(elected[gone:], np.arange(gone, 32) == gone)


def test_the_observers_see_each_lanes_row(emulator: EmulatorBackend) -> None:
    check_races(emulator, *call(emulator, 0))
    check_bounds(emulator, *call(emulator, 1))
    with pytest.raises(EmulatorFault, match=r"wrote at matrix\.cu:\d+, thread \d+ read at matrix\.cu:\d+"):
        check_races(emulator, *call(emulator, 10))
    loads = trace(emulator, *call(emulator, 0), names=("in", "registers", "out")).shared_loads
    assert (loads.requests, loads.bytes) == (1, 512)
    stores = trace(emulator, *call(emulator, 1, matrices=2), names=("in", "registers", "out")).shared_stores
    assert stores.bytes == 512 + 256  # the kernel's own, and 16 rows


@pytest.mark.parametrize(
    ("case", "kind", "text"),
    [
        (11, "misaligned", r"ldmatrix: the row at shared\+2242 is not 16-byte aligned \[.* thread 5\]"),
        (12, "out-of-bounds", r"ldmatrix: the row at 0x\w+ is not in this block's 2560 bytes .* thread 5\]"),
        (13, "out-of-bounds", r"stmatrix: the row at 0x\w+ is not in this block's 2560 bytes .* thread 5\]"),
        (14, "divergence", r"ldmatrix needs the 32 lanes of warp 0, of which 0xffffffdf are there"),
        (15, "divergence", r"lane \d+ is at \w+ while others of warp 0 wait at \w+"),
        (16, "divergence", r"ldmatrix of another shape or order than lane 0's \[.* thread 5\]"),
    ],
)
def test_misused_rows(emulator: EmulatorBackend, case: int, kind: str, text: str) -> None:
    with pytest.raises(EmulatorFault, match=text) as caught:
        run(emulator, case)
    assert caught.value.kind == kind


# ---- mma.sync --------------------------------------------------------------------------------------------------------


def multiply(backend: EmulatorBackend, dtype: DType, a: Array, b: Array, c: Array, rounds: int = 1) -> Array:
    """C + ``rounds`` A B by mma.cu."""
    where = accumulator_places(16, 8)
    d = backend.upload(c[where].reshape(1, -1))
    fragments = [words(backend, a_fragments(a)), words(backend, b_fragments(b))]
    mma = backend.compile(kernel_source("core/mma.cu", dtype))
    backend.launch(mma, (1, 1, 1), (32, 1, 1), [np.int32(rounds), *fragments, d], 0)
    out = np.empty((16, 8), np.float32)
    out[where] = backend.download(d).reshape(32, 4)
    return out


@pytest.mark.parametrize("dtype", [BF16, FP16], ids=lambda d: d.name)
def test_mma_of_small_integers_is_exact(emulator: EmulatorBackend, dtype: DType) -> None:
    random = np.random.default_rng(1)
    a, b = (random.integers(-9, 9, shape).astype(dtype.numpy) for shape in ((16, 16), (16, 8)))
    c = random.integers(-99, 99, (16, 8)).astype(np.float32)
    expected = c + 3 * (a.astype(np.float32) @ b.astype(np.float32))
    np.testing.assert_array_equal(multiply(emulator, dtype, a, b, c, rounds=3), expected)


@pytest.mark.parametrize("dtype", [BF16, FP16], ids=lambda d: d.name)
def test_mma_has_every_element_once(emulator: EmulatorBackend, dtype: DType) -> None:
    unit = np.eye(16, dtype=dtype.numpy)
    b = np.arange(128).reshape(16, 8).astype(dtype.numpy)
    np.testing.assert_array_equal(multiply(emulator, dtype, unit, b, np.zeros((16, 8), np.float32)), b)


def test_mma_of_fp16_takes_all_of_fp16(emulator: EmulatorBackend) -> None:
    special = np.array([0x0001, 0x8003, 0x03FF, 0x0400, 0x7BFF, 0x7C00, 0xFC00, 0x7E01], np.uint16).view(np.float16)
    a = np.zeros((16, 16), np.float16)
    a[np.arange(8), np.arange(8)] = special
    b = np.zeros((16, 8), np.float16)
    b[np.arange(8), np.arange(8)] = 1
    with np.errstate(invalid="ignore"):
        expected = (a[:, :, None].astype(np.float32) * b[None].astype(np.float32)).sum(axis=1)
    np.testing.assert_array_equal(multiply(emulator, FP16, a, b, np.zeros((16, 8), np.float32)), expected)


@pytest.mark.parametrize("dtype", [BF16, FP16], ids=lambda d: d.name)
def test_mma_of_random_numbers(emulator: EmulatorBackend, dtype: DType) -> None:
    random = np.random.default_rng(2)
    a, b = (random.standard_normal(shape).astype(dtype.numpy) for shape in ((16, 16), (16, 8)))
    got = multiply(emulator, dtype, a, b, np.zeros((16, 8), np.float32))
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    assert (np.abs(got - wide_a @ wide_b) <= 16 * 2.0**-24 * (np.abs(wide_a) @ np.abs(wide_b))).all()


# ---- element types ---------------------------------------------------------------------------------------------------


def floats_around(dtype: DType) -> Array:
    """65536 floats: those halfway between neighbours of a 16-bit type, the next to them, special ones, and others."""
    infinity = int(np.array(np.inf, dtype.numpy).view(np.uint16))
    finite = np.arange(infinity, dtype=np.uint16).view(dtype.numpy).astype(np.float64)
    finite = np.append(finite, 2 * finite[-1] - finite[-2])  # from halfway to this on, infinity
    halfway = ((finite[:-1] + finite[1:]) / 2).astype(np.float32)
    near = np.stack([halfway, np.nextafter(halfway, np.float32(0)), np.nextafter(halfway, np.float32(np.inf))])
    special = np.array([*near[:, -1], finite[-2], np.inf, np.nan, 2.0**-149], np.float32)
    random = np.random.default_rng(4)
    others = random.integers(0, 2**32, 4096, dtype=np.uint32).view(np.float32)
    chosen = random.permutation(near.ravel())[: 65536 - others.size - 2 * special.size]
    signs = random.choice(np.array([-1, 1], np.float32), chosen.size)
    return np.concatenate([special, -special, others, chosen * signs])


@pytest.mark.parametrize("dtype", [BF16, FP16], ids=lambda d: d.name)
def test_conversions_of_16_bit_elements(emulator: EmulatorBackend, dtype: DType) -> None:
    values, halves = floats_around(dtype), np.arange(65536, dtype=np.uint32).astype(np.uint16).view(dtype.numpy)
    assert values.size == halves.size
    narrow, wide = emulator.empty(1, values.size, dtype), emulator.empty(1, values.size, FP32)
    pairs = emulator.empty(1, values.size // 2, FP32)
    args = [np.int32(values.size), words(emulator, values), narrow, pairs, emulator.upload(halves[None]), wide]
    emulator.launch(emulator.compile(kernel_source("core/halves.cu", dtype)), (1, 1, 1), (32, 1, 1), args, 0)
    np.testing.assert_array_equal(emulator.download(wide)[0], halves.astype(np.float32))

    with np.errstate(over="ignore", invalid="ignore"):
        expected = values.astype(dtype.numpy).view(np.uint16).copy()
    expected[np.isnan(values)] = 0x7FFF  # as cvt makes it
    np.testing.assert_array_equal(emulator.download(narrow)[0].view(np.uint16), expected)
    np.testing.assert_array_equal(emulator.download(pairs)[0].view(np.uint16), expected)
