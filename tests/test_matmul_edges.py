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
