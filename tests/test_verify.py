"""``verify``: what must pass, and the accumulators, faults and infinities that must not."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from accumulation import ALL_DTYPES, FILLS, ORDERS, Array, accumulate, right_result, rounded
from hypothesis import example, given, settings
from hypothesis import strategies as st
from strategies import dtypes, problems, seeds

from tilewright.dtypes import BF16, FP16, FP32, DType
from tilewright.errors import UsageError
from tilewright.operands import PROBE_FACTORS, Fill, accumulator_probe, random_operands
from tilewright.problem import Problem
from tilewright.verify import Expected, error_bound, gamma, verify

# ---- what must pass


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
@pytest.mark.parametrize("order", ORDERS)
def test_fp32_accumulation_passes_in_any_order(order: str, dtype: DType, fill: Fill) -> None:
    problem = Problem(7, 9, 130, dtype)
    a, b = random_operands(problem, 1, fill)
    for fused, out in product([True, False], ALL_DTYPES):
        c = accumulate(a, b, FP32, order, fused).astype(out.numpy)
        report = verify(c, a, b, dtype=dtype)
        report.require()
        assert report.max_error_over_bound <= 1
        assert (report.bad_count, report.first_bad, report.checked) == (0, None, 63)


@given(problems(), seeds, st.sampled_from(FILLS), st.sampled_from(ORDERS))
@settings(max_examples=60)
@example(Problem(3, 3, 0), 0, "normal", "sequential")
@example(Problem(0, 3, 5), 0, "normal", "sequential")
@example(Problem(3, 0, 5), 0, "probe", "sequential")
@example(Problem(1, 1, 1, "bf16"), 0, "probe", "pairwise")
def test_right_kernels_pass(problem: Problem, seed: int, fill: Fill, order: str) -> None:
    a, b = random_operands(problem, seed, fill)
    c = accumulate(a, b, FP32, order).astype(problem.out_dtype.numpy)
    verify(c, a, b, dtype=problem.dtype, out_dtype=problem.out_dtype).require()


@given(st.data())
@settings(max_examples=40)
def test_the_bound_covers_the_worst_of_two_roundings(data: st.DataObject) -> None:
    # Exact rational arithmetic on a few terms, against a computation in fp32 and a rounding to the output.
    dtype, out = data.draw(dtypes), data.draw(dtypes)
    k = data.draw(st.integers(1, 5))
    values = st.floats(-8, 8, width=16, allow_subnormal=False)
    a = np.array([data.draw(st.lists(values, min_size=k, max_size=k))]).astype(dtype.numpy)
    b = np.array([data.draw(st.lists(values, min_size=k, max_size=k))]).astype(dtype.numpy).T
    c = accumulate(a, b, FP32, "sequential", fused=False).astype(out.numpy)
    pairs = [(Fraction(float(x)), Fraction(float(y))) for x, y in zip(a[0], b[:, 0], strict=True)]
    exact, magnitude = sum(x * y for x, y in pairs), sum(abs(x * y) for x, y in pairs)
    bound = error_bound(k, float(exact), float(magnitude), FP32, out)
    assert abs(Fraction(float(c[0, 0])) - exact) <= Fraction(bound)
    verify(c, a, b).require()


def test_gamma_is_highams() -> None:
    assert gamma(1, 2.0**-24) == pytest.approx(2.0**-24)
    assert gamma(4096, FP32.unit_roundoff) == pytest.approx(4096 * 2.0**-24, rel=1e-3)
    assert gamma(128, BF16.unit_roundoff) == 1  # n u = 1/2


def test_a_long_k_at_a_fixed_tolerance_would_fail() -> None:
    # Zero-mean and positive data at large K: the error grows with K, and so does the bound.
    for k, fill in product([64, 4096, 65536], ["normal", "positive"]):
        problem = Problem(2, 2, k)
        a, b = random_operands(problem, 0, fill)  # type: ignore[arg-type]
        report = verify(right_result(problem, a, b), a, b)
        report.require()
        assert 0 < report.max_error_over_bound < 0.5


def test_an_empty_sum_is_exactly_zero() -> None:
    a, b = np.zeros((3, 0), np.float32), np.zeros((0, 4), np.float32)
    verify(np.zeros((3, 4), np.float32), a, b).require()
    report = verify(np.full((3, 4), 1e-45, np.float32), a, b)
    assert (report.bad_count, report.max_error_over_bound) == (12, np.inf)
    # So is a sum of zeros, however many.
    a, b = np.zeros((3, 5), np.float32), np.ones((5, 4), np.float32)
    assert verify(np.full((3, 4), 1e-45, np.float32), a, b).bad_count == 12


def test_underflow_of_the_output_passes() -> None:
    a = np.array([[1.5e-3]], np.float16)
    b = np.array([[2e-5]], np.float16)
    c = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float16)  # 3e-8, half the least fp16 subnormal
    verify(c, a, b).require()
    assert not verify(np.array([[1.2e-7]], np.float16), a, b).ok


def test_the_accumulator_may_be_declared_narrower() -> None:
    problem = Problem(4, 4, 64, "bf16", "fp32")
    a, b = random_operands(problem, 3)
    c = accumulate(a, b, BF16, "sequential").astype(np.float32)
    assert not verify(c, a, b).ok
    verify(c, a, b, accumulator="bf16").require()


# ---- what must fail: accumulators and inputs that are too narrow


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
@pytest.mark.parametrize("narrow", [BF16, FP16], ids=str)
@pytest.mark.parametrize("k", [2, 3, 33, 200])
def test_the_probe_fails_every_narrow_accumulator(k: int, narrow: DType, dtype: DType) -> None:
    problem = Problem(6, 4, k, dtype)
    a, b = accumulator_probe(problem)
    for order, fused, out in product(ORDERS, [True, False], ALL_DTYPES):
        c = accumulate(a, b, narrow, order, fused).astype(out.numpy)
        report = verify(c, a, b)
        assert report.bad_count == report.checked == 24
        assert report.max_error_over_bound > 20


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_the_probe_holds_for_a_very_long_k(dtype: DType) -> None:
    a, b = accumulator_probe(Problem(5, 3, 100_000, dtype))
    places = a.astype(np.float64).nonzero()[1].reshape(5, 2)
    partial = [np.take_along_axis(a, places[:, [i]], 1).astype(np.float64) for i in range(2)]
    first, second = (p * b[places[:, i]].astype(np.float64) for i, p in enumerate(partial))
    assert places[0].tolist() == [0, 99_999]
    for out in ALL_DTYPES:
        verify((first + second).astype(out.numpy), a, b).require()
        for narrow in (BF16, FP16):
            # A split of K whose halves are stored in the narrow type.
            halves = rounded(rounded(first, narrow) + rounded(second, narrow), narrow)
            assert verify(halves.astype(out.numpy), a, b).bad_count == 15


def test_probe_factors_are_what_they_claim() -> None:
    """Every way to round P and Q, as integers, against the bound with the widest output allowance."""
    for name, (x, x2, y, y2) in PROBE_FACTORS.items():
        bits = {"bf16": 8, "fp16": 11, "fp32": 12}[name]
        assert {factor.bit_length() for factor in (x, x2, y, y2)} == {bits}
        p, q = x * x2, y * y2
        assert max(p, q) < 2**24  # exact in fp32
        bound = error_bound(2, float(p - q), float(p + q), FP32, BF16)
        for narrow in (8, 11):
            computed = [
                to_bits(to_bits(p, narrow) - q, narrow),
                to_bits(p - to_bits(q, narrow), narrow),
                to_bits(to_bits(p, narrow) - to_bits(q, narrow), narrow),
            ]
            assert min(abs(result - (p - q)) for result in computed) > 90 * bound
        if name == "fp32":
            for truncate in (False, True):
                tf32 = [to_bits(factor, 11, truncate) for factor in (x, x2, y, y2)]
                narrowed = [
                    tf32[0] * x2 - tf32[2] * y2,
                    x * tf32[1] - y * tf32[3],
                    tf32[0] * tf32[1] - tf32[2] * tf32[3],
                ]
                assert min(abs(result - (p - q)) for result in narrowed) > 90 * bound


def to_bits(value: int, bits: int, truncate: bool = False) -> int:
    """Round an integer to a number of significant bits, to nearest even or towards zero."""
    unit = 1 << max(0, abs(value).bit_length() - bits)
    quotient = int(Fraction(value, unit)) if truncate else round(Fraction(value, unit))
    return quotient * unit


def test_tf32_is_not_fp32() -> None:
    def tf32(x: Array) -> Array:
        return (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)

    a, b = np.array([[1024.5]], np.float32), np.array([[1.0]], np.float32)
    verify(a @ b, a, b).require()
    assert not verify(tf32(a) @ b, a, b).ok
    # On random data the loss hides in the bound of a long K; the probe shows it at any.
    a, b = accumulator_probe(Problem(4, 4, 4096))
    for left, right in ((tf32(a), b), (a, tf32(b)), (tf32(a), tf32(b))):
        assert verify((left.astype(np.float64) @ right).astype(np.float32), a, b).bad_count == 16


@pytest.mark.parametrize("k", [5, 4096, 2**16])
def test_one_lost_term_of_an_integer_sum_is_found_at_any_k(k: int) -> None:
    a, b = random_operands(Problem(2, 3, k), 0, "integers")
    a[0, -1] = b[-1, 1] = 1
    c = accumulate(a, b, FP32, "blocked").astype(np.float32)
    assert verify(c, a, b).max_error_over_bound == 0
    c[0, 1] -= 1
    report = verify(c, a, b)
    assert report.bad_count == 1
    assert report.max_abs_error == 1


def test_integers_too_large_to_add_exactly_keep_the_bound() -> None:
    a, b = np.full((2, 3), 4097, np.float32), np.full((3, 2), 4095, np.float32)
    a[1] = 1
    b[:, 1] = 1
    c = accumulate(a, b, FP32, "sequential", fused=False).astype(np.float32)
    assert float(c[0, 0]) != 3 * 4097 * 4095  # 50331645 needs 26 bits
    verify(c, a, b).require()
    assert verify(c + np.float32(1), a, b).bad_count == 3


def test_narrow_accumulators_fail_on_ordinary_data_too() -> None:
    for fill in ("normal", "positive"):
        problem = Problem(8, 8, 512, "bf16", "fp32")
        a, b = random_operands(problem, 5, fill)
        for narrow in (BF16, FP16):
            assert not verify(accumulate(a, b, narrow, "sequential").astype(np.float32), a, b).ok


# ---- what must fail: faults of kernels


def nan_at(row: int, col: int) -> Callable[[Array], None]:
    def inject(c: Array) -> None:
        c[row, col] = np.nan

    return inject


def spoil(rows: slice, cols: slice, value: float | None = None) -> Callable[[Array], None]:
    """Overwrite a part; without a value, nudge it by a hundredth."""

    def inject(c: Array) -> None:
        c[rows, cols] = (c[rows, cols].astype(np.float64) * 1.01 if value is None else value)  # fmt: skip

    return inject


ALL = slice(None)
FAULTS = {
    "one NaN": (nan_at(5, 6), 1, (5, 6)),
    "NaN in the last element": (nan_at(32, 47), 1, (32, 47)),
    "Inf": (spoil(slice(3, 4), slice(2, 3), np.inf), 1, (3, 2)),
    "minus Inf": (spoil(slice(3, 4), slice(2, 3), -np.inf), 1, (3, 2)),
    "nothing written": (spoil(ALL, ALL, np.nan), 33 * 48, (0, 0)),
    "the last tile not written": (spoil(slice(32, 33), slice(32, 48), np.nan), 16, (32, 32)),
    "the last row stale": (spoil(slice(32, 33), ALL, 0.0), 48, (32, 0)),
    "the last column stale": (spoil(ALL, slice(47, 48), 0.0), 33, (0, 47)),
    "one element off by 1%": (spoil(slice(7, 8), slice(9, 10)), 1, (7, 9)),
    "the last element off by 1%": (spoil(slice(32, 33), slice(47, 48)), 1, (32, 47)),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_faults_are_found(fault: str, dtype: DType) -> None:
    inject, count, place = FAULTS[fault]
    problem = Problem(33, 48, 20, dtype)
    a, b = random_operands(problem, 11, "positive")
    c = right_result(problem, a, b)
    verify(c, a, b).require()
    inject(c)
    report = verify(c, a, b)
    assert (report.ok, report.bad_count, report.checked) == (False, count, 33 * 48)
    assert report.first_bad is not None
    assert (report.first_bad.row, report.first_bad.col, report.first_bad.batch) == (*place, None)
    got = float(c[place])
    assert report.first_bad.got == got or (np.isnan(got) and np.isnan(report.first_bad.got))
    assert report.first_bad.want == pytest.approx(
        float(a[place[0]].astype(np.float64) @ b[:, place[1]].astype(np.float64))
    )
    if not np.isfinite(got):
        assert report.max_error_over_bound == report.max_abs_error == np.inf


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
@pytest.mark.parametrize("wrong", ["last k left out", "first k twice", "rows swapped", "B transposed", "sum doubled"])
def test_wrong_products_are_found(wrong: str, dtype: DType) -> None:
    problem = Problem(20, 20, 20, dtype)
    a, b = random_operands(problem, 2)
    left, right = a.astype(np.float64), b.astype(np.float64)
    c = {
        "last k left out": left[:, :-1] @ right[:-1],
        "first k twice": left @ right + left[:, :1] @ right[:1],
        "rows swapped": (left @ right)[np.r_[1, 0, 2:20]],
        "B transposed": left @ right.T,
        "sum doubled": 2 * (left @ right),
    }[wrong].astype(dtype.numpy)
    report = verify(c, a, b)
    assert not report.ok
    assert report.bad_count > (30 if wrong == "rows swapped" else 300)


@given(problems(least=1, most=12), seeds, st.data())
@settings(max_examples=60)
def test_any_one_element_beyond_the_bound_is_found(problem: Problem, seed: int, data: st.DataObject) -> None:
    a, b = random_operands(problem, seed)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    i, j = data.draw(st.integers(0, problem.m - 1)), data.draw(st.integers(0, problem.n - 1))
    magnitude = float(abs(a[i].astype(np.float64)) @ abs(b[:, j].astype(np.float64)))
    bound = error_bound(problem.k, float(exact[i, j]), magnitude, FP32, problem.out_dtype)
    for factor, count in ((-1.01, 1), (-0.99, 0), (0.99, 0), (1.01, 1)):
        c = exact.copy()
        c[i, j] += factor * bound
        report = verify(c, a, b, out_dtype=problem.out_dtype)
        assert report.bad_count == count
        assert report.max_error_over_bound == pytest.approx(abs(factor), rel=1e-4)
        if count:
            assert report.first_bad is not None
            assert (report.first_bad.row, report.first_bad.col) == (i, j)
            assert report.first_bad.bound == pytest.approx(bound)


# ---- infinities, NaN and overflow in the data


@pytest.mark.parametrize("n", [1, 5])  # matrix-vector products take another path through BLAS
def test_nonfinite_references_must_be_met(n: int) -> None:
    a = np.ones((5, 4), np.float32)
    a[1, 2], a[2, 0], a[3, 1] = np.inf, -np.inf, np.nan
    a[4, :2] = np.inf, -np.inf
    b = np.ones((4, n), np.float32)
    c = np.repeat(np.array([[4], [np.inf], [-np.inf], [np.nan], [np.nan]], np.float32), n, 1)
    report = verify(c, a, b)
    report.require()
    assert report.max_error_over_bound == report.max_abs_error == 0
    for row, wrong in [
        (1, -np.inf),
        (1, np.nan),
        (1, 3.4e38),
        (2, np.inf),
        (3, 0.0),
        (3, np.inf),
        (4, np.inf),
        (0, np.inf),
    ]:
        spoiled = c.copy()
        spoiled[row, -1] = wrong
        report = verify(spoiled, a, b)
        assert report.bad_count == 1
        assert report.first_bad is not None
        assert (report.first_bad.row, report.first_bad.col) == (row, n - 1)
        assert report.max_error_over_bound == np.inf


def test_zero_times_infinity_is_nan() -> None:
    a, b = np.array([[0, 1]], np.float32), np.array([[np.inf], [2]], np.float32)
    verify(np.array([[np.nan]], np.float32), a, b).require()
    assert not verify(np.array([[2]], np.float32), a, b).ok


def test_output_overflow_is_infinity_of_the_right_sign() -> None:
    a, b = np.array([[200, 100], [-200, 100]], np.float16), np.array([[400], [1]], np.float16)
    c = np.array([[np.inf], [-np.inf]], np.float16)  # 80100 and -79900: beyond fp16's 65504
    verify(c, a, b).require()
    assert verify(-c, a, b).bad_count == 2
    assert verify(np.array([[65504], [-65504]], np.float16), a, b).bad_count == 2
    assert verify(np.array([[np.nan], [-np.inf]], np.float16), a, b).bad_count == 1
    # bf16 holds such values: 1e5 must stay finite there.
    verify(np.array([[80100], [-79900]], BF16.numpy), a, b).require()
    assert verify(np.array([[np.inf], [-79900]], BF16.numpy), a, b).bad_count == 1


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_the_largest_finite_output(dtype: DType) -> None:
    largest = float(np.nextafter(dtype.numpy.type(np.inf), dtype.numpy.type(0)))
    a, b = np.array([[largest]], dtype.numpy), np.array([[1]], dtype.numpy)
    verify(a.copy(), a, b).require()
    assert not verify(np.array([[-np.inf]], dtype.numpy), a, b).ok


def test_huge_fp32_values_leak_no_warnings() -> None:
    a = np.array([[3e38, 3e38, 1], [1, 0, 0]], np.float32)
    b = np.array([[3e38], [-3e38], [1]], np.float32)
    report = verify(np.array([[1], [3e38]], np.float32), a, b)  # the sum of the first row cancels
    assert report.checked == 2
    # Partial sums overflow fp32 there: outside the theorem, and a NaN never passes for a finite reference.
    assert verify(np.array([[np.nan], [3e38]], np.float32), a, b).bad_count == 1


# ---- one expectation for many results


def test_what_is_expected_once_is_what_verify_says() -> None:
    a, b = random_operands(Problem(7, 9, 130, BF16), 1, "normal")
    expected = Expected(a, b, out_dtype=BF16)
    right = accumulate(a, b, FP32, "sequential", True).astype(BF16.numpy)
    wrong = right.copy()
    wrong[3, 4] *= 1.5
    for c in (right, wrong, right):
        assert expected.check(c) == verify(c, a, b)
    assert expected.check(wrong).first_bad is not None
    with pytest.raises(UsageError, match="bf16 \\(7, 9\\) is expected"):
        expected.check(right[:5])
    with pytest.raises(UsageError, match="float32"):
        expected.check(right.astype(np.float32))
    with pytest.raises(UsageError, match="do not fit"):
        Expected(a, a, out_dtype=BF16)
