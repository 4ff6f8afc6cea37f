"""What to ask of wgmma: which elements of shared memory a descriptor means, and products by each kind of descriptor."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from fragments import Layout, a_fragments, accumulator_places
from probe_case import Array, Case, download_words, empty_words, probe_source, upload_words

from tilewright.backends.base import Backend
from tilewright.dtypes import BF16, FP16, DType
from tilewright.source import KernelSource

WIDTHS = (8, 16, 64, 96, 176, 192, 256)
SWIZZLES = (0, 32, 64, 128)
DEPTH = 64  # of the operands that are multiplied: four steps
SHARED_BYTES = 56 << 10
FIRST_PATTERN = 0x0080  # the least normal bf16; the patterns from there on are numbers that differ and that 1 keeps


def source(dtype: DType, width: int, backend: Backend) -> KernelSource:
    """The kernel of one type and N."""
    return probe_source(backend, "wgmma.cu", dtype, N=width, SHARED_BYTES=SHARED_BYTES)


@dataclass(frozen=True)
class Kind:
    """How the operands are given."""

    a_mn_major: bool = False
    b_mn_major: bool = False
    a_in_registers: bool = False

    @property
    def number(self) -> int:
        """The kernel's."""
        return 4 * self.a_in_registers + 2 * (self.a_mn_major and not self.a_in_registers) + self.b_mn_major


def multiply(
    backend: Backend,
    dtype: DType,
    kind: Kind,
    images: Sequence[Array],
    fragments: Array,
    descriptors: Sequence[tuple[int, int]],
    start: Array | None,
    width: int,
) -> tuple[Array, Array]:
    """D, ``(blocks, 64, width)`` in fp32, of a cluster with an image of shared memory each; and where the images lie.

    ``start`` is what is there before; None: nothing is added to it.
    """
    blocks, places = len(images), accumulator_places(64, width)
    d = np.zeros((64, width), np.float32) if start is None else start
    accumulators = upload_words(backend, np.stack([d[places]] * blocks))
    addresses = empty_words(backend, 1, blocks)
    arguments = [
        np.int32(kind.number),
        *(upload_words(backend, x) for x in (np.stack(images), fragments, np.array(descriptors, np.uint64))),
        *map(np.int32, (len(descriptors), start is not None)),
        accumulators,
        addresses,
    ]
    kernel = backend.compile(source(dtype, width, backend))
    backend.launch(kernel, (blocks, 1, 1), (128, 1, 1), arguments, SHARED_BYTES, cluster=blocks)
    found = download_words(backend, accumulators).view(np.float32).reshape(blocks, *places[1].shape)
    out = np.empty((blocks, 64, width), np.float32)
    out[:, places[0], places[1]] = found
    return out, download_words(backend, addresses)[0]


# ---- which elements a descriptor means -------------------------------------------------------------------------------


def descriptor(start: int, leading: int, stride: int, swizzle: int) -> int:
    """The 64 bits, of byte offsets."""
    mode = {0: 0, 128: 1, 64: 2, 32: 3}[swizzle]
    return start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | mode << 62


_IDENTITY = np.eye(16, dtype=BF16.numpy)
# A 16 x 16 identity at the end of shared memory, as core matrices without a swizzle: the other operand of A.
_SQUARE = Layout(16, 16, 0, mn_major=False)
_SQUARE_AT = SHARED_BYTES - _SQUARE.nbytes


