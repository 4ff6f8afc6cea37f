"""A caller's arrays, looked at without a copy: PyTorch, CuPy, the CUDA array interface, DLPack, NumPy.

A library is imported only where the caller's array is its own. Nothing here waits.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from tilewright.dtypes import DTYPES, DType
from tilewright.errors import UnavailableError, UsageError
from tilewright.library.support import possible

Kind = Literal["torch", "cupy", "cuda array", "dlpack", "numpy"]
HOST = -1
"""The ``device`` of arrays in host memory."""
DLPACK_CPU, DLPACK_CUDA = 1, 2  # dlpack.h, DLDeviceType
NO_STREAM = -1  # the array API standard, __dlpack__: no stream is to wait for the array
LEGACY_STREAM = 1  # CU_STREAM_LEGACY, which waits for every other stream that does not say otherwise


@dataclass(frozen=True, slots=True)
class Array:
    """Where a caller's array lies. ``strides`` count elements; ``device`` is CUDA's ordinal, or ``HOST``.

    ``owner`` is the array itself. ``stream`` is the handle that the array says its data is ready on, None where it does
    not say. ``writable`` is False where it says that nobody may write to it.
    """

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    device: int
    kind: Kind
    owner: Any = field(repr=False, compare=False)
    stream: int | None = None
    writable: bool = True

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def extent(self) -> tuple[int, int]:
        """The first address and the one after the last that an element has; equal where there is none."""
        if not self.size:
            return self.pointer, self.pointer
        steps = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        low, high = sum(s for s in steps if s < 0), sum(s for s in steps if s > 0)
        return self.pointer + low * self.dtype.itemsize, self.pointer + (high + 1) * self.dtype.itemsize


def view(array: Any, name: str = "a") -> Array:
    """Look at an array; ``name`` is what errors call it.

    Raises ``UsageError`` for what is no array, an element type that no kernel has, memory of another device than a CUDA
    GPU or the host, a stride that is no whole number of elements, and elements that no GPU could read where they lie.
    """
    reader = _readers.get(type(array))
    if reader is None:
        reader = _reader_of(array, name)
        if reader in (_torch, _cupy, _numpy):  # of others the instance decides, not the type
            _readers[type(array)] = reader
    found = reader(array, name)
    if found.pointer % found.dtype.itemsize and found.kind != "numpy":
        raise UsageError(
            f"{name} lies at {found.pointer:#x}; an array of {found.dtype} lies at a multiple of {found.dtype.itemsize}"
        )
    return found


def require_alike(arrays: Sequence[tuple[str, Array]]) -> None:
    """Raise ``UsageError`` unless all are of one kind and on one device."""
    first_name, first = arrays[0]
    for name, other in arrays[1:]:
        if other.kind != first.kind:
            raise UsageError(
                f"{first_name} is a {type_of(first)} and {name} a {type_of(other)}; all arrays of a call are "
                "of one library"
            )
        if other.device != first.device:
            raise UsageError(
                f"{first_name} lies on {place(first.device)} and {name} on {place(other.device)}; all arrays of a call "
                "are on one device"
            )


def place(device: int) -> str:
    """A device in words."""
    return "the host" if device == HOST else f"GPU {device}"


def overlap(one: Array, other: Array) -> bool:
    """Whether two arrays have a byte of an element in the same place."""
    (low, high), (other_low, other_high) = one.extent, other.extent
    if high <= other_low or other_high <= low or not one.size or not other.size:
        return False
    return bool(np.shares_memory(_addresses(one), _addresses(other)))


def lies_as(one: Array, other: Array) -> bool:
    """Whether two arrays are the same elements in the same order."""
    same = (one.pointer, one.shape, one.dtype) == (other.pointer, other.shape, other.dtype)
    steps = zip(one.shape, one.strides, other.strides, strict=False)
    return same and all(n <= 1 or s == t for n, s, t in steps)


def _addresses(array: Array) -> np.ndarray[Any, Any]:
    """A NumPy array with these addresses, for arithmetic: nothing is ever read through it."""
    size = array.dtype.itemsize
    described = {
        "version": 3,
        "data": (array.pointer, True),
        "shape": array.shape,
        "strides": tuple(s * size for s in array.strides),
        "typestr": f"|V{size}",
    }
    return np.asarray(type("Described", (), {"__array_interface__": described})())


def type_of(array: Array) -> str:
    """The type of the caller's array, in words."""
    return _type(array.owner.array if isinstance(array.owner, _Held) else array.owner)


