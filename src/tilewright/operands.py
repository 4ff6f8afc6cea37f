"""What goes in when a kernel is checked: operands made so that a wrong kernel cannot pass on them."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import numpy as np

from tilewright.dtypes import DType
from tilewright.errors import UsageError
from tilewright.problem import Problem

Array = np.ndarray[Any, Any]
Fill = Literal["normal", "integers", "positive", "probe"]

# Odd integers x, x2, y, y2 for accumulator_probe, of as many bits as the input type holds (12 for fp32, so that
# a product's 24 bits are still exact): P = x x2 and Q = y y2 differ by a few units, and rounding either or both
# to 11 or 8 significant bits puts P - Q off by at least 90 times the error bound. Found by random search for
# the largest such factor; tests/test_verify.py enumerates every case.
PROBE_FACTORS = {
    "bf16": (165, 209, 175, 197),
    "fp16": (1045, 2033, 1879, 1131),
    "fp32": (4053, 2085, 2759, 3063),
}


def random_operands(problem: Problem, seed: int = 0, fill: Fill = "normal") -> tuple[Array, Array]:
    """Make A ``(m, k)`` and B ``(k, n)`` in the problem's dtype, as C-contiguous arrays.

    Layouts and leading dimensions are for the caller to apply. The same seed gives the same data.

    - ``normal``: N(0, 1) with full mantissas. Zeros or few bits would also run faster than real data does.
    - ``integers``: small ones; fp32 adds them exactly in any order (k < 2**24), and ``verify`` wants that.
    - ``positive``: in (0.5, 1], so that nothing cancels and a lost slice of K shows in every element.
    - ``probe``: ``accumulator_probe``.

    Raises ``UsageError`` for an unknown fill.
    """
    if fill == "probe":
        return accumulator_probe(problem, seed)
    rng = np.random.default_rng(seed)
    shapes = (problem.m, problem.k), (problem.k, problem.n)
    pair: list[Array]
    if fill == "normal":
        pair = [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]
    elif fill == "positive":
        pair = [1 - rng.random(shape, dtype=np.float32) / 2 for shape in shapes]
    elif fill == "integers":
        # |sum| <= k r^2 < 2^24 keeps every partial sum an exact fp32 integer.
        r = min(8, max(1, math.isqrt((2**24 - 1) // max(problem.k, 1))))
        pair = [rng.integers(-r, r, shape, dtype=np.int8, endpoint=True) for shape in shapes]
    else:
        raise UsageError(f"fill {fill!r} is not one of {', '.join(get_args(Fill))}")
    a, b = (x.astype(problem.dtype.numpy) for x in pair)
    return a, b


def accumulator_probe(problem: Problem, seed: int = 0) -> tuple[Array, Array]:
    """Make operands on which every accumulator of at most 11 significant bits fails ``verify``.

    That is bf16, fp16 and TF32, in any order of summation, for any k >= 2, any split of K and any output type
    (for k < 2 a narrow accumulator and a narrow output are the same thing).

    A row of A has two elements, x at an even place and -y at an odd one; B holds x2 in its even rows and y2 in
    its odd ones; so every element of C is P - Q plus exact zeros (see ``PROBE_FACTORS``), times a power of
    two that differs between rows and columns. P and Q are exact in fp32 and so is their difference. The
    other accumulators round P, Q or both, whichever comes first, and are off by about 2**-12 of P or more: the
    bound of two terms is 2**-23 of P + Q, plus 2**-8 of the small P - Q for a bf16 output. For fp32 inputs
    rounding A or B themselves to TF32 fails as well. The first row's pair lies as far apart as K allows, so that no
    tile, stage or split of K holds both; other rows have theirs side by side, reversed and at random.
    """
    m, n, k = problem.m, problem.n, problem.k
    rng = np.random.default_rng(seed)
    x, x2, y, y2 = _unit_factors(problem.dtype)
    row, column = np.arange(m), np.arange(n)

    a = np.zeros((m, k), np.float32)
    b = np.empty((k, n), np.float32)
    b[0::2], b[1::2] = x2, y2
    b *= np.exp2(column % 3, dtype=np.float32)
    if k:
        even, last_even = 2 * rng.integers(0, (k + 1) // 2, m), (k - 1) // 2 * 2
        even[:3] = (0, 0, last_even)[:m]
        a[row, even] = x
    if k > 1:
        odd, last_odd = 2 * rng.integers(0, k // 2, m) + 1, k // 2 * 2 - 1
        odd[:3] = (last_odd, 1, 1)[:m]
        a[row, odd] = -y
    a *= np.exp2(row % 4, dtype=np.float32)[:, None]
    return a.astype(problem.dtype.numpy), b.astype(problem.dtype.numpy)


def _unit_factors(dtype: DType) -> list[float]:
    """The probe's factors scaled into [1, 2), so that no input type over- or underflows."""
    factors = PROBE_FACTORS[dtype.name]
    scale = 2.0 ** (factors[0].bit_length() - 1)
    return [factor / scale for factor in factors]
