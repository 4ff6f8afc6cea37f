"""The kernels behind the candidates: tiles that no rung has by default are exact."""

from __future__ import annotations

import pytest
from check_plan_space import OK, check_run

from tilewright import ladder
from tilewright.backends.emulator import EmulatorBackend
from tilewright.checked import check
from tilewright.dtypes import BF16, FP32, DType
from tilewright.operands import random_operands
from tilewright.planner.families import simt
from tilewright.problem import Problem
from tilewright.run import make_operands


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
@pytest.mark.parametrize("which", range(1, len(simt.TILES)))
def test_smaller_tiles_of_the_cuda_cores_are_exact(which: int, dtype: DType) -> None:
    plan = simt.rung_plans(dtype, "row", "row", True)[which]
    emulator = EmulatorBackend("eager")
    problem = Problem(plan.bm + 24, plan.bn + 8, 2 * plan.bk + 8, dtype)
    operands = make_operands(emulator, problem, *random_operands(problem, fill="integers"))
    assert check_run(emulator, plan, problem) == OK
    check(emulator, ladder.rung(simt.RUNG), plan, operands)
