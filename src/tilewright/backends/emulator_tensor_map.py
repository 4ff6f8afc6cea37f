"""Tensor maps as the emulator reads them: 128 bytes of its own layout, under the rules of the CUDA driver."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from tilewright.backends.base import TensorMap
from tilewright.errors import UsageError

_LAYOUT = struct.Struct("<QQ 5Q 4Q II 5I I 8x")  # tw::TensorMapImage (tensor_map.hpp)
_MAGIC = 0x70616D2D6D742D77
SWIZZLES = (0, 32, 64, 128)
ELEMENT_BYTES = (1, 2, 4, 8)
MOST_DIMENSIONS = 5


def pack(tensor_map: TensorMap) -> bytes:
    """A matrix's tensor map. An extent of 0 becomes 1: a kernel that has nothing to load needs a map all the same.

    Raises ``UsageError`` as ``encode`` does.
    """
    matrix = tensor_map.matrix
    size = matrix.dtype.itemsize
    pitch = matrix.ld * size
    if matrix.lines <= 1 or matrix.line == 0:  # no stride leads to an element
        pitch = -(-max(pitch, 1) // 16) * 16
    extents = (max(matrix.line, 1), max(matrix.lines, 1), *(max(count, 1) for count, _ in tensor_map.batch))
    box = (*tensor_map.box, *[1] * len(tensor_map.batch))
    return encode(matrix.pointer, size, extents, tensor_map.strides(pitch), box, tensor_map.swizzle_bytes)


def encode(
    base: int,
    element_bytes: int,
    extents: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
    swizzle_bytes: int,
) -> bytes:
    """A tensor map of rank 2 to 5; dimension 0 is contiguous.

    ``base`` is an address, ``extents`` and ``box`` count elements, ``strides`` are the bytes between neighbours in
    dimensions 1 and up. Raises ``UsageError`` where ``cuTensorMapEncodeTiled`` (CUDA Driver API) refuses, and for a
    swizzled box whose rows are shorter than the span.
    """
    rank = len(extents)
    if not 2 <= rank <= MOST_DIMENSIONS or len(box) != rank or len(strides) != rank - 1:
        raise UsageError(
            f"a tensor map has 2 to {MOST_DIMENSIONS} extents, as many box sizes and a stride less; here are {rank} "
            f"extents, {len(box)} box sizes and {len(strides)} strides"
        )
    if element_bytes not in ELEMENT_BYTES:
        raise UsageError(f"element_bytes is {element_bytes}; 1, 2, 4 and 8 are possible")
    if base % 16:
        raise UsageError(f"the tensor lies at {base:#x}; TMA needs an address that is a multiple of 16")
    if not all(1 <= extent <= 2**32 for extent in extents):
        raise UsageError(f"extents are {tuple(extents)}; 1 to 2^32 are possible")
    if any(stride % 16 or not 0 < stride < 2**40 for stride in strides):
        raise UsageError(f"strides are {tuple(strides)} bytes; multiples of 16 below 2^40 are possible")
    if not all(1 <= size <= 256 for size in box):
        raise UsageError(f"box is {tuple(box)}; 1 to 256 elements are possible in each dimension")
    row_bytes = box[0] * element_bytes
    if row_bytes % 16:
        raise UsageError(f"box is {tuple(box)}: its rows have {row_bytes} bytes, which is no multiple of 16")
    if swizzle_bytes not in SWIZZLES:
        raise UsageError(f"swizzle_bytes is {swizzle_bytes}; {', '.join(map(str, SWIZZLES))} are possible")
    if swizzle_bytes and row_bytes > swizzle_bytes:
        raise UsageError(
            f"box is {tuple(box)}: its rows have {row_bytes} bytes, more than the swizzle's {swizzle_bytes}"
        )
    if swizzle_bytes and row_bytes < swizzle_bytes:
        raise UsageError(
            f"box is {tuple(box)}: its rows have {row_bytes} bytes; the emulator knows where a swizzle of "
            f"{swizzle_bytes} bytes puts rows of {swizzle_bytes}, and no shorter ones"
        )
    missing = MOST_DIMENSIONS - rank
    return _LAYOUT.pack(
        *(_MAGIC, base),
        *(*extents, *[1] * missing),
        *(*strides, *[0] * missing),
        *(rank, element_bytes),
        *(*box, *[1] * missing),
        swizzle_bytes,
    )
