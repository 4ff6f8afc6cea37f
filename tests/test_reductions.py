"""Reductions among an epilogue's outputs, of rows and columns: the largest, or the largest magnitude."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from epilogue_cases import CASES, Case, value_of
from matmul_cases import Array, Exported, integers, same

import tilewright
from tilewright import BF16, FP32, DType, Matmul, UsageError, matmul
from tilewright.backends.base import Backend
from tilewright.backends.emulator import EmulatorBackend
from tilewright.checked import check as checked
from tilewright.epilogue.code import BoundEpilogue
from tilewright.epilogue.compose import Composed, compose
from tilewright.run import prepare

KERNELS = [case for case in CASES if case.name.startswith(("rung5", "rung11-bf16", "simt-fp32", "gemv", "swapab-fp16"))]
OUTPUTS = ("row_absmax", "col_max", "col_absmax", "row_max")


def reduced(acc: Any) -> Any:
    """C and a reduction of each kind, all negative where signs are kept."""
    t = tilewright
    return acc, t.row_absmax(acc), t.col_max(acc - 5000), t.col_absmax(acc), t.row_max(acc - 5000)


def in_numpy(acc: Array) -> tuple[Array, ...]:
    low = acc - np.float32(5000)
    return acc, np.abs(acc).max(-1), low.max(-2), np.abs(acc).max(-2), low.max(-1)


def bound(backend: Backend, case: Case) -> tuple[Composed, BoundEpilogue, list[Any]]:
    """``reduced`` with rows and columns of a backend's memory, filled as they have to be."""
    m, n, _ = case.shape
    composed = compose(fn=reduced, out_dtypes=[case.plan.c_dtype])
    held = []
    for spec, mark in zip(composed.code.outputs, OUTPUTS, strict=True):
        shape = (m, 1) if mark.startswith("row") else (1, n)
        held.append(backend.upload(np.full(shape, spec.initial, np.float32)))
    values = {f"out{number}": value_of(each) for number, each in enumerate(held, 1)}
    return composed, BoundEpilogue(composed.code, values), held


@pytest.mark.parametrize("case", KERNELS, ids=lambda case: case.name)
def test_every_kernel_reduces(backend: Backend, case: Case) -> None:
    composed, epilogue, held = bound(backend, case)
    operands = case.operands(backend)
    prepare(backend, case.kernel, case.plan, operands, epilogue=epilogue)(backend)
    a, b = (backend.download(each).astype(np.float32) for each in (operands.a, operands.b))
    wanted = in_numpy(a @ b)
    for found, expected, evaluated in zip(held, wanted[1:], composed.evaluate(wanted[0], {})[1:], strict=True):
        np.testing.assert_array_equal(backend.download(found).ravel(), expected)
        np.testing.assert_array_equal(evaluated, expected)


@pytest.mark.parametrize(
    "case", [case for case in KERNELS if case.name.startswith(("rung5", "rung11"))], ids=lambda case: case.name
)
def test_nothing_races(emulator: EmulatorBackend, case: Case) -> None:
    assert checked(emulator, case.kernel, case.plan, case.operands(emulator), bound(emulator, case)[1])


def check(where: str, a: Array, b: Array, **options: Any) -> None:
    found = matmul(a, b, epilogue=reduced, backend=where, **options)
    wanted = in_numpy(np.matmul(a.astype(np.float32), b.astype(np.float32)))
    same(found[0], wanted[0].astype(found[0].dtype))
    for one, other in zip(found[1:], wanted[1:], strict=True):
        assert one.dtype == np.float32
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_matrices_and_batches(where: str, dtype: DType) -> None:
    check(where, integers(1, (33, 72), dtype), integers(2, (72, 41), dtype))
    batches = [((2, 3, 9, 40), (3, 40, 24)), ((5, 1, 40), (40, 24)), ((1, 40), (5, 40, 1))]
    for a, b in batches if dtype == BF16 else []:
        check(where, integers(1, a, dtype), integers(2, b, dtype))


