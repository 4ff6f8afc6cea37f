"""The check by random problems, on what it must catch: it is run as a whole where there is a GPU."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import random_draw
import random_problems
import random_worker
from random_draw import FOLLOWS, LAYOUTS, OUT_LAYOUTS, WAYS, Case, drawn
from random_worker import Choices, Known, answer, differs

import tilewright
from tilewright.library import choose


def test_everything_is_drawn_and_a_seed_is_one_case() -> None:
    cases = [drawn(seed) for seed in range(400)]
    assert cases[:20] == [drawn(seed) for seed in range(20)]
    assert {case.follows for case in cases} == set(FOLLOWS)
    assert {case.way for case in cases} == set(WAYS)
    assert {case.a_layout for case in cases} == {case.b_layout for case in cases} == set(LAYOUTS)
    assert {case.out_layout for case in cases} == set(OUT_LAYOUTS)
    assert {len(case.a) for case in cases} >= {1, 2, 3, 4, 6}
    assert {len(case.b) for case in cases} >= {1, 2, 3, 4, 6}
    assert {0} < {size for case in cases for size in case.shape}
    assert max(case.a[-1] for case in cases) > 2048


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.fixture
def choices(tmp_path: Path) -> Iterator[Choices]:
    found = Choices(Known(tmp_path / "known"), 100)
    found.install()
    yield found
    found.remove()


def test_one_wrong_element_is_reported(torch: Any, choices: Choices, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the way of the call; and all is right without it."""
    cases = [
        Case(5, "float32", "float32", (9, 16), (16, 12), "row", "row", "row", "nothing", way, "row_max")
        for way in ("out", "prepared", "invariant")
    ]
    for each in cases:
        found = answer(torch, each, "cpu", choices)
        assert (found["wrong"], found["broken"], found["kernel"]) == ("", False, "simt fp32"), each
    assert len(choices.known) == 1

    def spoiled(whole: Any, which: set[int]) -> Any:
        calls: list[int] = []

        def call(*given: Any, **options: Any) -> Any:
            result = whole(*given, **options)
            calls.append(0)
            if len(calls) in which:
                result.view(-1)[3] += 1
            return result

        return call

    monkeypatch.setattr(tilewright, "matmul", spoiled(tilewright.matmul, {1, 3}))
    monkeypatch.setattr(tilewright.Matmul, "execute", spoiled(tilewright.Matmul.execute, {2}))
    said = [answer(torch, each, "cpu", choices)["wrong"] for each in cases]
    assert said[0].startswith("result 0: 1 elements, first (0, 3) is ")
    assert said[1].startswith("again: result 0: 1 elements, first (0, 3) is ")
    assert said[2].startswith("rows alone: result 0: 1 elements, first (0, 3) is ")
    monkeypatch.setattr(tilewright, "matmul", lambda *given, **options: 1 / 0)
    assert answer(torch, cases[0], "cpu", choices)["wrong"] == "ZeroDivisionError: division by zero"


def test_any_result_may_differ(torch: Any) -> None:
    one = torch.ones(2, 3)
    assert differs(torch, one, (one.clone(),)) == ""
    assert differs(torch, (one, one), (one,)) == "2 results and not 1"
    assert differs(torch, (one, one), (one, one * 2)) == "result 1: 6 elements, first (0, 0) is 1.0 and not 2.0"
    assert differs(torch, one, (one.half(),)).startswith("result 0 is torch.float32 (2, 3) and not torch.float16")


def test_kernels_that_any_process_compiled_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Plan:
        def __init__(self, name: str) -> None:
            self.name = name

        def to_dict(self) -> dict[str, str]:
            return {"name": self.name}

    class Question:
        epilogue = "plain"

    path, runs = tmp_path / "known", [SimpleNamespace(plan=Plan(name), label=name) for name in "abc"]
    monkeypatch.setattr(choose, "_runs", lambda question, planning: runs)
    here, there = Choices(Known(path), 2), Known(path)
    question: Any = Question()
    key: Any = [random_worker.key_of(run.plan, question) for run in runs]
    there.add(key[1])
    here.known.refresh()
    assert [run.label for run in here._ranked(question, None)] == ["a", "b", "c"], "there are too few known ones"
    there.add(key[2])
    with path.open("a") as file:
        file.write("half a li")
    here.known.refresh()
    here.known.refresh()
    assert len(here.known) == 2
    assert [run.label for run in here._ranked(question, None)] == ["b", "c", "a"]
    question.epilogue = "another"
    assert [run.label for run in here._ranked(question, None)] == ["a", "b", "c"], "other kernels"


WORKER = """
import json, os, signal, sys, time
sys.path.insert(0, {scripts!r})
from dataclasses import asdict
from random_draw import drawn
for line in sys.stdin:
    for seed in json.loads(line):
        if seed == "3":
            time.sleep(60)
        if seed == "9":
            os.kill(os.getpid(), signal.SIGKILL)
        print(json.dumps({{
            "case": asdict(drawn(int(seed))), "wrong": "one element" if seed == "5" else "", "broken": False,
            "kernel": "simt", "packed": "", "batched": False, "compiled": 1,
        }}), flush=True)
"""


def test_what_is_wrong_hangs_or_crashes_is_told_and_the_rest_goes_on(
    torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    worker, out = tmp_path / "worker.py", tmp_path / "new" / "out.json"
    worker.write_text(textwrap.dedent(WORKER).format(scripts=str(Path(random_draw.__file__).parent)))
    monkeypatch.setattr(random_problems, "WORKER", worker)
    monkeypatch.setattr(random_problems, "START_S", 20.0)
    given = ["--device", "cpu", "--count", "24", "--jobs", "2", "--silence", "0.5", "--out", str(out)]
    assert random_problems.main(given) == 1
    found = json.loads(out.read_text())
    assert (found["problems"], found["compiled"], found["seeds"]) == (22, 22, [0, 24])
    assert {seed: each["wrong"] for seed, each in found["wrong"].items()} == {"5": "one element"}
    assert found["lost"] == {"3": "no answer within 0.5 s", "9": "its process was ended by signal 9"}
    assert sum(found["counts"]["kernel"].values()) == sum(found["counts"]["dtype"].values()) == 22
    assert "seed 3 was lost: no answer" in capsys.readouterr().err
    right = ["--device", "cpu", "--count", "2", "--first", "10", "--jobs", "1", "--out", str(out)]
    assert random_problems.main(right) == 0
    assert random_problems.main([*right, "--seconds", "0"]) == 1, "nothing was done"
