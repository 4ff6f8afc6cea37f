"""The sweep without a GPU: its shapes and their split, what it measures, and that nothing is lost or measured twice."""

from __future__ import annotations

import io
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import sweep
import sweep_bench
import sweep_file
import sweep_shapes
import sweep_worker
from sweep_plans import Selection, choose, name_of, planning_of, read_plan, values_of
from sweep_shapes import FRESH, Shape, development_families, part_of, rank, select

from tilewright import branches, nvrtc, results
from tilewright.errors import UsageError
from tilewright.measure import Rival, Schedule, measure
from tilewright.selection import kernel_of

ROOT = Path(__file__).resolve().parent.parent
SHAPES = {str(shape): shape for shape in sweep_shapes.shapes()}
DECODE, SQUARE = SHAPES["1x4096x4096"], SHAPES["4096x4096x4096"]
L2 = 60 << 20
COMPILED = sweep.compiled


# The shapes


def test_at_least_a_hundred_shapes_with_the_suite_among_them() -> None:
    assert len(SHAPES) >= 100
    assert {sizes for some in sweep_shapes.groups().values() for sizes in some} <= {s.sizes for s in SHAPES.values()}
    assert {s.m for s in SHAPES.values() if s.stratum == "decode"} >= {1, 2, 4, 8, 16, 32, 64}


def test_the_split_is_of_families_and_balanced() -> None:
    parts: dict[Any, set[str]] = {}
    for shape in SHAPES.values():
        parts.setdefault(shape.family, set()).add(part_of(shape))
    assert all(len(sides) == 1 for sides in parts.values()), "what is learnt of a weight matrix stays on one side"
    split = [shape for shape in SHAPES.values() if part_of(shape) not in FRESH]
    whole = Counter(shape.stratum for shape in split)
    ours = Counter(s.stratum for s in split if part_of(s) == "development")
    assert sum(ours.values()) / len(split) == pytest.approx(1 / 3, abs=0.03)
    for stratum, count in whole.items():
        assert 0.2 <= ours[stratum] / count <= 0.4, stratum


def test_the_rule_on_a_hand_made_list() -> None:
    every = [Shape(m, n, 64, "s", False) for n in (1, 2, 3) for m in (1, 2)]
    first = min(((n, 64) for n in (1, 2, 3)), key=rank)
    assert development_families(every) == {first}, "two of six: one family of two shapes"
    assert development_families(reversed(every)) == {first}, "the order of the list decides nothing"
    assert rank((4096, 4096)) == rank((4096, 4096)) != rank((4096, 4097))


def test_order_and_choice() -> None:
    order = select()
    sides = [part_of(shape) for shape in order]
    assert sides == sorted(sides, key=["development", "held-out", *FRESH].index)
    assert order == select()
    assert select("held-out") == [shape for shape in order if part_of(shape) == "held-out"]
    assert [str(s) for s in select(only=["1x4096x4096"])] == ["1x4096x4096"]
    assert {s.stratum for s in select(only=["deepk"])} == {"deepk"}
    with pytest.raises(UsageError, match="'deepq' is neither"):
        select(only=["deepq"])


# What is measured


@pytest.mark.parametrize("shape", [DECODE, SQUARE, SHAPES["4095x4095x4096"], SHAPES["16384x16384x16384"]], ids=str)
def test_configurations(shape: Shape) -> None:
    planning = planning_of(shape)
    chosen = choose(planning, shape, Selection(), sweep.SCHEDULE, L2)
    assert chosen.plans[0] == planning.pick.plan
    assert len(set(chosen.plans)) == len(chosen.plans)
    assert 16 <= len(chosen.plans) <= Selection.most
    assert chosen.seconds <= Selection.seconds or len(chosen.plans) == 16
    firsts = {each.family: each.plan for each in reversed(planning.ranked)}
    assert set(firsts.values()) <= set(chosen.plans), "the first of every family"
    for plan in chosen.plans:
        assert read_plan(json.loads(json.dumps(values_of(plan)))) == plan
    assert len({name_of(plan) for plan in chosen.plans}) == len(chosen.plans)


def test_plans_of_branches_come_back_too() -> None:
    for branch in branches.branches().values():
        for kernel in branch.kernels:
            plan = kernel.plan_for(DECODE.problem.changed(dtype=branch.dtype), aligned=True)
            values = values_of(plan)
            assert (values["branch"], values["kernel"]) == (branch.name, kernel.name)
            assert read_plan(json.loads(json.dumps(values))) == plan
            assert name_of(plan) != name_of(plan.with_(dependent_launch=True))


def test_forty_configurations_overall_and_of_a_shape() -> None:
    chosen = choose(planning_of(SQUARE), SQUARE, Selection(), sweep.SCHEDULE, L2)
    assert len(chosen.plans) >= 40
    capped = choose(planning_of(SQUARE), SQUARE, Selection(most=20), sweep.SCHEDULE, L2)
    assert capped.plans == chosen.plans[:20], "a cap takes the first"