def test_nan_goes_through_and_zeros_have_signs(where: str) -> None:
    a, b = integers(1, (33, 72), BF16), integers(2, (72, 40), BF16)
    a[5, 3] = np.nan
    acc = np.matmul(a.astype(np.float32), b.astype(np.float32))
    for one, other in zip(matmul(a, b, epilogue=reduced, backend=where)[1:], in_numpy(acc)[1:], strict=True):
        np.testing.assert_array_equal(one, other)
    zeros, ones = np.zeros((3, 16), BF16.numpy), np.ones((16, 8), BF16.numpy)
    found = matmul(zeros, ones, epilogue=lambda acc: (acc, tilewright.row_max(-1 * (acc + 0.0))), backend=where)[1]
    np.testing.assert_array_equal(np.signbit(found), [True] * 3)


def test_the_callers_arrays_and_results_without_elements(where: str) -> None:
    a, b = integers(1, (33, 72), BF16), integers(2, (72, 41), BF16)
    lengths = (33, 41, 41, 33)
    outs = (np.zeros((41, 33), BF16.numpy).T, *(np.full(length, 7e9, np.float32) for length in lengths))
    for _ in range(2):
        check(where, a, b, out=outs)
    found = matmul(a, b[:, :0], epilogue=reduced, backend=where)
    assert [each.shape for each in found] == [(33, 0), (33,), (0,), (0,), (33,)]
    np.testing.assert_array_equal(found[1], np.zeros(33))
    np.testing.assert_array_equal(found[4], np.full(33, -np.inf))


def test_a_pair_reduces(where: str) -> None:
    a, gate, up = integers(1, (33, 72), BF16), integers(2, (72, 40), BF16), integers(3, (72, 40), BF16)
    first, second = (np.matmul(a.astype(np.float32), b.astype(np.float32)) for b in (gate, up))
    found = matmul(a, (gate, up), epilogue=lambda g, u: (g * u, tilewright.row_absmax(g * u)), backend=where)
    np.testing.assert_array_equal(found[1], np.abs(first * second).max(-1))


def test_what_cannot_be_reduced() -> None:
    a, b = integers(1, (33, 72), BF16), integers(2, (72, 41), BF16)
    t, strided = tilewright, np.zeros((33, 2), np.float32)[:, 0]
    calls: list[tuple[Any, dict[str, Any], str]] = [
        (t.row_max, {}, "epilogue returns row_max as its first value, which becomes C"),
        (lambda acc: (acc, t.row_max(acc) + 1), {}, "through an operation on a reduction: a reduction is a result"),
        (lambda acc: t.exp(acc) / t.row_sum(t.exp(acc)), {}, "through 'div' of row_sum: a reduction is a result"),
        (lambda acc: (acc, t.row_sum(1.0)), {}, "row_sum is given float, which has no rows"),
        (t.col_sum, {}, "epilogue returns col_sum as its first value, which becomes C"),
        (reduced, {"out_dtype": ("bf16", "bf16")}, "out_dtype has bf16 for row_absmax, which is computed in fp32"),
        (lambda acc: (acc, t.row_max(acc)), {"out": (np.zeros((33, 41), np.float32), strided)}, "is contiguous"),
        (
            lambda acc: (acc, t.row_max(acc)),
            {"out": (np.zeros((33, 41), np.float32), np.zeros(41, np.float32))},
            r"out\[1\] has shape \(41,\); the result has shape \(33,\)",
        ),
    ]
    for fn, options, message in calls:
        with pytest.raises(UsageError, match=message):
            matmul(a, b, epilogue=fn, backend="emulator", **options)
    for other in (
        np.zeros(33, np.float32)[::-1],
        np.zeros((33, 5), np.float32).T,
    ):  # what is set before would be others'
        one = np.broadcast_to(a, (*other.shape[:-1], *a.shape))
        out = (np.zeros((*other.shape, 41), np.float32), other)
        with pytest.raises(UsageError, match="that of a reduction is contiguous and row-major"):
            matmul(one, b, epilogue=lambda acc: (acc, t.row_max(acc)), out=out, backend="emulator")
    with pytest.raises(UsageError, match="matrices, or batches of them, have rows and columns"):
        matmul(a, b[:, 0], epilogue=lambda acc: (acc, t.row_max(acc)), backend="emulator")


