"""A candidate: one way to compute a problem, with what the arithmetic and the model say of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tilewright.plan_base import Plan

Schedule = Literal["cooperative", "pingpong", "simt"]


@dataclass(frozen=True)
class Raster:
    """The order of the tiles: super-rows of ``group`` cluster tiles along M or N. Of a grid of one tile a block, rows."""

    group: int = 1
    along: Literal["m", "n"] = "m"

    def __str__(self) -> str:
        return f"{self.group} along {self.along.upper()}"


@dataclass(frozen=True)
class Predicted:
    """Predicted times in microseconds. ``low`` to ``high`` is where the one that ranks is expected 8 times in 10."""

    burst: float
    sustained: float
    low: float
    high: float


@dataclass(frozen=True)
class Candidate:
    """One way to compute a problem. Bytes, registers and clocks are exact; ``terms_us`` and ``predicted_us`` are the model's.

    ``tile`` is BM, BN, BK; ``cluster`` blocks along M and N. ``max_stages`` is how many fit beside the epilogue's
    buffers, ``max_stages_no_epilogue`` without them. ``register_split`` is registers a thread of those that load and of
    those that multiply, None where all threads do both. ``tail`` says how the last wave is computed. ``rejected`` is the
    reason why it is no choice; then it may have no ``plan``, no terms and no times.
    """

    family: str
    tile: tuple[int, int, int]
    stages: int
    max_stages: int
    max_stages_no_epilogue: int
    cluster: tuple[int, int]
    consumers: int
    schedule: Schedule
    raster: Raster
    tail: Literal["whole", "half"]
    k_alternates: bool
    intensity_flop_per_byte: float
    operand_traffic_bytes: int
    operand_traffic_bytes_multicast: int
    stage_bytes: int
    shared_bytes: int
    accumulator_registers_per_thread: int
    register_split: tuple[int, int] | None
    tiles: int
    waves: int
    wave_efficiency: float
    split: int = 1
    swap_ab: bool = False
    plan: Plan | None = None
    terms_us: Mapping[str, float] = field(default_factory=dict, hash=False)
    predicted_us: Predicted | None = None
    rejected: str | None = None

    @property
    def label(self) -> str:
        """A short name, such as ``128x256x64 s4 2x1 cooperative``."""
        bm, bn, bk = self.tile
        words = [f"{bm}x{bn}x{bk}", f"s{self.stages}", f"{self.cluster[0]}x{self.cluster[1]}", self.schedule]
        words += [word for word, on in {"half-tail": self.tail == "half", "alt-k": self.k_alternates}.items() if on]
        words += [f"split{self.split}"] if self.split > 1 else []
        return " ".join([*words, *(["swap-AB"] if self.swap_ab else [])])

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values under the names of the fields."""
        raise NotImplementedError

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Candidate:
        """The inverse of ``to_dict``. Raises ``UsageError`` for what is no candidate."""
        raise NotImplementedError
