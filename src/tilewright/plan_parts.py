"""What the plans of split-K and stream-K have in common: rung 11's kernel, whose work is parts of K of tiles.

The tile, its ring, warpgroups, cluster and way out are those of rung 11, and so is what is legal of them. What is added
is a workspace: fp32 partial sums that blocks leave for each other, and a counter a tile and warpgroup.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from tilewright import derive_tensor, roofline
from tilewright.dtypes import FP32, DType
from tilewright.errors import UsageError
from tilewright.plan_base import LARGEST_GRID, MOST_COUNTERS, Dim3, Lanes, TensorBox, Workspace
from tilewright.plan_branch import BranchPlan
from tilewright.plan_registers import SPARE_REGISTERS
from tilewright.plan_tensor import LAST, LEAST_SLABS, SHARED_LIMIT, SMS, TensorPlan

if TYPE_CHECKING:
    from tilewright.gpu import GpuSpec
    from tilewright.problem import Problem

SEEN_BYTES = 16  # a word a warpgroup: what it found the counter of its tile to be
# Registers beside those of rung 11: what is read of a partial sum, four loads of 16 bytes or more. With 192
# accumulators and 40 others ptxas spills (44 bytes).
SUM_REGISTERS = 16
MOST_FAN_IN = 2**15
PREFIX = f"rung {LAST}: "
# Clocks of the model that ranks tiles and cuts: B/clk that an SM gets of L2 while all of them load, the most that was
# seen in trials of an earlier kernel (about 10 TB/s); and what tensor cores do.
L2_BYTES_PER_CLOCK = 48
MACS_PER_CLOCK = 2048
CLUSTER_BYTES_PER_CLOCK = 32  # that a block gets of its cluster's shared memory: an assumption
STEP_CLOCKS = 64  # between the wgmmas of two K blocks, so that larger tiles are better: an assumption
FIXED_CLOCKS = 1500  # to meet at the counter and to begin reading: an assumption


Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Turns:
    """When clusters compute the tiles of a problem, all of them in ``waves``.

    Wave ``odd``, from 0, is not like the others: ``busy`` clusters have work in it, and it is ``length`` of a whole
    one. ``of`` has the wave in which each cluster tile is done. ``said`` is what there is to say of parts.
    """

    waves: int
    odd: int
    busy: int
    length: float
    of: Callable[[Ints], Ints]
    said: str


@dataclass(frozen=True)
class PartsPlan(BranchPlan):
    """The compile-time values of both kernels; those of rung 11 mean what they mean in ``TensorPlan``.

    All parts of a tile are added up at once, or groups of ``fan_in`` and then their sums. C in fp32 is stored past the
    epilogue's slabs. ``dependent_launch`` lets the kernel start under the one before it and load B,
    which that must not write, at once. ``threads`` follows from the rest. Raises ``UsageError`` for a combination that
    no kernel has.
    """

    uses_tma: ClassVar[bool] = True

    threads: int = field(init=False)
    stages: int = 4
    consumers: int = 2
    producer_registers: int = 40
    consumer_registers: int = 232
    group: int = 8
    along_n: bool = False
    blocks: int = SMS
    cluster_m: int = 1
    cluster_n: int = 1
    store_evict_first: bool = False
    epilogue_columns: int = 32
    epilogue_slabs: int = 2
    fan_in: int = 0

    def follows(self) -> Mapping[str, int]:
        """The threads of a block."""
        return {"threads": 128 * (self.consumers + 1)}

    @property
    def traits(self) -> tuple[str, ...]:
        """Stages, cluster, and one warpgroup where not two multiply."""
        return (f"s{self.stages}", f"{self.cluster_m}x{self.cluster_n}", *(["1wg"] if self.consumers == 1 else []))

    @property
    def cluster(self) -> int:
        """Blocks of a cluster."""
        return self.cluster_m * self.cluster_n * self.along_k

    @property
    def along_k(self) -> int:
        """Blocks of a cluster that share the K blocks of a part, and add up in each other's shared memory."""
        return 1

    def storing(self, out: DType) -> Self:
        """The same with C in another type; of fp32, which they do not hold, with the least of slabs."""
        return self.with_(out_dtype=out, **(LEAST_SLABS if out == FP32 != self.c_dtype else {}))

    def alone(self) -> Self:
        """The same without clusters."""
        return self.with_(cluster_m=1, cluster_n=1)

    @cached_property
    def core(self) -> TensorPlan:
        """Rung 11's plan with the same tile. Raises ``UsageError`` where there is none."""
        return TensorPlan(
            LAST, self.dtype, self.bm, self.bn, self.bk, self.aligned, self.a_layout, self.b_layout, self.stages,
            consumers=self.consumers, producer_registers=self.producer_registers,
            consumer_registers=self.consumer_registers, group=self.group, along_n=self.along_n, blocks=self.blocks,
            cluster_m=self.cluster_m, cluster_n=self.cluster_n, store_evict_first=self.store_evict_first,
            epilogue_columns=self.epilogue_columns, epilogue_slabs=self.epilogue_slabs,
            dependent_launch=self.dependent_launch,
        )  # fmt: skip

    @property
    def shared_parts(self) -> Mapping[str, int]:
        """Bytes of a block's shared memory: rung 11's, and a word for what each warpgroup finds its counter to be.

        In a cluster along K also what the other blocks have of this one's share of the tile, in fp32, and two mbarriers
        a warp.
        """
        parts = {**self.core.shared_parts, "counters seen": SEEN_BYTES}
        if self.along_k > 1:
            parts["partial sums"] = 4 * self.bm * self.bn // self.along_k * (self.along_k - 1)
            parts["their barriers"] = 16 * 4 * self.consumers
        return parts

    @property
    def tensor_boxes(self) -> tuple[TensorBox, ...]:
        """Those of rung 11; C's lines are longer where its elements are."""
        a, b, _ = self.core.tensor_boxes
        return a, b, TensorBox("c", (self.epilogue_columns, 64), self.epilogue_columns * self.c_dtype.itemsize)

    @property
    def lanes(self) -> Lanes:
        """Those of rung 11."""
        return self.core.lanes

    @property
    def counted(self) -> Dim3:
        """The tiles of one cluster."""
        return self.core.counted

    def cluster_tiles(self, problem: Problem) -> int:
        """Tiles of whole clusters, those beyond C's edge included."""
        down, across = self.core.cluster_tiles(problem)
        return down * across

    def k_blocks(self, problem: Problem) -> int:
        """K blocks of a tile; of K = 0 one, of zeros."""
        return max(-(-problem.k // self.bk), 1)

    def work(self, problem: Problem) -> int:
        """Work items that there can be clusters for."""
        raise NotImplementedError

    def grid(self, problem: Problem, batch: int = 1) -> Dim3:
        """As many whole clusters as there are, or as there is work for.

        Raises ``UsageError`` when there is more than a kernel counts in 32 bits.
        """
        items = self.cluster_tiles(problem) * self.k_blocks(problem)
        if items > LARGEST_GRID:
            raise UsageError(f"{problem} has {items} K blocks of {self.bm}x{self.bn}; the kernel counts {LARGEST_GRID}")
        return (min(self.blocks // self.cluster, self.work(problem)) * self.cluster, 1, 1)

    def clusters(self, problem: Problem) -> int:
        """Clusters of the grid."""
        return self.grid(problem)[0] // self.cluster

    def places(self, problem: Problem) -> tuple[int, int]:
        """Slots that clusters leave partial sums of their tiles in, of all together, and tiles that are so summed."""
        raise NotImplementedError

    def counters(self, tiles: int, slots: int) -> int:
        """One of each warpgroup for each slot of partial sums and each cluster tile that they are summed up to."""
        return (slots + tiles) * self.cluster * self.consumers

    def workspace(self, problem: Problem) -> Workspace:
        """A tile of fp32 for each place, and a counter of each warpgroup for each place and each tile that is summed.

        At least 16 bytes and one, so that the kernel has what it takes. Raises ``UsageError`` for more counters than
        there can be.
        """
        slots, tiles = self.places(problem)
        counters = max(self.counters(tiles, slots), 1)
        if counters > MOST_COUNTERS:
            raise UsageError(
                f"{self.of}: {problem} has {tiles * self.core.cluster} tiles to sum up and {counters} counters; a "
                f"workspace has {MOST_COUNTERS}, and so many tiles need no cut"
            )
        return Workspace(max(slots * self.cluster * self.bm * self.bn // self.along_k, 4), counters)

    def neighbours(self, problem: Problem) -> Sequence[int]:
        """The blocks in an order in which those that share a tile are near each other."""
        return range(self.grid(problem)[0])

    def interior_block(self, problem: Problem) -> int:
        """The middle block; each has tiles all over C."""
        return self.grid(problem)[0] // 2

    def edge_blocks(self, problem: Problem) -> list[int]:
        """The blocks that compute the tiles along the four sides of C: all."""
        return list(range(self.grid(problem)[0]))

    def constants(self) -> Mapping[str, int | bool]:
        """What the kernels read as ``plan::NAME``: rung 11's, and how the work is cut."""
        of_the_sum = {"FAN_IN": self.fan_in, "CLUSTER_K": self.along_k}
        return {**self.core.constants(), "SHARED_BYTES": self.shared_bytes, **of_the_sum, **self.cut()}

    def cut(self) -> Mapping[str, int | bool]:
        """The constants of the kernel's own."""
        raise NotImplementedError

    def complaints(self) -> Iterator[str]:
        """Why no kernel has this plan, the most basic reason first; nothing when one has."""
        yield from super().complaints()
        try:
            shared = self.shared_bytes
        except UsageError as complaint:
            yield str(complaint).removeprefix(PREFIX)
            return
        if shared > SHARED_LIMIT:
            yield f"shared memory is {shared} bytes with {self.stages} stages; a block has {SHARED_LIMIT}"
        accumulators, spare = self.core.accumulators, SPARE_REGISTERS + SUM_REGISTERS
        if accumulators + spare > self.consumer_registers:
            yield (
                f"a tile of {self.bm}x{self.bn} takes {accumulators} accumulators, and adding up partial sums about "
                f"{spare} other registers; a consumer thread has {self.consumer_registers}"
            )
        if self.fan_in != 0 and not 2 <= self.fan_in <= MOST_FAN_IN:
            yield f"fan_in is {self.fan_in}; 0 (all parts at once) and 2 to {MOST_FAN_IN} are possible"
        if self.out_dtype == FP32 and self.epilogue_columns > 32:
            yield f"epilogue_columns is {self.epilogue_columns}; of fp32 a line of 128 bytes has 32"

    def full(self) -> Self:
        """The same with as many stages as a block's shared memory holds."""
        rest = self.shared_bytes - self.stages * (self.core.tile_bytes + 16)
        return self.with_(stages=(SHARED_LIMIT - rest) // (self.core.tile_bytes + 16))

    def block_clocks(self) -> float:
        """Clocks of a K block by the arithmetic: of the tensor cores, or of what has to come from L2."""
        fed = self.bm / self.cluster_n + self.bn / self.cluster_m
        multiply = self.bm * self.bn * self.bk / MACS_PER_CLOCK
        return STEP_CLOCKS + max(multiply, fed * self.bk * self.dtype.itemsize / L2_BYTES_PER_CLOCK)

    def sum_clocks(self, parts: float) -> float:
        """Clocks to leave a partial sum and to add up ``parts`` of them, at the rate of loads from L2.

        A cluster along K adds up its own first, of which each block receives its share, and leaves and takes that.
        """
        fan = self.fan_in or parts
        levels = [each for each in (min(parts, fan), -(-parts // fan)) if each > 1]
        share = 4 * self.bm * self.bn / self.along_k
        exchange = (self.along_k > 1) * FIXED_CLOCKS + (self.along_k - 1) * share / CLUSTER_BYTES_PER_CLOCK
        return exchange + sum(FIXED_CLOCKS + (1 + each) * share / L2_BYTES_PER_CLOCK for each in levels)

    def two_levels(self, problem: Problem) -> Self:
        """The same, its tiles' parts added up in two steps where that is faster by the model."""
        parts = math.ceil(self.parts(problem))
        plan = self.with_(fan_in=max(2, math.isqrt(max(parts - 1, 0)) + 1))
        return min((self, plan), key=lambda each: each.sum_clocks(parts))

    def parts(self, problem: Problem) -> float:
        """Parts of a tile that is cut, on average."""
        raise NotImplementedError

    def estimate(self, problem: Problem) -> float:
        """Clocks by the model that ``default`` ranks tiles and cuts with; it knows nothing of power or of DRAM."""
        raise NotImplementedError

    def said(self, problem: Problem) -> str:
        """How the work is cut, in words."""
        raise NotImplementedError

    def turns(self, problem: Problem) -> Turns:
        """When clusters compute what: the lists of work of the kernel, in closed form."""
        raise NotImplementedError

    def tiles_named(self, count: int) -> str:
        """So many tiles, of whole clusters where there are any."""
        return f"{count:,} {'cluster ' if self.cluster_m * self.cluster_n > 1 else ''}tile{'s' * (count != 1)}"

    def derived(self, gpu: GpuSpec, problem: Problem) -> dict[str, Any]:
        """What ``derive.derived`` says of rung 11's tile, with the cut as its bottleneck and the workspace's size."""
        traffic, said = roofline.minimum_traffic(problem), derive_tensor.derived_tensor(self.core, gpu)
        depth = self.k_blocks(problem) * self.bk
        exchanged = 4 * (self.along_k - 1) * self.parts(problem) / depth  # each block its columns of all others, a part
        return {
            **said,
            "shared_load_bytes_per_mac": said["shared_load_bytes_per_mac"] + exchanged,
            "workspace_bytes": self.workspace_bytes(problem),
            "least_time_us": traffic.value / gpu.hbm_bytes_per_s * 1e6,
            "estimated_clocks": self.estimate(problem),
            "bottleneck": self.said(problem),
        }


# The tiles that the rules choose among, each with the warpgroups that multiply it, and the clusters.
TILES = ((128, 256, 2), (256, 128, 2), (128, 128, 2), (64, 256, 1), (64, 128, 1), (64, 64, 1))
CLUSTERS = ((2, 1), (1, 2), (1, 1))  # the first of equals is taken: it reads less from L2


def tiles_for(plan_kind: type[PartsPlan], problem: Problem, *, aligned: bool) -> Iterator[PartsPlan]:
    """A plan for each of ``TILES`` in each of ``CLUSTERS`` that a problem gives something to do, with a full ring."""
    for (bm, bn, consumers), (cluster_m, cluster_n) in itertools.product(TILES, CLUSTERS):
        if (cluster_m > 1 and problem.m <= bm) or (cluster_n > 1 and problem.n <= bn):
            continue
        plan = plan_kind(
            problem.dtype, bm, bn, 64, aligned, problem.a_layout, problem.b_layout, stages=2, consumers=consumers,
            consumer_registers=232 if consumers == 2 else 248, cluster_m=cluster_m, cluster_n=cluster_n,
            group=8 // cluster_m,
        )  # fmt: skip
        yield plan.storing(problem.out_dtype).full()
