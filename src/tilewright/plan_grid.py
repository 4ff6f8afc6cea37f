"""Which tiles and clusters the tensor-core rungs have, and the boxes of operands that the blocks of a cluster load."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewright.plan_tensor import TensorPlan

# What is built and checked (scripts/check_plan_space.py), and no more: of other heights and clusters of the planner's
# problems none is predicted to be a hundredth faster, but for clusters of 3 and of more than 4 blocks, of which no GPU
# was asked how many run at a time (``gpu.clusters_that_fit``).
TILE_ROWS = (64, 128, 192, 256, 384)
WIDEST = 256  # columns: of one wgmma, and of a tile of rung 5
CLUSTER_SHAPES = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1))
WARPS = ((1, 2), (2, 1), (2, 2), (2, 4), (4, 2), (1, 8), (4, 4))  # of rung 5
LONGEST_BOX = 256  # CUDA Driver API, cuTensorMapEncodeTiled: boxDim
SWIZZLE_PERIOD = 8  # lines


def about_size(plan: TensorPlan) -> Iterator[str]:
    """Why there is no tile of its height and width."""
    if plan.bm not in TILE_ROWS:
        yield f"bm is {plan.bm}; tiles have {', '.join(map(str, TILE_ROWS[:-1]))} or {TILE_ROWS[-1]} rows"
    if plan.bn > WIDEST:
        yield f"bn is {plan.bn}; a tile has at most {WIDEST} columns, as many as one wgmma"


def about_grid(plan: TensorPlan) -> Iterator[str]:
    """Why no persistent grid has its clusters, super-rows or blocks."""
    m, n = plan.cluster_m, plan.cluster_n
    if (m, n) not in CLUSTER_SHAPES:
        yield f"the cluster is {m}x{n}; {', '.join(f'{m}x{n}' for m, n in CLUSTER_SHAPES)} are possible"
        return
    if plan.group < 1:
        yield f"group is {plan.group}; a super-row has at least 1 cluster tile"
    if plan.blocks < m * n or plan.blocks % (m * n):
        yield f"blocks is {plan.blocks}; it must be a multiple of the {m * n} blocks of a cluster, and not 0"


def about_boxes(lines: tuple[int, int], cluster: tuple[int, int]) -> Iterator[str]:
    """Why a cluster's blocks cannot load so many ``lines`` of A's and of B's tile, each its part of what they share."""
    m, n = cluster
    for operand, count, parts, name in (("A", lines[0], n, "cluster_n"), ("B", lines[1], m, "cluster_m")):
        if count % (SWIZZLE_PERIOD * parts):
            yield (
                f"{name} is {parts}; it cuts {count} lines of {operand}'s tile, which must give whole multiples of "
                f"{SWIZZLE_PERIOD} (the period of the swizzle)"
            )
        if count // parts > LONGEST_BOX:
            yield f"a TMA box of {operand} has {count // parts} lines; at most {LONGEST_BOX} are possible"


def can_be_halved(bm: int, consumers: int, pingpong: bool) -> bool:
    """Whether a tile can be cut in two for a last wave: into a block of 64 rows for each warpgroup that shares it."""
    return not pingpong and bm == 128 * consumers
