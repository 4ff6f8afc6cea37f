"""What to ask of TMA and mbarriers: where boxes land, what is zero, what a store leaves out, when phases complete.

The first coordinate of a box is a multiple of 16 bytes, as hardware wants it; a few cases show what others do.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from probe_case import Array, Case, download_words, empty_words, probe_source, upload_words

from tilewright.backends import emulator_tensor_map
from tilewright.backends.base import Backend
from tilewright.dtypes import BF16, FP16, DType
from tilewright.source import KernelSource

SWIZZLES = (0, 32, 64, 128)
CAPACITY = 36 << 10  # bytes that a probe's kernel has for boxes
BEHIND = 64  # bytes behind a box that are dumped as well
PATIENT, BRIEF = 100_000, 128  # polls of a barrier: for what must come, and for what may not


@dataclass(frozen=True)
class Tensor:
    """16-bit elements that all differ (in runs of 32,512), the gaps between lines too; dimension 0 is contiguous."""

    extents: tuple[int, ...]
    steps: tuple[int, ...]  # elements between neighbours in dimensions 1 and up; multiples of 8
    dtype: DType = BF16

    @property
    def elements(self) -> Array:
        """All of it, gaps included."""
        last = sum((n - 1) * step for n, step in zip(self.extents[1:], self.steps, strict=True))
        size = -(-(last + self.extents[0]) // 8) * 8
        return (np.arange(size) % 0x7F00 + 1).astype(np.uint16)

    def map(self, backend: Backend, base: int, box: tuple[int, ...], swizzle: int) -> bytes:
        """The tensor map of it at an address, for a backend."""
        strides = tuple(2 * step for step in self.steps)
        if backend.name == "emulator":
            return emulator_tensor_map.encode(base, 2, self.extents, strides, box, swizzle)
        from tilewright.backends.cuda import CudaBackend
        from tilewright.backends.cuda_tensor_map import encode_tiled

        assert isinstance(backend, CudaBackend)
        with backend.current():
            return encode_tiled(base, self.dtype, self.extents, strides, box, swizzle)


@dataclass(frozen=True)
class Box:
    """A box of a tensor: its first element, its shape (both contiguous dimension first) and the swizzle's bytes."""

    tensor: Tensor
    at: tuple[int, ...]
    shape: tuple[int, ...]
    swizzle: int

    @property
    def nbytes(self) -> int:
        """Bytes that it has."""
        return 2 * int(np.prod(self.shape))

    @property
    def room(self) -> int:
        """Bytes of shared memory that it may take: with rows shorter than the span, one span each."""
        return max(2 * self.shape[0], self.swizzle) * int(np.prod(self.shape[1:]))

    def coordinates(self) -> list[Any]:
        """The kernels' arguments: the number of dimensions, then three coordinates."""
        return [np.int32(i) for i in (len(self.at), *(*self.at, 0)[:3])]


# ---- loads -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Multicast:
    """Which blocks of a cluster load a part of the box each, and which receive all parts."""

    cluster: int = 1
    senders: int = 1
    receivers: int = 0  # 0: no multicast, a block loads for itself


def load_source(backend: Backend) -> KernelSource:
    """The kernel of every load."""
    return probe_source(backend, "tma_load.cu", SHARED_BYTES=CAPACITY + 1024)


def load(
    box: Box, backend: Backend, multicast: Multicast = Multicast(), expected: int = 0, polls: int = PATIENT
) -> Array:
    """Each block's shared memory, as 16-bit words, once ``expected`` bytes have come (0: the box's).

    The last two words: 1 and 0 where they did come.
    """
    count = multicast.senders.bit_count()
    memory = upload_words(backend, box.tensor.elements)
    dump_words = (box.room * multicast.cluster + BEHIND) // 4
    out = empty_words(backend, multicast.cluster, dump_words + 1)
    arguments = [
        box.tensor.map(backend, memory.pointer, box.shape, box.swizzle),
        *box.coordinates(),
        *map(np.int32, (box.shape[-1], box.nbytes)),
        *map(np.uint32, (multicast.senders, multicast.receivers, expected or box.nbytes * count)),
        *map(np.int32, (polls, dump_words)),
        out,
    ]
    kernel = backend.compile(load_source(backend))
    grid = (multicast.cluster, 1, 1)
    backend.launch(kernel, grid, (128, 1, 1), arguments, CAPACITY + 1024, cluster=multicast.cluster)
    words: Array = download_words(backend, out).view(np.uint16)
    return words


