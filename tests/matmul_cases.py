"""Operands and results of ``tilewright.matmul`` in tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.dtypes import DType

Array = np.ndarray[Any, Any]


class Exported:
    """What hands its memory over by DLPack alone."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


def integers(seed: int, shape: tuple[int, ...], dtype: DType) -> Array:
    """Small ones: fp32 adds their products exactly in any order."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype.numpy)


def exact(a: Array, b: Array, dtype: DType) -> Array:
    """What must come out, bit for bit: the product of integers, rounded once."""
    product: Array = np.matmul(a.astype(np.float64), b.astype(np.float64))
    return product.astype(np.float32).astype(dtype.numpy)


def same(found: Array, wanted: Array) -> None:
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    np.testing.assert_array_equal(found, wanted)


def operand(torch: Any, layout: str, rows: int, cols: int, dtype: str) -> Any:
    """Small integers, so that sums are exact, laid out as asked for."""

    def integers(*shape: int) -> Any:
        return torch.randint(-4, 5, shape, device="cuda").to(getattr(torch, dtype))

    made = {
        "row": lambda: integers(rows, cols),
        "column": lambda: integers(cols, rows).T,
        "padded": lambda: integers(rows, cols + 24)[:, :cols],
        "offset": lambda: integers(rows, cols + 3)[:, 1 : 1 + cols],
        "broadcast row": lambda: integers(1, cols).expand(rows, cols),
        "flipped": lambda: integers(rows, cols).flip(0).T.flip(0).T,
        "every other": lambda: integers(rows, 2 * cols)[:, ::2],
    }[layout]()
    assert made.shape == (rows, cols)
    return made


def wanted(a: Any, b: Any) -> Any:
    """The exact product of integers, rounded once."""
    return (a.double() @ b.double()).float().to(a.dtype)
