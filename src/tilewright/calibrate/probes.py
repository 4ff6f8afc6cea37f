"""The kernels of the microbenchmarks, compiled for a backend and launched; what they time comes back as laps.

They run in the emulator as well, where they move and multiply what they should, in no time that means anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.backends.base import Backend, Dim3, Matrix, TensorMap
from tilewright.dtypes import BF16, FP32
from tilewright.epilogue.code import PLAIN
from tilewright.errors import UsageError
from tilewright.plan_base import header_of
from tilewright.run import target_of
from tilewright.source import CUDA_ROOT, KernelSource, flatten

Array = np.ndarray[Any, Any]
FOLDER = CUDA_ROOT / "probes"
BOX_ROWS, BOX_BYTES = 128, 16 << 10  # of the boxes that stream: 64 elements of 16 bits by 128 lines
LAP_WORDS = 5  # tw/stopwatch.cuh
NO_LIMIT = 2**31 - 1


@dataclass(frozen=True)
class Laps:
    """What a launch's stopwatches say, an element each: the SM, the work done, its clocks, its first and last ns."""

    sm: Array
    work: Array
    clocks: Array
    begin_ns: Array
    end_ns: Array

    @classmethod
    def of(cls, words: Array) -> Laps:
        """From ``(laps, 5)`` unsigned words of 64 bits, as kernels write them."""
        return cls(*words.reshape(-1, LAP_WORDS).T)

    @property
    def mhz(self) -> float:
        """The median of the SMs' average clocks."""
        nanoseconds = (self.end_ns - self.begin_ns).astype(np.float64)
        return float(np.median(self.clocks / nanoseconds * 1e3))

    @property
    def work_per_clk(self) -> Array:
        """Of each SM."""
        return self.work / self.clocks.astype(np.float64)

    @property
    def work_per_s(self) -> float:
        """Of all SMs together, each while it ran."""
        return float((self.work / (self.end_ns - self.begin_ns).astype(np.float64)).sum() * 1e9)


@dataclass(frozen=True)
class Probe:
    """A kernel of ``cuda/probes`` with its plan values; element type bf16."""

    name: str
    plan: dict[str, int | bool]
    threads: int
    shared_bytes: int = 0
    cluster: int = 1

    def source(self, backend: Backend) -> KernelSource:
        """Its text for a backend."""
        constants = {**self.plan, "THREADS": self.threads, "SHARED_BYTES": self.shared_bytes}
        if "CLUSTER" not in constants:
            constants["CLUSTER"] = self.cluster
        target, arch = target_of(backend)
        header = header_of(BF16, constants) + PLAIN.header()
        return KernelSource(self.name, flatten(FOLDER / f"{self.name}.cu", target, header), target, arch)

    def launch(self, backend: Backend, blocks: int, args: Sequence[Any], stream: Any = None) -> None:
        """Start it on so many blocks."""
        grid: Dim3 = (blocks, 1, 1)
        block: Dim3 = (self.threads, 1, 1)
        kernel = backend.compile(self.source(backend))
        backend.launch(kernel, grid, block, args, self.shared_bytes, cluster=self.cluster, stream=stream)


def words(backend: Backend, rows: int, count: int) -> Matrix:
    """Memory for ``rows`` of ``count`` 64-bit words, all ones."""
    return backend.empty(rows, 2 * count, FP32)


def read_words(backend: Backend, matrix: Matrix) -> Array:
    """What kernels wrote there, a row each."""
    found: Array = np.ascontiguousarray(backend.download(matrix)).view(np.uint64)
    return found


def normal_bf16(count: int, seed: int = 0) -> Array:
    """Random bf16 with full mantissas, N(0, 1), as one row of 32-bit words."""
    values = np.random.default_rng(seed).standard_normal(count).astype(np.float32).astype(BF16.numpy)
    row: Array = values.reshape(1, -1).view(np.float32)
    return row