PLANE = Tensor((203, 70), (208,))
PLANE_FP16 = Tensor((203, 70), (208,), FP16)
SPACE = Tensor((77, 9, 4), (80, 80 * 10))
SLABS = Tensor((64, 40, 3), (192, 64))  # of 64 columns, of a matrix of 40 x 192
PLANE_EDGES = [
    (8, 5), (64, 33), (-8, -2), (192, 60), (200, 69), (-16, 4), (-200, 0), (208, 0), (0, 70), (0, -16), (304, -300),
]  # fmt: skip
SPACE_EDGES = [(0, 0, 0), (16, 3, 1), (-8, 7, 2), (72, -1, -1), (0, 9, 0), (0, 0, 4), (0, 0, -4), (80, 0, 0)]


def boxes() -> Iterator[tuple[str, Box]]:
    """Those that are loaded into one block, by name."""
    for swizzle in SWIZZLES:
        row = (swizzle or 96) // 2
        yield from ((f"2-D, swizzle {swizzle}", Box(PLANE, at, (row, 16), swizzle)) for at in PLANE_EDGES)
        yield from ((f"3-D, swizzle {swizzle}", Box(SPACE, at, (row, 6, 4), swizzle)) for at in SPACE_EDGES)
        yield f"fp16, swizzle {swizzle}", Box(PLANE_FP16, (192, 60), (row, 16), swizzle)
        yield from ((f"{rows} rows, swizzle {swizzle}", Box(PLANE, (8, 3), (row, rows), swizzle)) for rows in (1, 33))
    yield from ((f"rows of {2 * row}, swizzle 0", Box(PLANE, (16, 2), (row, 9), 0)) for row in (8, 24, 136, 256))
    yield "slabs, swizzle 128", Box(SLABS, (0, 8, 0), (64, 16, 3), 128)
    yield "256 rows, swizzle 128", Box(Tensor((64, 250), (64,)), (0, 0), (64, 256), 128)


