"""What rungs 5 to 11 make of a small ragged problem, in every layout: C on hardware, to compare the emulator's with."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from functools import partial
from typing import get_args

import numpy as np
from probe_case import Array, Case

from tilewright.backends.base import Backend
from tilewright.dtypes import BF16, FP16
from tilewright.ladder import Rung, rungs
from tilewright.operands import Fill, random_operands
from tilewright.plan_base import Plan
from tilewright.problem import Layout, Problem
from tilewright.run import make_operands, prepare, source_for

SHAPE = (201, 267, 139)  # a tile and a part of one each way, two K-steps and a part
SAMPLES = 256
SEED = 5


def output(rung: Rung, plan: Plan, fill: Fill, backend: Backend) -> Array:
    """Elements of C at random, in fp32; of integers, whose C has one right answer, the SHA-256 of it all too."""
    problem = Problem(*SHAPE, plan.dtype, None, plan.a_layout, plan.b_layout).padded()
    operands = make_operands(backend, problem, *random_operands(problem, SEED, fill))
    prepare(backend, rung, plan, operands)(backend)
    c = backend.download(operands.c)
    rng = np.random.default_rng(SEED)
    sampled: Array = c[rng.integers(c.shape[0], size=SAMPLES), rng.integers(c.shape[1], size=SAMPLES)]
    found = sampled.astype(np.float32)
    if fill != "integers":
        return found
    digest = np.frombuffer(hashlib.sha256(np.ascontiguousarray(c).tobytes()).digest(), np.uint8)
    return np.concatenate([found, digest.astype(np.float32)])


def output_cases() -> Iterator[Case]:
    """bf16 in every layout; fp16, whose kernels differ in the instruction alone, in two."""
    layouts: tuple[Layout, ...] = get_args(Layout)
    for rung, dtype in itertools.product(rungs().values(), (BF16, FP16)):
        if not rung.any_layout:
            continue
        for a, b in itertools.product(layouts, layouts):
            if dtype is FP16 and (a, b) not in (("row", "column"), ("column", "row")):
                continue
            plan = rung.plan(dtype, a_layout=a, b_layout=b)
            what = f"{rung.path.stem} {dtype}, {a} x {b}"
            source = partial(lambda backend, rung, plan: source_for(backend, rung, plan), rung=rung, plan=plan)
            # Sums of order sqrt(K) are rounded in another order, each product of 16 at once on hardware; then C once,
            # which may be one unit in the last place apart.
            close = (2 * dtype.unit_roundoff, 1e-4)
            yield Case(f"C of normal, {what}", source, partial(output, rung, plan, "normal"), tolerance=close)
            yield Case(f"C of integers, {what}", source, partial(output, rung, plan, "integers"))
