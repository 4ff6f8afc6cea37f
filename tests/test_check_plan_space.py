"""The check of the space of plans, on what it must catch; and the processes it hands plans to, when they fail."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import check_plan_space
import pytest
from check_plan_space import OK, Results, check_run, products
from worker_pool import Pool

from tilewright.backends.base import Backend
from tilewright.backends.emulator import EmulatorBackend
from tilewright.dtypes import BF16
from tilewright.ladder import rungs
from tilewright.plan_space import legal_plans, plan_name
from tilewright.plan_tensor import TensorPlan
from tilewright.run import Operands
from tilewright.run import prepare as right

NAMES = [plan_name(plan) for plan in legal_plans(11)[:6]]


def small_plan(**changes: Any) -> TensorPlan:
    plan = rungs()[11].plan(BF16)
    assert isinstance(plan, TensorPlan)
    return plan.with_(bm=64, bn=64, consumers=1, consumer_registers=248, stages=2, **changes)


# ---- what is checked -------------------------------------------------------------------------------------------------


def test_a_plan_multiplies_more_tiles_than_blocks_and_fewer() -> None:
    plan = small_plan(cluster_m=2, half_tail=False)
    (few, first, binary), (most, second, other) = products(plan)
    assert (few.cluster_tiles(first), few.blocks) == ((3, 3), 4)
    assert (most.cluster_tiles(second), most) == ((2, 1), plan)
    assert (binary, other) == (False, True)
    for problem in (first, second):
        assert all(size % step for size, step in ((problem.m, 64), (problem.n, 64), (problem.k, 64)))
    assert second.k > plan.stages * plan.bk


def test_both_products_of_a_plan_in_the_emulator(emulator: Backend) -> None:
    for plan, problem, binary in products(small_plan()):
        assert check_run(emulator, plan, problem, binary) == OK


@pytest.mark.parametrize(
    ("wrong", "said"),
    [("nothing", r"\d+ elements, first C\[0, 0\] is nan and not"), ("padding", "C's padding was written")],
)
def test_what_is_wrong_is_said(monkeypatch: pytest.MonkeyPatch, wrong: str, said: str) -> None:
    emulator = EmulatorBackend()

    def prepare(backend: Backend, rung: Any, plan: Any, operands: Operands) -> Any:
        def launch(_: Backend) -> None:
            if wrong == "padding":
                right(backend, rung, plan, operands)(backend)
                monkeypatch.setattr(backend, "padding_intact", lambda _: False)

        return launch

    monkeypatch.setattr(check_plan_space, "prepare", prepare)
    plan, problem, _ = next(products(small_plan()))
    assert re.search(said, check_run(emulator, plan, problem))


# ---- the file --------------------------------------------------------------------------------------------------------


def test_a_file_goes_on_where_it_was_left(tmp_path: Path) -> None:
    path = tmp_path / "new" / "space.json"
    kept = Results(path)
    kept.runs.append({"gpu": "none"})
    kept.add(NAMES[1], {"compile": OK, "lint": OK})
    kept.add(NAMES[0], {"compile": OK, "lint": OK, "run": OK})
    kept.add(NAMES[2], {"compile": OK, "lint": OK, "run": "wrong"})
    kept.write(NAMES)
    again = Results(path)
    assert again.runs == [{"gpu": "none"}]
    assert again.missing(NAMES[:4]) == NAMES[1:4]
    assert again.missing(NAMES[:4], ["compile", "lint"]) == NAMES[3:4]
    again.add(NAMES[1], {"run": OK})
    again.write(NAMES)
    assert list(Results(path).plans) == NAMES[:3]
    assert Results(path).plans[NAMES[1]] == {"compile": OK, "lint": OK, "run": OK}
    assert [path.name for path in path.parent.iterdir()] == ["space.json"]


def test_a_file_of_another_kernel_is_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "space.json"
    kept = Results(path)
    kept.add(NAMES[0], {"compile": OK, "lint": OK, "run": OK})
    kept.write(NAMES)
    assert Results(path).missing(NAMES[:1]) == []
    monkeypatch.setattr(check_plan_space, "kernel_digest", lambda: "another")
    assert Results(path).missing(NAMES[:1]) == NAMES[:1]
    assert Results(path, any_kernel=True).missing(NAMES[:1]) == []


def test_a_run_does_what_is_missing_and_again_what_was_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, steps, lost, handed_out = tmp_path / "space.json", ["compile", "lint"], NAMES[2], []

    class FakePool:
        def __init__(self, command: list[str], workers: int) -> None:
            assert command[-len(steps) :] == steps

        def run(self, tasks: list[str], **_: Any) -> Iterator[tuple[str, Any]]:
            handed_out.append(sorted(tasks))
            for task in tasks:
                yield task, "no answer within 60 s" if task == lost else dict.fromkeys(steps, OK)

    monkeypatch.setattr(check_plan_space, "Pool", FakePool)
    monkeypatch.setattr(check_plan_space, "legal_plans", lambda number: legal_plans(number)[:6])
    monkeypatch.setattr(check_plan_space, "steps_here", lambda: steps)
    monkeypatch.setattr(check_plan_space, "provenance", lambda steps: {"method": ", ".join(steps)})
    assert check_plan_space.check_all(path, 60, 2, None) == 1
    said = capsys.readouterr().out
    assert f"{lost}: lint: no answer within 60 s" in said
    assert "6 plans: 0 right, 1 wrong, 5 not all done" in said
    lost = ""
    assert check_plan_space.check_all(path, 60, 2, None) == 0
    steps.append("run")
    assert check_plan_space.check_all(path, 60, 2, None) == 0
    assert "6 plans: 6 right, 0 wrong, 0 not all done" in capsys.readouterr().out
    assert check_plan_space.check_all(path, 60, 2, None) == 0
    assert handed_out == [sorted(NAMES), NAMES[2:3], sorted(NAMES), []]
    kept = Results(path)
    kept.add("a plan that the space had once", {"compile": "wrong"})
    kept.write([*NAMES, "a plan that the space had once"])
    assert check_plan_space.check_all(path, 60, 2, None) == 0
    assert "6 plans: 6 right, 0 wrong, 0 not all done" in capsys.readouterr().out
    assert [run["method"] for run in Results(path).runs] == [
        "compile, lint", "compile, lint", "compile, lint, run",
    ]  # fmt: skip


# ---- processes -------------------------------------------------------------------------------------------------------

WORKER = """\
import json, os, signal, sys, time

