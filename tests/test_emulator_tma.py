"""TMA in the emulator: boxes land in shared memory, and leave it, as a NumPy model of the layouts says."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from observed import kernel_source

from tilewright.backends.base import Matrix, TensorMap
from tilewright.backends.emulator import EmulatorBackend
from tilewright.backends.emulator_runtime import POLICIES, LaunchStats, Policy
from tilewright.backends.emulator_tensor_map import encode
from tilewright.dtypes import BF16, FP32
from tilewright.errors import EmulatorFault

Array = np.ndarray[Any, Any]
SWIZZLES = [0, 32, 64, 128]


@pytest.fixture(params=POLICIES)
def emulator(request: pytest.FixtureRequest) -> EmulatorBackend:
    policy: Policy = request.param
    return EmulatorBackend(policy, seed=7)


def round_up(value: int, to: int) -> int:
    return -(-value // to) * to


def swizzled(image: Array, swizzle: int) -> Array:
    """A box's bytes in shared memory, row after row, with the 16-byte chunks where the swizzle puts them."""
    offset = np.arange(0, image.size, 16)
    flipped = offset ^ ((offset >> 7 & max(swizzle // 16 - 1, 0)) << 4)
    out = np.empty_like(image)
    out.reshape(-1, 16)[flipped // 16] = image.reshape(-1, 16)
    return out


def clipped_box(tensor: Array, at: tuple[int, ...], box: tuple[int, ...]) -> Array:
    """The box (contiguous dimension first) at a place of a tensor (contiguous dimension last); zeros outside it."""
    out = np.zeros(box[::-1], tensor.dtype)
    for index in itertools.product(*map(range, box[:0:-1])):
        row = tuple(i + start for i, start in zip(index, at[:0:-1], strict=True))
        if not all(0 <= i < n for i, n in zip(row, tensor.shape, strict=False)):
            continue
        first, last = max(0, -at[0]), min(box[0], tensor.shape[-1] - at[0])
        if first < last:
            out[index][first:last] = tensor[row][at[0] + first : at[0] + last]
    return out


def numbers(*shape: int) -> Array:
    """Bit patterns that all differ, as far as 16 bits allow; none is a NaN."""
    return (np.arange(1, 1 + int(np.prod(shape)), dtype=np.uint32) % 0x7F00).astype(np.uint16).reshape(shape)


def matrix_of(emulator: EmulatorBackend, tensor: Array, pitch: int) -> Matrix:
    """A tensor of 16-bit words, its dimensions but the contiguous one flattened, as a matrix with that many columns."""
    flat = tensor.reshape(-1, tensor.shape[-1])
    return emulator.upload(flat.view(BF16.numpy), pitch)


def tensor_map(matrix: Matrix, tensor: Array, box: tuple[int, ...], swizzle: int) -> bytes:
    pitch = matrix.ld * 2
    strides = (pitch, pitch * tensor.shape[-2])[: tensor.ndim - 1]
    return encode(matrix.pointer, 2, tensor.shape[::-1], strides, box, swizzle)


def load(
    emulator: EmulatorBackend,
    tensor: Array,
    at: tuple[int, ...],
    box: tuple[int, ...],
    swizzle: int,
    *,
    cluster: int = 1,
    waits: bool = True,
) -> list[Array]:
    """What lies in each block's shared memory once the box has been loaded, as 16-bit words."""
    box_bytes = 2 * int(np.prod(box))
    shared_bytes = round_up(box_bytes + 8, 1024)
    share = box[-1] // cluster
    source = kernel_source(
        "core/tma_load.cu",
        SHARED_BYTES=shared_bytes,
        BOX_BYTES=box_bytes,
        RANK=tensor.ndim,
        CLUSTER=cluster,
        SHARE=share,
        WAITS=int(waits),
    )
    matrix = matrix_of(emulator, tensor, round_up(tensor.shape[-1], 8))
    out = emulator.empty(cluster, box_bytes // 4, FP32)
    map_ = tensor_map(matrix, tensor, (*box[:-1], share), swizzle)
    where = [np.int32(i) for i in (*at, 0)[:3]]
    grid, args = (cluster, 1, 1), [map_, *where, out]
    emulator.launch(emulator.compile(source), grid, (64, 1, 1), args, shared_bytes, cluster=cluster)
    return list(emulator.download(out).view(np.uint16))


@pytest.mark.parametrize("swizzle", SWIZZLES)
def test_a_box_lands_as_its_swizzle_says(emulator: EmulatorBackend, swizzle: int) -> None:
    tensor, box = numbers(70, 200), ((swizzle or 96) // 2, 32)
    for at in [(0, 0), (8, 5), (64, 33)]:
        (found,) = load(emulator, tensor, at, box, swizzle)
        expected = swizzled(clipped_box(tensor, at, box).ravel().view(np.uint8), swizzle)
        np.testing.assert_array_equal(found.view(np.uint8), expected)


@pytest.mark.parametrize("swizzle", SWIZZLES)
@pytest.mark.parametrize("at", [(-8, -2), (184, 60), (200, 69), (-72, 0), (0, 70), (304, -300), (-16, 4)])
def test_what_lies_outside_is_zero(emulator: EmulatorBackend, swizzle: int, at: tuple[int, int]) -> None:
    tensor, box = numbers(70, 203), ((swizzle or 128) // 2, 16)
    (found,) = load(emulator, tensor, at, box, swizzle)
    expected = swizzled(clipped_box(tensor, at, box).ravel().view(np.uint8), swizzle)
    np.testing.assert_array_equal(found.view(np.uint8), expected)


@pytest.mark.parametrize("swizzle", SWIZZLES)
@pytest.mark.parametrize("at", [(0, 0, 0), (16, 3, 1), (-8, 7, 2), (72, -1, -1)])
def test_three_dimensions(emulator: EmulatorBackend, swizzle: int, at: tuple[int, int, int]) -> None:
    tensor, box = numbers(4, 9, 77), ((swizzle or 48) // 2, 6, 4)
    (found,) = load(emulator, tensor, at, box, swizzle)
    expected = swizzled(clipped_box(tensor, at, box).ravel().view(np.uint8), swizzle)
    np.testing.assert_array_equal(found.view(np.uint8), expected)


@pytest.mark.parametrize("cluster", [2, 4, 8])
@pytest.mark.parametrize(("shape", "at", "box"), [((90, 80), (8, 3), (64, 64)), ((9, 20, 80), (8, 2, 3), (64, 8, 8))])
def test_each_block_gets_what_all_load(
    emulator: EmulatorBackend, cluster: int, shape: tuple[int, ...], at: tuple[int, ...], box: tuple[int, ...]
) -> None:
    tensor = numbers(*shape)
    expected = swizzled(clipped_box(tensor, at, box).ravel().view(np.uint8), 128)
    found = load(emulator, tensor, at, box, 128, cluster=cluster)
    assert len(found) == cluster
    for image in found:
        np.testing.assert_array_equal(image.view(np.uint8), expected)
    assert last(emulator).tma_loads == cluster


def test_a_box_read_too_early_shows_when_loads_are_lazy() -> None:
    tensor = numbers(16, 64)
    (eager,), (lazy,) = (load(EmulatorBackend(p), tensor, (0, 0), (64, 16), 0, waits=False) for p in POLICIES[:2])
    np.testing.assert_array_equal(eager, tensor.ravel())
    np.testing.assert_array_equal(lazy, np.full(64 * 16, 0xFFFF))


def last(emulator: EmulatorBackend) -> LaunchStats:
    assert emulator.last_launch is not None
    return emulator.last_launch


@pytest.mark.parametrize("swizzle", SWIZZLES)
@pytest.mark.parametrize(
    ("shape", "at", "x2"),
    [
        ((40, 200), (8, 4), 72),
        ((40, 203), (0, 30), 192),
        ((3, 20, 200), (8, 4, 1), 72),
        ((3, 20, 203), (0, 9, 2), 192),
    ],
)
def test_a_store_is_clipped(
    emulator: EmulatorBackend, swizzle: int, shape: tuple[int, ...], at: tuple[int, ...], x2: int
) -> None:
    box = ((swizzle or 96) // 2, 16, 2)[: len(shape)]
    image = numbers(int(np.prod(box)))
    tensor = np.zeros(shape, np.uint16)
    room = (*shape[:-1], round_up(shape[-1], 8))  # a line that is clipped is written up to the next 16 bytes
    expected = np.zeros(room, np.uint16)
    matrix = matrix_of(emulator, expected, room[-1])
    store(emulator, tensor_map(matrix, tensor, box, swizzle), image, (*at, x2), len(shape))
    straight = swizzled(image.view(np.uint8), swizzle).view(np.uint16).reshape(box[::-1])  # its own inverse
    for words, place in ((straight, at), (~straight, (x2, *at[1:]))):
        for index in np.ndindex(words.shape):
            where = tuple(i + start for i, start in zip(index, place[::-1], strict=True))
            if all(0 <= i < n for i, n in zip(where, room, strict=True)):
                expected[where] = words[index]
    np.testing.assert_array_equal(emulator.download(matrix).view(np.uint16).reshape(room), expected)
    assert last(emulator).tma_stores == 2


def store(
    emulator: EmulatorBackend,
    map_: bytes,
    image: Array,
    at_and_x2: tuple[int, ...],
    rank: int,
    *,
    wait: bool = True,
) -> None:
    box_bytes = image.size * 2
    shared_bytes = round_up(box_bytes, 1024)
    source = kernel_source(
        "core/tma_store.cu", SHARED_BYTES=shared_bytes, BOX_BYTES=box_bytes, RANK=rank, WAIT=int(wait)
    )
    *at, x2 = at_and_x2
    numbers_ = [np.int32(i) for i in (*(*at, 0)[:3], x2)]
    raw = emulator.upload(image.view(np.float32).reshape(1, -1))
    emulator.launch(emulator.compile(source), (1, 1, 1), (64, 1, 1), [map_, *numbers_, raw], shared_bytes)


UNALIGNED = "the first coordinate must be a multiple of 16 bytes, or hardware traps"


@pytest.mark.parametrize(("x", "nbytes"), [(67, 134), (-3, -6), (4, 8)])
def test_a_first_coordinate_inside_16_bytes_faults(emulator: EmulatorBackend, x: int, nbytes: int) -> None:
    flat, deep = numbers(20, 80), numbers(3, 20, 80)
    with pytest.raises(EmulatorFault, match=f"misuse: tma_load_2d: x = {x} elements are {nbytes} bytes; {UNALIGNED}"):
        load(emulator, flat, (x, 3), (64, 16), 128)
    with pytest.raises(EmulatorFault, match=f"tma_load_3d: x = {x} elements are {nbytes} bytes; {UNALIGNED}"):
        load(emulator, deep, (x, 3, 0), (48, 4, 2), 0)
    matrix = matrix_of(emulator, flat, 80)
    with pytest.raises(EmulatorFault, match=f"tma_store_2d: x = {x} elements are {nbytes} bytes; {UNALIGNED}"):
        store(emulator, tensor_map(matrix, flat, (64, 8), 128), numbers(64 * 8), (8, 0, x), 2)


@pytest.mark.parametrize(("at", "said"), [((-8, 0), "0 is -8"), ((8, -1), "1 is -1")])
def test_a_store_that_begins_before_the_tensor_faults(
    emulator: EmulatorBackend, at: tuple[int, int], said: str
) -> None:
    tensor = numbers(20, 80)
    map_ = tensor_map(matrix_of(emulator, tensor, 80), tensor, (64, 8), 128)
    with pytest.raises(EmulatorFault, match=f"misuse: tma_store_2d: coordinate {said}; a store begins inside"):
        store(emulator, map_, numbers(64 * 8), (*at, 8), 2)


def test_a_buffer_overwritten_too_early_shows_when_stores_are_lazy() -> None:
    outcome = {}
    for policy in ("eager", "lazy"):
        emulator = EmulatorBackend(policy)
        image, tensor = numbers(64 * 8), np.zeros((8, 128), np.uint16)
        matrix = matrix_of(emulator, tensor, 128)
        store(emulator, tensor_map(matrix, tensor, (64, 8), 128), image, (0, 0, 64), 2, wait=False)
        outcome[policy] = emulator.download(matrix).view(np.uint16)
    np.testing.assert_array_equal(outcome["eager"][:, :64], ~outcome["eager"][:, 64:])
    np.testing.assert_array_equal(outcome["lazy"][:, :64], outcome["lazy"][:, 64:])


def test_a_tensor_map_of_a_matrix(emulator: EmulatorBackend) -> None:
    tensor = numbers(40, 100)
    matrix = emulator.upload(tensor.view(BF16.numpy), 104)
    source = kernel_source("core/tma_load.cu", SHARED_BYTES=3072, BOX_BYTES=2048, RANK=2, CLUSTER=1, SHARE=0, WAITS=1)
    out = emulator.empty(1, 512, FP32)
    args = [TensorMap(matrix, (64, 16)), np.int32(48), np.int32(30), np.int32(0), out]
    emulator.launch(emulator.compile(source), (1, 1, 1), (32, 1, 1), args, 3072)
    expected = swizzled(clipped_box(tensor, (48, 30), (64, 16)).ravel().view(np.uint8), 128)
    np.testing.assert_array_equal(emulator.download(out).view(np.uint8)[0], expected)
