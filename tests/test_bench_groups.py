"""The suite against cuBLAS without a GPU: its groups and musts, what is measured again, and the chain of a layer."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bench_groups
import decode_chain
import numpy as np
import pytest
import tensor_bench
from bench_groups import GROUPS, Figures, verdict
from decode_chain import DEPENDENT, LAYERS, OURS
from sweep_plans import planned
from sweep_shapes import shapes
from test_tensor_bench import COMPILED, RIGHT, WRONG, FakeBench, _rival

from tilewright import results
from tilewright.backends.base import Matrix
from tilewright.dtypes import FP32
from tilewright.errors import VerifyError
from tilewright.measure import Rival
from tilewright.plan_base import Plan
from tilewright.problem import Problem
from tilewright.results import Provenance, now
from tilewright.run import Operands
from tilewright.verify import Report

SHAPES = {str(shape): shape for shape in shapes()}
BY_NAME = {group.name: group for group in GROUPS}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Makes a bench in place of a GPU; cuBLAS takes 1000 us a launch, ours what ``cost`` says."""

    def make(cost: Callable[[Any], float], wrong: Sequence[Plan] = ()) -> Any:
        made = FakeBench(cost, wrong)

        def kernel_rival(backend: Any, kernel: Any, plan: Plan, sets: Sequence[Any], name: str) -> Any:
            assert plan.of == kernel.place
            made.plans[name] = plan
            one = _rival(name, cost(plan)).launches[0]
            return Rival(name, [one] * len(sets))

        for module in (tensor_bench, decode_chain):
            monkeypatch.setattr(module, "kernel_rival", kernel_rival)
            monkeypatch.setattr(
                module, "provenance", lambda backend, measurement, l2: Provenance("fake", now(), method=l2)
            )
        monkeypatch.setattr(tensor_bench, "compile_all", lambda entrants: {each.name: COMPILED for each in entrants})
        monkeypatch.setattr(bench_groups, "BY_POWER", bench_groups.BY_MEMORY)
        return made

    return make


# The groups


def test_the_groups_are_the_suite() -> None:
    every = [shape for group in GROUPS for shape in group.shapes]
    assert set(every) == {shape for shape in SHAPES.values() if shape.in_suite}
    assert len(every) == len(set(every))
    assert {shape.m for shape in BY_NAME["decode, M = 1..2"].shapes} == {1}
    assert {shape.m for shape in BY_NAME["decode, M = 8..64"].shapes} == {8, 16, 32, 64}
    assert len(BY_NAME["square, prefill"].shapes) == 16, "4096x4096x4096 is in both"


@pytest.mark.parametrize(
    ("name", "ratios", "ok"),
    [
        ("small", {DEPENDENT: [1.06, 1.00], OURS: [1.0, 0.95]}, True),
        ("small", {DEPENDENT: [1.02, 1.02], OURS: [1.0, 0.95]}, False),  # mean with
        ("small", {DEPENDENT: [1.20, 0.94], OURS: [1.0, 0.95]}, False),  # least with
        ("small", {DEPENDENT: [1.06, 1.00], OURS: [0.96, 0.96]}, False),  # mean without
        ("small", {DEPENDENT: [1.06, 1.00], OURS: [1.2, 0.87]}, False),  # least without
        ("small", {DEPENDENT: [1.06, 1.00], OURS: [1.2]}, False),  # one refused
        ("deepk", {DEPENDENT: [1.20, 0.84], OURS: [0.5, 0.5]}, True),  # without PDL nothing is asked
        ("odd", {DEPENDENT: [0.2, 0.2], OURS: [0.2, 0.2]}, True),
    ],
)
def test_verdicts(name: str, ratios: dict[str, list[float]], ok: bool) -> None:
    group = BY_NAME[name]
    rows = [{way: values[i] for way, values in ratios.items() if i < len(values)} for i in range(2)]
    found = {shape: Figures(rows[0], 10.0, {}) for shape in group.shapes}
    found[group.shapes[-1]] = Figures(rows[1], 10.0, {})
    assert verdict(group, found)[0] is ok
    missing: dict[Any, Figures | None] = {**found, group.shapes[0]: None}
    met, line = verdict(group, missing)
    assert "1 not measured" in line
    assert met is (ok and group.mean is None)


def test_a_geometric_mean() -> None:
    assert bench_groups.geometric_mean([0.5, 2.0]) == pytest.approx(1.0)


# What is measured


