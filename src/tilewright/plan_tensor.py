"""The plans of rungs 5 to 11, which multiply on the tensor cores of Hopper, and which of them a kernel can have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, get_args

from tilewright.dtypes import BF16, FP16, FP32, DType
from tilewright.errors import UsageError
from tilewright.gpu import get_gpu
from tilewright.plan_base import COUNTED_DEPTH, Dim3, Plan, TensorBox, mistyped
from tilewright.plan_grid import WARPS, about_boxes, about_grid, about_size, can_be_halved
from tilewright.plan_registers import REGISTER_FILE, about_registers
from tilewright.problem import Layout, Problem

FIRST, LAST = 5, 11
LEAST_SLABS = {"epilogue_columns": 16, "epilogue_slabs": 1}  # of a consumer: what a kernel has that uses none
LIBRARY = (FIRST, LAST)  # the rungs that ``tilewright.matmul`` runs
TMA, SPECIALISED, PERSISTENT, CLUSTERS = 7, 8, 9, 10  # the rungs that bring them in
_GPU = get_gpu("h200")  # or h100: what bounds a plan is the architecture's
SHARED_LIMIT = _GPU.shared_bytes_per_block
SMS = _GPU.sm_count  # the most blocks of a persistent grid
SWIZZLE_ROW = 64  # 16-bit elements of a 128-byte row, the widest that TMA swizzles and wgmma reads
LARGEST_PITCH = 2**40  # the same: globalStrides, in bytes
LARGEST_CLUSTER = 8  # what every GPU of the architecture can place

# The rung that brings each idea in, and so the first whose plans may differ from the default of the field.
_SINCE = {
    "consumers": FIRST + 1,
    "producer_registers": SPECIALISED,
    "consumer_registers": SPECIALISED,
    "group": PERSISTENT,
    "along_n": PERSISTENT,
    "blocks": PERSISTENT,
    "cluster_m": CLUSTERS,
    "cluster_n": CLUSTERS,
    "pingpong": LAST,
    "half_tail": LAST,
    "alternate_k": LAST,
    "store_evict_first": LAST,
    "epilogue_columns": LAST,
    "epilogue_slabs": LAST,
    "dependent_launch": LAST,
}


@dataclass(frozen=True)
class TensorPlan(Plan):
    """The compile-time values of a tensor-core rung; what a rung does not have yet keeps its default.

    ``stages`` counts buffers of a K-step of A and B. ``warps_m x warps_n`` warps cover the tile in rung 5; later
    ``consumers`` warpgroups multiply, from rung 8 on beside one that only loads, with ``producer_registers`` and
    ``consumer_registers`` a thread. They share a tile's rows, or each has a tile of its own (``pingpong``).

    A persistent grid (rungs 9 and up) has at most ``blocks`` blocks, which walk the tiles in super-rows of ``group``
    cluster tiles, along M or (``along_n``) along N. ``cluster_m x cluster_n`` blocks form a cluster. ``half_tail``
    cuts the tiles of a last wave that is at most half full; ``alternate_k`` walks K backwards in every other tile.

    The epilogue of rung 11 sends C through ``epilogue_slabs`` slabs a consumer, of 64 rows by ``epilogue_columns``
    columns; ``store_evict_first`` is its L2 hint. ``dependent_launch`` lets the next kernel start early. ``aligned``
    is about C alone where TMA loads A and B. ``threads`` follows from the rest. ``out_dtype`` is the element type of C,
    None that of the operands; rung 11 stores fp32 past its slabs. A ``paired`` plan of rung 11 has two Bs, each in half
    of B's tile, and ``bn // 2`` columns of C.

    Raises ``UsageError`` for a combination that no kernel has, with the numbers that are against it.
    """

    threads: int = field(init=False)
    stages: int = 4
    warps_m: int = 0
    warps_n: int = 0
    consumers: int = 0
    producer_registers: int = 0
    consumer_registers: int = 0
    group: int = 1
    along_n: bool = False
    blocks: int = 0
    cluster_m: int = 1
    cluster_n: int = 1
    pingpong: bool = False
    half_tail: bool = False
    alternate_k: bool = False
    store_evict_first: bool = False
    epilogue_columns: int = 0
    epilogue_slabs: int = 0
    dependent_launch: bool = False
    out_dtype: DType | None = None
    batched: bool = False
    paired: bool = False

    def __post_init__(self) -> None:
        for mistake in mistyped(self):
            raise UsageError(f"rung {self.rung}: {mistake}")
        if self.rung == FIRST:
            threads = 32 * self.warps_m * self.warps_n
        else:
            threads = 128 * (self.consumers + (self.rung >= SPECIALISED))
        object.__setattr__(self, "threads", threads)
        if self.out_dtype == self.dtype:
            object.__setattr__(self, "out_dtype", None)
        for complaint in _complaints(self):
            raise UsageError(f"rung {self.rung}: {complaint}")

    @property
    def c_dtype(self) -> DType:
        """The element type of C."""
        return self.out_dtype or self.dtype

    def storing(self, out: DType) -> Self:
        """The same with C in another type; of fp32, which they do not hold, rung 11's with the least of slabs.

        Raises ``UsageError`` for a rung that writes what it reads.
        """
        if self.rung not in LIBRARY:
            return super().storing(out)
        return self.with_(out_dtype=out, **(LEAST_SLABS if self.rung == LAST and out == FP32 != self.c_dtype else {}))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values; ``out_dtype`` if it is not that of the operands, ``batched`` and ``paired`` if set."""
        values = super().to_dict()
        del values["out_dtype"]
        for name in ("batched", "paired"):
            if not values[name]:
                del values[name]
        return values if self.out_dtype is None else {**values, "out_dtype": self.out_dtype.name}

    @property
    def persistent(self) -> bool:
        """Whether a block computes several tiles."""
        return self.rung >= PERSISTENT

    @property
    def cluster(self) -> int:
        """Blocks of a cluster."""
        return self.cluster_m * self.cluster_n

    @property
    def dependent(self) -> bool:
        """Whether a launch may start before the kernel ahead of it has ended."""
        return self.dependent_launch

    @property
    def takes_batch(self) -> bool:
        """They compute batches, too."""
        return self.has_epilogue

    @property
    def takes_pair(self) -> bool:
        """The last computes pairs, too."""
        return self.rung == LAST

    @property
    def has_epilogue(self) -> bool:
        """The two rungs that are kernels of the library, too, apply one."""
        return self.rung in LIBRARY

    @property
    def tile_bytes(self) -> int:
        """Bytes of A and B in one stage."""
        return (self.bm + self.bn) * self.bk * self.dtype.itemsize

    @property
    def shared_parts(self) -> Mapping[str, int]:
        """Bytes of a block's shared memory: the stages, the epilogue's slabs, and two 8-byte mbarriers a stage."""
        slab = 64 * self.epilogue_columns * self.dtype.itemsize
        return {
            "stages": self.stages * self.tile_bytes,
            "epilogue slabs": self.consumers * self.epilogue_slabs * slab,
            "barriers": 16 * self.stages if self.rung >= TMA else 0,
        }

    @property
    def accumulators(self) -> int:
        """Registers of a multiplying thread that hold its part of C."""
        if self.rung == FIRST:
            return self.bm * self.bn // self.threads
        return self.bm * self.bn // (128 * (1 if self.pingpong else self.consumers))

    @property
    def fragments(self) -> int:
        """Registers of a thread that hold rung 5's fragments: 16x16 of A and B in 4, of this and the next 16 of K."""
        if self.rung != FIRST:
            return 0
        return 2 * 4 * (self.bm // self.warps_m + self.bn // self.warps_n) // 16

    @property
    def entry_registers(self) -> int:
        """Registers of each thread when the kernel starts: an even share of the SM's, in eights, as ptxas gives."""
        return min(REGISTER_FILE // self.threads, 255) // 8 * 8

    @property
    def operand_lines(self) -> tuple[int, int]:
        """Lines of a tile of A and of B that are loaded at once: a half tile's where there are such."""
        halves = 2 if self.half_tail else 1
        return operand_lines(self.bm // halves, self.columns, self.bk, self.a_layout, self.b_layout)

    @property
    def tensor_boxes(self) -> tuple[TensorBox, ...]:
        """The operands that the kernel takes as tensor maps, in the order of its arguments.

        A box is what one block of a cluster loads and multicasts: blocks side by side along N share a tile of A, those
        along M one of B.
        """
        if self.rung < TMA:
            return ()
        a_lines, b_lines = self.operand_lines
        a_lines, b_lines = a_lines // self.cluster_n, b_lines // self.cluster_m
        boxes = [TensorBox("a", (SWIZZLE_ROW, a_lines), 128), TensorBox("b", (SWIZZLE_ROW, b_lines), 128)]
        if self.rung == LAST:
            row_bytes = self.epilogue_columns * self.c_dtype.itemsize
            boxes.append(TensorBox("c", (self.epilogue_columns, 64), row_bytes))
        return tuple(boxes)

    @property
    def counted(self) -> Dim3:
        """The tiles of one cluster."""
        return self.cluster_m * self.bm, self.cluster_n * self.columns, COUNTED_DEPTH

    def cluster_tiles(self, problem: Problem) -> tuple[int, int]:
        """Cluster tiles of C down and across: ``cluster_m x cluster_n`` tiles each, those beyond C's edge included."""
        down, across = self.tiles(problem)
        return -(-down // self.cluster_m), -(-across // self.cluster_n)

    def grid(self, problem: Problem, batch: int = 1) -> Dim3:
        """One block a tile of C, or as many whole clusters as there are, or as there is work for.

        Raises ``UsageError`` when there are more tiles than a kernel counts.
        """
        if not self.persistent:
            return super().grid(problem, batch)
        down, across = self.cluster_tiles(problem)
        most = self.counted_tiles(problem, down * across, batch) * (
            2 if self.half_tail else 1
        )  # each tile of an only wave may be cut in two
        return (min(self.blocks // self.cluster, most) * self.cluster, 1, 1)

    def interior_block(self, problem: Problem) -> int:
        """A block about the middle of C; of a persistent grid, where each has tiles all over C, the middle block."""
        return self.grid(problem)[0] // 2 if self.persistent else super().interior_block(problem)

    def edge_blocks(self, problem: Problem) -> list[int]:
        """The blocks that compute the tiles along the four sides of C: all of a persistent grid."""
        return list(range(self.grid(problem)[0])) if self.persistent else super().edge_blocks(problem)

    def constants(self) -> Mapping[str, int | bool]:
        """What the kernels read as ``plan::NAME``, in the order of the header."""
        return {
            "BM": self.bm,
            "BN": self.bn,
            "BK": self.bk,
            "STAGES": self.stages,
            "THREADS": self.threads,
            "SHARED_BYTES": self.shared_bytes,
            "A_K_MAJOR": self.a_layout == "row",
            "B_K_MAJOR": self.b_layout == "column",
            "ALIGNED": self.aligned,
            "WARPS_M": self.warps_m,
            "WARPS_N": self.warps_n,
            "CONSUMERS": self.consumers,
            "PRODUCER_REGISTERS": self.producer_registers,
            "CONSUMER_REGISTERS": self.consumer_registers,
            "GROUP": self.group,
            "ALONG_N": self.along_n,
            "CLUSTER_M": self.cluster_m,
            "CLUSTER_N": self.cluster_n,
            "PINGPONG": self.pingpong,
            "HALF_TAIL": self.half_tail,
            "ALTERNATE_K": self.alternate_k,
            "STORE_EVICT_FIRST": self.store_evict_first,
            "EPILOGUE_COLUMNS": self.epilogue_columns,
            "EPILOGUE_SLABS": self.epilogue_slabs,
            "DEPENDENT_LAUNCH": self.dependent_launch,
            "BATCHED": self.batched,
            "PAIRED": self.paired,
        }


def operand_lines(bm: int, bn: int, bk: int, a_layout: Layout, b_layout: Layout) -> tuple[int, int]:
    """Lines of A's and B's tile in shared memory: rows of it where they lie along K, else its depth."""
    return bm if a_layout == "row" else bk, bn if b_layout == "column" else bk


def _complaints(plan: TensorPlan) -> Iterator[str]:
    """Why no kernel has this plan, the most basic reason first; nothing when one has."""
    if not FIRST <= plan.rung <= LAST:
        yield f"rungs {FIRST} to {LAST} multiply on tensor cores"
    if plan.dtype not in (BF16, FP16):
        yield f"dtype is {plan.dtype}; tensor cores multiply bf16 or fp16"
    for name in ("a_layout", "b_layout"):
        if getattr(plan, name) not in get_args(Layout):
            yield f"{name} is {getattr(plan, name)!r}; {' and '.join(get_args(Layout))} are possible"
    for name, since in _SINCE.items():
        if plan.rung < since and getattr(plan, name) != getattr(TensorPlan, name):  # a class has its fields' defaults
            yield f"{name} is {getattr(plan, name)}; rungs {since} and up have it"
    if plan.out_dtype is not None and plan.rung not in LIBRARY:
        yield f"out_dtype is {plan.out_dtype}; rungs {' and '.join(map(str, LIBRARY))} write another than they read"
    if plan.batched and plan.rung not in LIBRARY:
        yield f"batched is True; rungs {' and '.join(map(str, LIBRARY))} compute batches"
    if plan.paired and plan.rung != LAST:
        yield f"paired is True; rung {LAST} computes pairs"
    if plan.batched and plan.half_tail:
        yield "half_tail is True; of a batch no tile is cut in two"
    if plan.bk != SWIZZLE_ROW:
        yield f"bk is {plan.bk}; it must be {SWIZZLE_ROW}, a 128-byte row of 16-bit elements"
    least = 3 if plan.rung == FIRST + 1 else 2
    if plan.stages < least:
        also = ", a third by the wgmmas still in flight" if least == 3 else ""
        yield f"stages is {plan.stages}; one is read while another is filled{also}: {least} are the least"
    yield from _about_the_tile(plan)
    if plan.rung >= PERSISTENT:
        yield from about_grid(plan)
    if plan.rung >= TMA:
        yield from about_boxes(plan.operand_lines, (plan.cluster_m, plan.cluster_n))
    if plan.rung == LAST:
        yield from _about_the_epilogue(plan)
    yield from about_registers(plan, loads_apart=plan.rung >= SPECIALISED)
    if plan.shared_bytes > SHARED_LIMIT:
        yield f"shared memory is {plan.shared_bytes} bytes with {plan.stages} stages; a block has {SHARED_LIMIT}"


def _about_the_tile(plan: TensorPlan) -> Iterator[str]:
    bm, bn = plan.bm, plan.bn
    if plan.rung == FIRST:
        if (plan.warps_m, plan.warps_n) not in WARPS:
            yield f"{plan.warps_m}x{plan.warps_n} warps; {', '.join(f'{m}x{n}' for m, n in WARPS)} are possible"
            return
        step_m, step_n, unit = 16 * plan.warps_m, 16 * plan.warps_n, f"{plan.warps_m}x{plan.warps_n} warps of 16x16"
    else:
        if plan.warps_m or plan.warps_n:
            yield f"{plan.warps_m}x{plan.warps_n} warps; from rung 6 on whole warpgroups multiply"
        if not 1 <= plan.consumers <= 3:
            yield f"consumers is {plan.consumers}; 1 to 3 warpgroups can multiply"
        groups = 1 if plan.pingpong else plan.consumers
        step_m, step_n, unit = 64 * groups, 16, f"{groups} warpgroups of 64 rows, and 16 columns"
    if bm < 1 or bn < 1 or bm % step_m or bn % step_n:
        yield f"the tile is {bm}x{bn}; it must be a multiple of {step_m}x{step_n} ({unit})"
    if plan.rung < TMA:
        yield from _about_copies(plan)
    yield from about_size(plan)
    if plan.b_layout == "row" and (bn % SWIZZLE_ROW or plan.columns % SWIZZLE_ROW):
        of = ", half of it" if plan.paired else ""
        yield f"bn is {bn}; row-major B lies in slabs of {SWIZZLE_ROW} columns, of which it must be a multiple{of}"


def _about_copies(plan: TensorPlan) -> Iterator[str]:
    """Of the rungs whose threads copy A and B, 16 bytes each and so 8 of them a line of 128."""
    at_once = plan.threads // 8
    # A thread's lines must have one place in the swizzle, as with a multiple of 8 at a time they have, and in MN-major
    # slabs one depth as well.
    slabs = plan.a_layout == "column" or plan.b_layout == "row"
    if plan.bm % at_once or plan.bn % at_once or (slabs and plan.bk % at_once):
        also = f", in slabs of {plan.bk}" if slabs else ""
        yield f"the tile is {plan.bm}x{plan.bn}; {plan.threads} threads copy {at_once} lines of A or B at a time{also}"


def _about_the_epilogue(plan: TensorPlan) -> Iterator[str]:
    if not plan.aligned:
        yield "aligned is False; it stores C by TMA, which writes rows that start on 16-byte boundaries"
    if plan.pingpong and plan.consumers != 2:
        yield f"consumers is {plan.consumers}; 2 take turns in ping-pong"
    if plan.half_tail and not can_be_halved(plan.bm, plan.consumers, plan.pingpong):
        yield (
            f"half_tail cuts cooperative tiles of 128 rows a consumer in two; this is {plan.bm}x{plan.bn} for "
            f"{plan.consumers}{' in ping-pong' if plan.pingpong else ''}"
        )
    columns = plan.epilogue_columns
    if plan.out_dtype == FP32 and columns > 32:
        yield f"epilogue_columns is {columns}; of fp32 a line of 128 bytes has 32"
    if columns not in (16, 32, 64) or plan.columns % columns:
        of = f"half of bn, which is {plan.columns}" if plan.paired else f"bn, which is {plan.bn}"
        yield f"epilogue_columns is {columns}; 16, 32 and 64 are possible where they divide {of}"
    if plan.epilogue_slabs < 1:
        yield f"epilogue_slabs is {plan.epilogue_slabs}; a consumer needs at least 1"
