"""Is a result right? One bound on the error of every element, and a report of what lies outside it.

**The bound.** With n terms a_k b_k, S = sum |a_k||b_k|, u the unit roundoff of the accumulator and u_out that of
the output, an element c with exact value r passes when

    |c - r| <= gamma S + u_out |r|,   gamma = (1 + u_out) gamma_n,   gamma_n = n u / (1 - n u)

Source: N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., SIAM 2002, section 3.1, where
(3.5) bounds an inner product computed in *any* order by gamma_n S: blocked, split or pairwise sums included.

- *Why n and not more.* Each term meets at most n roundings: its product's, and n - 1 additions. A fused
  multiply-add rounds product and addition once; bf16 and fp16 products are exact in fp32. Starting from 0 and
  adding zeros (padding of a tile, a zero element) is exact. So n is K, or fewer where a row of A or a column
  of B has fewer elements that are not zero. That matters for the data of ``accumulator_probe`` only.
- *Integers* are never rounded while S <= 1 / u, as every partial sum is an integer that the accumulator holds: n
  is 0 there, and one lost term shows at any K.
- *Why 1 + u_out.* Rounding to the output acts on the computed sum, which may exceed |r| by gamma_n S.
- *The reference* is computed in float64 and errs too: gamma_n with u = 2**-53 is added. It is 2**-29 of the rest.
- *Underflow* (Higham, section 2.8) adds, in absolute terms, half the smallest subnormal of the accumulator for each
  of n products and of the output once. Where S is 0, c must be 0: a sum of nothing is exact.
- *Overflow.* A correct kernel turns what rounds beyond the output's largest number into Inf of r's sign; so
  that passes, and only there.

A NaN passes only where the reference is NaN, an Inf only where it is the same Inf or as above. The theorem assumes
that no partial sum overflows the accumulator; data that do so are reported as bad.

The bound grows with K and is the worst case: a right kernel on random data uses a few percent of it, the rounding
of its output aside. It still catches narrow accumulators: see ``tilewright.operands.accumulator_probe``. Tensor
cores truncate aligned products instead of rounding each addition, but do so for whole groups of terms, and stay
inside it in practice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from tilewright.dtypes import DTYPES, FP32, DType
from tilewright.dtypes import dtype as lookup_dtype
from tilewright.errors import UsageError, VerifyError
from tilewright.reference import Block, Device, Library, choose_library, reference_blocks

_FLOAT64_ROUNDOFF = 2.0**-53
_finfo: Any = ml_dtypes.finfo  # untyped in ml_dtypes


class BadElement(NamedTuple):
    """An element outside its bound: its place, what was there, the float64 reference and the bound."""

    row: int
    col: int
    got: float
    want: float
    bound: float
    batch: int | None = None

    def __str__(self) -> str:
        batch = "" if self.batch is None else f"batch {self.batch}, "
        return (
            f"{batch}row {self.row}, column {self.col}: got {self.got:.9g}, "
            f"want {self.want:.9g} within {self.bound:.3g}"
        )


@dataclass(frozen=True)
class Report:
    """What ``verify`` found.

    ``max_error_over_bound`` is the largest |c - r| / bound: at most 1 when all is well, and Inf when a NaN or an
    Inf is out of place or an element that must be exact is not. ``max_abs_error`` is the largest |c - r|, Inf
    likewise. ``first_bad`` is the first bad element in row-major order. ``checked`` counts elements.
    """

    ok: bool
    max_error_over_bound: float
    max_abs_error: float
    first_bad: BadElement | None
    bad_count: int
    checked: int

    def require(self) -> None:
        """Raise ``VerifyError`` with this report as its message unless everything passed."""
        if not self.ok:
            raise VerifyError(str(self))

    def __str__(self) -> str:
        if self.ok:
            return f"all {self.checked:,} elements within {self.max_error_over_bound:.2g} of the bound"
        return f"{self.bad_count:,} of {self.checked:,} elements wrong, first {self.first_bad}"


def gamma(n: Any, unit_roundoff: float) -> Any:
    """Higham's gamma_n = n u / (1 - n u), of a number or an array; meaningless unless n u < 1."""
    return n * unit_roundoff / (1 - n * unit_roundoff)


def error_bound(terms: Any, product: Any, magnitude: Any, accumulator: DType, out_dtype: DType) -> Any:
    """The largest right |c - r|, by the formula in this module's docstring.

    ``terms`` is n, ``product`` the float64 reference r and ``magnitude`` S: arrays or tensors of float64 that
    broadcast to C's shape. ``terms`` times the accumulator's unit roundoff must be below 1.
    """
    u_out = out_dtype.unit_roundoff
    relative = (gamma(terms, accumulator.unit_roundoff) + gamma(terms, _FLOAT64_ROUNDOFF)) * (1 + u_out)
    underflow = terms * (_least(accumulator) / 2) + _least(out_dtype) / 2
    return (relative * magnitude + u_out * abs(product) + underflow) * (magnitude > 0)


