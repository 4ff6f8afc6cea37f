"""The problems that calls are planned as: a batch as one product, and one of any number of rows with a fixed number."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.dtypes import DType
from tilewright.problem import SIZE_LIMIT, Problem

INVARIANT_ROWS = 4096  # for which a plan is made that serves every number of rows


def priced_as(problem: Problem, batch: Sequence[int]) -> Problem:
    """The one product that is planned for a batch of them: with the rows of all."""
    rows = min(problem.m * prod(batch), SIZE_LIMIT - 1)
    return problem if not batch else with_rows(problem, rows)


def with_rows(problem: Problem, rows: int) -> Problem:
    """The problem with so many rows, lines of A on and off 16-byte boundaries as before."""
    lda = problem.lda
    if problem.a_layout == "column":
        lda = _chunks(rows, problem.dtype) + problem.lda % (16 // problem.dtype.itemsize)
    return problem.changed(m=rows, lda=lda)


def invariant(problem: Problem) -> Problem:
    """The problem with ``INVARIANT_ROWS`` rows, whose distance in A and C is told by their length.

    Rows of C lie on 16-byte boundaries where they do; of a single one, where those of a new array would.
    """
    lda, ldc = _chunks(problem.k, problem.dtype), _chunks(problem.n, problem.out_dtype)
    aligned = problem.ldc * problem.out_dtype.itemsize % 16 == 0
    if problem.m == 1:
        aligned = aligned and ldc == problem.n
    return problem.changed(m=INVARIANT_ROWS, lda=lda, ldc=ldc if aligned else ldc + 1)


def turned_invariant(problem: Problem) -> Problem:
    """The same of a product whose columns are the caller's rows."""
    return _with_columns(problem, INVARIANT_ROWS).changed(ldb=_chunks(problem.k, problem.dtype))


def _chunks(line: int, dtype: DType) -> int:
    """The elements of as many 16 bytes as a line takes."""
    chunk = 16 // dtype.itemsize
    return max(-(-line // chunk), 1) * chunk


def _with_columns(problem: Problem, cols: int) -> Problem:
    """The same with so many columns, lines of B and C on and off 16-byte boundaries as before."""
    ldb, ldc = problem.ldb, cols + problem.ldc % (16 // problem.out_dtype.itemsize)
    if problem.b_layout == "row":
        ldb = cols + problem.ldb % (16 // problem.dtype.itemsize)
    return problem.changed(n=cols, ldb=ldb, ldc=ldc)
