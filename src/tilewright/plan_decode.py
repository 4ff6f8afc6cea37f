"""The plans of the decode branch: few tokens, so that the time is that of reading the weights once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

from tilewright.derive_decode import derived_decode
from tilewright.errors import UsageError
from tilewright.gpu import get_gpu
from tilewright.plan_base import Dim3
from tilewright.plan_branch import BranchPlan
from tilewright.problem import Layout, Problem

if TYPE_CHECKING:
    from tilewright.gpu import GpuSpec

_GPU = get_gpu("h200")  # or h100: what bounds a plan is the architecture's
LANES = 32
LOAD_BYTES = 16  # of a lane: the widest there is
MOST_THREADS = 1024
MOST_REGISTERS = 255
# The least beside these (addresses of lines, counters) with which ptxas spills nothing in a main loop; outside it may
# where a plan comes close. Default plans spill nothing anywhere (scripts/check_kernels.py).
SPARE_REGISTERS = 44
COUNTED_DEPTH = 4096  # the most of K that is traced: a whole one of the usual sizes, as sums are stored once a K


@dataclass(frozen=True)
class DecodePlan(BranchPlan):
    """What both kernels have: ``wk`` warps along K by ``wr`` along the weights, ``un`` loads deep.

    ``blocks_per_sm`` blocks must find room on an SM: it bounds the registers, and more warps have more on their way.
    ``dependent_launch`` starts the next kernel early and loads weights before waiting for the one before: only where
    that one writes no weights. ``aligned`` is about A and B. ``bm`` counts tokens, ``bn`` rows of weights, which are
    columns of B; ``bk`` is the depth of a warp's step. Raises ``UsageError`` for a combination that no kernel has.
    """

    branch: ClassVar[str] = "decode"
    most_tokens: ClassVar[int]

    bm: int = field(init=False)
    bn: int = field(init=False)
    bk: int = field(init=False)
    threads: int = field(init=False)
    b_layout: Layout = "column"
    wk: int = 1
    wr: int = 1
    un: int = 1
    blocks_per_sm: int = 1

    @property
    def wide(self) -> tuple[str, ...]:
        """A and B; C is stored by elements, two bytes a lane and side by side."""
        return ("a", "b")

    @property
    @abstractmethod
    def lines(self) -> int:
        """Loads of 16 bytes that a lane issues at one depth, one each of as many lines of weights."""

    @property
    @abstractmethod
    def registers(self) -> int:
        """Registers of a thread that hold elements and sums."""

    @property
    def available_registers(self) -> int:
        """Registers of each thread when as many blocks as asked for share an SM, in eights, as ptxas gives them."""
        threads = max(self.threads * self.blocks_per_sm, 1)
        return min(_GPU.registers_per_sm // threads // 8 * 8, MOST_REGISTERS)

    @property
    def in_flight(self) -> int:
        """Bytes of weights that a block has on their way at most: a batch of loads of every lane."""
        return self.threads * self.un * self.lines * LOAD_BYTES

    @property
    def counted(self) -> Dim3:
        """One tile over most of K."""
        return self.bm, self.bn, COUNTED_DEPTH

    @property
    def traits(self) -> tuple[str, ...]:
        """Warps along K, what a warp has of its own, and blocks that share an SM."""
        own = (f"{name.lower()}{value}" for name, value in self.own_constants().items())
        return (f"wk{self.wk}", *own, f"{self.blocks_per_sm}/SM")

    def constants(self) -> Mapping[str, int | bool]:
        """What the kernels read as ``plan::NAME``, in the order of the header."""
        return {
            "BM": self.bm,
            "BN": self.bn,
            "BK": self.bk,
            "WK": self.wk,
            "WR": self.wr,
            "UN": self.un,
            **self.own_constants(),
            "THREADS": self.threads,
            "BLOCKS_PER_SM": self.blocks_per_sm,
            "SHARED_BYTES": self.shared_bytes,
            "ALIGNED": self.aligned,
            "DEPENDENT_LAUNCH": self.dependent_launch,
        }

    @abstractmethod
    def own_constants(self) -> Mapping[str, int]:
        """Those of one kernel alone."""

    def complaints(self) -> Iterator[str]:
        """Why no kernel has this plan, the most basic reason first; nothing when one has."""
        yield from super().complaints()
        if (self.a_layout, self.b_layout) != ("row", "column"):
            yield (
                f"A is {self.a_layout}-major and B {self.b_layout}-major; it reads lines along K, those of row-major A "
                "and column-major B"
            )
        for name in ("wk", "wr", "un", "blocks_per_sm", *(name.lower() for name in self.own_constants())):
            if getattr(self, name) < 1:
                yield f"{name} is {getattr(self, name)}; at least 1 is possible"
        if self.threads > MOST_THREADS:
            yield f"{self.wk} x {self.wr} warps are {self.threads} threads; a block has at most {MOST_THREADS}"
        most = self.available_registers
        if self.registers + SPARE_REGISTERS > most:
            yield (
                f"elements and sums take {self.registers} registers and the rest about {SPARE_REGISTERS}; a thread of "
                f"{self.blocks_per_sm} x {self.threads} on an SM has {most}"
            )
        if self.shared_bytes > _GPU.shared_bytes_per_block:
            yield f"partial sums take {self.shared_bytes} bytes; a block has {_GPU.shared_bytes_per_block}"

    def derived(self, gpu: GpuSpec, problem: Problem) -> dict[str, Any]:
        """Bytes over bandwidth, and bytes in flight: see ``derive_decode``."""
        return derived_decode(self, gpu, problem)


@dataclass(frozen=True)
class GemvPlan(DecodePlan):
    """Of the GEMV: ``bm`` tokens, 1 to 4, held against ``rw`` rows of weights a warp; FMAs on the CUDA cores."""

    kernel: ClassVar[str] = "gemv"
    most_tokens: ClassVar[int] = 4

    bm: int = 1
    rw: int = 1

    def follows(self) -> Mapping[str, int]:
        """The tile and the block from warps and loads."""
        depth = self.un * LANES * (LOAD_BYTES // self.dtype.itemsize)
        return {"bn": self.rw * self.wr, "bk": depth, "threads": LANES * self.wk * self.wr}

    @property
    def lines(self) -> int:
        """A load for each row of weights."""
        return self.rw

    @property
    def registers(self) -> int:
        """Four of each load, of weights and of tokens at one depth, and a sum of each row and token."""
        return 4 * self.un * self.rw + 4 * self.bm + self.rw * self.bm

    @property
    def shared_parts(self) -> Mapping[str, int]:
        """A float for each warp along K and element of the tile."""
        return {"partial sums": 4 * self.wk * self.bm * self.bn}

    def own_constants(self) -> Mapping[str, int]:
        """Rows a warp."""
        return {"RW": self.rw}

    def complaints(self) -> Iterator[str]:
        """Why no kernel has this plan."""
        if not 1 <= self.bm <= self.most_tokens:
            yield f"bm is {self.bm}; 1 to {self.most_tokens} tokens are possible"
        yield from super().complaints()

    @classmethod
    def default(cls, problem: Problem, *, aligned: bool) -> Self:
        """By rule 1 of ``gemv_values``. Raises ``UsageError`` for more than 4 tokens, and other layouts."""
        if problem.m > cls.most_tokens:
            raise UsageError(
                f"decode gemv takes M of 1 to {cls.most_tokens}, and M is {problem.m}: it would read the weights again "
                "for the rest"
            )
        return cls(**_given(problem, aligned), **_roomy(gemv_values(problem.m, problem.n, problem.k)[0], aligned))


@dataclass(frozen=True)
class MmaPlan(DecodePlan):
    """Of the register-fed mma.sync: ``nt`` times 8 tokens against ``rb`` times 16 rows of weights a warp.

    A warp has ``batches`` batches of loads in registers, each filled again once it has been multiplied.
    """

    kernel: ClassVar[str] = "mma"
    most_tokens: ClassVar[int] = 16

    nt: int = 1
    rb: int = 1
    batches: int = 2

    def follows(self) -> Mapping[str, int]:
        """The tile and the block from warps and loads: a lane's four neighbours cover 32 k of a row at once."""
        bn, threads = 16 * self.rb * self.wr, LANES * self.wk * self.wr
        return {"bm": 8 * self.nt, "bn": bn, "bk": 32 * self.un, "threads": threads}

    @property
    def lines(self) -> int:
        """Two halves of 8 rows in each block of 16, in every batch."""
        return 2 * self.rb * self.batches

    @property
    def registers(self) -> int:
        """Four of each load and four sums of each 16x8 block."""
        return 4 * self.un * self.lines + 4 * self.rb * self.nt

    @property
    def shared_parts(self) -> Mapping[str, int]:
        """A float for each warp along K and element of the tile, its rows 4 floats apart beyond their length."""
        return {"partial sums": 4 * self.wk * self.bm * (self.bn + 4)}

    def own_constants(self) -> Mapping[str, int]:
        """Blocks of tokens and of weights, and batches."""
        return {"NT": self.nt, "RB": self.rb, "BATCHES": self.batches}

    @classmethod
    def default(cls, problem: Problem, *, aligned: bool) -> Self:
        """By rule 2 of ``mma_values``. Raises ``UsageError`` for more than 16 tokens, and other layouts."""
        if problem.m > cls.most_tokens:
            raise UsageError(
                f"decode mma takes M of 1 to {cls.most_tokens}, and M is {problem.m}: the branch for it is swapab"
            )
        return cls(**_given(problem, aligned), **_roomy(mma_values(problem.m, problem.n)[0], aligned))


