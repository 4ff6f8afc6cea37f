"""Random programs: the race detector against paths in a graph of what comes before what, which has no clocks.

A program is made as one possible run of a few threads of two blocks, so that it cannot deadlock. Its events are nodes,
and edges lead from an event to what it comes before: the next one of its thread, the barrier it arrives at, the wait
that learns of it. Two accesses of a line, one of them a write, race unless a path leads from one to the other; and
where the first is the generic proxy's and the second the async proxy's, some path has to lead through a fence.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import pytest
from observed import kernel_source

from tilewright.backends.base import Matrix, TensorMap
from tilewright.backends.emulator import EmulatorBackend
from tilewright.backends.emulator_checks import check_races
from tilewright.backends.emulator_runtime import POLICIES, Policy
from tilewright.dtypes import BF16, FP32
from tilewright.errors import EmulatorFault

BLOCKS, WARPS, LINES, BARRIERS, LENGTH = 2, 3, 2, 8, 96
ACTORS = BLOCKS * WARPS
SHARED_BYTES = (LINES * 128 + BARRIERS * 8 + 127) // 128 * 128
PROGRAMS = 100  # a policy
RECKLESS = 0.04


class Code(IntEnum):
    """As ``enum Code`` of program.cu."""

    END = 0
    READ = 1
    WRITE = 2
    FENCE = 3
    SYNC = 4
    CLUSTER_SYNC = 5
    ARRIVE = 6
    ARRIVE_REMOTE = 7
    EXPECT = 8
    WAIT = 9
    LOAD = 10
    LOAD_BOTH = 11
    STORE = 12
    STORE_WAIT = 13
    COPY = 14
    COPY_WAIT = 15


@dataclass(frozen=True)
class Access:
    event: int
    place: tuple[int, int]  # block, line
    writes: bool
    is_async: bool  # of the async proxy


@dataclass
class Program:
    """A run so far. An event's number is larger than those of all it comes after."""

    random: np.random.Generator
    races: bool = False
    focus: tuple[int, int] = (0, 0)  # actor and line
    operations: list[list[tuple[int, int, int]]] = field(default_factory=lambda: [[] for _ in range(ACTORS)])
    before: list[set[int]] = field(default_factory=list)  # of each event: all events with a path to it
    fences: set[int] = field(default_factory=set)
    accesses: list[Access] = field(default_factory=list)
    last: list[int] = field(default_factory=list)  # event of each actor
    arrivals: np.ndarray = field(default_factory=lambda: np.zeros((BLOCKS, BARRIERS), np.int32))
    missing: np.ndarray = field(default_factory=lambda: np.zeros((BLOCKS, BARRIERS), np.int32))
    counted: dict[tuple[int, int], set[int]] = field(default_factory=dict)  # what a barrier's only phase waits for
    stores: list[set[int]] = field(default_factory=lambda: [set() for _ in range(ACTORS)])  # not waited for yet
    copies: list[set[int]] = field(default_factory=lambda: [set() for _ in range(ACTORS)])

    def event(self, *after: int) -> int:
        self.before.append(set(after).union(*(self.before[e] for e in after)))
        return len(self.before) - 1

    def act(self, actor: int, code: Code, line: int = 0, barrier: int = 0, *after: int) -> int:
        """One operation, and its event."""
        self.operations[actor].append((code, line, barrier))
        self.last[actor] = self.event(self.last[actor], *after)
        return self.last[actor]

    def access(self, event: int, block: int, line: int, *, writes: bool, is_async: bool = False) -> None:
        access = Access(event, (block, line), writes, is_async)
        self.races = self.races or self.conflicts(access, self.before[event])
        self.accesses.append(access)

    def meet(self, code: Code, actors: range) -> None:
        everybody = self.event(*(self.last[a] for a in actors))
        for a in actors:
            self.act(a, code, 0, 0, everybody)

    def arrive(self, actor: int, block: int, barrier: int, code: Code) -> None:
        self.missing[block, barrier] -= 1
        self.counted[block, barrier].add(self.act(actor, code, 0, barrier))

    def load(self, actor: int, line: int, barrier: int, blocks: range) -> None:
        """A load, by its issue and one event for each block that it lands in; who expects it arrives."""
        for block in blocks:
            mine = block == actor // WARPS
            self.arrive(
                actor if mine else int(self.random.integers(WARPS)) + block * WARPS, block, barrier, Code.EXPECT
            )
        issue = self.act(actor, Code.LOAD if len(blocks) == 1 else Code.LOAD_BOTH, line, barrier)
        for block in blocks:
            landed = self.event(issue)
            self.counted[block, barrier].add(landed)
            self.access(landed, block, line, writes=True, is_async=True)

    def conflicts(self, second: Access, before: set[int]) -> bool:
        """Whether an access after the events ``before`` races with one of those made so far."""
        for first in self.accesses:
            if first.place != second.place or not (first.writes or second.writes):
                continue
            if first.event not in before:
                return True
            fence_needed = second.is_async and not first.is_async
            if fence_needed and not any(first.event in self.before[f] for f in self.fences & before):
                return True
        return False

    def dares(self, actor: int, blocks: range, line: int, *, writes: bool, is_async: bool = False) -> bool:
        """Whether to make an access now: always when it is safe, seldom when it is not."""
        before = {self.last[actor]} | self.before[self.last[actor]]
        races = any(self.conflicts(Access(-1, (block, line), writes, is_async), before) for block in blocks)
        return not races or self.random.random() < RECKLESS