def short_boxes() -> Iterator[Box]:
    """Those whose rows are shorter than the swizzle's span."""
    for row_bytes, swizzle in ((16, 32), (16, 64), (32, 64), (48, 64), (16, 128), (32, 128), (64, 128), (96, 128)):
        yield from (Box(PLANE, at, (row_bytes // 2, 16), swizzle) for at in ((8, 5), (200, 62)))
        yield Box(SPACE, (8, 2, 1), (row_bytes // 2, 6, 2), swizzle)


def load_cases() -> Iterator[Case]:
    """Loads into one block and into several."""
    for what, box in boxes():
        yield Case(f"load {what}, at {box.at}", load_source, partial(load, box))
    for swizzle, (cluster, senders, receivers) in itertools.product(
        (0, 128), ((2, 0b11, 0b11), (2, 0b01, 0b10), (4, 0b1111, 0b1111), (4, 0b0101, 0b1011))
    ):
        how = Multicast(cluster, senders, receivers)
        what = f"swizzle {swizzle}, blocks {senders:b} to {receivers:b} of {cluster}"
        for box in (Box(PLANE, (152, 40), (64, 8), swizzle), Box(SPACE, (32, 3, 0), (64, 8, 1), swizzle)):
            run = partial(load, box, multicast=how)
            yield Case(f"multicast {len(box.at)}-D, {what}", load_source, run)
    for box in short_boxes():
        what = f"rows of {2 * box.shape[0]}, swizzle {box.swizzle}, at {box.at}"
        for counted, expected in (("its bytes", box.nbytes), ("its room", box.room)):
            run = partial(load, box, expected=expected, polls=BRIEF)
            yield Case(f"short load {what}, expects {counted}", load_source, run, emulated=False)
    for box in (Box(PLANE, (67, 33), (48, 16), 0), Box(SPACE, (-4, 7, 2), (64, 6, 4), 128)):
        run = partial(load, box, polls=BRIEF)
        yield Case(f"unaligned load {len(box.at)}-D, swizzle {box.swizzle}, at {box.at}", load_source, run, alone=True)


# ---- stores ----------------------------------------------------------------------------------------------------------


def store_source(backend: Backend) -> KernelSource:
    """The kernel of every store."""
    return probe_source(backend, "tma_store.cu", SHARED_BYTES=CAPACITY)


def store(box: Box, backend: Backend) -> Array:
    """The tensor's memory, gaps included, after one store of numbers that all differ over 0xFFFF."""
    image = (np.arange(box.room // 2) + 1).astype(np.uint16)
    memory = empty_words(backend, 1, box.tensor.elements.size // 2)
    arguments = [
        box.tensor.map(backend, memory.pointer, box.shape, box.swizzle),
        *box.coordinates(),
        np.int32(image.size // 2),
        upload_words(backend, image),
    ]
    kernel = backend.compile(store_source(backend))
    backend.launch(kernel, (1, 1, 1), (128, 1, 1), arguments, CAPACITY)
    words: Array = download_words(backend, memory)[0].view(np.uint16)
    return words


def store_cases() -> Iterator[Case]:
    """Stores inside, across each edge and outside."""
    plane, space = Tensor((75, 20), (80,)), Tensor((75, 7, 3), (80, 640))
    narrow = Tensor((67, 20), (80,))  # its lines end in the first half of 32 bytes
    for swizzle in SWIZZLES:
        row = (swizzle or 48) // 2
        flat = [Box(plane, at, (row, 8), swizzle) for at in ((8, 4), (72, 15), (0, 20), (80, 0))]
        flat.append(Box(narrow, (56, 4), (row, 8), swizzle))
        deep = [Box(space, at, (row, 3, 2), swizzle) for at in ((8, 4, 1), (72, 5, 2), (0, 0, 3))]
        for box in flat + deep:
            name = f"store {len(box.at)}-D, swizzle {swizzle}, at {box.at}"
            yield Case(name, store_source, partial(store, box))
    for row_bytes, swizzle in ((16, 32), (32, 64), (32, 128), (64, 128)):
        box = Box(plane, (8, 4), (row_bytes // 2, 8), swizzle)
        name = f"short store rows of {row_bytes}, swizzle {swizzle}, at {box.at}"
        yield Case(name, store_source, partial(store, box), emulated=False)
    for box in (
        Box(plane, (70, 15), (24, 8), 0),
        Box(plane, (-8, 4), (64, 8), 128),
        Box(plane, (8, -2), (64, 8), 128),
        Box(space, (8, 4, -1), (64, 3, 2), 128),
    ):
        name = f"trapping store {len(box.at)}-D, swizzle {box.swizzle}, at {box.at}"
        yield Case(name, store_source, partial(store, box), alone=True)


# ---- mbarriers -------------------------------------------------------------------------------------------------------

_BOX = Box(Tensor((64, 8), (64,)), (0, 0), (64, 8), 0)
_CODES = {"arrive": 0, "expect": 1, "test": 2, "load": 3, "until": 4, "pause": 5}
_ALL, _HALF = _BOX.nbytes, _BOX.nbytes // 2
# By name: arrivals of a phase, and what one thread does. Numbers are bytes (of expect, which arrives too) and parities.
PROGRAMS: dict[str, tuple[int, str]] = {
    "a fresh one": (1, "test 1, test 0, test 1"),
    "phases of one arrival": (1, "arrive, test 0, test 1, arrive, test 1, test 0, arrive, test 0, test 1"),
    "phases of three arrivals": (3, "arrive, test 0, arrive, test 0, arrive, test 0, test 1, arrive, test 1, test 0"),
    "no bytes expected": (1, "expect 0, test 0, test 1"),
    "bytes after they are expected": (1, f"expect {_ALL}, test 0, load, until 0, test 0, test 1"),
    "bytes before they are expected": (1, f"load, pause 0, test 1, expect {_ALL}, until 0, test 1"),
    "bytes of two loads": (1, f"expect {2 * _ALL}, load, pause 0, test 0, load, until 0, test 0, test 1"),
    "bytes expected in halves": (2, f"expect {_HALF}, test 0, expect {_HALF}, test 0, load, until 0, test 1"),
    "an arrival missing": (2, f"load, pause 0, expect {_ALL}, test 0, arrive, until 0, test 1"),
    "phases of bytes": (1, f"expect {_ALL}, load, until 0, test 1, expect {_ALL}, test 1, load, until 1, test 0"),
}  # fmt: skip


def barrier_source(backend: Backend) -> KernelSource:
    """The kernel that does what a program says."""
    return probe_source(backend, "mbarrier.cu", SHARED_BYTES=2048)


def barrier(program: tuple[int, str], backend: Backend) -> Array:
    """What each operation says: 1 where a test finds the phase completed."""
    arrivals, text = program
    operations = [(*each.split(), "0")[:2] for each in text.split(", ")]
    codes = np.array([_CODES[name] | int(number) << 8 for name, number in operations], np.uint32)
    out = empty_words(backend, 1, codes.size)
    memory = upload_words(backend, _BOX.tensor.elements)
    map_ = _BOX.tensor.map(backend, memory.pointer, _BOX.shape, 0)
    arguments = [map_, np.int32(arrivals), np.int32(codes.size), upload_words(backend, codes), out]
    backend.launch(backend.compile(barrier_source(backend)), (1, 1, 1), (32, 1, 1), arguments, 2048)
    said: Array = download_words(backend, out)[0].astype(np.uint8)
    return said


def barrier_cases() -> Iterator[Case]:
    """When an mbarrier's phases complete."""
    return (Case(f"mbarrier: {name}", barrier_source, partial(barrier, it)) for name, it in PROGRAMS.items())
