"""The shapes of the sweep, and which of them are held out: benchmarks/sweep_shapes.json and the rule that splits it.

The planner may be developed on a third of the shapes; on the other two thirds it is judged. Shapes of one weight
matrix, a *family* (N, K), fall on one side together, as what is learnt of one says much of the others. Which side, a
hash of the pair decides: nobody chooses. Shapes of new families, the *fresh* ones, were added after the held-out ones
had been opened, and before any of them was measured: they judge what was learnt from those. Once they have, others are
needed: ``fresh-2``.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Literal

from tilewright.errors import UsageError
from tilewright.problem import Problem

FILE = Path(__file__).resolve().parent.parent / "benchmarks" / "sweep_shapes.json"
Part = Literal["development", "held-out", "fresh", "fresh-2"]
FRESH: tuple[Part, ...] = ("fresh", "fresh-2")  # in the order in which they were added
Family = tuple[int, int]
SEED = 5  # of the order in which the held-out shapes are measured


@dataclass(frozen=True)
class Shape:
    """A GEMM of the sweep in bf16, A row-major, B column-major, C row-major; ``in_suite``: of the suite's groups."""

    m: int
    n: int
    k: int
    stratum: str
    in_suite: bool

    @property
    def family(self) -> Family:
        """The weight matrix."""
        return self.n, self.k

    @property
    def sizes(self) -> tuple[int, int, int]:
        """M, N and K."""
        return self.m, self.n, self.k

    @property
    def problem(self) -> Problem:
        """As the planner is asked."""
        return Problem(self.m, self.n, self.k, "bf16", None, "row", "column")

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"


@cache
def groups() -> Mapping[str, tuple[tuple[int, int, int], ...]]:
    """The groups of the suite: a shape may be in two."""
    found = json.loads(FILE.read_text("utf-8"))["suite"]
    return {name: tuple((m, n, k) for m, n, k in shapes) for name, shapes in found.items()}


@cache
def shapes() -> tuple[Shape, ...]:
    """Each shape once, with the first stratum that it stands in; the suite's first."""
    listed = json.loads(FILE.read_text("utf-8"))
    every = [
        Shape(m, n, k, stratum, part == "suite")
        for part in ("suite", "more", *FRESH)
        for stratum, some in listed[part].items()
        for m, n, k in some
    ]
    first = {shape.sizes: shape for shape in reversed(every)}
    return tuple(first[sizes] for sizes in dict.fromkeys(shape.sizes for shape in every))


def rank(family: Family) -> str:
    """What families are sorted by: nothing about a GEMM can be read from it."""
    return sha256("{}x{}".format(*family).encode()).hexdigest()


def development_families(every: Iterable[Shape]) -> frozenset[Family]:
    """The families to develop on.

    In the order of ``rank`` a family is taken where that leaves no stratum with more than a third of its shapes
    (rounded) on this side, so that strata are balanced.
    """
    every = tuple(every)
    room = {stratum: round(count / 3) for stratum, count in Counter(shape.stratum for shape in every).items()}
    taken = set()
    for family in sorted({shape.family for shape in every}, key=rank):
        needs = Counter(shape.stratum for shape in every if shape.family == family)
        if all(room[stratum] >= count for stratum, count in needs.items()):
            taken.add(family)
            for stratum, count in needs.items():
                room[stratum] -= count
    return frozenset(taken)


@cache
def _fresh() -> Mapping[tuple[int, int, int], Part]:
    listed = json.loads(FILE.read_text("utf-8"))
    return {(m, n, k): part for part in FRESH for some in listed[part].values() for m, n, k in some}


@cache
def _development() -> frozenset[Family]:
    return development_families(shape for shape in shapes() if shape.sizes not in _fresh())


def part_of(shape: Shape) -> Part:
    """The side that a shape of the sweep falls on."""
    if shape.sizes in _fresh():
        return _fresh()[shape.sizes]
    return "development" if shape.family in _development() else "held-out"


def select(part: Part | Literal["all"] = "all", only: Iterable[str] = ()) -> list[Shape]:
    """The shapes of a part in the order of measuring: to develop on as listed, held out at random, fresh as listed.

    ``only`` names strata or shapes (``4096x4096x4096``). Raises ``UsageError`` for one that is neither.
    """
    chosen, wanted = list(shapes()), set(only)
    known = {str(s) for s in chosen} | {s.stratum for s in chosen}
    for name in sorted(wanted - known):
        raise UsageError(f"{name!r} is neither a shape of the sweep nor one of {', '.join(groups())}")
    held = [shape for shape in chosen if part_of(shape) == "held-out"]
    random.Random(SEED).shuffle(held)
    ordered = [shape for shape in chosen if part_of(shape) == "development"] + held
    ordered += [shape for part in FRESH for shape in chosen if part_of(shape) == part]
    return [s for s in ordered if part in ("all", part_of(s)) and (not wanted or wanted & {str(s), s.stratum})]
