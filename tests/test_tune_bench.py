"""What the child does: kernels on poisoned output against the reference, in the emulator and on a GPU."""

from __future__ import annotations

import ctypes
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runner import run
from fake_tune_child import FakeTimer

from tilewright import ladder
from tilewright.backends.base import Backend
from tilewright.backends.emulator import EmulatorBackend
from tilewright.dtypes import BF16
from tilewright.errors import UnavailableError
from tilewright.measure import Schedule
from tilewright.plan_base import Plan
from tilewright.problem import Problem
from tilewright.tune import child, forget, winner
from tilewright.tune.bench import CHECKED_SETS, KernelBench
from tilewright.tune.store import Store

SHAPE = Problem(33, 40, 24, "fp32", ldc=44)


def some_plan() -> Plan:
    """One that a host compiler is soon done with."""
    return ladder.rung(1).plan(SHAPE.dtype)


def ran() -> None:
    """The candidate has ended."""


def bench(emulator: Backend) -> KernelBench:
    assert isinstance(emulator, EmulatorBackend)
    return KernelBench(emulator, FakeTimer(0), l2_bytes=16000)


def test_a_right_candidate_is_checked_on_poison_and_then_timed(emulator: Backend) -> None:
    place = bench(emulator)
    assert place.pose(SHAPE, [], 0).startswith("L2-cold: 3 operand sets in turn")
    plan = some_plan()
    report = place.check("1", plan, ran)
    assert report.ok
    assert report.checked == SHAPE.m * SHAPE.n
    assert place.posed is not None
    first = emulator.download(place.posed.sets[0].c)
    assert np.isfinite(first.astype(np.float32)).all()
    assert place.check("2", plan, ran).ok, "what the first has left there is no help to the second"


@pytest.mark.parametrize("wrong", ["nothing", "one set", "padding"])
def test_a_wrong_candidate_is_told(emulator: Backend, monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    place = bench(emulator)
    plan = some_plan()
    place.pose(SHAPE, [], 0)
    assert place.check("1", plan, ran).ok
    real, count = EmulatorBackend.launch, 0

    def launch(self: EmulatorBackend, *given: Any, **named: Any) -> Any:
        nonlocal count
        count += 1
        done = (
            None
            if wrong == "nothing" or (wrong == "one set" and count == CHECKED_SETS)
            else real(self, *given, **named)
        )
        if wrong == "padding":
            assert place.posed is not None
            c = place.posed.sets[count - 1].c
            ctypes.memset(c.pointer + SHAPE.n * SHAPE.dtype.itemsize, 0, 1)
        return done

    monkeypatch.setattr(EmulatorBackend, "launch", launch)
    told = ask(place, {"do": "check", "name": "2", "plan": plan.to_dict()})
    assert told["verdict"] == "wrong"
    assert (
        "padding between the rows" if wrong == "padding" else "elements wrong, first row 0, column 0: got nan"
    ) in told["reason"]


def ask(place: KernelBench, request: dict[str, Any]) -> dict[str, Any]:
    """The answer of a child that has this bench."""
    answers = io.StringIO()
    assert child.serve(lambda: place, io.StringIO(json.dumps(request) + "\n"), answers) == 0
    found: dict[str, Any] = json.loads(answers.getvalue().splitlines()[-1])["answer"]
    return found


def test_the_childs_answers(emulator: Backend) -> None:
    place = bench(emulator)
    posed = ask(place, {"do": "pose", "problem": SHAPE.to_dict(), "plans": [], "seed": 0})
    assert posed["l2"].startswith("L2-cold")
    plan = some_plan()
    assert 0 < ask(place, {"do": "check", "name": "1", "plan": plan.to_dict()})["error_over_bound"] <= 1
    refused = ask(place, {"do": "check", "name": "1", "plan": ladder.rung(1).plan(BF16).to_dict()})
    assert refused["verdict"] == "refused"
    assert refused["reason"] == "plan is for bf16 and the operands are fp32: both must be the same"


def test_a_gpu_that_is_not_there_is_an_answer() -> None:
    answers = io.StringIO()

    def make() -> KernelBench:
        raise UnavailableError("no driver")

    assert child.serve(make, io.StringIO('{"do": "pose"}\n'), answers) == 0
    assert json.loads(answers.getvalue()) == {"answer": {"error": "no driver"}}


@pytest.mark.cuda
def test_from_shapes_to_a_winner_on_a_gpu(cuda: Backend, tmp_path: Path) -> None:
    forget()
    db = tmp_path / "winners.sqlite3"
    asked = ["tune", "8x4096x4096", "512x1024x512", "--layout", "rc", "--db", str(db), "--json"]
    done = run(*asked)
    assert done.exit_code == 0, done.output
    rows = Store(db).rows()
    assert len(rows) == 2
    for row in rows:
        assert row.best is not None
        assert [each.verdict for each in row.tried] == ["timed"] * 4, [each.reason for each in row.tried]
        assert all(each.error_over_bound is not None and each.error_over_bound <= 1 for each in row.tried)
        assert row.where.gpu == cuda.device().name
        assert row.rounds >= 8
        fastest = min(each.time_us["median"] for each in row.tried if each.time_us is not None)
        assert row.best.time_us is not None
        assert row.best.time_us["median"] <= fastest * (1 + row.band) * 1.05
    found = winner(Problem(8, 4096, 4096, "bf16", None, "row", "column"), db=db)
    assert found is not None
    assert json.loads(run(*asked).stdout)["known"] == [True, True]


def test_the_schedules_fit_through_a_pipe() -> None:
    from dataclasses import asdict

    from tilewright.tune.session import HOT, SHORT

    for schedule in (SHORT, HOT):
        assert Schedule(**json.loads(json.dumps(asdict(schedule)))) == schedule