for line in sys.stdin:
    for task in json.loads(line):
        if task == "hangs":
            time.sleep(60)
        if task == "crashes":
            os.kill(os.getpid(), signal.SIGSEGV)
        if task == "dies while it answers":
            os.write(1, b'{"task": ')
            os.kill(os.getpid(), signal.SIGKILL)
        if task == "raises":
            raise SystemExit(3)
        print(json.dumps({"task": task, "by": os.getpid()}), flush=True)
        if task == "breaks its GPU":
            sys.exit(0)
"""


def pool(tmp_path: Path, workers: int, text: str = WORKER) -> Pool:
    script = tmp_path / "worker.py"
    script.write_text(textwrap.dedent(text))
    return Pool([sys.executable, str(script)], workers, start_s=20, silence_s=1)


@pytest.mark.parametrize("workers", [1, 3])
def test_one_task_is_lost_and_not_the_others(tmp_path: Path, workers: int) -> None:
    tasks = ["a", "hangs", "b", "c", "crashes", "d", "breaks its GPU", "e", "dies while it answers", "f"]
    found = dict(pool(tmp_path, workers).run(tasks, at_once=4, seconds=60))
    assert sorted(found) == sorted(tasks)
    lost = {task: answer for task, answer in found.items() if isinstance(answer, str)}
    assert lost == {
        "hangs": "no answer within 1 s",
        "crashes": "its process was ended by signal 11",
        "dies while it answers": "its process was ended by signal 9",
    }
    assert all(found[task]["task"] == task for task in tasks if task not in lost)  # type: ignore[index]
    assert found["breaks its GPU"]["by"] != found["e"]["by"]  # type: ignore[index]


def test_a_mistake_of_the_worker_ends_everything(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="a worker ended with status 3"):
        list(pool(tmp_path, 2).run(["a", "raises", "hangs"], at_once=1, seconds=60))
    with pytest.raises(RuntimeError, match="a worker ended with status 0 and no answer"):
        list(pool(tmp_path, 1, "").run(["a"], at_once=1, seconds=60))


def test_no_more_is_handed_out_when_time_is_up(tmp_path: Path) -> None:
    assert list(pool(tmp_path, 2).run(["a", "b"], at_once=1, seconds=0)) == []
    assert list(pool(tmp_path, 2).run([], at_once=1, seconds=60)) == []
