"""A candidate: one way to compute a problem, with what the arithmetic and the model say of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from types import MappingProxyType
from typing import Any, Literal, get_args

from tilewright.plan_base import Plan
from tilewright.plan_branch import BranchPlan
from tilewright.plan_simt import SimtPlan
from tilewright.plan_tensor import TensorPlan
from tilewright.planner.reading import (
    Reader,
    amount,
    build,
    choice,
    counted,
    flag,
    natural,
    optional,
    read_fields,
    reals,
    record,
    text,
    wholes,
)

Schedule = Literal["cooperative", "pingpong", "simt", "gemv", "mma"]
INSIDE = ("tensor", "shared_port", "l2", "hbm", "issue")
"""The terms of which the main loop is made, wave by wave: it is their largest, or longer where others come near it."""


@dataclass(frozen=True)
class Raster:
    """The order of the tiles: super-rows of ``group`` cluster tiles along M or N; of one tile a block, rows of them."""

    group: int = 1
    along: Literal["m", "n"] = "m"

    def __str__(self) -> str:
        return f"{self.group} along {self.along.upper()}"


@dataclass(frozen=True)
class Predicted:
    """Predicted times in microseconds.

    ``low`` to ``high`` is an assumption, not a statistic: where a measured time is guessed to lie 8 times in 10, by a
    factor for each family, and not below what any kernel needs. docs/planner.md has how many do.
    """

    burst: float
    sustained: float
    low: float
    high: float


@dataclass(frozen=True)
class Candidate:
    """One way to compute a problem. Bytes and registers are exact; ``terms_us`` and ``predicted_us`` are the model's.

    ``tile`` is BM, BN, BK; ``cluster`` blocks along M and N. ``max_stages`` is how many fit beside the epilogue's
    buffers, ``max_stages_no_epilogue`` without them. ``register_split`` is registers a thread of those that load and
    of those that multiply, None where all threads do both. ``tail`` says how the last wave is computed. ``rejected``
    is the reason why it is no choice; then it may have no ``plan``, no terms and no times.
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

    def __post_init__(self) -> None:
        """Freeze the terms, which calls that ask for the same share."""
        object.__setattr__(self, "terms_us", MappingProxyType(dict(self.terms_us)))

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled: a view of a dictionary cannot be."""
        return {**vars(self), "terms_us": dict(self.terms_us)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.__post_init__()

    @property
    def label(self) -> str:
        """A short name, such as ``128x256x64 s4 2x1 cooperative``: no two of a planning that rank have the same.

        It says how warps are laid over a tile that they share, or else how many warpgroups multiply where not 2 do, and
        of a dependent launch that it is one.
        """
        bm, bn, bk = self.tile
        launch = ["PDL"] if self.plan is not None and self.plan.dependent else []
        if isinstance(self.plan, BranchPlan) and self.plan.traits:
            return " ".join([f"{bm}x{bn}x{bk}", self.schedule, *self.plan.traits, *launch])
        words = [f"{bm}x{bn}x{bk}", f"s{self.stages}", f"{self.cluster[0]}x{self.cluster[1]}", self.schedule]
        if isinstance(self.plan, SimtPlan | TensorPlan) and self.plan.warps_m:
            words.append(f"w{self.plan.warps_m}x{self.plan.warps_n}")
        elif self.consumers in (1, 3):
            words.append(f"{self.consumers}wg")
        words += [word for word, on in {"half-tail": self.tail == "half", "alt-k": self.k_alternates}.items() if on]
        words += [f"split{self.split}"] if self.split > 1 else []
        return " ".join([*words, *(["swap-AB"] if self.swap_ab else []), *launch])

    def _repr_html_(self) -> str:
        from tilewright.report.plan_html import candidate_html  # not for who plans without a notebook

        return candidate_html(self)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values under the names of the fields, and the ``label``."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {
            "label": self.label,
            **values,
            "tile": list(self.tile),
            "cluster": list(self.cluster),
            "register_split": None if self.register_split is None else list(self.register_split),
            "raster": asdict(self.raster),
            "terms_us": dict(self.terms_us),
            "predicted_us": None if self.predicted_us is None else asdict(self.predicted_us),
            "plan": None if self.plan is None else self.plan.to_dict(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Candidate:
        """The inverse of ``to_dict``; fields that have a default may be left out.

        Raises ``UsageError`` for what is no candidate, naming the field.
        """
        return build("candidate", cls, read_fields("candidate", values, _READERS, {"label"}))


_READERS: dict[str, Reader] = {
    "family": text,
    "tile": wholes(3, counted),
    "stages": natural,
    "max_stages": natural,
    "max_stages_no_epilogue": natural,
    "cluster": wholes(2, counted),
    "consumers": counted,
    "schedule": choice(*get_args(Schedule)),
    "raster": record("raster", Raster, {"group": counted, "along": choice("m", "n")}),
    "tail": choice("whole", "half"),
    "k_alternates": flag,
    "intensity_flop_per_byte": amount,
    "operand_traffic_bytes": natural,
    "operand_traffic_bytes_multicast": natural,
    "stage_bytes": natural,
    "shared_bytes": natural,
    "accumulator_registers_per_thread": natural,
    "register_split": optional(wholes(2, natural)),
    "tiles": natural,
    "waves": natural,
    "wave_efficiency": amount,
    "split": counted,
    "swap_ab": flag,
    "plan": optional(Plan.from_dict),
    "terms_us": reals,
    "predicted_us": optional(
        record("predicted_us", Predicted, dict.fromkeys(("burst", "sustained", "low", "high"), amount))
    ),
    "rejected": optional(text),
}