def test_all_that_is_near_the_pick() -> None:
    planning = planning_of(DECODE)
    times = [each.predicted_us.sustained for each in planning.ranked if each.predicted_us]
    chosen = choose(planning, DECODE, Selection(most=1000, seconds=1000, within=0.05), sweep.SCHEDULE, L2)
    assert len(chosen.plans) == sum(us <= 1.05 * times[0] for us in times) > 4
    assert max(chosen.predicted_us) <= 1.05 * times[0]
    dependent = planning_of(DECODE, pdl=True).ranked[0].plan
    assert dependent is not None
    assert dependent.dependent
    jobs = sweep.jobs_of([DECODE], sweep_file.Sweep(), Selection(within=0.0), sweep.SCHEDULE, pdl=True)
    assert jobs[0].plans[0] == dependent


# The process that measures


def measured(behaviour: dict[str, Any], monkeypatch: pytest.MonkeyPatch, count: int = 3) -> tuple[Any, dict[str, Any]]:
    bench: Any = sweep_bench.install(behaviour, monkeypatch.setattr)
    plans = choose(planning_of(DECODE), DECODE, Selection(most=count), sweep.SCHEDULE, L2).plans
    answer = sweep_worker.measure_shape(bench, DECODE, plans, [100.0] * count, sweep.SCHEDULE, lambda name: None)
    return bench, json.loads(json.dumps(answer))


NAMES = [name_of(plan) for plan in choose(planning_of(DECODE), DECODE, Selection(most=3), sweep.SCHEDULE, L2).plans]


def test_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, answer = measured({"us": {NAMES[0]: 80.0, NAMES[1]: 95.123456}, "wrong": [NAMES[2]]}, monkeypatch)
    line = answer["line"]
    assert bench.checked[:3] == NAMES
    assert set(line["times"]) == set(NAMES[:2])
    assert list(line["refused"]) == [NAMES[2]]
    assert line["first"] == NAMES[0]
    assert len(line["again"]) == len(line["times"][NAMES[0]]) - 1 == sweep.SCHEDULE.rounds
    assert line["times"][NAMES[1]][-1] == 1500
    assert set(line["times"][NAMES[1]][:-1]) <= {95.123, 96.075}, "five digits"
    assert set(line["vendor"]) == {"cuBLAS", "Lt best"}
    assert answer["provenance"]["gpu"] == "fake"
    assert bench.timer.prepared[:2] == [10, 10], "a known time needs no trial: 1 ms of launches at 100 us, once"


def test_a_configuration_that_breaks_the_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _, answer = measured({"break": [NAMES[1]]}, monkeypatch)
    assert (answer["line"], answer["broken"]) == (None, NAMES[1])


def test_the_first_to_fail_while_timing() -> None:
    calls = dict.fromkeys("abc", 0)
    dead = False

    def launch(name: str) -> Any:
        def run(stream: Any) -> None:
            nonlocal dead
            calls[name] += 1
            dead |= name == "b" and calls[name] > 3
            if dead:
                raise RuntimeError("the context is gone")
            stream.append(10.0)

        return run

    class Timer(sweep_bench.FakeTimer):
        def slot(self, prepared: Any, warm: int, timed: int, sample: Any = None) -> Any:
            cost: list[float] = []
            prepared.launches_of[0](cost)
            return super().slot(prepared, warm, timed)

        def prepare(self, launches: Any, count: int) -> Any:
            made = super().prepare(launches, count)
            made.launches_of = launches
            return made

    schedule = Schedule(slot_ms=1, rounds=4, graph_ms=1, sampled=False)
    found = measure([Rival(n, [launch(n)], estimate_us=10.0) for n in "abc"], Timer(), schedule=schedule)
    assert [name for name, timing in found.timings.items() if timing.error], "several"
    assert sweep_worker.first_to_fail(found) == "b"


# The whole of it, with processes


def run(tmp_path: Path, behaviour: dict[str, Any], *options: str) -> int:
    (tmp_path / "behaviour.json").write_text(json.dumps(behaviour))
    worker = [sys.executable, str(ROOT / "tests" / "sweep_bench.py"), str(tmp_path / "behaviour.json")]
    given = ["--out", str(tmp_path / "out.jsonl"), "--seconds", "60", "--only", "1x4096x4096", "2x4096x4096", *options]
    return sweep.main(given, worker)


