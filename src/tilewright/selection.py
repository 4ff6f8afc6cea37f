"""What a command runs: rungs of the ladder, or the kernels of a branch off it; and on what where that is left open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from tilewright import branches, ladder
from tilewright.dtypes import DType
from tilewright.errors import UsageError
from tilewright.kernel_file import KernelFile
from tilewright.plan_base import Plan
from tilewright.plan_branch import BranchPlan
from tilewright.problem import Layout, Problem

Shape = tuple[int, int, int]
Purpose = Literal["emulated", "measured", "ragged"]
# The ladder's: two tiles of the widest cluster, which is the least C in which a block goes on to another tile; the size
# that it is timed at; and one that is no multiple of any tile.
_LADDER: Mapping[Purpose, Shape] = {
    "emulated": (256, 512, 256), "measured": (4096, 4096, 4096), "ragged": (129, 257, 33)
}  # fmt: skip


def default_shape(branch: str | None, purpose: Purpose) -> Shape:
    """M, N and K where the caller gives none. Raises ``UsageError`` for a branch that there is not."""
    shapes = _LADDER if branch is None else branches.branch(branch).shapes
    return shapes[purpose]


def default_layouts(branch: str | None) -> tuple[Layout, Layout]:
    """Those of A and B where the caller gives none: row-major, and of a branch column-major B, its lines along K."""
    return ("row", "row") if branch is None else branches.LAYOUTS


def kernel_of(plan: Plan) -> KernelFile:
    """The rung, or the kernel of a branch, that a plan is of."""
    return branches.kernel(plan.branch, plan.kernel) if isinstance(plan, BranchPlan) else ladder.rung(plan.rung)


def select(
    shape: Shape,
    dtype: DType | None,
    layouts: tuple[Layout, Layout],
    *,
    rungs: str | None = None,
    branch: str | None = None,
) -> Mapping[DType, Sequence[KernelFile]]:
    """What there is to run by dtype: of the ladder as ``ladder.select`` has it, of a branch the kernels that take it.

    Without a dtype a branch runs its own. Raises ``UsageError`` when nothing is left, and for rungs of a branch.
    """
    if branch is None:
        return ladder.select(rungs, dtype, *layouts)
    if rungs is not None:
        raise UsageError(f"rungs {rungs!r} are of the ladder, and branch {branch!r} lies off it: name one of the two")
    problem = Problem(*shape, dtype or branches.branch(branch).dtype, None, *layouts)
    return {problem.dtype: branches.select(branch, problem)}
