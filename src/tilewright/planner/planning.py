"""What the planner answers: the candidates for a problem on a GPU, ranked, and the one to take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tilewright.planner.candidate import Candidate
from tilewright.problem import Problem

SCHEMA = "tilewright.plan/1"
Clock = Literal["sustained", "burst"]
Regime = Literal["compute", "L2", "HBM", "latency", "power", "wave"]


@dataclass(frozen=True)
class Planning:
    """The answer to one question.

    ``gpu`` is a key or name; ``assumed_gpu`` says that nobody named it and none is present. ``sms`` are those that the
    kernel may use. ``clock`` is the state whose times rank, ``clock_mhz`` that of the pick in it. ``ranked`` are the
    candidates by predicted time, ``rejected`` those that are no choice, each with its reason.
    """

    problem: Problem
    gpu: str
    assumed_gpu: bool
    sms: int
    clock: Clock
    clock_mhz: float
    regime: Regime
    calibration: str
    ranked: tuple[Candidate, ...]
    rejected: tuple[Candidate, ...]

    @property
    def pick(self) -> Candidate:
        """The candidate to take."""
        return self.ranked[0]

    def to_dict(self, top: int | None = None, *, all: bool = False) -> dict[str, Any]:
        """JSON-ready values; the ``top`` of the ranked candidates, with ``all`` the rejected ones after them."""
        raise NotImplementedError

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Planning:
        """The inverse of ``to_dict(all=True)``."""
        raise NotImplementedError
