"""What the tests of split-K and stream-K have in common: small plans of both, launches in any order of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.backends.base import Backend, Matrix
from tilewright.backends.emulator import EmulatorBackend
from tilewright.branches import LAYOUTS as BRANCH_LAYOUTS
from tilewright.branches import BranchKernel, kernel
from tilewright.dtypes import BF16, FP32, DType
from tilewright.kernel_file import KernelFile
from tilewright.operands import random_operands
from tilewright.plan_base import MOST_COUNTERS
from tilewright.plan_parts import PartsPlan
from tilewright.plan_splitk import SplitKPlan
from tilewright.plan_streamk import StreamKPlan
from tilewright.problem import Layout, Problem
from tilewright.run import Operands, make_operands, prepare
from tilewright.workspace import make

SPLIT, STREAM = kernel("splitk", "split-k"), kernel("streamk", "stream-k")
KINDS: dict[str, tuple[BranchKernel, type[PartsPlan]]] = {
    "splitk": (SPLIT, SplitKPlan),
    "streamk": (STREAM, StreamKPlan),
}
Layouts = tuple[Layout, Layout]
FP32_OUT: dict[str, Any] = {"out_dtype": FP32, "epilogue_columns": 16, "epilogue_slabs": 1}


def small_plan(branch: str, dtype: DType = BF16, layouts: Layouts = BRANCH_LAYOUTS, **changes: Any) -> PartsPlan:
    """Tiles of 64x64, a ring so short that it goes round, and a grid so small that a block has several units.

    Where 8 blocks share K, 64x128: columns that so many can store.
    """
    along_k = changes.get("cluster_k", 1)
    cluster = changes.get("cluster_m", 1) * changes.get("cluster_n", 1) * along_k
    values: dict[str, Any] = {
        "bm": 64, "bn": 64, "bk": 64, "stages": 2, "consumers": 1, "consumer_registers": 248, "group": 2,
        "blocks": 5 * cluster,
    }  # fmt: skip
    if along_k > 2:
        values.update(bn=128 if along_k == 8 else 64, epilogue_columns=16)
    if branch == "splitk":
        values["splits"] = 3
    kind = KINDS[branch][1]
    return kind(dtype=dtype, a_layout=layouts[0], b_layout=layouts[1], **{**values, **changes})


def kernel_of(plan: PartsPlan) -> KernelFile:
    """The kernel that a plan is of."""
    return KINDS[plan.branch][0]


def tight(
    m: int, n: int, k: int, dtype: DType = BF16, layouts: Layouts = BRANCH_LAYOUTS, out: DType | None = None
) -> Problem:
    """A problem with lines that start on 16-byte boundaries."""
    return Problem(m, n, k, dtype, out, *layouts).padded()


def fresh(backend: Backend, problem: Problem, seed: int = 0) -> Operands:
    """Operands with random values and a C full of NaN."""
    return make_operands(backend, problem, *random_operands(problem, seed))


def launched(
    emulator: EmulatorBackend,
    plan: PartsPlan,
    operands: Operands,
    workspace: Matrix,
    *,
    backwards: bool = False,
    together: int = 1,
    blocks: Sequence[int] | None = None,
) -> np.ndarray[Any, Any]:
    """C of a launch whose blocks run in that order, as bits; the counters are then zero again."""
    launch = prepare(emulator, kernel_of(plan), plan, operands, workspace=workspace)
    order = list(blocks if blocks is not None else range(launch.grid[0]))
    emulator.launch(
        launch.kernel, launch.grid, launch.block, launch.args, launch.shared_bytes, cluster=launch.cluster,
        together=together, blocks=order[::-1] if backwards else order,
    )  # fmt: skip
    assert not counters(emulator, workspace).any()
    c = emulator.download(operands.c)
    return c.view(np.uint32 if c.dtype == FP32.numpy else np.uint16)


def counters(backend: Backend, workspace: Matrix) -> np.ndarray[Any, Any]:
    """The words that blocks meet at."""
    return backend.download(workspace).view(np.uint32)[0, :MOST_COUNTERS]


def workspace_for(backend: Backend, *plans: PartsPlan, problem: Problem) -> Matrix:
    """A workspace that does for several plans."""
    return make(backend, max(plan.workspace_bytes(problem) for plan in plans))
