"""A child process of ``tilewright tune`` without a GPU: candidates do what a JSON object says, by their rank.

``{"1": {"us": 10.0, "noise": 0.01}, "2": {"check": "hang"}, "3": {"us": 9.0, "slot": "segv", "at": 5}}``; ``log`` names
a file that gets a line for each problem posed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.errors import CompileError, LaunchError
from tilewright.library.trial import Trial
from tilewright.measure import Launch, Measurement, Rival, Schedule, Slot
from tilewright.plan_base import Plan
from tilewright.problem import Problem
from tilewright.tune import child
from tilewright.tune.bench import time_all
from tilewright.tune.decide import Rounds
from tilewright.verify import BadElement, Report


class FakeTimer:
    """Slots take what the first launch says, by a random factor."""

    def __init__(self, seed: int) -> None:
        self.random, self.slots = random.Random(seed), 0

    def prepare(self, launches: Sequence[Launch], count: int) -> Any:
        return Prepared(launches[0], count)

    def slot(self, prepared: Any, warm: int, timed: int, sample: Callable[[], None] | None = None) -> Slot:
        self.slots += 1
        does: dict[str, Any] = {"slots": self.slots}
        prepared.launch(does)
        return Slot(does["us"] * self.random.lognormvariate(0, does.get("noise", 0.0)))


@dataclass
class Prepared:
    launch: Launch
    launches: int
    method: str = "graph"
    note: str = ""


def go_wrong(how: str | None) -> None:
    if how == "hang":
        time.sleep(100)
    if how == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "launch":
        raise LaunchError("a kernel read or wrote an address that is not its own\nand more")
    if how == "compile":
        raise CompileError("it does not compile")


class FakeBench:
    def __init__(self, does: dict[str, Any]) -> None:
        self.does = does
        self.timer = FakeTimer(does.get("seed", 0))

    def pose(self, work: Problem | Trial, plans: Sequence[Plan], seed: int) -> str:
        problem = work if isinstance(work, Problem) else work.question.product
        if "log" in self.does:
            with Path(self.does["log"]).open("a", encoding="utf-8") as log:
                log.write(f"{problem.m}x{problem.n}x{problem.k} {len(plans)}\n")
        go_wrong(self.does.get("pose"))
        return "L2-cold: all of it made up"

    def check(self, name: str, plan: Plan, ran: Callable[[], None]) -> Report:
        does = self.of(name)
        go_wrong(does.get("check"))
        ran()
        time.sleep(does.get("reference_s", 0.0))
        if does.get("check") == "wrong":
            return Report(False, 9.0, 1.0, BadElement(3, 4, 0.0, 1.0, 0.1), 2, 100)
        return Report(True, 0.25, 0.0, None, 0, 100)

    def measure(self, names: Sequence[str], schedule: Schedule, told: Callable[[str], None]) -> Measurement:
        return time_all([rival(name, self.of(name)) for name in names], self.timer, schedule, told)

    def of(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.does.get(name.split()[0], {"us": 10.0})
        return found


def rival(name: str, does: dict[str, Any]) -> Rival:
    def launch(seen: dict[str, Any]) -> None:
        if seen["slots"] >= does.get("at", 0):
            go_wrong(does.get("slot"))
        seen.update(does)

    return Rival(name, [launch])


def rounds_of(times: dict[str, dict[str, Any]], rounds: int, seed: int = 0) -> Rounds:
    """Rounds of candidates with these times and noises, without a process."""
    fakes = [rival(name, does) for name, does in times.items()]
    schedule = Schedule(slot_ms=1, rounds=rounds, graph_ms=1, seed=seed)
    return time_all(fakes, FakeTimer(seed), schedule, told=lambda name: None).rounds


def command(does: dict[str, Any]) -> list[str]:
    """The command line of a child that does so."""
    return [sys.executable, __file__, json.dumps(does)]


if __name__ == "__main__":
    sys.exit(child.main(lambda: FakeBench(json.loads(sys.argv[1]))))
