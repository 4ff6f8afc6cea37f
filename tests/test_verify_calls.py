"""``verify`` as it is called: batches, blocks, strides and devices, mistakes, and the operands it is given."""

from __future__ import annotations

import sys
import tracemalloc
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from accumulation import ALL_DTYPES, FILLS, right_result
from hypothesis import given, settings
from strategies import problems, seeds

from tilewright import reference
from tilewright.dtypes import BF16
from tilewright.errors import UnavailableError, UsageError, VerifyError
from tilewright.operands import Fill, random_operands
from tilewright.problem import Problem
from tilewright.reference import choose_library, reference_blocks
from tilewright.verify import Report, verify

# ---- batches, blocks, strides, places


def test_batches() -> None:
    problem = Problem(5, 6, 7)
    pairs = [random_operands(problem, seed) for seed in range(3)]
    a, b = (np.stack(x) for x in zip(*pairs, strict=True))
    c = np.stack([right_result(problem, *pair) for pair in pairs])
    report = verify(c, a, b)
    report.require()
    assert report.checked == 90
    c[2, 4, 5] += 1
    report = verify(c, a, b)
    assert report.bad_count == 1
    assert report.first_bad is not None
    assert report.first_bad[:2] == (4, 5)
    assert report.first_bad.batch == 2
    assert "batch 2, row 4, column 5" in str(report)
    c[1, 4, 5] = np.nan
    first = verify(c, a, b).first_bad
    assert first is not None
    assert first.batch == 1


def test_a_shared_operand_and_an_empty_batch() -> None:
    a, b = random_operands(Problem(5, 6, 7))
    c = right_result(Problem(5, 6, 7), a, b)
    verify(np.stack([c, c]), np.stack([a, a]), b).require()
    report = verify(np.empty((0, 5, 6), np.float32), a, b)
    assert (report.ok, report.checked, report.max_error_over_bound) == (True, 0, 0)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(*arguments: Any) -> reference.Library:
        return replace(choose_library(*arguments), block=(4, 5, 3))

    monkeypatch.setattr("tilewright.verify.choose_library", choose)


@pytest.mark.usefixtures("small_blocks")
def test_blocks_cover_everything_once() -> None:
    problem = Problem(11, 13, 10)
    a, b = random_operands(problem, 4)
    c = right_result(problem, a, b)
    report = verify(c, a, b)
    report.require()
    assert report.checked == 11 * 13
    for i, j in product(range(11), range(13)):
        spoiled = c.copy()
        spoiled[i, j] = np.nan
        first = verify(spoiled, a, b).first_bad
        assert first is not None
        assert (first.row, first.col) == (i, j)


@pytest.mark.usefixtures("small_blocks")
def test_the_first_bad_element_is_first_in_row_major_order() -> None:
    a, b = random_operands(Problem(11, 13, 10), 4)
    c = right_result(Problem(11, 13, 10), a, b)
    c[2, 1] = c[0, 12] = c[9, 0] = np.nan  # row 2 lies in an earlier block than column 12 of row 0
    report = verify(c, a, b)
    assert report.bad_count == 3
    assert report.first_bad is not None
    assert (report.first_bad.row, report.first_bad.col) == (0, 12)


def test_reference_blocks_are_the_product() -> None:
    a, b = random_operands(Problem(11, 13, 10, "bf16"), 4)
    library = replace(choose_library({"a": a, "b": b}, 0), block=(4, 5, 3))
    left, right = a.astype(np.float64), b.astype(np.float64)
    for block in reference_blocks(a, b, library):
        place = block.rows, block.columns
        np.testing.assert_allclose(block.product, (left @ right)[place], rtol=0, atol=1e-13)
        np.testing.assert_allclose(block.magnitude, (abs(left) @ abs(right))[place], rtol=1e-14)


def test_memory_does_not_grow_with_c(monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(*arguments: Any) -> reference.Library:
        return replace(choose_library(*arguments), block=(64, 64, 64))

    monkeypatch.setattr("tilewright.verify.choose_library", choose)
    a, b = random_operands(Problem(1024, 1024, 8))
    c = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)
    tracemalloc.start()
    verify(c, a, b).require()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20  # C in float64 alone would be 8 MiB


def test_operands_of_any_strides() -> None:
    problem = Problem(5, 6, 8, "bf16")
    a, b = random_operands(problem)
    c = right_result(problem, a, b)
    padded = np.full((5, 20), np.nan, BF16.numpy)
    padded[:, :8] = a
    backwards = np.asfortranarray(b)[:, ::-1]
    verify(c[:, ::-1], padded[:, :8], backwards).require()
    for x in (a, b, c):
        x.flags.writeable = False
    verify(c, a, b).require()


def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    for dtype, torch_dtype in zip(ALL_DTYPES, (torch.float32, torch.bfloat16, torch.float16), strict=True):
        problem = Problem(33, 48, 20, dtype)
        a, b = random_operands(problem, 11)
        c = right_result(problem, a, b)
        c[3, 4], c[32, 47] = np.nan, np.inf
        tensors = [torch.from_numpy(x.astype(np.float32)).to(torch_dtype) for x in (c, a, b)]
        theirs, ours = verify(*tensors), verify(c, a, b)
        assert str(theirs) == str(ours)
        assert theirs.bad_count == 2
        assert theirs.checked == ours.checked
        c[3, 4], c[32, 47] = (a[[3, 32]].astype(np.float64) @ b[:, [4, 47]].astype(np.float64)).diagonal()
        tensors[0] = torch.from_numpy(c.astype(np.float32)).to(torch_dtype)
        theirs, ours = verify(*tensors), verify(c, a, b)
        assert theirs.ok
        assert theirs.max_error_over_bound == pytest.approx(ours.max_error_over_bound)
        with pytest.raises(UsageError, match="c is torch cpu, a is NumPy, b is NumPy"):
            verify(tensors[0], a, b)
    empty = verify(torch.zeros(3, 4), torch.zeros(3, 0), torch.zeros(0, 4))
    assert (empty.ok, empty.checked) == (True, 12)