# ---- TMA -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Region:
    """Part of a matrix ``across`` boxes wide, row-major, that boxes are taken from: its first ``boxes``, whole rows.

    Raises ``UsageError`` for a part of a row, which the kernels' walk has no place for.
    """

    memory: Matrix
    across: int
    boxes: int

    def __post_init__(self) -> None:
        """Check."""
        if self.boxes <= 0 or self.boxes % self.across:
            raise UsageError(f"{self.boxes} boxes are no whole rows of {self.across}")

    def map(self, parts: int = 1) -> TensorMap:
        """How TMA sees it, in boxes, or in the parts that each of a cluster's blocks loads of one."""
        return TensorMap(self.memory, (64, BOX_ROWS // parts))

    @property
    def nbytes(self) -> int:
        """Bytes of the boxes."""
        return self.boxes * BOX_BYTES

    def first(self, nbytes: int) -> Region:
        """Its first so many bytes."""
        return Region(self.memory, self.across, nbytes // BOX_BYTES)


def allocate(backend: Backend, nbytes: int, across: int) -> Region:
    """A region of whole rows of boxes, at most ``nbytes``, all ones."""
    rows = nbytes // BOX_BYTES // across
    memory = backend.empty(rows * BOX_ROWS, across * 64, BF16)
    return Region(memory, across, rows * across)


@dataclass(frozen=True)
class Pattern:
    """Which boxes unit u (a block or a cluster) takes: from u ``first`` on every ``step``-th."""

    first: int
    step: int

    @classmethod
    def swept(cls, units: int) -> Pattern:
        """All units together go through the boxes, each box once a round."""
        return cls(1, units)


@dataclass(frozen=True)
class Stream:
    """``tma_stream.cu``: boxes loaded, stored or both by one thread a block, ``stages`` of them in shared memory."""

    load: bool = True
    store: bool = False
    stages: int = 12
    cluster: int = 1

    @cached_property
    def probe(self) -> Probe:
        """The kernel."""
        plan: dict[str, int | bool] = {"STAGES": self.stages, "LOAD": self.load, "STORE": self.store}
        return Probe("tma_stream", plan, 32, self.stages * (BOX_BYTES + 16), self.cluster)

    def start(
        self,
        backend: Backend,
        blocks: int,
        regions: tuple[Region, Region],
        pattern: Pattern,
        laps: Matrix | np.uint64,
        *,
        warm: int = 0,
        most: int = NO_LIMIT,
        budget: int = 2**62,
        stream: Any = None,
    ) -> None:
        """One launch; ``regions`` are read from and written to. A cluster is not bounded by ``budget``."""
        origin, target = regions
        args = [
            *(region.map(self.cluster) for region in regions),
            *map(np.int32, (origin.boxes, target.boxes, origin.across)),
            *map(np.int32, (pattern.first, pattern.step, warm, most)),
            np.uint64(budget),
            laps,
        ]
        self.probe.launch(backend, blocks, args, stream)

    def run(
        self, backend: Backend, blocks: int, regions: tuple[Region, Region], pattern: Pattern, **limits: Any
    ) -> Laps:
        """One launch and its laps; work counts boxes."""
        laps = words(backend, blocks, LAP_WORDS)
        self.start(backend, blocks, regions, pattern, laps, **limits)
        return Laps.of(read_words(backend, laps))


LATENCY = Probe("tma_latency", {}, 32, BOX_BYTES + 16)


def latencies(backend: Backend, region: Region, box_rows: int, loads: int) -> Array:
    """Clocks of each of ``loads`` TMA loads of ``box_rows`` lines of 128 bytes, from random rows of a region."""
    clocks = backend.empty(1, loads, FP32)
    rows = region.boxes // region.across * BOX_ROWS - box_rows + 1
    args = [TensorMap(region.memory, (64, box_rows)), *map(np.int32, (rows, box_rows * 128, loads)), clocks]
    LATENCY.launch(backend, 1, args)
    found: Array = backend.download(clocks).view(np.uint32)[0]
    return found


# ---- wgmma, and beside it TMA --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tile:
    """``tile_loop.cu``: a tile of BM x BN by ``consumers`` warpgroups, K blocks of 64 in ``sets`` places that stay."""

    bm: int
    bn: int
    consumers: int
    sets: int
    stages: int  # boxes that are loaded beside it

    @cached_property
    def probe(self) -> Probe:
        """The kernel."""
        plan: dict[str, int | bool] = {
            "BM": self.bm, "BN": self.bn, "BK": 64, "STAGES": self.stages, "SETS": self.sets,
            "CONSUMERS": self.consumers, "A_K_MAJOR": True, "B_K_MAJOR": True,
        }  # fmt: skip
        shared = self.sets * self.operand_bytes + self.stages * (BOX_BYTES + 8) + 8
        return Probe("tile_loop", plan, 128 * (self.consumers + 1), shared)

    @property
    def operand_bytes(self) -> int:
        """Bytes of a K block of both operands."""
        return (self.bm + self.bn) * 128

    @property
    def flop_per_pass(self) -> int:
        """FLOPs of a block in a pass, which multiplies every set once."""
        return 2 * self.bm * self.bn * 64 * self.sets

    @property
    def wgmmas_per_pass(self) -> int:
        """Instructions of a block, each of 64 rows and 16 of K."""
        return self.bm // 64 * 4 * self.sets

    def operands(self, backend: Backend) -> Matrix:
        """Random operands for every set, as they lie in shared memory."""
        return backend.upload(normal_bf16(self.sets * self.operand_bytes // 2))


@dataclass
class TileRun:
    """A tile's loop with its memory on a backend."""

    tile: Tile
    backend: Backend
    blocks: int
    region: Region
    operands: Matrix = field(init=False)
    sums: Matrix = field(init=False)

    def __post_init__(self) -> None:
        """Allocate."""
        self.operands = self.tile.operands(self.backend)
        self.sums = self.backend.empty(self.blocks, 128 * self.tile.consumers, FP32)

    def start(
        self, laps: Matrix | np.uint64, passes: int, most: int, budget: int = 2**62, blocks: int | None = None
    ) -> None:
        """One launch on ``blocks`` (default: all). It writes two laps a block: of its passes and of its boxes."""
        args = [
            self.region.map(), self.operands, *map(np.int32, (self.region.boxes, self.region.across, passes, most)),
            np.uint64(budget), laps, self.sums,
        ]  # fmt: skip
        self.tile.probe.launch(self.backend, self.blocks if blocks is None else blocks, args)

    def run(self, passes: int, most: int = 0, budget: int = 2**62, blocks: int | None = None) -> tuple[Laps, Laps]:
        """One launch's laps of passes and of boxes; those of what does not run are all ones."""
        count = self.blocks if blocks is None else blocks
        laps = words(self.backend, count, 2 * LAP_WORDS)
        self.start(laps, passes, most, budget, blocks)
        found = read_words(self.backend, laps).reshape(count, 2, LAP_WORDS)
        return Laps.of(found[:, 0]), Laps.of(found[:, 1])


# ---- mma.sync, FMAs and the launch ---------------------------------------------------------------------------------

RATE_THREADS = 256
MMA = Probe("mma_rate", {}, RATE_THREADS)
FMA = Probe("fma_rate", {}, RATE_THREADS)
MMA_FLOP_PER_PASS = RATE_THREADS // 32 * 32 * 2 * 16 * 8 * 16  # 32 instructions a warp
FMA_PER_PASS = RATE_THREADS * 8 * 64


def rate(backend: Backend, probe: Probe, operands: Matrix, blocks: int, passes: int) -> tuple[Laps, Array]:
    """Laps of ``MMA`` or ``FMA``, whose work counts passes, and each thread's sum."""
    laps, sums = words(backend, blocks, LAP_WORDS), backend.empty(blocks, probe.threads, FP32)
    probe.launch(backend, blocks, [operands, np.int32(passes), laps, sums])
    return Laps.of(read_words(backend, laps)), backend.download(sums)


def mma_operands(backend: Backend) -> Matrix:
    """Fragments for ``MMA``: 32 words of two bf16 a thread."""
    return backend.upload(normal_bf16(RATE_THREADS * 64))


def fma_operands(backend: Backend) -> Matrix:
    """Floats for ``FMA``: 66 a thread."""
    return backend.upload(np.random.default_rng(0).standard_normal((1, RATE_THREADS * 66)).astype(np.float32))


def empty_kernel(cluster: int) -> Probe:
    """``launch.cu``: 384 threads and 200 KB of shared memory a block, as a tensor-core kernel has them."""
    return Probe("launch", {}, 384, 200 << 10, cluster)