@pytest.fixture(autouse=True)
def paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the processes find, and no compiler for them."""
    found = [str(ROOT / name) for name in ("src", "scripts", "tests")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(found))
    monkeypatch.setattr(sweep, "compiled", id)


def test_a_sweep_is_resumed_and_grows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, {"us": {NAMES[0]: 80.0}}, "--most", "2", "--per-family", "1") == 0
    first = sweep_file.read(tmp_path / "out.jsonl")
    assert set(first.shapes) == {(1, 4096, 4096), (2, 4096, 4096)}
    assert len(first.shapes[1, 4096, 4096].times) == 2
    assert "2 of 2 shapes are done" in capsys.readouterr().out
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert run(tmp_path, {}, "--most", "2", "--per-family", "1") == 0
    assert (tmp_path / "out.jsonl").read_text().splitlines() == lines, "nothing was left"
    assert run(tmp_path, {}, "--most", "3", "--per-family", "1") == 0
    second = sweep_file.read(tmp_path / "out.jsonl")
    assert len(second.shapes[1, 4096, 4096].times) == 3
    assert second.shapes[1, 4096, 4096].times[NAMES[0]].us.median == pytest.approx(80.4), "what was measured stays"
    assert len(second.runs) == 1
    assert results.load(tmp_path / "out.jsonl") == [], "no records, and no mistake of the folder of results"


def test_what_hangs_or_breaks_costs_only_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "START_S", 6.0)
    monkeypatch.setattr(sweep, "SILENCE_S", 6.0)
    options = ("--most", "4", "--only", "1x4096x4096")
    names = [name_of(plan) for plan in choose(planning_of(DECODE), DECODE, Selection(8, 4), sweep.SCHEDULE, L2).plans]
    assert run(tmp_path, {"hang": [names[1]], "break": [names[2]]}, *options) == 0
    found = sweep_file.read(tmp_path / "out.jsonl")
    seen = found.shapes[DECODE.sizes]
    assert seen.refused == {names[1]: "no answer within 6 s", names[2]: "an illegal memory access was encountered"}
    assert set(seen.times) == {names[0], names[3]}
    assert not sweep.jobs_of([DECODE], found, Selection(8, 4), sweep.SCHEDULE), "what was lost is not tried again"


def test_kernels_are_compiled_into_the_cache() -> None:
    plan = choose(planning_of(DECODE), DECODE, Selection(most=1), sweep.SCHEDULE, L2).plans[0]
    COMPILED(values_of(plan))
    nvrtc.forget()
    assert nvrtc.compile_kernel(kernel_of(plan).source(plan, "gpu", "sm_90a")).cached


def test_a_mistake_of_the_program_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, {"raise": "no such attribute"}, "--most", "2", "--per-family", "1") == 0
    said = capsys.readouterr().out
    assert "1x4096x4096: RuntimeError: no such attribute (sweep_bench.py:" in said
    assert "0 of 2 shapes are done" in said


def test_a_dry_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep.main(["--dry-run", "--only", "deepk", "--out", str(tmp_path / "none.jsonl")]) == 0
    said = capsys.readouterr().out
    assert f"{len(select(only=['deepk']))} shapes" in said
    assert "s of GPU" in said


# The file


def test_lines_of_one_shape_have_one_scale(tmp_path: Path) -> None:
    def line(times: dict[str, list[float]], cublas: float, first: str, again: list[float]) -> dict[str, Any]:
        return {
            "schema": results.SWEEP_SCHEMA, "kind": "shape", "shape": [1, 2, 3], "run": "r", "l2": "", "first": first,
            "again": again, "vendor": {"cuBLAS": [cublas, cublas, 1500]}, "times": times, "refused": {},
        }  # fmt: skip

    path = tmp_path / "s.jsonl"
    sweep_file.append(path, [line({"a": [10, 10.2, 1500]}, 20.0, "a", [10.1, 10.2])])
    sweep_file.append(path, [line({"b": [30, 30, 0], "a": [22, 22, 1400]}, 40.0, "b", [30, 33])])
    seen = sweep_file.read(path).shapes[1, 2, 3]
    assert seen.times["a"].us.median == pytest.approx(10.1)
    assert seen.times["b"].us.median == pytest.approx(15.0), "the second measurement ran at half the speed"
    assert (seen.times["a"].clock_mhz, seen.times["b"].clock_mhz) == (1500, None)
    assert seen.bands == pytest.approx([0.005, 0.05])
    with path.open("a") as file:
        file.write('{"schema": "tilewright.sw')
    assert sweep_file.read(path).shapes[1, 2, 3].times.keys() == {"a", "b"}, "a last line may be cut off"
    sweep_file.append(path, [sweep_file.lost_line((1, 2, 3), "c", "it hung")])
    with pytest.raises(UsageError, match="jsonl:3"):
        sweep_file.read(path)


def test_answers_are_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    bench: Any = sweep_bench.install({}, monkeypatch.setattr)
    chosen = choose(planning_of(DECODE), DECODE, Selection(most=2), sweep.SCHEDULE, L2)
    job = sweep.Job(DECODE, chosen.plans, chosen.predicted_us, 1.0)
    answers = io.StringIO()
    marks: list[str] = []
    sweep_worker.serve(bench, sweep.SCHEDULE, marks.append, io.StringIO(json.dumps([job.task]) + "\n"), answers)
    (answer,) = map(json.loads, answers.getvalue().splitlines())
    assert set(answer["line"]["times"]) == set(NAMES[:2])
    assert marks[:3] == [*NAMES[:2], sweep_worker.PREPARING]
    assert set(marks) == {*NAMES[:2], sweep_worker.PREPARING, "cuBLAS", "Lt best"}