def _given(problem: Problem, aligned: bool) -> dict[str, Any]:
    return {
        "dtype": problem.dtype, "aligned": aligned, "a_layout": problem.a_layout, "b_layout": problem.b_layout,
        "out_dtype": problem.out_dtype,
    }  # fmt: skip


def _roomy(values: Mapping[str, Any], aligned: bool) -> dict[str, Any]:
    """The values; where lines are read by elements, which takes more registers, with all that there are."""
    return {**values, "blocks_per_sm": values["blocks_per_sm"] if aligned else 1}


@dataclass(frozen=True)
class Choice:
    """Which kernel a problem of few tokens is for: its branch and name (None outside this branch), and why."""

    branch: str
    kernel: str | None
    reason: str


def choose(m: int, n: int, k: int, *, dependent: bool = False) -> Choice:
    """The kernel by rules that a study of such kernels on an H200 gave; ``tilewright.plan`` weighs the others too.

    ``dependent`` says that the launch may overlap the one before it.
    """
    if m <= 2:
        return Choice("decode", "gemv", gemv_values(m, n, k)[1])
    if m <= 8 and n <= 8192 and not dependent:
        return Choice("decode", "mma", mma_values(m, n)[1])
    why = (
        f"M = {m} fills more of a wgmma than of an mma.sync" if m > 8
        else f"N = {n}: fragments in registers read the tokens again for every 16 rows of weights" if n > 8192
        else "under a dependent launch its ring fills while the kernel before still runs, with more than registers hold"
    )  # fmt: skip
    return Choice("swapab", None, f"swap-AB: {why}")