def elements_read(of_b: bool, mn_major: bool, fields: tuple[int, int, int, int], width: int, backend: Backend) -> Array:
    """Index, in shared memory, of the element that each place of the operand is read from.

    The operand times an identity, where every element of shared memory is another number: of B with A in registers
    each warp says the same, ``(64, width)`` with k = row % 16; of A ``(64, 16)``.
    """
    patterns = np.arange(FIRST_PATTERN, FIRST_PATTERN + SHARED_BYTES // 2).astype(np.uint16)
    kind = Kind(b_mn_major=mn_major, a_in_registers=True) if of_b else Kind(a_mn_major=mn_major)
    if not of_b:
        patterns[_SQUARE_AT // 2 :] = _SQUARE.image(_IDENTITY).view(np.uint16)
    square = _SQUARE.descriptor(_SQUARE_AT)
    mine = descriptor(*fields)
    pair = (square, mine) if of_b else (mine, square)
    fragments = a_fragments(np.tile(_IDENTITY, (4, 1)))
    d, _ = multiply(backend, BF16, kind, [patterns], fragments, [pair], None, width)
    bits: Array = d[0].view(np.uint32)
    if (bits & 0xFFFF).any():  # no bf16: not the product of one element
        return bits
    indices: Array = ((bits >> 16) - FIRST_PATTERN).astype(np.uint16)
    return indices


def fields_of(layout: Layout, k: int = 0) -> tuple[int, int, int, int]:
    """Start, leading and stride byte offset and swizzle of an operand that begins at 0."""
    return (int(layout.place(0, k, swizzled=False)), *layout.offsets, layout.swizzle)


def variants(mn_major: bool, swizzle: int, size: int) -> Iterator[tuple[int, int, int, int]]:
    """Descriptors of one kind: the usual ones, and values that a kernel could have and does not."""
    usual = [Layout(size, DEPTH, swizzle, mn_major)]
    if swizzle == 0:
        usual.append(Layout(size, DEPTH, swizzle, mn_major, k_first=True))
    for layout in usual:
        yield from (fields_of(layout, k) for k in range(0, DEPTH, 16))
    start, leading, stride, _ = fields_of(usual[0])
    yield from ((start, other, stride, swizzle) for other in (0, 16, 1024, 4080))
    yield from ((start, leading, other, swizzle) for other in (0, 16, 8 * swizzle + 128, 16 * swizzle + 512))
    yield from ((other, leading, stride, swizzle) for other in (16, 128, 256, 512))


def reading_cases() -> Iterator[Case]:
    """Where each kind of descriptor reads A and B."""
    for mn_major, swizzle in itertools.product((False, True), SWIZZLES):
        major = "MN" if mn_major else "K"
        asked = [(True, n, f) for n in (64,) for f in dict.fromkeys(variants(mn_major, swizzle, 64))]
        asked += [(True, n, fields_of(Layout(n, DEPTH, swizzle, mn_major))) for n in (8, 176, 256)]
        asked += [(False, 16, f) for f in dict.fromkeys(variants(mn_major, swizzle, 64))]
        for of_b, width, fields in asked:
            start, leading, stride, _ = fields
            name = f"reads of {f'B, N {width}' if of_b else 'A'}, {major}-major, swizzle {swizzle}"
            name += f", start {start}, leading {leading}, stride {stride}"
            yield Case(name, partial(source, BF16, width), partial(elements_read, of_b, mn_major, fields, width))


# ---- products --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Product:
    """64 x DEPTH by DEPTH x N on small integers, which are exact; what lies around the operands is as random."""

    dtype: DType
    a: Layout
    b: Layout
    a_in_registers: bool = False
    accumulate: bool = False
    blocks: int = 1

    def __str__(self) -> str:
        a = "in registers" if self.a_in_registers else _described(self.a)
        more = f"{', added' * self.accumulate}{f', cluster of {self.blocks}' if self.blocks > 1 else ''}"
        return f"{self.dtype}, N {self.b.size}, A {a}, B {_described(self.b)}{more}"

    def run(self, backend: Backend) -> Array:
        """D of each block, as 8-bit integers."""
        rng = np.random.default_rng(self.b.size)
        images = rng.integers(-1, 2, (self.blocks, SHARED_BYTES // 2)).astype(self.dtype.numpy)
        a = rng.integers(-1, 2, (64, DEPTH)).astype(self.dtype.numpy)
        fragments = np.concatenate([a_fragments(a[:, k : k + 16]) for k in range(0, DEPTH, 16)])
        b_start = -(-self.a.nbytes // 1024) * 1024
        pairs = [(self.a.descriptor(0, k), self.b.descriptor(b_start, k)) for k in range(0, DEPTH, 16)]
        start = rng.integers(-50, 51, (64, self.b.size)).astype(np.float32) if self.accumulate else None
        kind = Kind(self.a.mn_major, self.b.mn_major, self.a_in_registers)
        d, _ = multiply(backend, self.dtype, kind, list(images), fragments, pairs, start, self.b.size)
        integers: Array = d.astype(np.int8)
        return integers if np.array_equal(integers, d) else d


def _described(layout: Layout) -> str:
    return f"{'MN' if layout.mn_major else 'K'}-major {layout.swizzle}"


def products() -> Iterator[Product]:
    """Every width and type; every kind of A beside three of B; in a cluster."""
    k, mn = (partial(Layout, depth=DEPTH, swizzle=128, mn_major=major) for major in (False, True))
    widths = [b(n) for n in WIDTHS for b in (k, mn) if b is k or n >= 64]  # MN-major: a slab of 64 and more
    for number, (dtype, b) in enumerate(itertools.product((BF16, FP16), widths)):
        for registers in (False, True):
            yield Product(dtype, k(64), b, registers, accumulate=(number + registers) % 2 == 0)
    for number, (swizzle, major) in enumerate(itertools.product(SWIZZLES, (False, True))):
        a = Layout(64, DEPTH, swizzle, major)
        if a != k(64):  # that one is above
            for b in dict.fromkeys((a, k(64), mn(64))):
                yield Product((BF16, FP16)[(number + number // 2) % 2], a, b)
    for b in (k(64), mn(64)):
        yield Product(BF16, mn(64), b, accumulate=True, blocks=2)


def product_cases() -> Iterator[Case]:
    """Products by each kind of descriptor."""
    for each in products():
        yield Case(f"product {each}", partial(source, each.dtype, each.b.size), each.run)


def shared_addresses(backend: Backend, blocks: int) -> list[str]:
    """What ``tw::shared_address`` says of the beginning of shared memory in each block of a cluster."""
    zeros = np.zeros(SHARED_BYTES // 2, np.uint16)
    usual = Layout(64, 16, 128, mn_major=False).descriptor(0)
    fragments = np.zeros((128, 4), np.uint32)
    _, found = multiply(backend, BF16, Kind(), [zeros] * blocks, fragments, [(usual, usual)], None, 8)
    return [f"{address:#010x}" for address in found]
