"""What the planner says of a tile that somebody brings: the limits it meets, the mistakes it makes, what is better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, get_args

from tilewright.errors import UsageError
from tilewright.planner.candidate import Candidate, Schedule
from tilewright.planner.planning import Clock
from tilewright.planner.reading import (
    Reader,
    build,
    choice,
    counted,
    each_of,
    flag,
    optional,
    read_fields,
    real,
    record,
    text,
    wholes,
)
from tilewright.problem import Problem

SCHEMA = "tilewright.judgement/1"


@dataclass(frozen=True)
class Finding:
    """One constraint with its numbers.

    ``value`` is held against ``limit`` (None: it is only a figure), both in ``unit``; ``sentence`` has all the numbers,
    ``source`` says where formula and limit come from. ``ok`` is False where it is broken, None where nothing can be.
    Where it is ``hard``, no kernel breaks it; otherwise one that does is slower for it.
    """

    name: str
    ok: bool | None
    value: float
    limit: float | None
    unit: str
    sentence: str
    source: str
    hard: bool = True


@dataclass(frozen=True)
class Mistake:
    """A way to choose a tile that does not lead to a good one: what the tile shows of it, and what to do instead."""

    name: str
    sentence: str
    instead: str


@dataclass(frozen=True)
class Judgement:
    """A tile as somebody chose it, for a problem on a GPU.

    ``gpu``, ``assumed_gpu``, ``present_gpu``, ``sms``, ``clock``, ``pdl`` and ``calibration`` are those of
    ``Planning``. ``stages``, ``consumers`` and ``schedule`` are filled in where they were left to the tool.
    ``candidate`` is the kernel with its predicted time, None where none has this tile; ``better`` are those the planner
    ranks above it, the best first.
    """

    problem: Problem
    gpu: str
    assumed_gpu: bool
    sms: int
    clock: Clock
    calibration: str
    tile: tuple[int, int, int]
    stages: int
    cluster: tuple[int, int]
    consumers: int
    schedule: Schedule
    findings: tuple[Finding, ...]
    mistakes: tuple[Mistake, ...]
    candidate: Candidate | None
    better: tuple[Candidate, ...]
    pdl: bool = False
    present_gpu: str | None = None

    @property
    def fits(self) -> bool:
        """Whether a kernel can have this tile."""
        return all(each.ok is not False for each in self.findings if each.hard)

    @property
    def label(self) -> str:
        """A short name: of a kernel's its candidate's."""
        if self.candidate is not None:
            return self.candidate.label
        bm, bn, bk = self.tile
        return f"{bm}x{bn}x{bk} s{self.stages} {self.cluster[0]}x{self.cluster[1]} {self.schedule}"

    def gain(self, other: Candidate) -> float | None:
        """By what factor ``other`` is predicted to be faster; None where the tile has no kernel."""
        if self.candidate is None or self.candidate.predicted_us is None or other.predicted_us is None:
            return None
        own, its = (getattr(each, self.clock) for each in (self.candidate.predicted_us, other.predicted_us))
        return float(own / its)

    def _repr_html_(self) -> str:
        from tilewright.report.plan_html import judgement_html  # not for who judges without a notebook

        return judgement_html(self)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values under the names of the fields, and what follows from them."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {
            "schema": SCHEMA,
            "label": self.label,
            "fits": self.fits,
            **values,
            "problem": self.problem.to_dict(),
            "tile": list(self.tile),
            "cluster": list(self.cluster),
            "findings": [asdict(each) for each in self.findings],
            "mistakes": [asdict(each) for each in self.mistakes],
            "candidate": None if self.candidate is None else self.candidate.to_dict(),
            "better": [{**each.to_dict(), "gain": self.gain(each)} for each in self.better],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Judgement:
        """The inverse of ``to_dict``. Raises ``UsageError`` for what is no judgement, naming the field."""
        found = read_fields("judgement", values, _READERS, {"schema", "label", "fits"})
        if values.get("schema") != SCHEMA:
            raise UsageError(f"judgement field 'schema' is {values.get('schema')!r}; {SCHEMA!r} is possible")
        for name in {"findings", "mistakes", "better"} & set(found):
            found[name] = tuple(found[name])
        return build("judgement", cls, found)


def _better(value: Any) -> Candidate:
    if not isinstance(value, Mapping):
        raise ValueError("a list of candidates is possible")
    return Candidate.from_dict({name: each for name, each in value.items() if name != "gain"})


_FINDING: dict[str, Reader] = {
    "name": text,
    "ok": optional(flag),
    "value": real,
    "limit": optional(real),
    "unit": text,
    "sentence": text,
    "source": text,
    "hard": flag,
}
_READERS: dict[str, Reader] = {
    "problem": Problem.from_dict,
    "gpu": text,
    "assumed_gpu": flag,
    "present_gpu": optional(text),
    "sms": counted,
    "clock": choice(*get_args(Clock)),
    "pdl": flag,
    "calibration": text,
    "tile": wholes(3, counted),
    "stages": counted,
    "cluster": wholes(2, counted),
    "consumers": counted,
    "schedule": choice(*get_args(Schedule)),
    "findings": each_of(record("finding", Finding, _FINDING)),
    "mistakes": each_of(record("mistake", Mistake, dict.fromkeys(("name", "sentence", "instead"), text))),
    "candidate": optional(Candidate.from_dict),
    "better": each_of(_better),
}
