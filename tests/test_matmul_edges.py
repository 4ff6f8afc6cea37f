"""``matmul`` at its edges, in the emulator: further results of any layout, vectors beside vectors, odd arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matmul_cases import Array, exact, integers, same

from tilewright import FP32, matmul

E: dict[str, Any] = {"backend": "emulator"}


@pytest.mark.parametrize("first", ["row", "column"])
@pytest.mark.parametrize("second", ["row", "column", "apart"])
def test_each_result_has_a_layout_of_its_own(first: str, second: str) -> None:
    a, b = integers(1, (5, 7), FP32), integers(2, (7, 6), FP32)

    def room(layout: str) -> Array:
        whole = np.zeros((6, 5) if layout == "column" else (5, 12), np.float32)
        return whole.T if layout == "column" else whole[:, ::2] if layout == "apart" else whole[:, :6]

    out = room(first), room(second)
    matmul(a, b, out=out, epilogue=lambda acc: (acc, acc * 2), **E)
    wanted = exact(a, b, FP32)
    same(out[0], wanted)
    same(out[1], wanted * 2)
    if second == "apart":
        assert out[1].base is not None
        assert not out[1].base[:, 1::2].any()


@pytest.mark.parametrize("shape", [(5,), (1,), (3, 1), (3, 5)])
@pytest.mark.parametrize("name", ["c", "x"])
def test_what_is_broadcast_to_the_result_of_a_vector(name: str, shape: tuple[int, ...]) -> None:
    a, v, more = integers(1, (3, 5, 7), FP32), integers(2, (7,), FP32), integers(3, shape, FP32)
    options: dict[str, Any] = {"c": more, "beta": 1} if name == "c" else {
        "epilogue": lambda acc, x: acc + x, "args": {"x": more}
    }  # fmt: skip
    same(matmul(a, v, **options, **E), exact(a, v, FP32) + more)


def test_what_is_broadcast_to_the_result_of_a_vector_in_front() -> None:
    v, b = integers(1, (7,), FP32), integers(2, (2, 3, 7, 6), FP32)
    for shape in ((6,), (3, 6), (3, 1), (2, 1, 6)):
        c = integers(3, shape, FP32)
        same(matmul(v, b, c=c, beta=1, **E), exact(v, b, FP32) + c)
    bias = integers(4, (3, 5, 1), FP32)[..., 0]
    a = integers(5, (3, 5, 7), FP32)
    same(matmul(a, v, bias=bias, **E), exact(a, v, FP32) + bias)
    same(matmul(a, v, bias=bias[0], **E), exact(a, v, FP32) + bias[0])