def _type(array: Any) -> str:
    return f"{type(array).__module__.partition('.')[0]}.{type(array).__name__}"


def _reader_of(array: Any, name: str) -> Callable[[Any, str], Array]:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return _torch
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(array, cupy.ndarray):
        return _cupy
    if isinstance(array, np.ndarray):
        return _numpy
    if hasattr(array, "__cuda_array_interface__"):
        return _interface
    if hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
        return _dlpack
    raise UsageError(
        f"{name} is a {type(array).__name__}; it must be an array of PyTorch, CuPy or NumPy, or have "
        "__cuda_array_interface__ or __dlpack__"
    )


_readers: dict[type, Callable[[Any, str], Array]] = {}


def _torch(tensor: Any, name: str) -> Array:
    import torch

    device = tensor.device
    if device.type not in ("cuda", "cpu"):
        raise UsageError(f"{name} is a tensor on {device}; it must be on a CUDA device or the CPU")
    if tensor.layout is not torch.strided:
        raise UsageError(f"{name} is a tensor of layout {tensor.layout}; it must be strided")
    dtype = torch_dtypes().get(tensor.dtype)
    if dtype is None:
        raise UsageError(f"{name} has dtype {tensor.dtype}; {possible(name)}")
    if tensor.is_neg():
        raise UsageError(f"{name} is a view that negates its elements; resolve_neg() makes a tensor of them")
    where = HOST if device.type == "cpu" else device.index
    try:
        pointer = tensor.data_ptr()
    except RuntimeError:  # PyTorch's own says no more
        pointer = 0
    if not pointer and tensor.numel():
        raise UsageError(f"{name} is a tensor without memory of its own, as a fake one, or one whose storage was freed")
    return Array(pointer, tuple(tensor.shape), tensor.stride(), dtype, where, "torch", tensor)


def torch_dtypes() -> dict[Any, DType]:
    """PyTorch's element types that there are kernels for."""
    if not _torch_dtypes:
        import torch

        _torch_dtypes.update({getattr(torch, d.numpy_name): d for d in DTYPES.values()})
    return _torch_dtypes


_torch_dtypes: dict[Any, DType] = {}


def _cupy(array: Any, name: str) -> Array:
    dtype = _numpy_dtype(array.dtype, name)
    strides = _elements(array.strides, array.shape, dtype, name)
    return Array(int(array.data.ptr), tuple(array.shape), strides, dtype, int(array.device.id), "cupy", array)


def _numpy(array: Any, name: str) -> Array:
    if isinstance(array, np.ma.MaskedArray):
        raise UsageError(f"{name} has a mask, which no kernel knows; give the array below it, {name}.data")
    dtype = _numpy_dtype(array.dtype, name)
    strides = _elements(array.strides, array.shape, dtype, name)
    pointer = array.__array_interface__["data"][0]
    return Array(pointer, array.shape, strides, dtype, HOST, "numpy", array, None, array.flags.writeable)


def _interface(array: Any, name: str) -> Array:
    """By the CUDA array interface, version 3 (numba's documentation has it)."""
    described = array.__cuda_array_interface__
    if described.get("mask") is not None:
        raise UsageError(f"{name} has a mask, which no kernel knows; give the array below it")
    shape = tuple(int(n) for n in described["shape"])
    dtype = _interface_dtype(array, described["typestr"], name)
    pointer, read_only = described["data"]
    strides = _elements(described.get("strides"), shape, dtype, name)
    empty = 0 in shape
    device = _device_attribute(array)
    if device is None:
        device = 0 if empty or not pointer else device_of_pointer(int(pointer))
    stream = described.get("stream")
    if stream == 0:
        raise UsageError(f"{name} names stream 0, which the CUDA array interface leaves undefined; 1 is the legacy one")
    return Array(int(pointer or 0), shape, strides, dtype, device, "cuda array", array, stream, not read_only)