def step(p: Program) -> None:
    """One more thing that can happen now."""
    r = p.random
    if r.random() < 0.4:  # else go on with the same
        p.focus = int(r.integers(ACTORS)), int(r.integers(LINES))
    actor, line = p.focus
    barrier = int(r.integers(BARRIERS))
    block = actor // WARPS
    other, mine, both = 1 - block, range(block, block + 1), range(BLOCKS)
    match r.choice(["read", "write", "fence", "sync", "cluster", "arrive", "remote", "wait", "load", "both", "store",
                    "store_wait", "copy", "copy_wait"], p=WEIGHTS):  # fmt: skip
        case "read" if p.dares(actor, mine, line, writes=False):
            p.access(p.act(actor, Code.READ, line), block, line, writes=False)
        case "write" if p.dares(actor, mine, line, writes=True):
            p.access(p.act(actor, Code.WRITE, line), block, line, writes=True)
        case "fence":
            p.fences.add(p.act(actor, Code.FENCE))
        case "sync":
            p.meet(Code.SYNC, range(block * WARPS, (block + 1) * WARPS))
        case "cluster":
            p.meet(Code.CLUSTER_SYNC, range(ACTORS))
        case "arrive" if p.missing[block, barrier]:
            p.arrive(actor, block, barrier, Code.ARRIVE)
        case "remote" if p.missing[other, barrier]:
            p.arrive(actor, other, barrier, Code.ARRIVE_REMOTE)
        case "wait" if not p.missing[block, barrier]:
            p.act(actor, Code.WAIT, 0, barrier, *p.counted[block, barrier])
        case "load" if p.missing[block, barrier] and p.dares(actor, mine, line, writes=True, is_async=True):
            p.load(actor, line, barrier, mine)
        case "both" if p.missing[:, barrier].all() and p.dares(actor, both, line, writes=True, is_async=True):
            p.load(actor, line, barrier, both)
        case "store" if p.dares(actor, mine, line, writes=False, is_async=True):
            read = p.event(p.act(actor, Code.STORE, line))
            p.stores[actor].add(read)
            p.access(read, block, line, writes=False, is_async=True)
        case "store_wait":
            p.act(actor, Code.STORE_WAIT, 0, 0, *p.stores[actor])
        case "copy" if p.dares(actor, mine, line, writes=True):
            written = p.event(p.act(actor, Code.COPY, line))
            p.copies[actor].add(written)
            p.access(written, block, line, writes=True)
        case "copy_wait":
            p.act(actor, Code.COPY_WAIT, 0, 0, *p.copies[actor])


WEIGHTS = np.array([3, 3, 4, 3, 1, 3, 2, 6, 3, 1, 2, 3, 1, 2]) / 37


def random_program(seed: int) -> Program:
    """Lines are written before all else. In the end nothing is in flight, and everybody has been waited for."""
    random = np.random.default_rng(seed)
    p = Program(random)
    p.last = [p.event() for _ in range(ACTORS)]
    p.arrivals[:] = random.integers(1, 3, (BLOCKS, BARRIERS))
    p.missing[:] = p.arrivals
    p.counted = {(block, barrier): set() for block in range(BLOCKS) for barrier in range(BARRIERS)}
    for block, line in itertools.product(range(BLOCKS), range(LINES)):
        p.access(p.act(block * WARPS, Code.WRITE, line), block, line, writes=True)
        p.fences.add(p.act(block * WARPS, Code.FENCE))
    p.meet(Code.CLUSTER_SYNC, range(ACTORS))
    for _ in range(int(random.integers(5, 120))):
        step(p)
    for block, barrier in p.counted:
        for _ in range(int(p.missing[block, barrier])):
            p.arrive(block * WARPS, block, barrier, Code.ARRIVE)
        p.act(block * WARPS, Code.WAIT, 0, barrier, *p.counted[block, barrier])
    for actor in range(ACTORS):
        p.act(actor, Code.STORE_WAIT)
        p.act(actor, Code.COPY_WAIT)
    p.meet(Code.CLUSTER_SYNC, range(ACTORS))
    return p


def words(emulator: EmulatorBackend, values: np.ndarray) -> Matrix:
    return emulator.upload(np.ascontiguousarray(values, np.int32).reshape(1, -1).view(FP32.numpy))


def detected(emulator: EmulatorBackend, p: Program) -> str:
    programs = np.zeros((ACTORS, LENGTH, 3), np.int32)
    for actor, operations in enumerate(p.operations):
        programs[actor, : len(operations)] = operations
    tensor = emulator.upload(np.zeros((8, 16), BF16.numpy))
    args = [TensorMap(tensor, (8, 1), 0), words(emulator, programs), words(emulator, p.arrivals)]
    source = kernel_source(
        "observed/program.cu", LINES=LINES, BARRIERS=BARRIERS, LENGTH=LENGTH, SHARED_BYTES=SHARED_BYTES
    )
    out = emulator.empty(1, ACTORS, FP32)
    try:
        check_races(emulator, source, (BLOCKS, 1, 1), (32 * WARPS, 1, 1), [*args, out], SHARED_BYTES, cluster=BLOCKS)
    except EmulatorFault as fault:
        return f"{fault.kind}: {fault.detail}"
    return ""


@pytest.mark.parametrize("policy", POLICIES)
def test_detector_agrees_with_paths(policy: Policy) -> None:
    emulator = EmulatorBackend(policy, seed=1)
    racy = 0
    for seed in range(PROGRAMS):
        p = random_program(seed)
        found = detected(emulator, p)
        assert found.startswith("race: ") == p.races, (seed, found)
        racy += bool(found)
    assert PROGRAMS / 5 < racy < PROGRAMS * 4 / 5  # both answers are asked for
