"""The plans of the swap-AB branch, which a kernel can have, and the one that fits a problem.

Few tokens (rows of A) would leave most of wgmma's 64 rows to padding, so the weights (columns of B) take them. What
remains is to read the weights once at full bandwidth: a deep ring, one block an SM, and K shared by a cluster where
there are too few tiles of weights for the SMs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from tilewright import roofline, roofline_tensor
from tilewright.errors import UsageError
from tilewright.plan_base import LARGEST_GRID, Dim3, TensorBox
from tilewright.plan_branch import BranchPlan
from tilewright.plan_grid import LONGEST_BOX
from tilewright.plan_tensor import SHARED_LIMIT, SMS, SWIZZLE_ROW
from tilewright.problem import Layout, Problem

if TYPE_CHECKING:
    from tilewright.gpu import GpuSpec

WEIGHT_ROWS = 64  # of one wgmma
CLUSTERS = (1, 2, 4, 8)  # along K
MOST_TOKENS = 128  # accumulators of a thread: half of them
# Blocks that clusters of so many can place on the 132 SMs of an H200, one an SM: its GPCs are not of equal size. From a
# trial of which there is no record; cudaOccupancyMaxActiveClusters says it for the GPU at hand.
REACHED_SMS = {1: SMS, 2: SMS, 4: 120, 8: 120}


@dataclass(frozen=True)
class SwapAbPlan(BranchPlan):
    """The compile-time values of the swap-AB kernel.

    ``bm`` is the tokens of a tile (the N of wgmma), ``bn`` its weights, 64 or 128, a warpgroup each 64. ``bk`` is the
    depth of a stage, whole slices of 64; ``stages`` of them are in flight. ``cluster_k`` blocks of a cluster share K
    and add up in each other's shared memory. At most ``blocks`` blocks, a multiple of ``cluster_k``, walk the tiles.
    ``weights_evict_first`` is the L2 hint of B's loads. ``dependent_launch`` lets the kernel start under the one before
    it, and load B, which that must not write, at once. ``threads`` follows from the rest.

    ``aligned`` is about C alone: TMA loads A and B. Raises ``UsageError`` for a combination that no kernel has.
    """

    branch: ClassVar[str] = "swapab"
    kernel: ClassVar[str] = "swap-ab"
    uses_tma: ClassVar[bool] = True

    threads: int = field(init=False)
    stages: int = 4
    cluster_k: int = 1
    blocks: int = SMS
    weights_evict_first: bool = True

    def follows(self) -> Mapping[str, int]:
        """The threads of a block."""
        return {"threads": 32 * (self.warps + 2)}

    @property
    def warps(self) -> int:
        """Warps that multiply, 16 weights each; two more load."""
        return self.bn // 16

    @property
    def cluster(self) -> int:
        """Blocks of a cluster."""
        return self.cluster_k

    @property
    def stage_bytes(self) -> int:
        """Bytes of A and B in one stage."""
        return (self.bm + self.bn) * self.bk * self.dtype.itemsize

    @property
    def shared_parts(self) -> Mapping[str, int]:
        """Bytes of a block's shared memory: the stages with two 8-byte mbarriers each, and what C leaves through.

        A warp transposes up to 32 tokens of its 16 weights at a time. A cluster has two sets of partial sums: of each
        block's share of the tile, 512 bytes a fragment (8 tokens by 16 weights in fp32) of every other block.
        """
        groups = self.bm // 8
        parts = {
            "stages": self.stages * self.stage_bytes,
            "barriers": 16 * self.stages,
            "transposition": self.warps * min(groups, 4) * 8 * 16 * self.dtype.itemsize,
        }
        if self.cluster_k > 1:
            fragments = -(-groups * self.warps // self.cluster_k)
            parts["partial sums"] = 2 * fragments * (self.cluster_k - 1) * 512
            parts["their barriers"] = 2 * self.warps * 8
        return parts

    @property
    def tensor_boxes(self) -> tuple[TensorBox, ...]:
        """A slice of 64 k of either operand, a line of the swizzle wide."""
        tokens = self.bm if self.a_layout == "row" else SWIZZLE_ROW
        weights = self.bn if self.b_layout == "column" else SWIZZLE_ROW
        return TensorBox("a", (SWIZZLE_ROW, tokens), 128), TensorBox("b", (SWIZZLE_ROW, weights), 128)

    @property
    def counted(self) -> Dim3:
        """One tile over all of K: what C's way out takes a multiply-add depends on it."""
        return self.bm, self.bn, LARGEST_GRID

    def grid(self, problem: Problem, batch: int = 1) -> Dim3:
        """A cluster a tile, or as many whole clusters as there may be.

        Raises ``UsageError`` when there are more tiles than a kernel counts.
        """
        down, across = self.tiles(problem)
        if down * across > LARGEST_GRID:
            raise UsageError(
                f"{problem} needs {down * across} tiles of {self.bm}x{self.bn}; the kernel counts up to {LARGEST_GRID}"
            )
        return (min(self.blocks // self.cluster_k, down * across) * self.cluster_k, 1, 1)

    def interior_block(self, problem: Problem) -> int:
        """The middle block; each has tiles all over C."""
        return self.grid(problem)[0] // 2

    def edge_blocks(self, problem: Problem) -> list[int]:
        """The blocks that compute the tiles along the four sides of C: all."""
        return list(range(self.grid(problem)[0]))

    def constants(self) -> Mapping[str, int | bool]:
        """What the kernel reads as ``plan::NAME``, in the order of the header."""
        return {
            "BM": self.bm,
            "BN": self.bn,
            "BK": self.bk,
            "SLICES": self.bk // SWIZZLE_ROW,
            "STAGES": self.stages,
            "THREADS": self.threads,
            "SHARED_BYTES": self.shared_bytes,
            "A_K_MAJOR": self.a_layout == "row",
            "B_K_MAJOR": self.b_layout == "column",
            "ALIGNED": self.aligned,
            "CLUSTER_K": self.cluster_k,
            "WEIGHTS_EVICT_FIRST": self.weights_evict_first,
            "DEPENDENT_LAUNCH": self.dependent_launch,
        }

    def full(self) -> SwapAbPlan:
        """The same with as many stages as a block's shared memory holds. Raises ``UsageError`` when it holds none."""
        rest = self.shared_bytes - self.stages * (self.stage_bytes + 16)
        return self.with_(stages=(SHARED_LIMIT - rest) // (self.stage_bytes + 16))

    def complaints(self) -> Iterator[str]:
        """Why no kernel has this plan, the most basic reason first; nothing when one has."""
        yield from super().complaints()
        for name in ("a_layout", "b_layout"):
            if getattr(self, name) not in get_args(Layout):
                yield f"{name} is {getattr(self, name)!r}; {' and '.join(get_args(Layout))} are possible"
        if self.bm % 8 or not 8 <= self.bm <= MOST_TOKENS:
            yield f"bm is {self.bm}; a tile has 8 to {MOST_TOKENS} tokens, in eights as wgmma counts its N"
        if self.bn not in (WEIGHT_ROWS, 2 * WEIGHT_ROWS):
            yield f"bn is {self.bn}; a tile has {WEIGHT_ROWS} weights, or {2 * WEIGHT_ROWS} for two warpgroups"
        if self.a_layout == "column" and self.bm % SWIZZLE_ROW:
            yield f"bm is {self.bm}; column-major A lies in slabs of {SWIZZLE_ROW} tokens: it must be a multiple"
        if self.bk < SWIZZLE_ROW or self.bk % SWIZZLE_ROW:
            yield f"bk is {self.bk}; a stage is whole slices of {SWIZZLE_ROW} k, a 128-byte line each"
        if self.stages < 2:
            yield f"stages is {self.stages}; one is read while another is filled: 2 are the least"
        if self.cluster_k not in CLUSTERS:
            yield f"cluster_k is {self.cluster_k}; {', '.join(map(str, CLUSTERS))} blocks can share K"
        if self.blocks < self.cluster_k or self.blocks % self.cluster_k:
            yield f"blocks is {self.blocks}; it must be a multiple of the {self.cluster_k} blocks a cluster has, not 0"
        for each in self.tensor_boxes:
            if each.box[1] > LONGEST_BOX:
                yield f"a TMA box of {each.operand.upper()} has {each.box[1]} lines; at most {LONGEST_BOX} are possible"
        if self.shared_bytes > SHARED_LIMIT:
            yield f"shared memory is {self.shared_bytes} bytes with {self.stages} stages; a block has {SHARED_LIMIT}"

    @classmethod
    def default(cls, problem: Problem, *, aligned: bool) -> SwapAbPlan:
        """The plan for a problem by the rule of ``choose``."""
        return choose(problem, aligned=aligned).plan

    def derived(self, gpu: GpuSpec, problem: Problem) -> dict[str, Any]:
        """What ``derive.derived`` promises, what is in flight on an SM, and the time to move the operands once.

        ``least_time_us`` is the traffic of a kernel that reads A and B and writes C once, at the bandwidth of ``gpu``.
        """
        intensity = roofline.tile_intensity(self.bm, self.bn, self.dtype.itemsize)
        per_mac = roofline_tensor.operand_bytes_per_mac(WEIGHT_ROWS, self.bm, self.dtype.itemsize)
        # Once an element of C: the transposed one, and of a cluster a part in fp32 from each block.
        out_bytes = self.c_dtype.itemsize + (4 * self.cluster_k if self.cluster_k > 1 else 0)
        depth = max(problem.k, 1)
        flight = roofline_tensor.bytes_in_flight(self.stages, self.stage_bytes)
        traffic = roofline.minimum_traffic(problem)
        time_us = traffic.value / gpu.hbm_bytes_per_s * 1e6
        blocks, (down, across) = self.grid(problem)[0], self.tiles(problem)
        return {
            "flop_per_byte": intensity.value,
            "shared_load_bytes_per_mac": per_mac.value + out_bytes / depth,
            "stage_bytes": self.stage_bytes,
            "bytes_in_flight": int(flight.value),
            "least_time_us": time_us,
            "bottleneck": (
                f"memory: {roofline.amount(traffic.value)} at {gpu.hbm_bytes_per_s / 1e12:.3g} TB/s take {time_us:.3g} "
                f"us; {down * across} tiles, {blocks} blocks of {roofline.held(flight.value)} in flight"
            ),
            "formula": f"{intensity}; {per_mac}, and C's way out {out_bytes} B / {depth}; {flight}",
        }


@dataclass(frozen=True)
class Choice:
    """A plan for a problem, and why it is this one."""

    plan: SwapAbPlan
    reason: str


def choose(problem: Problem, *, aligned: bool = True, dependent_launch: bool = False) -> Choice:
    """The plan for a problem by the rule that was measured on an H200 (docs/branches/swapab.md), with its reasons.

    ``t`` is the tiles of 64 weights. Raises ``UsageError`` for a dtype that the kernel does not multiply.
    """
    t, blocks_of_k = -(-problem.n // WEIGHT_ROWS), -(-problem.k // SWIZZLE_ROW)
    tokens, token_reason = _tokens(problem)
    several = t > SMS
    bn, bk, stages, per_sm = WEIGHT_ROWS, 2 * SWIZZLE_ROW, 0, 1
    said = [token_reason]
    if tokens > 32:
        bk = SWIZZLE_ROW
        said.append("stages of 64 k: with so many tokens they are large enough")
        if several:
            bn = 2 * WEIGHT_ROWS
            said.append("128 weights a tile, so that tokens are read half as often")
    elif several and tokens == 8:
        bk = 4 * SWIZZLE_ROW
        said.append("stages of 256 k: weights are nearly all of them, and fewer barriers pass")
    elif several:
        stages, per_sm = 3, 2
        said.append("3 stages of 128 k, so that two blocks share an SM and one loads while the other stores")
    else:
        said.append("stages of 128 k")
    cluster, cluster_reason = _cluster(t, blocks_of_k)
    said.append(cluster_reason)
    blocks = REACHED_SMS[cluster] * per_sm
    plan = SwapAbPlan(
        problem.dtype, tokens, bn, bk, aligned, problem.a_layout, problem.b_layout,
        stages=max(stages, 2), cluster_k=cluster, blocks=blocks, dependent_launch=dependent_launch,
        out_dtype=problem.out_dtype,
    )  # fmt: skip
    if stages == 0:
        plan = plan.full()
        said.append(f"{plan.stages} of them: a full ring, one block an SM")
    return Choice(plan, "; ".join(said))


def _tokens(problem: Problem) -> tuple[int, str]:
    if problem.a_layout == "column":
        return 64, "64 tokens a tile, the least that column-major A is loaded by"
    fits = next((tokens for tokens in (8, 16, 32) if problem.m <= tokens), 64)
    if problem.m > 64:
        tiles = -(-problem.m // 64)
        return fits, f"64 tokens a tile; M = {problem.m} takes {tiles}, all but one with weights from L2"
    return fits, f"{fits} tokens a tile, which M = {problem.m} fits"


def _cluster(t: int, blocks_of_k: int) -> tuple[int, str]:
    """Blocks that share K, by the tiles of 64 weights and how often 64 k go into K."""
    if t > SMS:
        cluster, reason = 1, f"no split of K: {t} tiles of 64 weights are more than {SMS} SMs"
    elif t >= 85:
        cluster, reason = 1, f"no split of K: {t} SMs with a whole tile each are enough to draw the bandwidth"
    elif t > REACHED_SMS[4] // 4:
        cluster, reason = 2, f"K shared by clusters of 2: {t} tiles of 64 weights are too few SMs by themselves"
    elif t >= 10:
        cluster, reason = 4, f"K shared by clusters of 4: {t} tiles of 64 weights become {4 * t} blocks"
    else:
        cluster, reason = 8, f"K shared by clusters of 8, the largest: there are {t} tiles of 64 weights"
    fits = max(size for size in CLUSTERS if size <= max(blocks_of_k, 1))
    if fits < cluster:
        return fits, f"K shared by {fits}: there are {blocks_of_k} slices of 64 k"
    return cluster, reason
