"""Batches of more dimensions than a kernel steps over: launches one after another, on both backends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matmul_cases import Array, integers, same

import tilewright
from tilewright import BF16, FP32, Matmul, explain, matmul


def ours(seed: int, *shape: int) -> Array:
    return integers(seed, shape, FP32)


def operands(seed: int) -> tuple[Array, Array]:
    """A batch of (5, 2, 2, 3) of which no two dimensions are one: A is broadcast along two, B lies in another order."""
    a = np.broadcast_to(ours(seed, 5, 1, 2, 1, 9, 8), (5, 2, 2, 3, 9, 8))
    return a, ours(seed + 1, 3, 2, 2, 5, 8, 7).transpose(3, 1, 2, 0, 4, 5)


def test_four_dimensions_that_cannot_be_merged(where: str) -> None:
    a, b = operands(0)
    out = np.full((7, 5, 2, 2, 3, 9), np.nan, np.float32).transpose(1, 2, 3, 4, 5, 0)
    assert matmul(a, b, out=out, backend=where) is out
    np.testing.assert_array_equal(out, a @ b)
    with Matmul(a, b, backend=where) as prepared:
        for seed in (0, 5):
            x, y = operands(seed)
            same(prepared.execute(x, y), x @ y)
    told = explain(a, b, backend=where)
    assert (told.launches, len(told.batch), told.to_dict()["launches"]) == (2, 3, 2)
    assert "more than 3 batch dimensions, which cannot be merged: 2 launches, one after another" in str(told)
    one = explain(a[:, 0], b[:, 0], backend=where)
    assert (one.launches, told.plan) == (1, one.plan)
    assert told.predicted_us is not None
    assert told.predicted_us == pytest.approx(2 * (one.predicted_us or 0))
    assert "launches" not in str(one)


def test_launches_that_are_not_alike_are_told_apart() -> None:
    a = np.broadcast_to(integers(1, (5, 1, 2, 1, 16, 8), BF16), (5, 2, 2, 3, 16, 8))
    b = integers(2, (3, 2, 2, 5, 65), BF16)[..., :64].reshape(3, 2, 2, 5, 8, 8).transpose(3, 1, 2, 0, 4, 5)
    told = explain(a, b, backend="emulator")
    singles = [explain(a[:, i], b[:, i], backend="emulator") for i in range(2)]
    assert told.launches == 2
    assert told.predicted_us == pytest.approx(sum(each.predicted_us or 0 for each in singles))
    assert told.runner_up is None
    assert f"2 launches, one after another; 1 like this, 1 {singles[1].kernel}, {singles[1].label}" in told.path[-1]
    assert f"predicted  {told.predicted_us:.1f} us, all 2 launches" in str(told)
    assert [each.why[:10] for each in told.copied] == ["the matric", "b starts 1"]


def test_what_follows_goes_along(where: str) -> None:
    a, b = operands(0)
    c, bias, v = ours(3, 2, 1, 3, 9, 7), ours(4, 5, 1, 1, 1, 1, 7), ours(5, 9, 1)

    def after(acc: Any, v: Any, x: Any) -> Any:
        y = tilewright.relu(acc) * x + v
        return y, acc, tilewright.row_absmax(acc), tilewright.col_max(y)

    found = matmul(a, b, c=c, beta=2, bias=bias, epilogue=after, args={"v": v, "x": 3}, backend=where)
    before = a @ b + 2 * c + bias
    y = np.maximum(before, 0) * 3 + v
    for one, other in zip(found, (y, before, np.abs(before).max(-1), y.max(-2)), strict=True):
        same(one, other)


def test_another_function_of_the_same_arrays(where: str) -> None:
    a, b = operands(0)
    for fn in (tilewright.relu, abs, lambda acc: acc * 2):
        wanted = np.maximum(a @ b, 0) if fn is tilewright.relu else fn(a @ b)
        same(matmul(a, b, epilogue=fn, backend=where), wanted)


def test_vectors_and_pairs(where: str) -> None:
    a, b = operands(0)
    c = ours(6, 5, 2, 1, 3, 7)
    same(matmul(b[0, 0, 0, 0, :, 0], b, c=c, beta=1, backend=where), b[0, 0, 0, 0, :, 0] @ b + c)
    gate, up = (np.float16(operands(seed)[1]) for seed in (0, 5))
    found = matmul(np.float16(a), (gate, up), epilogue=lambda x, y: x - y, backend=where)
    same(found, (a @ np.float32(gate) - a @ np.float32(up)).astype(np.float16))


def test_five_dimensions(where: str) -> None:
    a = ours(0, 2, 1, 2, 1, 2, 4, 8)
    b = ours(1, 1, 2, 1, 2, 1, 8, 4)
    same(matmul(a, b, backend=where), a @ b)
    assert explain(a, b, backend=where).launches == 4
