"""What the planner answers: the candidates for a problem on a GPU, ranked, and the one to take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from tilewright.errors import UsageError
from tilewright.planner.candidate import Candidate
from tilewright.planner.reading import (
    Reader,
    build,
    choice,
    counted,
    each_of,
    flag,
    optional,
    positive,
    read_fields,
    text,
)
from tilewright.problem import Problem

SCHEMA = "tilewright.plan/1"
Clock = Literal["sustained", "burst"]
Regime = Literal["compute", "L2", "HBM", "latency", "power", "wave"]


@dataclass(frozen=True)
class Planning:
    """The answer to one question.

    ``gpu`` is a key or name; ``assumed_gpu`` says that nobody named it and it is not present, ``present_gpu`` is then
    the name of the GPU that is, which is not known, or None. ``sms`` are those that the kernel may use. ``clock`` is
    the state whose times rank, ``clock_mhz`` that of the pick in it, ``other_clock_mhz`` that in the other. ``ranked``
    are the candidates by predicted time, ``rejected`` those that are no choice, each with its reason; both compare as
    tuples do. ``pdl`` says that kernels that can are dependent launches.
    """

    problem: Problem
    gpu: str
    assumed_gpu: bool
    sms: int
    clock: Clock
    clock_mhz: float
    other_clock_mhz: float
    regime: Regime
    calibration: str
    ranked: Sequence[Candidate]
    rejected: Sequence[Candidate]
    pdl: bool = False
    present_gpu: str | None = None

    @property
    def other_clock(self) -> Clock:
        """The state of the clock that does not rank."""
        return "burst" if self.clock == "sustained" else "sustained"

    @property
    def pick(self) -> Candidate:
        """The candidate to take.

        Raises ``UsageError`` where C has no elements and so nothing is launched, and where no kernel computes it.
        """
        if not self.ranked and self.rejected:
            reasons = dict.fromkeys(str(each.rejected) for each in self.rejected)
            raise UsageError(f"no kernel computes {self.problem}: {'; '.join(reasons)}")
        if not self.ranked:
            raise UsageError(f"{self.problem}: C has no elements, so there is nothing to launch and nothing to pick")
        return self.ranked[0]

    def _repr_html_(self) -> str:
        from tilewright.planner.reasons import reasons  # not for who plans without a notebook
        from tilewright.report.plan_html import planning_html

        return planning_html(self, reasons=reasons(self))

    def to_dict(self, top: int | None = None, *, all: bool = False) -> dict[str, Any]:
        """JSON-ready values; the ``top`` of the ranked candidates, with ``all`` the rejected ones after them.

        ``pick`` is the first of the ranked, None where there is none. Raises ``UsageError`` for a ``top`` that is no
        whole number of at least 1.
        """
        if top is not None and (type(top) is not int or top < 1):
            raise UsageError(f"top is {top!r}; at least 1 candidate can be shown, and a whole number of them")
        shown = [*self.ranked[:top], *(self.rejected if all else ())]
        return {
            "schema": SCHEMA,
            "problem": self.problem.to_dict(),
            **{each.name: getattr(self, each.name) for each in fields(self) if each.name in _READERS},
            "pick": self.ranked[0].to_dict() if self.ranked else None,
            "candidates": [each.to_dict() for each in shown],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Planning:
        """The inverse of ``to_dict(all=True)``; of another, a planning of the candidates it lists.

        Raises ``UsageError`` for what is no planning, naming the field.
        """
        readers = {"problem": Problem.from_dict, **_READERS, "candidates": each_of(Candidate.from_dict)}
        found = read_fields("planning", values, readers, {"schema", "pick"})
        if values.get("schema") != SCHEMA:
            raise UsageError(f"planning field 'schema' is {values.get('schema')!r}; {SCHEMA!r} is possible")
        listed = found.pop("candidates", ())
        found["ranked"] = tuple(each for each in listed if each.rejected is None)
        found["rejected"] = tuple(each for each in listed if each.rejected is not None)
        return build("planning", cls, found)


_READERS: dict[str, Reader] = {
    "gpu": text,
    "assumed_gpu": flag,
    "sms": counted,
    "clock": choice(*get_args(Clock)),
    "clock_mhz": positive,
    "other_clock_mhz": positive,
    "regime": choice(*get_args(Regime)),
    "calibration": text,
    "pdl": flag,
    "present_gpu": optional(text),
}
