"""Operands and results of ``tilewright.matmul`` in tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.dtypes import DType

Array = np.ndarray[Any, Any]


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