def test_both_launches_are_measured_once_and_again_when_the_pick_changes(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "g.jsonl"
    made = bench(lambda plan: 800.0 if plan.dependent else 1050.0)
    given = ["--out", str(out), "--only", "64x4096x7168"]
    assert bench_groups.main(given, made) == 1, "of the suite nearly all is missing"
    records = results.load(out)
    assert [record.name for record in records] == [OURS, DEPENDENT, "cuBLAS", "Lt best"]
    shape = SHAPES["64x4096x7168"]
    figures = bench_groups.figures_of(shape, records)
    assert figures is not None
    assert figures.ratio(dependent=True) == pytest.approx(1.25)
    assert figures.ratio(dependent=False) == pytest.approx(1000 / 1050)
    assert made.plans[DEPENDENT] == planned(SHAPES["64x4096x7168"].problem, pdl=True)
    said = capsys.readouterr().out
    assert "| decode, M = 8..64 (12) | 1.250, least 1.250 |" in said
    assert "| 64x4096x7168 | 1000.00 | 1.250 | 0.952 | 1.010 |" in said
    before = out.read_text()
    bench_groups.main(given, made)
    assert out.read_text() == before, "nothing is left"
    other = planned(SHAPES["64x7168x2048"].problem)
    monkeypatch.setattr(bench_groups, "planned", lambda problem, pdl=False: other.with_(stages=2))
    bench_groups.main(given, made)
    assert len(results.load(out)) == 8


def test_a_pick_that_is_refused_is_recorded_with_the_reason(bench: Any, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "g.jsonl"
    plan = planned(SHAPES["64x4096x7168"].problem, pdl=True)
    made = bench(lambda plan: 900.0, wrong=[plan])
    bench_groups.main(["--out", str(out), "--only", "64x4096x7168"], made)
    (refused,) = results.select(results.load(out), name=DEPENDENT)
    assert refused.error == "1 of 64 elements wrong, first row 1, column 2: got 3, want 4 within 0.1"
    assert bench_groups.done(SHAPES["64x4096x7168"], results.load(out))
    assert "tilewright PDL: 1 of 64 elements wrong" in capsys.readouterr().out


def test_an_earlier_rung_has_no_dependent_launch() -> None:
    problem = Problem(512, 512, 511, "bf16", None, "row", "column")  # rows that TMA cannot step over
    plan = planned(problem)
    assert plan.rung == 5
    assert planned(problem, pdl=True) == plan


def test_an_error_costs_one_shape(bench: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = bench(lambda plan: 900.0)
    made.operand_sets = None
    assert bench_groups.main(["--out", str(tmp_path / "g.jsonl"), "--only", "deepk"], made) == 1
    said = capsys.readouterr().out
    assert said.count("TypeError: 'NoneType' object") == bench_groups.MOST_ERRORS, "then it is given up"


def test_a_baseline_outside_the_bound_is_told_in_the_report(bench: Any, tmp_path: Path, capsys: Any) -> None:
    made = bench(lambda plan: 900.0)
    made.wrong_vendor = "cuBLAS"
    bench_groups.main(["--out", str(tmp_path / "g.jsonl"), "--only", "64x4096x7168"], made)
    (line,) = [each for each in capsys.readouterr().out.splitlines() if each.startswith("| 64x4096x7168")]
    assert "| 1000.00 |" in line
    assert "cuBLAS is outside the bound: 1 of 64 elements wrong, first row 1" in line


def test_schedules_and_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_groups.schedule_of(SHAPES["64x28672x4096"]) is bench_groups.BY_MEMORY
    assert bench_groups.schedule_of(SHAPES["4096x4096x4096"]) is bench_groups.BY_POWER
    assert bench_groups.main(["--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 53


# The chain


def chains_of(m: int, count: int) -> list[Any]:
    problems = [SimpleNamespace(problem=plan) for plan in decode_chain.plans_for(m)]
    return [problems for _ in range(count)]


@pytest.fixture
def chain(bench: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A bench whose chains are no matrices."""

    def make(cost: Callable[[Any], float], report: Report = RIGHT) -> Any:
        made = bench(cost)
        monkeypatch.setattr(decode_chain, "chain_sets", lambda bench, m, count: chains_of(m, count))
        monkeypatch.setattr(decode_chain, "checked", lambda bench, rival, chains: report)
        return made

    return make


def test_layers_read_what_the_one_before_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(decode_chain, "planned", lambda problem, pdl: asked.append(problem))
    decode_chain.plans_for(8)
    lines = [4096, 6144, 4096, 28672]
    assert [(p.m, p.n, p.k, p.lda) for p in asked] == [(8, *nk, lda) for nk, lda in zip(LAYERS, lines, strict=True)]


def test_a_launch_is_every_layer_in_order() -> None:
    seen: list[str] = []
    layers: Any = [
        SimpleNamespace(launches=[lambda s, n=f"{layer}{i}": seen.append(n) for i in range(2)]) for layer in "abcd"
    ]
    rival = decode_chain.together("x", layers)
    for launch in rival.launches:
        launch(None)
    assert seen == ["a0", "b0", "c0", "d0", "a1", "b1", "c1", "d1"]


def test_the_chain_is_measured_and_judged(chain: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # A stream that notes costs has four of them a launch; the fake timer looks at the first.
    made = chain(lambda plan: 850.0 if plan.dependent else 1010.0)
    line = json.loads(json.dumps(decode_chain.measure_chain(made, 8)))
    assert line["ratios"][DEPENDENT]["median"] == pytest.approx(1000 / 850)
    assert line["samples_us"][OURS][0] == pytest.approx(1010 / 4), "a layer"
    assert line["layers"] == [list(layer) for layer in LAYERS]
    assert line["verified"] == dict.fromkeys(("cuBLAS", "Lt best", OURS, DEPENDENT), 0.25)
    ok, text = decode_chain.verdict([line])
    assert not ok, "three M are missing"
    assert "| 8 | 250.0 | 1.010 | 0.990 | 1.176 | 1.10 | met |" in text
    every = [{**line, "m": m} for m in decode_chain.MUSTS]
    assert decode_chain.verdict(every)[0]
    slower = {**line, "m": 1, "ratios": {**line["ratios"], DEPENDENT: {"median": 1.14}}}
    assert not decode_chain.verdict([*every, slower])[0], "the newest counts"
    out = tmp_path / "g.jsonl"
    results.append_lines(out, [line])
    assert results.load(out) == []
    assert bench_groups.chain_done(8, bench_groups.read_chains(out))
    assert not bench_groups.chain_done(16, bench_groups.read_chains(out))


def test_a_wrong_chain_has_no_speed(chain: Any) -> None:
    with pytest.raises(VerifyError, match=": 1 of 64 elements wrong"):
        decode_chain.measure_chain(chain(lambda plan: 900.0, WRONG), 8)


class Host:
    """The calls of a bench that check results, on arrays of the host."""

    def __init__(self) -> None:
        self.backend, self.stream = self, None

    def poison(self, matrix: Matrix) -> None:
        matrix.owner[:] = np.nan

    def current(self) -> Any:
        return nullcontext()

    def synchronize(self) -> None:
        pass


def host_chain() -> list[Operands]:
    """Two layers, the second reading the first columns of what the first wrote."""
    rng = np.random.default_rng(1)
    x, first, second = (rng.normal(size=size).astype(np.float32) for size in ((2, 8), (8, 6), (4, 5)))
    c, d = np.zeros((2, 6), np.float32), np.zeros((2, 5), np.float32)

    def matrix(array: Any) -> Matrix:
        rows, cols = array.shape
        return Matrix(array.ctypes.data, rows, cols, array.strides[0] // 4, FP32, array)

    return [
        Operands(matrix(x), matrix(first), matrix(c)), Operands(matrix(c[:, :4]), matrix(second), matrix(d))
    ]  # fmt: skip


def multiply(layer: Operands) -> Callable[[Any], None]:
    def launch(stream: Any) -> None:
        layer.c.owner[:] = layer.a.owner @ layer.b.owner

    return launch


def test_each_layer_is_held_against_what_it_was_given() -> None:
    bench: Any = Host()
    chain = host_chain()
    layers = [Rival("x", [multiply(layer)]) for layer in chain]
    right = decode_chain.checked(bench, decode_chain.together("x", layers), [chain])
    assert right.ok
    early = decode_chain.checked(bench, decode_chain.together("x", layers[::-1]), [chain])
    assert not early.ok, "a layer that does not wait reads what is not there"


def test_a_bench_holds_many_rivals_against_one_expectation() -> None:
    bench: Any = tensor_bench.Bench.__new__(tensor_bench.Bench)
    bench.backend = Host()
    operands = host_chain()[0]
    expected = bench.expected(operands)
    assert bench.check(Rival("right", [multiply(operands)]), operands, expected).ok
    nothing = bench.check(Rival("nothing", [lambda stream: None]), operands, expected)
    assert nothing.bad_count == 12, "C was poisoned before"


def test_a_run_measures_the_chain_first(chain: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = chain(lambda plan: 900.0)
    monkeypatch.setattr(bench_groups, "wanted", lambda given: [SHAPES["1x4096x4096"]])
    out = tmp_path / "g.jsonl"
    assert bench_groups.main(["--out", str(out)], made) == 1
    assert [line["m"] for line in bench_groups.read_chains(out)] == list(decode_chain.MUSTS)
    assert len(results.load(out)) == 4
    bench_groups.main(["--out", str(out)], made)
    assert len(bench_groups.read_chains(out)) == len(decode_chain.MUSTS), "not again"
