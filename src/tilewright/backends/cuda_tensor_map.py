"""Tensor maps as the GPU reads them: encoded by the driver, and put right where the driver errs."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from tilewright.backends.base import TensorMap
from tilewright.backends.cuda_arguments import require
from tilewright.backends.cuda_errors import call, driver_errors, driver_version
from tilewright.dtypes import DType
from tilewright.plan_tensor import LARGEST_PITCH

MAP_BYTES = 128

# Drivers up to CUDA 13.1 set a bit in the maps of small tensors with which TMA may touch 128 KiB from the tensor's
# start, mapped or not (CUTLASS clears it too: include/cute/atom/copy_traits_sm90_tma.hpp).
LAST_FAULTY_DRIVER = (13, 1)
SMALL_BYTES = 128 << 10
FAULTY_BIT = 64 + 21  # of the map's 1024: bit 21 of the second 64-bit word

_TYPES = {"fp32": "FLOAT32", "bf16": "BFLOAT16", "fp16": "FLOAT16"}
_SWIZZLES = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}


def encode(tensor_map: TensorMap) -> bytes:
    """The 128 bytes of a matrix's tensor map for the driver that is here.

    Raises ``UsageError`` for lines that TMA cannot step over, ``LaunchError`` when the driver refuses the rest.
    """
    matrix = tensor_map.matrix
    return encode_tiled(
        matrix.pointer,
        matrix.dtype,
        (
            max(matrix.line, 1),
            max(matrix.lines, 1),
            *(max(count, 1) for count, _ in tensor_map.batch),
        ),  # 0 is not allowed
        tensor_map.strides(line_pitch(tensor_map)),
        (*tensor_map.box, *[1] * len(tensor_map.batch)),
        tensor_map.swizzle_bytes,
    )


def encode_tiled(
    base: int,
    dtype: DType,
    extents: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
    swizzle_bytes: int,
) -> bytes:
    """A tensor map of any rank; dimension 0 is contiguous, ``strides`` are the others', in bytes.

    By the driver's own function and not cuda.core's ``StridedMemoryView.as_tensor_map``, whose descriptors keep their
    bytes to themselves, so that they cannot be corrected, and which takes no matrix without elements.

    Raises ``LaunchError`` when the driver refuses it.
    """
    from cuda.bindings import driver

    what = f"a tensor map of extents {tuple(extents)} in {dtype}"
    with driver_errors(f"encoding {what}", f"box {tuple(box)}, swizzle {swizzle_bytes} B"):
        encoded = call(
            driver.cuTensorMapEncodeTiled,
            getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{_TYPES[dtype.name]}"),
            len(extents),
            base,
            [driver.cuuint64_t(extent) for extent in extents],
            [driver.cuuint64_t(stride) for stride in strides],
            [driver.cuuint32_t(extent) for extent in box],
            [driver.cuuint32_t(1)] * len(box),
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{_SWIZZLES[swizzle_bytes]}"),
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,  # zeros beyond the edges
        )
    span = extents[0] * dtype.itemsize + sum((n - 1) * s for n, s in zip(extents[1:], strides, strict=True))
    return corrected(ctypes.string_at(encoded.getPtr(), MAP_BYTES), span, driver_version())


def line_pitch(tensor_map: TensorMap) -> int:
    """Bytes from one line to the next; of a single line, or of lines without elements, any that TMA takes.

    Raises ``UsageError`` unless it is a multiple of 16 below 2**40 and the matrix starts on a 16-byte boundary.
    """
    matrix = tensor_map.matrix
    require(matrix.pointer % 16 == 0, f"the matrix starts at {matrix.pointer:#x}; TMA needs a multiple of 16")
    if matrix.lines <= 1 or matrix.line == 0:
        return -(-max(matrix.line, 1) * matrix.dtype.itemsize // 16) * 16
    pitch = matrix.ld * matrix.dtype.itemsize
    require(
        pitch % 16 == 0 and pitch < LARGEST_PITCH,
        f"lines are {pitch} bytes apart; TMA needs a multiple of 16 below 2**40",
    )
    return pitch


def corrected(encoded: bytes, span: int, driver_cuda: tuple[int, int] | None) -> bytes:
    """An encoded map of a tensor that spans ``span`` bytes, without the bit that a faulty driver sets in small ones."""
    if span >= SMALL_BYTES or driver_cuda is None or driver_cuda > LAST_FAULTY_DRIVER:
        return encoded
    return (int.from_bytes(encoded, "little") & ~(1 << FAULTY_BIT)).to_bytes(len(encoded), "little")
