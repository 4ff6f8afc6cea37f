"""A plan: every number a kernel is compiled with, and what follows from them.

The plan becomes a header (``namespace plan { ... }``) in front of the kernel text. A binary is keyed by its plan and
dtype, never by M, N, K, which are run-time arguments.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from tilewright.dtypes import DType
from tilewright.errors import UsageError

if TYPE_CHECKING:
    from tilewright.problem import Problem

Dim3 = tuple[int, int, int]
LARGEST_GRID = 2**31 - 1  # CUDA C++ Programming Guide, "Compute Capabilities": maximum x-dimension of a grid


@dataclass(frozen=True)
class Plan:
    """The compile-time values of a CUDA-core rung.

    ``bm x bn`` is the tile of C a block computes, ``bk`` the depth of a K-step, ``tm x tn`` the outputs one thread
    keeps in registers (0: none), ``warps_m x warps_n`` the arrangement of its warps over the tile (0: not used).
    ``pad`` elements follow each row of the transposed A tile. ``stages`` counts buffers of a tile in shared memory
    (0: no shared memory). ``aligned`` says that every row of A, B and C starts on a 16-byte boundary. ``swapped``
    and ``interleaved`` choose between a thread map and the mistake it is shown beside.
    """

    rung: int
    dtype: DType
    bm: int
    bn: int
    bk: int
    threads: int
    tm: int = 0
    tn: int = 0
    warps_m: int = 0
    warps_n: int = 0
    blocks_per_sm: int = 1
    stages: int = 0
    pad: int = 0
    aligned: bool = True
    swapped: bool = False
    interleaved: bool = True

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block in bytes: ``stages * bk * (bm + pad + bn) * itemsize``."""
        return self.stages * self.bk * (self.bm + self.pad + self.bn) * self.dtype.itemsize

    @property
    def block(self) -> Dim3:
        """Threads of a block."""
        return (self.threads, 1, 1)

    def tiles(self, problem: Problem) -> tuple[int, int]:
        """Tiles of C down and across."""
        return -(-problem.m // self.bm), -(-problem.n // self.bn)

    def grid(self, problem: Problem) -> Dim3:
        """One block a tile of C, row of tiles after row of tiles, in one dimension.

        Raises ``UsageError`` when that is more blocks than a grid may have.
        """
        down, across = self.tiles(problem)
        if down * across > LARGEST_GRID:
            raise UsageError(
                f"{problem} needs {down * across} blocks of {self.bm}x{self.bn}; a grid has at most {LARGEST_GRID}"
            )
        return (down * across, 1, 1)

    def interior_block(self, problem: Problem) -> int:
        """A block about the middle of C: a whole tile wherever there is one, away from the edges where it can be."""
        down, across = self.tiles(problem)
        whole_down, whole_across = max(problem.m // self.bm, 1), max(problem.n // self.bn, 1)
        return min(down // 2, whole_down - 1) * across + min(across // 2, whole_across - 1)

    def edge_blocks(self, problem: Problem) -> list[int]:
        """The blocks along the four sides of C."""
        down, across = self.tiles(problem)
        sides = ((i, j) for i in range(down) for j in range(across) if i in (0, down - 1) or j in (0, across - 1))
        return [i * across + j for i, j in sides]

    def with_(self, **changes: Any) -> Plan:
        """A copy with some values changed."""
        return replace(self, **changes)

    def header(self) -> str:
        """The plan as C++, in the form the kernels read."""
        values = {
            "BM": self.bm,
            "BN": self.bn,
            "BK": self.bk,
            "TM": self.tm,
            "TN": self.tn,
            "WARPS_M": self.warps_m,
            "WARPS_N": self.warps_n,
            "THREADS": self.threads,
            "BLOCKS_PER_SM": self.blocks_per_sm,
            "PAD": self.pad,
            "SHARED_BYTES": self.shared_bytes,
        }
        flags = {"ALIGNED": self.aligned, "SWAPPED": self.swapped, "INTERLEAVED": self.interleaved}
        c_name = self.dtype.c_name
        lines = [f"namespace tw {{ struct {c_name.removeprefix('tw::')}; }}"] if c_name.startswith("tw::") else []
        lines += ["namespace plan {", f"using T = {c_name};"]
        lines += [f"constexpr int {name} = {value};" for name, value in values.items()]
        lines += [f"constexpr bool {name} = {str(value).lower()};" for name, value in flags.items()]
        return "\n".join([*lines, "}  // namespace plan", ""])

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return {**asdict(self), "dtype": self.dtype.name, "shared_bytes": self.shared_bytes}
