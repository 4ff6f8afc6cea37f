"""A GPU that is none, for tests of the sweep: every configuration takes what a file says, or goes wrong as it says.

Run as a process it takes the place of scripts/sweep_worker.py: ``sweep_bench.py BEHAVIOUR SCHEDULE MARK``. The first is
a JSON file: ``us`` by configuration (others 100), and the names of those that are ``wrong``, ``hang`` or ``break``.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import sweep_worker

from tilewright.errors import LaunchError
from tilewright.measure import Launch, Rival, Schedule, Slot
from tilewright.results import Provenance
from tilewright.telemetry import Snapshot
from tilewright.verify import BadElement, Report

RIGHT = Report(True, 0.25, 0.1, None, 0, 64)
WRONG = Report(False, 9.0, 9.0, BadElement(1, 2, 3.0, 4.0, 0.1), 1, 64)
CUBLAS_US, LT_US = 90.0, 88.0


class FakeTimer:
    """A launch costs what it notes; every other slot is 1% slower."""

    def __init__(self) -> None:
        self.slots = 0
        self.prepared: list[int] = []

    def prepare(self, launches: Sequence[Launch], count: int) -> Any:
        self.prepared.append(count)
        cost: list[float] = []
        launches[0](cost)
        return SimpleNamespace(launches=count, method="graph", note="", us=cost[0])

    def slot(self, prepared: Any, warm: int, timed: int, sample: Callable[[], None] | None = None) -> Slot:
        assert sample is None, "a short slot waits for nobody"
        self.slots += 1
        return Slot(prepared.us * (1 + 0.01 * (self.slots % 2)), 1500.0)


class FakeBench:
    """Behaves as ``behaviour`` says."""

    def __init__(self, behaviour: Mapping[str, Any]) -> None:
        self.behaviour, self.timer, self.backend = behaviour, FakeTimer(), self
        self.l2_bytes, self.sm_count = 60 << 20, 132
        self.broken = False
        self.checked: list[str] = []

    @contextmanager
    def telemetry(self) -> Iterator[Callable[[], Snapshot]]:
        yield Snapshot

    def synchronize(self) -> None:
        if self.broken:
            raise LaunchError("an illegal memory access was encountered")

    def operand_sets(self, problem: Any, count: int, seed: int = 0) -> list[Any]:
        return [problem] * count

    def expected(self, operands: Any) -> Any:
        return None

    def check(self, rival: Rival, operands: Any, expected: Any) -> Report:
        self.checked.append(rival.name)
        if rival.name in self.behaviour.get("hang", ()):
            time.sleep(600)
        if rival.name in self.behaviour.get("break", ()):
            self.broken = True
            self.synchronize()
        return WRONG if rival.name in self.behaviour.get("wrong", ()) else RIGHT

    def vendors(self, sets: Sequence[Any], screening: Schedule) -> Iterator[tuple[Rival, dict[str, Any]]]:
        if "raise" in self.behaviour:
            raise RuntimeError(self.behaviour["raise"])
        yield rival("cuBLAS", CUBLAS_US), {}
        yield rival("Lt best", LT_US), {}


def rival(name: str, us: float) -> Rival:
    """One whose launches note what they cost."""
    return Rival(name, [lambda stream: stream.append(us)])


def install(behaviour: Mapping[str, Any], patch: Callable[[Any, str, Any], None] = setattr) -> FakeBench:
    """A bench, and the worker's module using it."""

    def kernel_rival(backend: Any, kernel: Any, plan: Any, sets: Any, name: str) -> Rival:
        assert plan.of == kernel.place
        return rival(name, behaviour.get("us", {}).get(name, 100.0))

    patch(sweep_worker, "kernel_rival", kernel_rival)
    patch(
        sweep_worker, "provenance", lambda backend, measurement, l2: Provenance("fake", "2026-11-30T00:00:00Z", l2=l2)
    )
    return FakeBench(behaviour)


def main() -> None:
    """Serve as the worker does."""
    behaviour, schedule, mark = sys.argv[1:]
    bench: Any = install(json.loads(Path(behaviour).read_text("utf-8")))
    sweep_worker.serve(bench, Schedule(**json.loads(schedule)), sweep_worker.marker(Path(mark)), sys.stdin, sys.stdout)


if __name__ == "__main__":
    main()