def _device_attribute(array: Any) -> int | None:
    """What an array says of its device, where it has a number."""
    device = getattr(array, "device", None)
    number = getattr(device, "id", device)
    return number if type(number) is int else None


def device_of_pointer(pointer: int) -> int:
    """The GPU that memory is on. Raises ``UsageError`` for memory that CUDA does not know."""
    from tilewright.backends.cuda_errors import cuda_unavailable_reason

    reason = cuda_unavailable_reason()
    if reason is not None:
        raise UnavailableError(f"an array says that it lies on a GPU, and there is none ({reason})")
    from cuda.bindings import driver

    error, device = driver.cuPointerGetAttribute(
        driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer
    )
    if int(error) != 0:
        raise UsageError(f"an array says that it lies at {pointer:#x} on a GPU, where CUDA knows of no memory")
    return int(device)


def _dlpack(array: Any, name: str) -> Array:
    kind, number = array.__dlpack_device__()
    if int(kind) == DLPACK_CPU:
        try:
            host = np.from_dlpack(array)
        except (BufferError, TypeError, RuntimeError) as error:  # NumPy knows no bf16, for one
            raise UsageError(f"{name} of type {_type(array)} cannot be used: {error}; {possible(name)}") from error
        seen = _numpy(host, name)
        owner = _Held(array, host)
        return Array(seen.pointer, seen.shape, seen.strides, seen.dtype, HOST, "dlpack", owner, None, seen.writable)
    if int(kind) != DLPACK_CUDA:
        raise UsageError(
            f"{name} is on a device of DLPack's type {int(kind)}; CUDA GPUs (2) and the host (1) can be used"
        )
    from cuda.core.utils import StridedMemoryView

    try:
        seen = StridedMemoryView.from_dlpack(array, stream_ptr=NO_STREAM)  # ``results.wait_for`` says on which
        dtype = _numpy_dtype(np.dtype(seen.dtype), name)
    except (BufferError, TypeError, NotImplementedError) as error:
        raise UsageError(f"{name} of type {_type(array)} cannot be used: {error}; {possible(name)}") from error
    shape = tuple(seen.shape)
    strides = tight(shape) if seen.strides is None else tuple(seen.strides)
    return Array(
        int(seen.ptr), shape, strides, dtype, int(number), "dlpack", _Held(array, seen), None, not seen.readonly
    )


@dataclass(frozen=True)
class _Held:
    """An array and what DLPack gave for it, which keeps its memory."""

    array: Any
    seen: Any


def _numpy_dtype(found: Any, name: str) -> DType:
    for known in DTYPES.values():
        if known.numpy == found:
            return known
    raise UsageError(f"{name} has dtype {found}; {possible(name)}")


def _interface_dtype(array: Any, typestr: str, name: str) -> DType:
    """bf16 has no letter in a typestr: what is 2 bytes of no type is it where the array's own ``dtype`` says so."""
    own = getattr(array, "dtype", None)
    if typestr.lstrip("<|") in ("V2", "b2") and own is not None:
        return _numpy_dtype(own, name)
    return _numpy_dtype(np.dtype(typestr), name)


def _elements(strides: Any, shape: Sequence[int], dtype: DType, name: str) -> tuple[int, ...]:
    """Strides in elements of strides in bytes; None is C order."""
    if strides is None:
        return tight(shape)
    size = dtype.itemsize
    for axis, (length, stride) in enumerate(zip(shape, strides, strict=True)):
        if stride % size and length > 1:
            raise UsageError(
                f"{name} has elements {stride} bytes apart along axis {axis}; it must be a multiple of the {size} "
                f"bytes of {dtype}"
            )
    return tuple(int(stride) // size for stride in strides)


def tight(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of an array in C order, in elements."""
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))
