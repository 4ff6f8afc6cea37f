"""``python -m tilewright.tune.child``: runs candidates for a ``measurer.Measurer``, and may hang or crash.

A line of standard input is a request, a JSON object with ``do``; it is answered by one with ``answer``. Lines with
``at`` say before that which candidate is about to run, and one with ``ran`` that what follows is no fault of its.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import IO, TYPE_CHECKING, Any

from tilewright.errors import CompileError, TilewrightError, UsageError, VerifyError
from tilewright.measure import Schedule
from tilewright.plan_base import Plan
from tilewright.problem import Problem
from tilewright.tune.bench import Bench, figures, of_gpu

if TYPE_CHECKING:
    from tilewright.library.trial import Trial

Answer = Mapping[str, Any]


def serve(make: Callable[[], Bench], requests: IO[str], answers: IO[str]) -> int:
    """Answer requests until there are none, or until the GPU may no longer be usable."""

    def tell(line: Mapping[str, Any]) -> None:
        answers.write(json.dumps(line) + "\n")
        answers.flush()

    try:
        bench = make()
    except TilewrightError as error:
        tell({"answer": {"error": str(error)}})
        return 0
    for line in requests:
        asked = json.loads(line)
        answer, usable = _answer(bench, asked, tell)
        tell({"answer": answer})
        if not usable:
            return 0
    return 0


def _answer(bench: Bench, asked: Mapping[str, Any], tell: Callable[[Mapping[str, Any]], None]) -> tuple[Answer, bool]:
    """What is answered, and whether this process can go on."""
    try:
        if asked["do"] == "pose":
            plans = [Plan.from_dict(plan) for plan in asked["plans"]]
            return {"l2": bench.pose(_work_of(asked), plans, asked["seed"])}, True
        if asked["do"] == "check":
            name = asked["name"]
            report = bench.check(name, Plan.from_dict(asked["plan"]), lambda: tell({"at": name, "ran": True}))
            if not report.ok:
                return {"verdict": "wrong", "reason": str(report)}, True
            return {"error_over_bound": report.max_error_over_bound}, True
        names = asked["names"]
        found = bench.measure(names, Schedule(**asked["schedule"]), lambda name: tell({"at": name}))
        return figures(found, names), True
    except VerifyError as error:
        return {"verdict": "wrong", "reason": str(error)}, True
    except (CompileError, UsageError) as error:
        return {"verdict": "refused", "reason": first_line(error)}, True
    except Exception as error:  # of a driver that may have given up this process's context
        return {"verdict": "crashed", "reason": first_line(error)}, False


def _work_of(asked: Mapping[str, Any]) -> Problem | Trial:
    if "call" not in asked:
        return Problem.from_dict(asked["problem"])
    from tilewright.library.trial import Trial

    return Trial.decoded(asked["call"])


def first_line(error: Exception) -> str:
    """What an error says, in a line."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def main(make: Callable[[], Bench] = of_gpu) -> int:
    """Serve standard input. What libraries print goes to standard error, which nobody reads lines from."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return serve(make, sys.stdin, answers)


if __name__ == "__main__":
    sys.exit(main())
