"""The plans of rungs 0 to 4, which multiply on the CUDA cores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.errors import UsageError
from tilewright.plan_base import Plan


@dataclass(frozen=True)
class SimtPlan(Plan):
    """The compile-time values of a CUDA-core rung.

    ``tm x tn`` are the outputs one thread keeps in registers (0: none), ``warps_m x warps_n`` the arrangement of its
    warps over the tile (0: not used). ``pad`` elements follow each row of the transposed A tile. ``stages`` counts
    buffers of a tile in shared memory (0: no shared memory). ``swapped`` and ``interleaved`` choose between a thread
    map and the mistake it is shown beside. Raises ``UsageError`` for column-major operands and for negative counts.
    """

    tm: int = 0
    tn: int = 0
    warps_m: int = 0
    warps_n: int = 0
    blocks_per_sm: int = 1
    stages: int = 0
    pad: int = 0
    swapped: bool = False
    interleaved: bool = True

    def __post_init__(self) -> None:
        least = dict.fromkeys(("bm", "bn", "bk", "threads", "blocks_per_sm"), 1)
        least |= dict.fromkeys(("tm", "tn", "warps_m", "warps_n", "stages", "pad"), 0)
        for name, count in least.items():
            value = getattr(self, name)
            if type(value) is int and value < count:
                raise UsageError(f"rung {self.rung}: {name} is {value}; it is {count} or more")
        for name, layout in (("A", self.a_layout), ("B", self.b_layout)):
            if layout != "row":
                raise UsageError(
                    f"rung {self.rung} reads row-major operands and {name} is {layout}-major; rungs 5 and up read both"
                )

    @property
    def shared_parts(self) -> Mapping[str, int]:
        """Bytes of the stages, all there is: ``stages * bk * (bm + pad + bn) * itemsize``."""
        return {"stages": self.stages * self.bk * (self.bm + self.pad + self.bn) * self.dtype.itemsize}

    def constants(self) -> Mapping[str, int | bool]:
        """What the kernels read as ``plan::NAME``, in the order of the header."""
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
            "PAD": self.pad,
            "SHARED_BYTES": self.shared_bytes,
            "ALIGNED": self.aligned,
            "SWAPPED": self.swapped,
            "INTERLEAVED": self.interleaved,
        }
