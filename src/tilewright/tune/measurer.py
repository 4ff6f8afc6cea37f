"""The parent's side of a measurement: it keeps a child process, and goes on without whatever costs it one."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import IO, TYPE_CHECKING, Any

from tilewright import settings
from tilewright.errors import TilewrightError
from tilewright.line_process import Ended, LineProcess, Silent
from tilewright.measure import Schedule
from tilewright.problem import Problem

if TYPE_CHECKING:
    from tilewright.library.trial import Trial

CHILD = (sys.executable, "-m", "tilewright.tune.child")
POSE_S = 240.0  # to start a process, compile all candidates, make operands, or compute a reference, of the largest size

Plans = Mapping[str, Mapping[str, Any]]


@dataclass
class Outcome:
    """What came of the candidates of one problem, by name.

    ``lost`` has a verdict other than ``timed`` and its reason; ``checked`` the error over its bound of those that were
    right; ``rounds`` and ``time_us`` are of those that were timed, ``l2`` says what L2 held of the operands.
    """

    lost: dict[str, tuple[str, str]] = field(default_factory=dict)
    checked: dict[str, float] = field(default_factory=dict)
    rounds: list[dict[str, float]] = field(default_factory=list)
    time_us: dict[str, dict[str, float]] = field(default_factory=dict)
    l2: str = ""


class _Lost(Exception):
    """The child is gone: the verdict on what it ran, the reason, and which candidate it said it was at."""

    def __init__(self, verdict: str, reason: str, at: str | None) -> None:
        super().__init__(reason)
        self.verdict, self.at = verdict, at


class Measurer:
    """Checks and times candidates in a child process, a new one after each that hung or crashed.

    ``limit_s`` is the longest that a candidate may take in its check, the reference apart, or in one of its slots, in
    seconds. Close it at the end.
    """

    def __init__(self, limit_s: float, command: Sequence[str] = CHILD, pose_s: float = POSE_S) -> None:
        self._limit_s, self._command, self._pose_s = limit_s, list(command), pose_s
        self._child: LineProcess | None = None
        self._errors: IO[bytes] | None = None

    def compete(
        self, work: Problem | Trial, plans: Plans, schedule: Schedule, told: Callable[[float, str], None], seed: int = 0
    ) -> Outcome:
        """Check each plan and time those that are right; ``plans`` in the planner's order.

        ``told`` is given the share of this that is done, and what is being done. Raises ``TilewrightError`` where the
        work cannot be posed, or a child was lost and no candidate is to blame.
        """
        found = Outcome()
        while left := [name for name in plans if name not in found.lost]:
            told(0.0, "preparing")
            found.l2 = self._pose(work, [plans[name] for name in left], seed)
            if not self._check(left, plans, found, told):
                continue
            timed = [name for name in left if name not in found.lost]
            if not timed or self._time(timed, schedule, found, told):
                break
        return found

    def close(self) -> None:
        """End the child, if there is one."""
        if self._child is not None:
            self._child.end()
            self._child = None
        if self._errors is not None:
            self._errors.close()
            self._errors = None

    def _pose(self, work: Problem | Trial, plans: Sequence[Mapping[str, Any]], seed: int) -> str:
        posed = {"problem": work.to_dict()} if isinstance(work, Problem) else {"call": work.encoded()}
        request = {"do": "pose", **posed, "plans": list(plans), "seed": seed}
        try:
            answer = self._ask(request, self._pose_s)
        except _Lost as lost:
            raise TilewrightError(f"{work} could not be made ready to measure: {lost}") from None
        reason = answer.get("error") or answer.get("reason")
        if reason is not None:
            self.close()
            raise TilewrightError(f"{work} could not be made ready to measure: {reason}")
        return str(answer["l2"])

    def _check(self, names: Sequence[str], plans: Plans, found: Outcome, told: Callable[[float, str], None]) -> bool:
        """Check them; False when the child was lost on one, and the others have to be made ready again."""
        for number, name in enumerate(names):
            told(0.1 + 0.3 * number / len(names), f"checking {name}")
            try:
                answer = self._ask({"do": "check", "name": name, "plan": plans[name]}, self._limit_s)
            except _Lost as lost:
                found.lost[name] = (lost.verdict, str(lost))
                return False
            if "verdict" in answer:
                found.lost[name] = (answer["verdict"], answer["reason"])
                if answer["verdict"] == "crashed":
                    self.close()
                    return False
                continue
            found.checked[name] = answer["error_over_bound"]
        return True

    def _time(
        self, names: Sequence[str], schedule: Schedule, found: Outcome, told: Callable[[float, str], None]
    ) -> bool:
        """Time them; False when one of them cost the child, and the others have to be made ready again."""
        slots, most = 0, schedule.rounds * (len(names) + 1)

        def at(name: str) -> None:
            nonlocal slots
            slots += 1
            told(0.4 + 0.6 * min(slots / most, 1.0), f"timing {name}")

        try:
            answer = self._ask({"do": "measure", "names": list(names), "schedule": asdict(schedule)}, self._limit_s, at)
        except _Lost as lost:
            if lost.at is None:
                raise TilewrightError(f"the process that measures was lost before it began: {lost}") from None
            found.lost[lost.at] = (lost.verdict, str(lost))
            return False
        if "verdict" in answer:
            self.close()
            if answer["at"] is None:
                raise TilewrightError(f"nothing could be timed: {answer['reason']}")
            found.lost[answer["at"]] = (answer["verdict"], answer["reason"])
            return False
        found.rounds, found.time_us = answer["rounds"], answer["time_us"]
        return True

    def _ask(
        self, request: Mapping[str, Any], limit_s: float, at: Callable[[str], None] = lambda name: None
    ) -> dict[str, Any]:
        """The child's answer, with the candidate that it was ``at`` last. Raises ``_Lost``, and it is gone."""
        child = self._child or self._start()
        child.send(request)
        name, patience_s = None, limit_s
        try:
            while "answer" not in (line := child.receive(patience_s)):
                name, patience_s = line["at"], self._pose_s if "ran" in line else limit_s
                at(name)
        except Silent:
            self.close()
            raise _Lost("hung", f"it did not end within {patience_s:g} s", name) from None
        except Ended as ended:
            said = self._last_words()
            self.close()
            raise _Lost("crashed", str(ended) + (f": {said}" if said else ""), name) from None
        return {**line["answer"], "at": name}

    def _start(self) -> LineProcess:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        # Where the cache folder is a temporary one it goes with this process, and a child has to be told of it.
        env = {**os.environ, settings.CACHE_DIR.name: str(settings.cache_dir())}
        self._child = LineProcess(self._command, env=env, errors=self._errors)
        return self._child

    def _last_words(self) -> str:
        assert self._errors is not None
        with suppress(OSError):
            self._errors.seek(0)
            lines = self._errors.read().decode(errors="replace").strip().splitlines()
            return lines[-1] if lines else ""
        return ""
