"""The float64 product that results are held against, and the magnitudes its error bound needs, in blocks.

One piece of code serves NumPy arrays and torch tensors: both spell slicing, ``@``, ``abs`` and comparisons
alike, and ``Library`` holds the few things they do not share. torch is imported only when handed its tensors or
asked for the GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np

from tilewright.errors import UnavailableError, UsageError

Device = Literal["auto", "cpu", "cuda"]

# From here on two processor cores need several seconds, longer than importing torch and copying to a GPU.
LARGE_MACS = 2**35


@dataclass(frozen=True)
class Library:
    """How one array library does what the check needs.

    ``xp`` is its module. ``load`` takes an operand to where the work is done; ``float64`` converts a block of it;
    ``to_numpy`` brings a block back. ``block`` is (rows, columns, depth) of the blocks worked on at a time.
    """

    xp: Any
    load: Callable[[Any], Any]
    float64: Callable[[Any], Any]
    to_numpy: Callable[[Any], np.ndarray[Any, Any]]
    block: tuple[int, int, int]


@dataclass(frozen=True)
class Block:
    """A block of C: its place, the float64 ``product`` A @ B there, and ``magnitude`` = |A| @ |B|."""

    rows: slice
    columns: slice
    product: Any
    magnitude: Any


def reference_blocks(a: Any, b: Any, library: Library) -> Iterator[Block]:
    """Go through A ``(m, k)`` @ B ``(k, n)`` in row-major order of blocks, in bounded extra memory.

    The products of bf16, fp16 and fp32 values are exact in float64, so the reference's own error is that of
    its additions, at most k 2**-53 of ``magnitude``.
    """
    rows, columns, depth = library.block
    for row, column in product(_slices(a.shape[0], rows), _slices(b.shape[1], columns)):
        total = magnitude = None
        # An empty K still takes one (empty) step: its product is the right block of zeros.
        for inner in _slices(a.shape[1], depth) or [slice(0, 0)]:
            left, right = library.float64(a[row, inner]), library.float64(b[inner, column])
            part, part_magnitude = left @ right, abs(left) @ abs(right)
            total = part if total is None else total + part
            magnitude = part_magnitude if magnitude is None else magnitude + part_magnitude
        yield Block(row, column, total, magnitude)


def choose_library(arrays: dict[str, Any], macs: int, device: Device = "auto") -> Library:
    """Decide where to compute: tensors where they are, NumPy arrays on the processor or through torch on a GPU.

    ``auto`` takes the GPU for NumPy arrays when there are at least ``LARGE_MACS`` multiply-adds to do and torch
    sees one. Raises ``UsageError`` for a mixture of array kinds or devices or an unknown ``device``, and
    ``UnavailableError`` for ``"cuda"`` without torch or a GPU.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise UsageError(f"device {device!r} is not one of auto, cpu, cuda")
    torch = sys.modules.get("torch")
    homes = {
        name: f"torch {x.device}" if torch is not None and isinstance(x, torch.Tensor) else "NumPy"
        for name, x in arrays.items()
    }
    if len(set(homes.values())) > 1:
        places = ", ".join(f"{name} is {home}" for name, home in homes.items())
        raise UsageError(f"operands must be of one library on one device, but {places}")
    if torch is not None and "NumPy" not in homes.values():
        return _torch_library(torch, load=lambda tensor: tensor.detach())
    if device == "cuda" or (device == "auto" and macs >= LARGE_MACS):
        torch = _torch_with_cuda()
        if torch is not None:
            return _torch_library(torch, load=lambda array: _to_cuda(torch, array))
        if device == "cuda":
            raise UnavailableError("device 'cuda' needs torch and a GPU that it sees; use 'cpu' or 'auto'")
    # About 160 MB of float64 at a time.
    return Library(np, load=np.asarray, float64=_numpy_float64, to_numpy=np.asarray, block=(1024, 1024, 4096))


def _slices(extent: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, extent)) for start in range(0, extent, step)]


def _numpy_float64(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if array.dtype.itemsize < 4:
        array = array.astype(np.float32)  # ml_dtypes has a fast path to fp32, but none to float64
    return array.astype(np.float64)


def _torch_library(torch: Any, load: Callable[[Any], Any]) -> Library:
    return Library(
        torch,
        load=load,
        float64=lambda tensor: tensor.to(torch.float64),
        to_numpy=lambda tensor: np.asarray(tensor.cpu()),
        block=(4096, 4096, 8192),
    )


def _torch_with_cuda() -> Any:
    try:
        import torch
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


def _to_cuda(torch: Any, array: np.ndarray[Any, Any]) -> Any:
    copy = np.array(array, order="C")  # torch wants writable memory, and knows no ml_dtypes
    if copy.dtype.name == "bfloat16":
        return torch.from_numpy(copy.view(np.int16)).view(torch.bfloat16).cuda()
    return torch.from_numpy(copy).cuda()