def running(x: Any, h: Any, mark: Any) -> Any:
    return x * h, mark(tilewright.maximum(x, h))


@pytest.mark.parametrize(("name", "turned"), [*zip(OUTPUTS, (False, True, False, True), strict=True)])
def test_a_running_maximum_is_read_before_it_is_written(name: str, turned: bool) -> None:
    a, b = np.eye(4, 8, dtype=np.float32), np.zeros((8, 6), np.float32)
    b[:4] = [[1, 2, 3, 4, 5, 20], [30, 1, 2, 3, 4, 5], [0, 0, 0, 0, 0, 7], [1, 2, 40, 3, 2, 1]]
    a, b = (b.T.copy(), a.T.copy()) if turned else (a, b)
    acc, axis, mark = a @ b, name.startswith("row"), getattr(tilewright, name)
    amax = np.full(acc.shape[1 - axis], 8, np.float32)
    h = amax[:, None] if axis else amax
    out = (np.empty(acc.shape, np.float32), amax)
    with Matmul(a, b, out=out, epilogue=partial(running, mark=mark), args={"h": h}, backend="emulator") as prepared:
        assert [each.what for each in prepared.explain().copied] == ["h"]
        for before in (np.full_like(h, 8), np.maximum(acc.max(axis=int(axis), keepdims=True).reshape(h.shape), 8)):
            assert prepared.execute() is out
            np.testing.assert_array_equal(out[0], acc * before)
            np.testing.assert_array_equal(amax, np.maximum(acc.max(axis=int(axis)), 8))


@pytest.mark.parametrize("given", ["bias", "c"])
def test_a_maximum_in_place_of_bias_or_c(given: str) -> None:
    a, b = np.eye(4, 8, dtype=np.float32), np.ones((8, 6), np.float32)
    v, y = np.full(6, 5, np.float32), np.empty((4, 6), np.float32)
    more: dict[str, Any] = {given: v, "beta": int(given == "c"), "backend": "emulator"}
    matmul(a, b, out=(y, v), epilogue=lambda x: (x, tilewright.col_max(x)), **more)
    np.testing.assert_array_equal(y, np.full((4, 6), 6))
    np.testing.assert_array_equal(v, np.full(6, 6))


def test_an_argument_of_many_launches_that_a_sum_replaces() -> None:
    a, b = np.ones((2, 1, 2, 1, 2, 4), np.float32), np.ones((1, 2, 1, 2, 4, 3), np.float32)
    v = np.arange(2 * 2 * 2 * 2 * 3, dtype=np.float32).reshape(2, 2, 2, 2, 3)  # of each matrix another's rows
    before, y = v.copy(), np.empty((2, 2, 2, 2, 2, 3), np.float32)
    with pytest.raises(UsageError, match=r"out\[0\] shares memory with h"):
        matmul(
            a,
            b,
            out=(y, v),
            epilogue=lambda x, h: (x + h, tilewright.col_sum(x)),
            args={"h": y[..., ::-1, :]},
            backend="emulator",
        )
    matmul(a, b, out=(y, v), epilogue=lambda x, h: (x + h, tilewright.col_sum(x)), args={"h": v}, backend="emulator")
    np.testing.assert_array_equal(y, 4 + np.broadcast_to(before, y.shape))
    np.testing.assert_array_equal(v, np.full(v.shape, 8))


def test_reductions_of_nothing_into_dlpack() -> None:
    a, b = Exported(np.empty((0, 8), np.float32)), Exported(np.ones((8, 6), np.float32))
    sums, largest = np.full(6, 7, np.float32), np.full(6, 7, np.float32)
    out = (Exported(np.empty((0, 6), np.float32)), Exported(sums), Exported(largest))
    matmul(a, b, out=out, epilogue=lambda x: (x, tilewright.col_sum(x), tilewright.col_max(x)), backend="emulator")
    np.testing.assert_array_equal(sums, np.zeros(6))
    np.testing.assert_array_equal(largest, np.full(6, -np.inf))
