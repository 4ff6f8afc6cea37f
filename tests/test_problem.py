from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from strategies import problems

from tilewright.dtypes import BF16, FP16, FP32
from tilewright.errors import UsageError
from tilewright.problem import Problem


def test_defaults_are_filled_in() -> None:
    problem = Problem(3, 5, 7)
    assert (problem.dtype, problem.out_dtype) == (FP32, FP32)
    assert (problem.a_layout, problem.b_layout) == ("row", "row")
    assert (problem.lda, problem.ldb, problem.ldc) == (7, 5, 5)


def test_dtypes_by_name_and_the_output_following() -> None:
    problem = Problem(3, 5, 7, "bf16")
    assert (problem.dtype, problem.out_dtype) == (BF16, BF16)
    assert Problem(3, 5, 7, "bf16", "fp32").out_dtype is FP32
    assert Problem(3, 5, 7, "bf16") == Problem(3, 5, 7, BF16, BF16, lda=7)
    assert len({Problem(3, 5, 7, "bf16"), Problem(3, 5, 7, BF16)}) == 1


def test_tight_leading_dimensions_by_layout() -> None:
    problem = Problem(3, 5, 7, a_layout="column", b_layout="column")
    assert (problem.lda, problem.ldb, problem.ldc) == (3, 7, 5)


def test_work_and_traffic() -> None:
    problem = Problem(3, 5, 7, "bf16", "fp32", lda=100)
    assert problem.flops == 2 * 3 * 5 * 7
    assert (problem.bytes_a, problem.bytes_b, problem.bytes_c) == (3 * 7 * 2, 7 * 5 * 2, 3 * 5 * 4)
    assert problem.bytes_moved == 42 + 70 + 60
    assert problem.intensity == pytest.approx(210 / 172)


@pytest.mark.parametrize("sizes", [(0, 5, 7), (3, 0, 7), (3, 5, 0), (0, 0, 0)])
def test_empty_problems_are_problems(sizes: tuple[int, int, int]) -> None:
    problem = Problem(*sizes)
    assert problem.flops == 0
    assert problem.intensity in (0, None)
    assert (problem.intensity is None) == (problem.bytes_moved == 0)
    assert min(problem.lda, problem.ldb, problem.ldc) >= 1


def test_sizes_beyond_32_bits_of_elements_are_counted_exactly() -> None:
    # 40960 x 128256 elements are more than 2**32: Python integers do not wrap, and nothing may turn them to float.
    problem = Problem(40960, 128256, 2**31 - 1025, "fp16")
    assert problem.bytes_c == 40960 * 128256 * 2 > 2**33
    assert problem.flops == 2 * 40960 * 128256 * (2**31 - 1025)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"m": -1}, "m is -1; it must be at least 0 and below 2**31 - 1024"),
        ({"n": 2**31}, f"n is {2**31}; it must be at least 0 and below 2**31 - 1024"),
        ({"k": 1.5}, "k is 1.5, which is not an integer"),
        ({"k": True}, "k is True, which is not an integer"),
        ({"m": "4"}, "m is '4', which is not an integer"),
        ({"dtype": "fp8"}, "dtype 'fp8' is not one of fp32, bf16, fp16"),
        ({"dtype": ["fp32"]}, "dtype ['fp32'] is not one of fp32, bf16, fp16"),
        ({"out_dtype": 32}, "dtype 32 is not one of fp32, bf16, fp16"),
        ({"b_layout": ["row"]}, "b_layout ['row'] is not one of row, column"),
        ({"a_layout": "col"}, "a_layout 'col' is not one of row, column"),
        ({"lda": 6}, "lda is 6, shorter than the row: it must be at least 7 elements"),
        ({"ldb": 5, "b_layout": "column"}, "ldb is 5, shorter than the row: it must be at least 7 elements"),
        ({"ldc": 4}, "ldc is 4, shorter than the row: it must be at least 5 elements"),
        ({"ldc": "9"}, "ldc is '9', which is not an integer"),
        ({"k": 0, "lda": 0}, "lda is 0, shorter than the row: it must be at least 1 elements"),
    ],
)
def test_mistakes_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Problem(**({"m": 3, "n": 5, "k": 7} | arguments))
    assert str(caught.value) == message


def test_numpy_integers_become_python_ones() -> None:
    import numpy as np

    problem = Problem(np.int32(3), np.int64(5), np.uint8(7))  # type: ignore[arg-type]
    assert [type(size) for size in (problem.m, problem.n, problem.k)] == [int, int, int]


def test_as_text() -> None:
    assert str(Problem(4096, 4096, 4096)) == "4096x4096x4096 fp32"
    assert str(Problem(1, 2, 3, "bf16", "fp32")) == "1x2x3 bf16->fp32"
    padded = Problem(1, 2, 3, "fp16", a_layout="column", ldc=8)
    assert str(padded) == "1x2x3 fp16, A column-major, ldc 8"


def test_changed_keeps_defaults_defaults() -> None:
    assert Problem(3, 5, 7).changed(k=4, dtype="bf16") == Problem(3, 5, 4, "bf16")
    padded = Problem(3, 5, 7, "bf16", "fp32", ldb=11)
    assert padded.changed(k=4, dtype=FP16) == Problem(3, 5, 4, FP16, FP32, ldb=11)
    with pytest.raises(UsageError, match="'bm' is not one of m, n, k"):
        padded.changed(bm=128)


@given(problems(padded=True))
def test_padded_lines_start_on_16_byte_boundaries(problem: Problem) -> None:
    found = problem.padded()
    sizes = (problem.dtype.itemsize, problem.dtype.itemsize, problem.out_dtype.itemsize)
    for size, before, after in zip(
        sizes, (problem.lda, problem.ldb, problem.ldc), (found.lda, found.ldb, found.ldc), strict=True
    ):
        assert after * size % 16 == 0
        assert before <= after < before + 16 / size
    assert found.changed(lda=problem.lda, ldb=problem.ldb, ldc=problem.ldc) == problem
    assert found.padded() == found


@given(problems(padded=True))
def test_json_round_trip(problem: Problem) -> None:
    assert Problem.from_dict(json.loads(json.dumps(problem.to_dict()))) == problem
    assert problem.changed() == problem


def test_from_dict_fills_in_and_complains() -> None:
    assert Problem.from_dict({"m": 3, "n": 5, "k": 7}) == Problem(3, 5, 7)
    with pytest.raises(UsageError, match="problem field 'k' is missing"):
        Problem.from_dict({"m": 3, "n": 5})
    with pytest.raises(UsageError, match="problem field 'batch' is not one of"):
        Problem.from_dict({"m": 3, "n": 5, "k": 7, "batch": 2})
