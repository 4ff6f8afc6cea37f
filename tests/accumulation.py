"""What kernels of different habits would compute: products summed in any order, in any accumulator."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.dtypes import DTYPES, FP32, DType
from tilewright.operands import Fill
from tilewright.problem import Problem

Array = np.ndarray[Any, Any]
ALL_DTYPES = list(DTYPES.values())
FILLS: list[Fill] = ["normal", "integers", "positive", "probe"]


def rounded(x: Array, to: DType) -> Array:
    """Round to a dtype, but hand back float64, in which everything here computes."""
    with np.errstate(over="ignore"):
        return x.astype(to.numpy).astype(np.float64)


def accumulate(a: Array, b: Array, accumulator: DType, order: str, fused: bool = True) -> Array:
    """A @ B with every sum rounded to ``accumulator``, in one of the orders that kernels use.

    Sums of two fp32 numbers are rounded once: float64 has more than twice their bits. A fused multiply-add of
    48-bit products may round twice, by 2**-29 of a rounding more.
    """
    terms = a.astype(np.float64).T[:, :, None] * b.astype(np.float64)[:, None, :]
    if not fused:
        terms = rounded(terms, accumulator)
    k, m, n = terms.shape

    def sequential(part: Array) -> Array:
        total = np.zeros((m, n))
        for term in part:
            total = rounded(total + term, accumulator)
        return total

    if order == "sequential":
        return sequential(terms)
    if order == "reversed":
        return sequential(terms[::-1])
    if order == "blocked":
        return sequential(np.array([sequential(terms[start : start + 8]) for start in range(0, k, 8)]))
    if order == "interleaved":
        return sequential(np.array([sequential(terms[start::4]) for start in range(4)]))
    assert order == "pairwise"
    parts = list(rounded(terms, accumulator))
    while len(parts) > 1:
        odd = [parts.pop()] if len(parts) % 2 else []
        parts = [rounded(x + y, accumulator) for x, y in zip(parts[::2], parts[1::2], strict=True)] + odd
    return parts[0] if parts else np.zeros((m, n))


ORDERS = ["sequential", "reversed", "blocked", "interleaved", "pairwise"]


def right_result(problem: Problem, a: Array, b: Array) -> Array:
    """What a right kernel gives."""
    return accumulate(a, b, FP32, "sequential").astype(problem.out_dtype.numpy)