@pytest.mark.cuda
def test_torch_on_a_gpu_reports_the_same() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    for dtype in ALL_DTYPES:
        problem = Problem(129, 257, 65, dtype)
        a, b = random_operands(problem, 11)
        c = right_result(problem, a, b)
        c[128, 256] = np.nan
        theirs, ours = verify(c, a, b, device="cuda"), verify(c, a, b, device="cpu")
        assert str(theirs) == str(ours)


def test_the_gpu_is_asked_for_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    a, b = random_operands(Problem(2, 2, 2))
    with pytest.raises(UnavailableError, match="device 'cuda' needs torch"):
        verify(a, a, b, device="cuda")
    # Large problems ask by themselves, and fall back.
    assert choose_library({"a": a, "b": b}, reference.LARGE_MACS).xp is np


# ---- what a caller gets wrong


def test_mistakes_are_named() -> None:
    a, b = random_operands(Problem(2, 3, 4))
    c = np.zeros((2, 3), np.float32)
    cases: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((c, b, a), {}, r"shapes do not fit c \(m, n\) = a \(m, k\) @ b \(k, n\): c \(2, 3\), a \(4, 3\), b \(2, 4\)"),
        ((c.T, a, b), {}, "shapes do not fit"),
        ((c[0], a, b), {}, "operands must be 2-D, or 3-D for a batch"),
        ((c, a[None], b), {}, "batches do not fit"),
        ((np.stack([c, c]), a[None], b), {}, "batches do not fit"),
        ((c, a.astype(np.float64), b), {}, "a has dtype float64, which is not one of fp32, bf16, fp16"),
        ((c.astype(np.float64), a, b), {}, "c has dtype float64"),
        ((c, a, b), {"dtype": "bf16"}, "a is fp32, but dtype is bf16"),
        ((c, a, b), {"accumulator": "fp8"}, "dtype 'fp8' is not one of"),
        ((c, a, b), {"device": "tpu"}, "device 'tpu' is not one of auto, cpu, cuda"),
    ]
    for arguments, keywords, message in cases:
        with pytest.raises(UsageError, match=message):
            verify(*arguments, **keywords)


def test_too_long_a_k_has_no_bound() -> None:
    a, b = np.ones((1, 256), BF16.numpy), np.ones((256, 1), BF16.numpy)
    c = np.full((1, 1), 256, np.float32)
    verify(c, a, b).require()
    with pytest.raises(UsageError, match="k has 256 terms that are not zero; an bf16 accumulator"):
        verify(c, a, b, accumulator="bf16")


def test_a_failed_report_raises_with_its_words() -> None:
    a, b = random_operands(Problem(2, 3, 4), 1, "integers")
    c = right_result(Problem(2, 3, 4), a, b)
    assert str(verify(c, a, b)) == "all 6 elements within 0 of the bound"
    c[1, 2] = np.nan
    want = float(a[1].astype(np.float64) @ b[:, 2])
    with pytest.raises(
        VerifyError, match=rf"1 of 6 elements wrong, first row 1, column 2: got nan, want {want:.9g} within"
    ):
        verify(c, a, b).require()


# ---- the data


@pytest.mark.parametrize("fill", FILLS)
@given(problem=problems(), seed=seeds)
@settings(max_examples=25)
def test_data_are_reproducible_and_of_the_right_kind(fill: Fill, problem: Problem, seed: int) -> None:
    a, b = random_operands(problem, seed, fill)
    again = random_operands(problem, seed, fill)
    assert (a.shape, b.shape) == ((problem.m, problem.k), (problem.k, problem.n))
    for x, y in zip((a, b), again, strict=True):
        assert x.dtype == problem.dtype.numpy
        assert x.flags.c_contiguous
        assert np.array_equal(x, y)
        assert np.isfinite(x.astype(np.float64)).all()


def test_normal_data_use_the_full_mantissa() -> None:
    a, b = random_operands(Problem(200, 100, 100))
    assert abs(a.mean()) < 0.05
    assert a.std() == pytest.approx(1, abs=0.05)
    assert not np.array_equal(a[:100], b)
    for bit in range(23):
        assert 0.4 < (a.view(np.uint32) >> np.uint32(bit) & 1).mean() < 0.6
    assert not np.array_equal(a, random_operands(Problem(200, 100, 100), 1)[0])


def test_integer_data_sum_exactly() -> None:
    for k in (1, 100, 2**16, 2**20):
        a, b = random_operands(Problem(1, 1, k), 0, "integers")
        assert float(abs(a[0]).max()) * float(abs(b).max()) * k < 2**24
        assert (a @ b)[0, 0] == int(a[0].astype(np.int64) @ b[:, 0].astype(np.int64))


def test_unknown_fill() -> None:
    with pytest.raises(UsageError, match="fill 'zeros' is not one of normal, integers, positive, probe"):
        random_operands(Problem(1, 1, 1), 0, "zeros")  # type: ignore[arg-type]


def test_a_c_without_elements_costs_no_memory() -> None:
    a, b, c = (np.empty(shape, np.float16) for shape in ((0, 0), (0, 2**40), (0, 2**40)))
    assert verify(c, a, b) == Report(True, 0.0, 0.0, None, 0, 0)
