"""What to ask of a warp: ldmatrix and stmatrix, fragments of mma.sync, conversions, and which lane is elected."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from probe_case import Array, Case, download_words, empty_words, probe_source, upload_words

from tilewright.backends.base import Backend
from tilewright.dtypes import BF16, FP16, DType
from tilewright.source import KernelSource

SHARED_BYTES = 4096
LANES = np.arange(32)
# Byte offsets of the rows that the lanes name.
ROWS = {
    "one after another": LANES * 16,
    "any order, 80 apart": (LANES * 5 + 3) % 32 * 80,
    "swizzled": LANES * 128 + (LANES % 8) * 16,
}
SHARED_ROWS = {"one for all": LANES * 0 + 48, "pairs": LANES // 2 * 32}  # only to be read
_MATRIX = {
    "ldmatrix x4": 0, "ldmatrix x4 trans": 1, "ldmatrix x2": 2, "ldmatrix x2 trans": 3,
    "stmatrix x4": 4, "stmatrix x4 trans": 5, "stmatrix x2": 6, "stmatrix x2 trans": 7,
}  # fmt: skip
_MMA = {BF16: 8, FP16: 9}
_ELECT = 10


def warp_source(backend: Backend) -> KernelSource:
    """The kernel of one instruction of a warp."""
    return probe_source(backend, "warp.cu", SHARED_BYTES=SHARED_BYTES)


def warp(
    backend: Backend, operation: int, offsets: Array, registers: Array, accumulators: Array
) -> tuple[Array, Array, Array]:
    """Shared memory, which counted up, ``(32, 6)`` registers and ``(32, 4)`` accumulators after an instruction."""
    image = np.arange(SHARED_BYTES // 2).astype(np.uint16)
    held = [upload_words(backend, x) for x in (image, registers, accumulators)]
    arguments = [np.int32(operation), upload_words(backend, offsets.astype(np.uint32)), *held]
    backend.launch(backend.compile(warp_source(backend)), (1, 1, 1), (32, 1, 1), arguments, SHARED_BYTES)
    shared, found, d = (download_words(backend, x)[0] for x in held)
    return shared.view(np.uint16), found.reshape(32, 6), d.view(np.float32).reshape(32, 4)


def matrix(operation: int, offsets: Array, backend: Backend) -> Array:
    """The registers that ldmatrix fills, or the shared memory that stmatrix does."""
    registers = (np.arange(192) * 0x10003 + 0x80007000).astype(np.uint32)
    shared, found, _ = warp(backend, operation, offsets, registers, np.zeros(128, np.float32))
    return shared if operation >= 4 else found


def product(dtype: DType, backend: Backend) -> Array:
    """D of mma.sync on fragments of small integers."""
    rng = np.random.default_rng(16)
    registers = rng.integers(-8, 9, (32, 12)).astype(dtype.numpy).view(np.uint32)
    start = rng.integers(-99, 100, (32, 4)).astype(np.float32)
    return warp(backend, _MMA[dtype], LANES * 16, registers, start)[2]


def elected(backend: Backend) -> Array:
    """1 for the lane that is elected of all 32."""
    found = warp(backend, _ELECT, LANES * 16, np.zeros(192, np.uint32), np.zeros(128, np.float32))[1]
    lanes: Array = found[:, 0].astype(np.uint8)
    return lanes


# ---- conversions -----------------------------------------------------------------------------------------------------


def floats() -> Array:
    """fp32 bit patterns of both signs and all exponents: at, just below and just above what is rounded up or down."""
    below = [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x17FFF, 0x18000, 0x18001, 0x7FFFFF]  # 16 bits go, for bf16
    below += [0xFFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x3001, 0x400000, 0x7FEFFF, 0x7FF000]  # 13, for fp16
    subnormal = [(0x800000 | bits) & 0x7FFFFF for bits in (1 << i for i in range(23))]  # ties of subnormal fp16
    patterns = [e << 23 | m for e in range(256) for m in below]
    patterns += [e << 23 | m for e in range(100, 116) for m in (*subnormal, *(m | 1 for m in subnormal))]
    unsigned = np.array(sorted(set(patterns)), np.uint32)
    return np.concatenate([unsigned, unsigned | np.uint32(0x80000000)])


def halves() -> Array:
    """16-bit patterns: every seventh, and those about zero, infinity and the largest subnormal."""
    about = [start + i for start in (0, 0x03F8, 0x7BF8, 0x7BF8, 0x7F78, 0x7FF0) for i in range(16)]
    patterns = {*range(0, 0x8000, 7), *(x & 0x7FFF for x in about)}
    unsigned = np.array(sorted(patterns), np.uint32)
    return np.concatenate([unsigned, unsigned | np.uint32(0x8000)])


CONVERSIONS = {
    "pairs to bf16": 0, "pairs to fp16": 1, "fp32 to bf16": 2, "fp32 to fp16": 3, "bf16 to fp32": 4, "fp16 to fp32": 5,
}  # fmt: skip
_FIRST_WIDENING = 4


def convert_source(backend: Backend) -> KernelSource:
    """The kernel of the conversions."""
    return probe_source(backend, "convert.cu")


def convert(operation: int, backend: Backend) -> Array:
    """What ``floats`` or ``halves`` become; of pairs, the first with the last."""
    widening = operation >= _FIRST_WIDENING
    values = halves() if widening else floats()
    given, out = upload_words(backend, values), empty_words(backend, 1, values.size)
    arguments = [*map(np.int32, (operation, values.size)), given, given, out, out]
    grid = (-(-values.size // 256), 1, 1)
    backend.launch(backend.compile(convert_source(backend)), grid, (256, 1, 1), arguments, 0)
    found: Array = download_words(backend, out)[0]
    return found.astype(np.uint16) if operation in (2, 3) else found


def warp_cases() -> Iterator[Case]:
    """Instructions of one warp and conversions."""
    for name, operation in _MATRIX.items():
        for what, offsets in (ROWS if operation >= 4 else {**ROWS, **SHARED_ROWS}).items():
            yield Case(f"{name}, rows {what}", warp_source, partial(matrix, operation, offsets))
    for dtype in _MMA:
        yield Case(f"mma.sync {dtype}", warp_source, partial(product, dtype))
    yield Case("elect.sync", warp_source, elected)
    for name, operation in CONVERSIONS.items():
        yield Case(f"convert {name}", convert_source, partial(convert, operation))
