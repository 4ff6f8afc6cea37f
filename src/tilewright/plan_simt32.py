"""The plans of the SIMT branch: fp32 multiplied as fp32, on the CUDA cores, of operands in any layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

from tilewright.derive_simt import derived_simt
from tilewright.dtypes import FP32, DType
from tilewright.gpu import get_gpu
from tilewright.plan_base import Lanes
from tilewright.plan_branch import BranchPlan

if TYPE_CHECKING:
    from tilewright.gpu import GpuSpec
    from tilewright.problem import Problem

_GPU = get_gpu("h200")  # or h100: what bounds a plan is the architecture's
GROUP = 4  # neighbouring rows, or columns, of a thread: one access of 16 bytes
SCHEDULERS = 4  # of an SM, each with warps of its own
STEP_CLK = 100  # a barrier of the block and what passes through registers, each K-step: an assumption
SECTOR = 8  # elements of fp32 in 32 bytes, which two threads take of a line along K

# Each tile with the outputs a thread keeps and the warps that the arrangement of lanes allows, the largest first.
# An SM has as many blocks as registers without spilling. The small ones are for few rows, few columns, or few of both.
TILES: tuple[Mapping[str, Any], ...] = (
    {"bm": 128, "bn": 256, "tm": 16, "tn": 8, "warps_m": 2, "warps_n": 4, "blocks_per_sm": 1},
    {"bm": 128, "bn": 128, "tm": 16, "tn": 8, "warps_m": 2, "warps_n": 2, "blocks_per_sm": 2},
    {"bm": 64, "bn": 128, "tm": 8, "tn": 8, "warps_m": 1, "warps_n": 4, "blocks_per_sm": 3},
    {"bm": 64, "bn": 64, "tm": 8, "tn": 8, "warps_m": 1, "warps_n": 2, "blocks_per_sm": 4},
    {"bm": 64, "bn": 64, "tm": 8, "tn": 4, "warps_m": 2, "warps_n": 2, "blocks_per_sm": 4},
    {"bm": 32, "bn": 64, "tm": 4, "tn": 4, "warps_m": 1, "warps_n": 4, "blocks_per_sm": 5},
    {"bm": 16, "bn": 128, "bk": 32, "tm": 4, "tn": 4, "warps_m": 1, "warps_n": 4, "blocks_per_sm": 3},
    {"bm": 128, "bn": 16, "bk": 32, "tm": 4, "tn": 4, "warps_m": 4, "warps_n": 1, "blocks_per_sm": 3},
    {"bm": 32, "bn": 32, "tm": 4, "tn": 4, "warps_m": 1, "warps_n": 2, "blocks_per_sm": 8},
)


@dataclass(frozen=True)
class Simt32Plan(BranchPlan):
    """The compile-time values of the fp32 kernel.

    ``tm x tn`` are the outputs one thread keeps in registers, ``warps_m x warps_n`` the arrangement of its block's
    warps over the tile. There are two buffers of a K-step. ``batched`` is a plan of a batch of
    products. Raises ``UsageError`` for a combination that no kernel has.
    """

    branch: ClassVar[str] = "simt"
    kernel: ClassVar[str] = "fp32"
    dtypes: ClassVar[tuple[DType, ...]] = (FP32,)
    stages: ClassVar[int] = 2

    dtype: DType = FP32
    bm: int = 128
    bn: int = 128
    bk: int = 16
    threads: int = field(init=False)
    tm: int = 8
    tn: int = 8
    warps_m: int = 2
    warps_n: int = 4
    blocks_per_sm: int = 1
    batched: bool = False

    @property
    def takes_batch(self) -> bool:
        """It computes batches, too."""
        return True

    def follows(self) -> Mapping[str, int]:
        """The block from its warps."""
        return {"threads": 32 * self.warps_m * self.warps_n}

    @property
    def pads(self) -> tuple[int, int]:
        """Elements after each line of a tile of A and of B: where lines run along K, for the transposed stores."""
        return 4 * (self.a_layout == "row"), 4 * (self.b_layout == "column")

    @property
    def shared_parts(self) -> Mapping[str, int]:
        """Bytes of the two buffers: ``2 * bk * (bm + bn + pads) * 4``."""
        return {"stages": self.stages * self.bk * (self.bm + self.bn + sum(self.pads)) * self.dtype.itemsize}

    @property
    def traits(self) -> tuple[str, ...]:
        """Outputs of a thread, and the warps."""
        return (f"{self.tm}x{self.tn}", f"w{self.warps_m}x{self.warps_n}")

    @property
    def lanes(self) -> Lanes:
        """All of a warp, each with four columns of a row, every fourth row."""
        across, down = self.bn // self.tn // self.warps_n, self.bm // self.tm // self.warps_m
        return Lanes(GROUP, across, down, GROUP)

    def constants(self) -> Mapping[str, int | bool]:
        """What the kernel reads as ``plan::NAME``, in the order of the header."""
        return {
            "BM": self.bm,
            "BN": self.bn,
            "BK": self.bk,
            "TM": self.tm,
            "TN": self.tn,
            "WARPS_M": self.warps_m,
            "WARPS_N": self.warps_n,
            "THREADS": self.threads,
            "BLOCKS_PER_SM": self.blocks_per_sm,
            "SHARED_BYTES": self.shared_bytes,
            "ALIGNED": self.aligned,
            "A_K_MAJOR": self.a_layout == "row",
            "B_K_MAJOR": self.b_layout == "column",
            "DEPENDENT_LAUNCH": self.dependent_launch,
            "BATCHED": self.batched,
        }

    def complaints(self) -> Iterator[str]:
        """Why no kernel has this plan, the most basic reason first; nothing when one has."""
        yield from super().complaints()
        for name in ("bm", "bn", "bk", "tm", "tn", "warps_m", "warps_n", "blocks_per_sm"):
            if getattr(self, name) < 1:
                yield f"{name} is {getattr(self, name)}; at least 1 is possible"
        for name in ("tm", "tn"):
            if getattr(self, name) % GROUP:
                yield f"{name} is {getattr(self, name)}; multiples of {GROUP} are possible"
        # Of an operand all threads load a part in equal pieces of 16 bytes.
        for name, rows, along_k in (
            ("A", self.bm, self.a_layout == "row"), ("B", self.bn, self.b_layout == "column")
        ):  # fmt: skip
            pieces = rows * self.bk, GROUP * self.threads
            if pieces[0] % pieces[1] or (self.bk % SECTOR if along_k else pieces[1] % rows):
                yield (
                    f"a K-step of {name} is {rows} x {self.bk} elements, which {self.threads} threads cannot share in "
                    f"pieces of 16 bytes of {f'{SECTOR} k' if along_k else 'whole lines'}"
                )
        lanes_m, lanes_n = self.bm / (self.tm * self.warps_m), self.bn / (self.tn * self.warps_n)
        if lanes_m * lanes_n != 32 or lanes_m % 1 or lanes_n % 1:
            yield (
                f"{self.warps_m}x{self.warps_n} warps of 32 threads with {self.tm}x{self.tn} outputs each do not make "
                f"a tile of {self.bm}x{self.bn}"
            )
        if self.threads * self.blocks_per_sm > _GPU.max_threads_per_sm:
            yield f"{self.blocks_per_sm} blocks of {self.threads} threads; an SM has {_GPU.max_threads_per_sm}"
        if self.shared_bytes > _GPU.shared_bytes_per_block:
            yield f"two buffers take {self.shared_bytes} bytes; a block has {_GPU.shared_bytes_per_block}"

    def derived(self, gpu: GpuSpec, problem: Problem) -> dict[str, Any]:
        """FLOP per byte of the tile, shared bytes a MAC, and the bottleneck: as of rung 4."""
        return derived_simt(self, gpu)

    def clocks(self, problem: Problem) -> float:
        """Clocks of the SM with the most tiles, in the rule's model: multiply-adds, and what each K-step costs beside.

        A thread with few outputs reads ``4 * (1 / tm + 1 / tn)`` bytes a multiply-add from shared memory, whose port
        carries one a multiply-add. An SM that has fewer warps than schedulers leaves some without work.
        """
        down, across = self.tiles(problem)
        rounds = -(-down * across // _GPU.sm_count)
        warps = self.threads // 32 * min(self.blocks_per_sm, rounds)
        slowed = max(1.0, GROUP * (1 / self.tm + 1 / self.tn)) * max(1.0, SCHEDULERS / warps)
        step = self.bm * self.bn * self.bk / _GPU.fp32_fma_per_clock * slowed + STEP_CLK
        return rounds * -(-problem.k // self.bk) * step

    @classmethod
    def choices(cls, problem: Problem, *, aligned: bool) -> list[Self]:
        """A plan of each tile. Raises ``UsageError`` for a dtype that the kernel does not multiply."""
        common: dict[str, Any] = {
            "dtype": problem.dtype, "aligned": aligned, "a_layout": problem.a_layout, "b_layout": problem.b_layout,
            "out_dtype": problem.out_dtype,
        }  # fmt: skip
        return [cls(**{**common, **values}) for values in TILES]

    @classmethod
    def default(cls, problem: Problem, *, aligned: bool) -> Self:
        """Of ``choices`` that with the fewest ``clocks``, the larger tile of two alike."""
        return min(cls.choices(problem, aligned=aligned), key=lambda plan: plan.clocks(problem))