def gemv_values(m: int, n: int, k: int) -> tuple[dict[str, Any], str]:
    """Rule 1: the plan values of the GEMV for a size, and the reason in words."""
    tokens = max(m, 1)
    if n <= 600:
        return {"bm": tokens, "rw": 1, "wk": 8, "wr": 1, "un": 4, "blocks_per_sm": 3 if m <= 2 else 1}, (
            f"GEMV, N = {n}: a row a block, so that there are blocks for the SMs, its K over 8 warps, 4 loads deep"
        )
    # As many blocks as have room without spilling (scripts/check_kernels.py); each token more takes registers.
    shape: dict[str, Any] = {"bm": tokens, "rw": 4, "un": 2, "blocks_per_sm": {1: 5, 2: 4, 3: 4}.get(tokens, 3)}
    if n <= 4096 and k <= 4096:
        return {**shape, "wk": 2, "wr": 2}, (
            f"GEMV, 4 rows a warp so that a token is read once for them, and 2 x 4 loads in flight; K = {k} is short, "
            "so that only 2 warps share it, and a block has 2 groups of rows"
        )
    return {**shape, "wk": 4, "wr": 1}, (
        "GEMV, 4 rows a warp so that a token is read once for them, and 2 x 4 loads in flight; 4 warps share K"
    )


def mma_values(m: int, n: int) -> tuple[dict[str, Any], str]:
    """Rule 2: the plan values of the register-fed mma.sync for a size, and the reason in words."""
    few = -(-n // 64) < 40
    wk = 16 if few else 8
    why = f"N = {n} is less than 40 times 64, so that K goes over 16 warps" if few else "K over 8 warps"
    nt = 1 if m <= 8 else 2
    # Three blocks an SM find room too, without spilling, and are 4% slower at N = 4096 and 28672 (2026-11-30).
    blocks = 1 if few else 2
    return {"nt": nt, "rb": 1, "wk": wk, "wr": 1, "un": 2, "batches": 2, "blocks_per_sm": blocks}, (
        f"mma.sync fed from registers, {why}; two batches of 2 x 2 loads, one on its way while the other is multiplied"
    )