def verify(
    c: Any,
    a: Any,
    b: Any,
    *,
    dtype: DType | str | None = None,
    accumulator: DType | str = FP32,
    out_dtype: DType | str | None = None,
    device: Device = "auto",
) -> Report:
    """Check C ``(m, n)`` = A ``(m, k)`` @ B ``(k, n)`` element by element against a float64 reference.

    The operands are NumPy arrays (``ml_dtypes.bfloat16`` for bf16) or torch tensors, of any strides. C may be
    ``(batch, m, n)``; A and B then have the same batch, or are 2-D and shared. ``dtype`` states what A and B
    must be; ``out_dtype`` is the type C was rounded to, its own when left out; ``accumulator`` the type the kernel
    promises to add in. ``device`` says where NumPy arrays are checked: ``auto`` is the processor, or a GPU
    through torch for large ones (``reference.LARGE_MACS``). Extra memory does not grow with C.

    Raises ``UsageError`` when shapes or dtypes do not fit, or K is too long for the accumulator to have a
    bound (K u >= 1, 2**24 for fp32), and ``UnavailableError`` for a device that is not there.
    """
    accumulator = lookup_dtype(accumulator)
    wanted = None if dtype is None else lookup_dtype(dtype)
    for name, operand in (("a", a), ("b", b)):
        found = _dtype_of(name, operand)
        if wanted is not None and found != wanted:
            raise UsageError(f"{name} is {found}, but dtype is {wanted}")
    out = _dtype_of("c", c) if out_dtype is None else lookup_dtype(out_dtype)
    _check_shapes(c, a, b)

    library = choose_library({"c": c, "a": a, "b": b}, math.prod(c.shape) * a.shape[-1], device)
    c, a, b = library.load(c), library.load(a), library.load(b)
    check = _Check(library, accumulator, out)
    # Products of huge numbers overflow, differences of infinities are NaN: all of it is looked at below.
    with np.errstate(all="ignore"):
        if c.ndim == 2:
            check.matrix(c, a, b)
        else:
            for batch in range(c.shape[0]):
                left, right = (x if x.ndim == 2 else x[batch] for x in (a, b))
                check.matrix(c[batch], left, right, batch)
    return check.report()


class Expected:
    """What C = A B must be, computed once and held against one result after another.

    A ``(m, k)`` and B ``(k, n)`` are 2-D; the other arguments are those of ``verify``, whose bound this is. Takes 16
    bytes an element of C where A and B lie. Raises as ``verify`` does.
    """

    def __init__(
        self, a: Any, b: Any, *, out_dtype: DType | str, accumulator: DType | str = FP32, device: Device = "auto"
    ) -> None:
        if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
            raise UsageError(
                f"shapes do not fit c (m, n) = a (m, k) @ b (k, n): a {tuple(a.shape)}, b {tuple(b.shape)}"
            )
        self._shape = (a.shape[0], b.shape[1])
        self._library = choose_library({"a": a, "b": b}, math.prod(self._shape) * a.shape[1], device)
        self._out, self._accumulator = lookup_dtype(out_dtype), lookup_dtype(accumulator)
        check = _Check(self._library, self._accumulator, self._out)
        with np.errstate(all="ignore"):
            self._blocks = [
                (Block(block.rows, block.columns, block.product, None), bound)
                for block, bound in check.expected(self._library.load(a), self._library.load(b))
            ]

    def check(self, c: Any) -> Report:
        """Whether C ``(m, n)`` is right. Raises ``UsageError`` for another shape or dtype."""
        if tuple(c.shape) != self._shape or _dtype_of("c", c) != self._out:
            raise UsageError(f"c is {c.dtype} {tuple(c.shape)}; {self._out} {self._shape} is expected")
        c, check = self._library.load(c), _Check(self._library, self._accumulator, self._out)
        with np.errstate(all="ignore"):
            for block, bound in self._blocks:
                check.block(self._library.float64(c[block.rows, block.columns]), block, bound)
        return check.report()


