"""What only a GPU can show of the branches' kernels: the same bits over many launches, and in a chain that depends."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tilewright import branches
from tilewright.backends.base import Backend
from tilewright.operands import random_operands
from tilewright.plan_base import Plan
from tilewright.problem import Problem
from tilewright.run import Operands, make_operands, prepare

pytestmark = pytest.mark.cuda
ALL = [kernel for found in branches.branches().values() for kernel in found.kernels]
each_kernel = pytest.mark.parametrize("kernel", ALL, ids=lambda kernel: kernel.path.stem)
each_launch = pytest.mark.parametrize("dependent", [False, True], ids=["alone", "pdl"])
TOKENS, WIDTH, LAYERS = 2, 2048, 24


def planned(kernel: branches.BranchKernel, problem: Problem, dependent: bool) -> Plan:
    values: Any = {"dependent_launch": dependent}
    return kernel.plan_for(problem, aligned=True).with_(**values)


@each_launch
@each_kernel
def test_a_thousand_launches_give_the_same_bits(cuda: Backend, kernel: branches.BranchKernel, dependent: bool) -> None:
    found = branches.branch(kernel.branch)
    problem = Problem(*found.shapes["measured"], found.dtype, None, *branches.LAYOUTS)
    operands = make_operands(cuda, problem, *random_operands(problem))
    launch = prepare(cuda, kernel, planned(kernel, problem, dependent), operands)
    launch(cuda)
    first = cuda.download(operands.c)
    assert np.isfinite(first.astype(np.float32)).all()
    for _ in range(1000):
        launch(cuda)
    np.testing.assert_array_equal(cuda.download(operands.c), first)


@each_kernel
def test_a_chain_under_dependent_launches_is_that_of_one_after_another(
    cuda: Backend, kernel: branches.BranchKernel
) -> None:
    """Each layer reads what the one before wrote; only the weights may be loaded early."""
    problem = Problem(TOKENS, WIDTH, WIDTH, branches.branch(kernel.branch).dtype, None, *branches.LAYOUTS)
    x, _ = random_operands(problem)
    layers = []
    for seed in range(LAYERS):
        _, w = random_operands(problem, seed)
        layers.append(make_operands(cuda, problem, x, (w.astype(np.float32) / WIDTH**0.5).astype(w.dtype)))
    chain = [layers[0], *(Operands(before.c, layer.b, layer.c) for before, layer in pairwise(layers))]

    def outputs(dependent: bool) -> list[Any]:
        plan = planned(kernel, problem, dependent)
        launches = [prepare(cuda, kernel, plan, operands) for operands in chain]
        for _ in range(20):
            for launch in launches:
                launch(cuda)
        return [cuda.download(layer.c) for layer in layers]

    one_by_one = outputs(False)
    assert np.isfinite(one_by_one[-1].astype(np.float32)).all()
    assert np.abs(one_by_one[-1].astype(np.float32)).max() > 0.01
    for expected, found in zip(one_by_one, outputs(True), strict=True):
        np.testing.assert_array_equal(found, expected)
