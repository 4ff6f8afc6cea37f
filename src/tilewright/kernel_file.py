"""What a rung of the ladder and a kernel of a branch have in common: a kernel file, its front matter, its plans."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright.dtypes import DType
from tilewright.epilogue.code import PLAIN, EpilogueCode
from tilewright.errors import UsageError
from tilewright.plan_base import Plan
from tilewright.problem import Problem
from tilewright.source import KernelSource, Target, flatten

_FRONT = re.compile(r"^// (\w+): (.*)$")


@dataclass(frozen=True)
class CounterExample:
    """A mistake shown beside a kernel: the same one with one plan value changed."""

    name: str
    title: str
    bottleneck: str
    dtypes: tuple[DType, ...]
    changes: Mapping[str, Any] = field(hash=False)


@dataclass(frozen=True)
class KernelFile(ABC):
    """One kernel file. ``name``, ``title`` and ``idea`` stand in its front matter, nowhere else."""

    name: str
    title: str
    idea: str
    path: Path

    @property
    @abstractmethod
    def place(self) -> str:
        """What its plans say they are of, and no other kernel's do: ``rung 5``, ``decode gemv``."""

    @property
    @abstractmethod
    def identity(self) -> Mapping[str, int | str]:
        """The same for JSON: ``{"rung": 5}``, ``{"branch": "decode"}``."""

    @property
    @abstractmethod
    def dtypes(self) -> tuple[DType, ...]:
        """The element types it runs for."""

    @property
    @abstractmethod
    def plan_kind(self) -> type[Plan]:
        """The class of its plans."""

    @property
    @abstractmethod
    def uses_tma(self) -> bool:
        """Whether it moves operands by TMA, and so takes only those whose lines start on 16-byte boundaries."""

    @property
    def counter_examples(self) -> tuple[CounterExample, ...]:
        """The mistakes it is shown beside."""
        return ()

    @abstractmethod
    def plan_for(self, problem: Problem, *, aligned: bool) -> Plan:
        """The default plan for a problem, ``aligned`` when 16-byte accesses are legal on every line of its operands.

        Raises ``UsageError`` for a dtype, a layout, an alignment or a size that the kernel does not run.
        """

    def source(
        self, plan: Plan, target: Target, arch: str | None = None, epilogue: EpilogueCode = PLAIN
    ) -> KernelSource:
        """The flat text of this kernel with ``plan`` in front, for the GPU (``arch``) or the host.

        Raises ``UsageError`` for an epilogue where the kernel applies none, and for one of two accumulators where the
        plan has one, or the other way round.
        """
        if plan.paired != epilogue.paired:
            accumulators = {True: "two accumulators", False: "one accumulator"}
            raise UsageError(
                f"the plan has {accumulators[plan.paired]} and the epilogue takes {accumulators[epilogue.paired]}: "
                "both must be of a pair or neither"
            )
        header = plan.header() + epilogue.header(plan.lanes) if plan.has_epilogue else plan.header()
        replaced = None if epilogue == PLAIN else epilogue.text
        return KernelSource(self.path.stem, flatten(self.path, target, header, replaced), target, arch)


def front_matter(path: Path) -> dict[str, str]:
    """The ``// key: value`` lines at the head of a kernel file."""
    found: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        match = _FRONT.match(line)
        if match is None:
            break
        found[match[1]] = match[2].strip()
    return found
