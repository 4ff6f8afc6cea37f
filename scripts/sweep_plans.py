"""Which configurations the sweep measures for a shape, and by which name a file has them.

All come from the planner's own list, whatever families it knows: the first of every family, a fixed set of tiles that
every shape has, and further kinds in the planner's order. So the best of them is near a real best, and a rule that is
wrong about the order has something to be wrong about.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from hashlib import sha256
from itertools import islice
from typing import Any

from sweep_shapes import Shape

from tilewright import measure
from tilewright.plan_base import Plan
from tilewright.planner.candidate import Candidate
from tilewright.planner.plan import plan
from tilewright.planner.planning import Planning
from tilewright.problem import Problem

GPU = "h200"
LEAST_BYTES = 200 << 20  # of the operand sets that a configuration is timed on in turn
# Tiles, and clusters, that every shape has where they are legal: those that libraries ship, small to large.
STANDARD_TILES = (
    (64, 64), (64, 128), (64, 256), (128, 64), (128, 128), (128, 192), (128, 256), (192, 128), (256, 128), (256, 192),
)  # fmt: skip
STANDARD_CLUSTERS = ((1, 1), (2, 1))
SLOWEST = 5.0  # times the predicted best: what is predicted to be slower is not measured, unless first of its family
LEAST_CONFIGURATIONS = 16  # whatever they take


@dataclass(frozen=True)
class Selection:
    """How many configurations a shape has.

    ``per_family`` of each family first; in all at most ``most``, and at most what is predicted to take ``seconds``.
    With ``within`` instead the planner's first, all those whose predicted time is at most that share above its pick's.
    """

    per_family: int = 8
    most: int = 44
    seconds: float = 4.0
    within: float | None = None


@dataclass(frozen=True)
class Chosen:
    """The configurations of a shape, the planner's pick first, with their predicted times in microseconds."""

    plans: tuple[Plan, ...]
    predicted_us: tuple[float, ...]
    seconds: float


def values_of(plan: Plan) -> dict[str, Any]:
    """A plan for ``Plan.from_dict``, without what follows from the rest and what is as its class has it."""
    full = plan.to_dict()
    given = [each.name for each in fields(plan) if each.init and getattr(plan, each.name) != each.default]
    kept = (*(name for name in ("branch", "kernel", "rung") if name in full), *given)
    return {name: full[name] for name in dict.fromkeys(kept)}


def name_of(plan: Plan) -> str:
    """A plan's name in a file: of the same values always the same."""
    return sha256(json.dumps(values_of(plan), sort_keys=True).encode()).hexdigest()[:10]


def planning_of(shape: Shape, *, pdl: bool = False) -> Planning:
    """What the planner says of a shape, for the whole GPU at its sustained clock; ``pdl`` of dependent launches."""
    return plan(problem=shape.problem, gpu=GPU, pdl=pdl)


def ordered(ranked: Sequence[Candidate], per_family: int) -> Iterator[Candidate]:
    """Candidates by how much they are wanted, some more than once: see the head of this file."""
    families: dict[str, list[Candidate]] = {}
    for each in ranked:
        families.setdefault(each.family, []).append(each)
    yield from islice(ranked, 1)
    for place in range(per_family):
        for some in families.values():
            yield from some[place : place + 1]
    standard = {(tile, cluster) for tile in STANDARD_TILES for cluster in STANDARD_CLUSTERS}
    seen = set()
    for each in ranked:
        kind = (each.tile[:2], each.cluster, each.family, each.schedule)
        if kind[:2] in standard and kind not in seen:
            seen.add(kind)
            yield each
    kinds = set()
    for each in ranked:
        sort = (each.family, each.tile, each.split, each.swap_ab)
        if sort not in kinds:
            kinds.add(sort)
            yield each
    yield from ranked


def rotation_of(shape: Shape, l2_bytes: int) -> measure.Rotation:
    """The operand sets of a shape."""
    return measure.rotation(shape.problem.bytes_moved, l2_bytes, least_bytes=LEAST_BYTES)


def seconds_of(predicted_us: float, sets: int, schedule: measure.Schedule) -> float:
    """What it takes to prepare a configuration and to measure it, about: one slot a round, and the host's work.

    Binding a launch to a set and capturing one take the host about 60 us each, a slot about 0.5 ms beside its replays.
    """
    launches = measure.graph_launches(predicted_us, sets, schedule)
    warm, timed = measure.replays(predicted_us * launches, schedule)
    slot = (warm + timed) * launches * predicted_us * 1e-6 + 0.5e-3
    return sets * (predicted_us * 1e-6 + 60e-6) + launches * 60e-6 + schedule.rounds * slot


def choose(planning: Planning, shape: Shape, selection: Selection, schedule: measure.Schedule, l2_bytes: int) -> Chosen:
    """The configurations of a shape."""
    sets = rotation_of(shape, l2_bytes).sets
    best = _us(planning.ranked[0])
    found: dict[Plan, float] = {}
    first_of: set[str] = set()
    spent = 0.0
    within = selection.within
    listed = ordered(planning.ranked, selection.per_family) if within is None else iter(planning.ranked)
    for each in listed:
        if each.plan is None or each.plan in found or (within is not None and _us(each) > (1 + within) * best):
            continue
        slow = _us(each) > SLOWEST * best and each.family in first_of
        takes = seconds_of(_us(each), sets, schedule)
        full = len(found) >= LEAST_CONFIGURATIONS and spent + takes > selection.seconds
        if slow or full:
            continue
        first_of.add(each.family)
        found[each.plan] = _us(each)
        spent += takes
        if len(found) == selection.most:
            break
    return Chosen(tuple(found), tuple(found.values()), spent)


def _us(candidate: Candidate) -> float:
    assert candidate.predicted_us is not None
    return candidate.predicted_us.sustained


def read_plan(values: Mapping[str, Any]) -> Plan:
    """The inverse of ``values_of``."""
    return Plan.from_dict(values)


def planned(problem: Problem, *, pdl: bool = False) -> Plan:
    """The plan of the planner's pick, nothing tuned; with ``pdl`` of one that may be a dependent launch."""
    pick = plan(problem=problem, gpu=GPU, pdl=pdl).pick.plan
    assert pick is not None
    return pick