class _Check:
    """Goes through one or more matrices block by block and gathers what it finds."""

    def __init__(self, library: Library, accumulator: DType, out_dtype: DType) -> None:
        self.library = library
        self.accumulator = accumulator
        self.out_dtype = out_dtype
        self.max_ratio = self.max_error = 0.0
        self.bad_count = self.checked = 0
        self.first_bad: BadElement | None = None

    def matrix(self, c: Any, a: Any, b: Any, batch: int | None = None) -> None:
        for block, bound in self.expected(a, b):
            self.block(self.library.float64(c[block.rows, block.columns]), block, bound, batch)

    def expected(self, a: Any, b: Any) -> Iterator[tuple[Block, Any]]:
        """The blocks of A ``(m, k)`` @ B ``(k, n)`` with the bound of each element."""
        if 0 in (a.shape[0], b.shape[1]):  # nothing to check, however long the other side is
            return
        xp, float64 = self.library.xp, self.library.float64
        row_terms, column_terms = float64((a != 0).sum(1)), float64((b != 0).sum(0))
        self._check_terms(row_terms, column_terms)
        integers = self._all_integers(a) and self._all_integers(b)
        for block in reference_blocks(a, b, self.library):
            terms = xp.minimum(row_terms[block.rows, None], column_terms[None, block.columns])
            if integers:
                terms = terms * (block.magnitude * self.accumulator.unit_roundoff > 1)
            bound = error_bound(terms, block.product, block.magnitude, self.accumulator, self.out_dtype)
            yield block, bound

    def _all_integers(self, operand: Any) -> bool:
        # Slice by slice, as most data give the answer in the first.
        step = self.library.block[0]
        slices = (operand[start : start + step] for start in range(0, operand.shape[0], step))
        return all(bool((part == self.library.xp.trunc(part)).all()) for part in slices)

    def _check_terms(self, row_terms: Any, column_terms: Any) -> None:
        if min(row_terms.shape[0], column_terms.shape[0]) == 0:
            return
        terms = min(float(row_terms.max()), float(column_terms.max()))
        if terms * self.accumulator.unit_roundoff >= 1:
            longest = round(1 / self.accumulator.unit_roundoff)
            raise UsageError(
                f"k has {terms:.0f} terms that are not zero; an {self.accumulator} accumulator has an "
                f"error bound below {longest}"
            )

    def block(self, got: Any, block: Block, bound: Any, batch: int | None = None) -> None:
        """Hold a block of C, in float64, against its product and bounds."""
        error, ratio = _compare(self.library.xp, got, block.product, bound, _overflow(self.out_dtype))
        bad = ~(ratio <= 1)
        bad_count = int(bad.sum())
        self.checked += math.prod(got.shape)
        self.bad_count += bad_count
        self.max_error = max(self.max_error, float(error.max()))
        self.max_ratio = max(self.max_ratio, float(ratio.max()))
        if bad_count:
            i, j = divmod(int(self.library.to_numpy(bad).argmax()), bad.shape[1])
            row, col = block.rows.start + i, block.columns.start + j
            want, known = block.product[i, j], self.first_bad
            # Blocks lie side by side, so a later one may hold an earlier row.
            if known is None or (batch or 0, row, col) < (known.batch or 0, known.row, known.col):
                self.first_bad = BadElement(row, col, float(got[i, j]), float(want), float(bound[i, j]), batch)

    def report(self) -> Report:
        return Report(
            ok=self.bad_count == 0,
            max_error_over_bound=self.max_ratio,
            max_abs_error=self.max_error,
            first_bad=self.first_bad,
            bad_count=self.bad_count,
            checked=self.checked,
        )


def _compare(xp: Any, got: Any, want: Any, bound: Any, overflow: float) -> tuple[Any, Any]:
    """The error of each element, and the error over its bound: 0 where exactly right, Inf where hopeless."""
    finite = xp.isfinite(want)
    overflowed = finite & xp.isinf(got) & (got * want > 0) & (abs(want) + bound >= overflow)
    right = (got == want) | (xp.isnan(got) & xp.isnan(want)) | overflowed
    hopeless = ~right & ~(finite & xp.isfinite(got))
    error = xp.where(right, 0.0, xp.where(hopeless, math.inf, abs(got - want)))
    return error, xp.where(right | hopeless, error, error / bound)


def _least(dtype: DType) -> float:
    """The smallest positive number of a type, a subnormal one."""
    return float(_finfo(dtype.numpy).smallest_subnormal)


def _overflow(dtype: DType) -> float:
    """From this magnitude on, rounding to nearest gives Inf: half a unit in the last place past the largest."""
    largest = float(_finfo(dtype.numpy).max)
    return largest + dtype.unit_roundoff * 2.0 ** math.floor(math.log2(largest))


def _dtype_of(name: str, array: Any) -> DType:
    found = str(array.dtype).removeprefix("torch.")
    for known in DTYPES.values():
        if found == known.numpy_name:
            return known
    raise UsageError(f"{name} has dtype {found}, which is not one of {', '.join(DTYPES)}")


def _check_shapes(c: Any, a: Any, b: Any) -> None:
    shapes = f"c {tuple(c.shape)}, a {tuple(a.shape)}, b {tuple(b.shape)}"
    if not all(2 <= x.ndim <= 3 for x in (c, a, b)):
        raise UsageError(f"operands must be 2-D, or 3-D for a batch, but shapes are {shapes}")
    if a.shape[-1] != b.shape[-2] or tuple(c.shape[-2:]) != (a.shape[-2], b.shape[-1]):
        raise UsageError(f"shapes do not fit c (m, n) = a (m, k) @ b (k, n): {shapes}")
    batches = {x.shape[0] for x in (c, a, b) if x.ndim == 3}
    if len(batches) > 1 or (batches and c.ndim == 2):
        raise UsageError(f"batches do not fit: c must have that of a and b, but shapes are {shapes}")
