"""Arrays that epilogues read through shared memory: in every kernel that stages them, whatever slabs and shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from epilogue_cases import value_of
from matmul_cases import integers
from part_cases import kernel_of, small_plan

from tilewright import matmul, row_sum
from tilewright.backends.base import Backend
from tilewright.backends.emulator import EmulatorBackend
from tilewright.checked import check
from tilewright.dtypes import BF16, FP16, DType
from tilewright.epilogue.code import BoundEpilogue
from tilewright.epilogue.compose import Described, compose
from tilewright.kernel_file import KernelFile
from tilewright.ladder import rung
from tilewright.plan_base import Plan
from tilewright.problem import Problem
from tilewright.run import Operands, make_operands, run

LAST = rung(11)


def last(dtype: DType = BF16, columns: int = 32, slabs: int = 4, **values: Any) -> tuple[KernelFile, Plan]:
    own = {"bn": 64, "stages": 2, "epilogue_columns": columns, "epilogue_slabs": slabs}
    return LAST, LAST.plan(dtype).with_(**{**own, **values})


def parts(branch: str, columns: int, slabs: int, **values: Any) -> tuple[KernelFile, Plan]:
    plan = small_plan(branch, epilogue_columns=columns, epilogue_slabs=slabs, **values)
    return kernel_of(plan), plan


CASES = {
    "2 slabs": last(columns=64, slabs=2, bm=128, bn=128),
    "3 slabs of fp16": last(FP16, 16, 3, bm=128),
    "4 slabs, two blocks": last(bm=256),
    "1 slab: not staged": last(slabs=1, bm=128),
    "fewer slabs in a tile than in the ring": last(bm=128, bn=32, b_layout="column"),
    "ping-pong": last(columns=16, bm=64, pingpong=True),
    "half a tile": last(slabs=2, bm=256, half_tail=True),
    "split-K": parts("splitk", 32, 2),
    "split-K in clusters": parts("splitk", 16, 2, cluster_k=2),
    "stream-K": parts("streamk", 16, 4),
}
each_case = pytest.mark.parametrize("case", CASES)


def drawn(backend: Backend, case: str, m: int, n: int, k: int) -> tuple[Operands, BoundEpilogue, np.ndarray[Any, Any]]:
    """Operands of small integers, an epilogue that adds an array to twice their product, and what comes of it."""
    plan = CASES[case][1]
    rng = np.random.default_rng(7)
    dtype = plan.dtype.numpy
    a, b, r = (rng.integers(-3, 4, shape).astype(dtype) for shape in ((m, k), (k, n), (m, n)))
    problem = Problem(m, n, k, plan.dtype, plan.dtype, plan.a_layout, plan.b_layout).padded()
    operands = make_operands(backend, problem, a, b)
    code = compose(
        fn=lambda acc, r: acc * 2 + r, args={"r": Described(plan.dtype, "full")}, out_dtypes=[plan.dtype]
    ).code
    bound = BoundEpilogue(code, {"arg_r": value_of(backend.upload(r, -(-n // 8) * 8))})
    assert bound.compiled.staged
    assert bound.compiled.aligned
    wanted = (2 * (a.astype(np.float32) @ b.astype(np.float32)) + r.astype(np.float32)).astype(dtype)
    return operands, bound, wanted


@each_case
def test_the_array_is_added(backend: Backend, case: str) -> None:
    kernel, plan = CASES[case]
    for shape in ((200, 136, 72), (70, 203, 40), (3, 5, 8)):
        operands, bound, wanted = drawn(backend, case, *shape)
        run(backend, kernel, operands, plan, epilogue=bound)
        np.testing.assert_array_equal(backend.download(operands.c), wanted)
        assert backend.padding_intact(operands.c)


@each_case
def test_nothing_races(emulator: EmulatorBackend, case: str) -> None:
    operands, bound, _ = drawn(emulator, case, 300, 72, 136)
    assert check(emulator, *CASES[case], operands, bound)


def test_a_call_stages_what_lies_upside_down_and_in_a_batch(backend: Backend) -> None:
    a, b = integers(1, (3, 70, 40), BF16), integers(2, (3, 40, 64), BF16)
    r = integers(3, (70, 3, 64), BF16)[::-1].transpose(1, 0, 2)
    found, rows = matmul(
        a, b, epilogue=lambda acc, r: (acc + r, row_sum(r)), args={"r": r}, plan=CASES["2 slabs"][1],
        backend=backend.name,
    )  # fmt: skip
    under = r.astype(np.float32)
    np.testing.assert_array_equal(
        found, (np.matmul(a.astype(np.float32), b.astype(np.float32)) + under).astype(found.dtype)
    )
    np.testing.assert_array_equal(rows, under.sum(-1))
