"""The tensor-core measurements without a GPU: their table, what they print and conclude, and the search for plans."""

from __future__ import annotations

import math
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bench_tensor_rows
import pytest
import tensor_bench
import tensor_sweep
from tensor_bench import CUBLAS, LT_BEST, Candidate, Row, compete, read_rows, table

from tilewright import ladder, results
from tilewright.dtypes import BF16
from tilewright.errors import CompileError, UsageError
from tilewright.measure import Launch, Rival, Schedule, Slot
from tilewright.nvrtc import Compiled
from tilewright.plan_base import Plan
from tilewright.problem import Problem
from tilewright.ptxas import CompileReport
from tilewright.results import Provenance, now
from tilewright.telemetry import Snapshot
from tilewright.verify import BadElement, Report

QUICK = Schedule(slot_ms=1, rounds=2, graph_ms=1)
RIGHT = Report(True, 0.25, 0.1, None, 0, 64)
WRONG = Report(False, 9.0, 9.0, BadElement(1, 2, 3.0, 4.0, 0.1), 1, 64)
RUNG = ladder.rung(11)
DEFAULT = RUNG.plan(BF16, b_layout="column")
COMPILED = Compiled(b"", CompileReport(168, 0, 0, 0, 0, 4, 0.1), False)


class FakeTimer:
    """A launch costs what it notes, and the SMs run at 1300 MHz."""

    def prepare(self, launches: Sequence[Launch], count: int) -> Any:
        cost: list[float] = []
        launches[0](cost)
        return SimpleNamespace(launches=count, method="graph", note="", us=cost[0])

    def slot(self, prepared: Any, warm: int, timed: int, sample: Callable[[], None] | None = None) -> Slot:
        if sample is not None:
            sample()
        return Slot(prepared.us, 1300.0)


class FakeBackend:
    @contextmanager
    def telemetry(self) -> Iterator[Callable[[], Snapshot]]:
        yield lambda: Snapshot(sm_clock_mhz=1400, power_w=690.0)


class FakeBench:
    """Every plan costs ``cost(plan)`` microseconds; plans in ``wrong`` compute a wrong element."""

    wrong_vendor = ""

    def __init__(self, cost: Callable[[Plan], float], wrong: Sequence[Plan] = ()) -> None:
        self.cost, self.wrong = cost, list(wrong)
        self.backend, self.timer = FakeBackend(), FakeTimer()
        self.l2_bytes, self.sm_count = 60 << 20, 132
        self.plans: dict[str, Plan] = {}

    def operand_sets(self, problem: Problem, count: int, seed: int = 0) -> list[Any]:
        return [problem] * count

    def checked(self, rival: Rival, sets: Sequence[Any]) -> Report:
        wrong = rival.name == self.wrong_vendor or self.plans.get(rival.name) in self.wrong
        return WRONG if wrong else RIGHT

    def vendors(self, sets: Sequence[Any]) -> Iterator[tuple[Rival, dict[str, Any]]]:
        yield _rival(CUBLAS, 1000.0), {"kernels": ["sm90_xmma"]}
        yield _rival(LT_BEST, 990.0), {"returned": 8}


def _rival(name: str, us: float) -> Rival:
    return Rival(name, [lambda stream: stream.append(us)])


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Makes a bench, and lets the module use it in place of a GPU."""

    def make(cost: Callable[[Plan], float] = lambda plan: 980.0, wrong: Sequence[Plan] = ()) -> Any:
        made = FakeBench(cost, wrong)

        def kernel_rival(backend: Any, rung: Any, plan: Plan, sets: Any, name: str) -> Rival:
            made.plans[name] = plan
            return _rival(name, made.cost(plan))

        monkeypatch.setattr(tensor_bench, "kernel_rival", kernel_rival)
        monkeypatch.setattr(tensor_bench, "cublas", lambda backend, sets, name: _rival(name, 1000.0))
        monkeypatch.setattr(tensor_bench, "provenance", lambda backend, measurement, l2: Provenance("fake", now()))
        monkeypatch.setattr(tensor_bench, "compile_all", lambda cs: {c.name: COMPILED for c in cs})
        return made

    return make


PROBLEM = Problem(8192, 8192, 8192, BF16, b_layout="column")


def test_the_rows_are_legal_and_told_apart() -> None:
    rows = read_rows()
    assert len({str(row) for row in rows}) == len(rows)
    assert {row.problem.dtype.name for row in rows} == {"bf16", "fp16"}
    assert {(row.problem.a_layout, row.problem.b_layout) for row in rows} == {
        ("row", "row"), ("row", "column"), ("column", "row"), ("column", "column")
    }  # fmt: skip
    for row in rows:
        plan = row.candidate.plan
        assert (plan.a_layout, plan.b_layout, plan.dtype) == (
            row.problem.a_layout, row.problem.b_layout, row.problem.dtype
        )  # fmt: skip
        assert row.must or row.must_tflops


def test_a_plan_that_no_kernel_has_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text('[{"shape": [8, 8, 8], "plan": {"bm": 100}}]')
    with pytest.raises(UsageError, match="100"):
        read_rows(path)


def test_a_vendor_that_is_wrong_has_no_speed(bench: Any) -> None:
    made = bench()
    made.wrong_vendor = LT_BEST
    outcome = compete(made, PROBLEM, [Candidate("tilewright", RUNG, DEFAULT)], QUICK)
    assert [record.name for record in outcome.records] == ["tilewright", CUBLAS]
    assert outcome.refused == {LT_BEST: str(WRONG)}


def test_a_baseline_that_is_wrong_is_timed_and_named(
    bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = bench()
    made.wrong_vendor = CUBLAS
    worst = replace(WRONG, max_error_over_bound=math.inf)
    monkeypatch.setattr(made, "checked", lambda rival, sets: worst if rival.name == CUBLAS else RIGHT)
    outcome = compete(made, PROBLEM, [Candidate("tilewright", RUNG, DEFAULT)], QUICK)
    ours, vendor, _ = outcome.records
    assert ours.ratios[CUBLAS]["median"] == pytest.approx(1000 / 980)
    assert (ours.outside, vendor.outside) == (None, str(WRONG))
    assert f"cuBLAS was timed though it is outside the bound of verify: {WRONG}" in table(outcome, 132)
    results.append(tmp_path / "records.jsonl", outcome.records)
    kept = results.load(tmp_path / "records.jsonl")
    assert [each.verified for each in kept] == [each.verified for each in outcome.records]


def test_records_and_table(bench: Any) -> None:
    outcome = compete(bench(), PROBLEM, [Candidate("tilewright", RUNG, DEFAULT)], QUICK)
    ours, vendor, lt = outcome.records
    assert (ours.what, ours.rung, ours.verified) == ("kernel", 11, {"error_over_bound": 0.25})
    assert ours.plan == DEFAULT.to_dict()
    assert ours.sm_clock_mhz_in_kernel == 1300
    assert ours.clock_mhz == 1400
    assert ours.ratios[CUBLAS]["median"] == pytest.approx(1000 / 980)
    assert ours.noise is not None
    assert (vendor.what, vendor.name, lt.details) == ("vendor", CUBLAS, {"returned": 8})
    text = table(outcome, 132)
    first, _, best, *rest = text.splitlines()
    assert first == f"{PROBLEM}, cuBLAS against itself 1.000 to 1.000"
    assert best.split()[0] == "tilewright"
    assert "1.020 (1.020 to 1.020)" in best
    assert "1.010" in best
    assert "1300  (1400)" in best
    busy = PROBLEM.flops / 980e-6 / (132 * 4096 * 1300e6)
    assert f"{busy:.3f}" in best
    assert [line.split()[0] for line in rest] == ["Lt", "cuBLAS"]


def test_what_is_wrong_is_not_timed(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, broken = DEFAULT.with_(group=2), DEFAULT.with_(group=3)
    made = bench(wrong=[bad])
    built: dict[str, Any] = {"bad": COMPILED, "broken": CompileError("it spills", log="x"), "good": COMPILED}
    monkeypatch.setattr(tensor_bench, "compile_all", lambda candidates: built)
    named = [Candidate(n, RUNG, p) for n, p in (("bad", bad), ("broken", broken), ("good", DEFAULT))]
    outcome = compete(made, PROBLEM, named, QUICK, lt=False)
    assert list(outcome.measurement.timings) == ["good", CUBLAS]
    assert "elements wrong" in outcome.refused["bad"]
    assert outcome.refused["broken"] == "it spills"
    assert "bad was not timed: 1 of 64 elements wrong" in table(outcome, 132)


@pytest.mark.parametrize(
    ("musts", "ok", "said"),
    [
        ({"must": 1.02, "must_lt": 1.01}, True, "meets"),
        ({"must": 1.03}, False, "MISSES"),
        ({"must": 1.0, "must_lt": 1.02}, False, "at least 1.02 asked"),
        ({"must_tflops": 2000.0}, False, "1122 TFLOPS, at least 2000 asked"),
    ],
)
def test_verdicts(bench: Any, musts: dict[str, float], ok: bool, said: str) -> None:
    row = Row(PROBLEM, Candidate("tilewright", RUNG, DEFAULT), **musts)
    outcomes = [compete(bench(lambda plan, us=us: us), PROBLEM, [row.candidate], QUICK) for us in (980.0, 900.0, 985.0)]
    found, line = bench_tensor_rows.verdict(row, outcomes)
    assert found is ok
    assert said in line
    assert "1.020 of cuBLAS (1.015 to 1.111)" in line


def test_a_row_without_a_figure_misses() -> None:
    row = Row(PROBLEM, Candidate("tilewright", RUNG, DEFAULT), must=1.0)
    assert bench_tensor_rows.verdict(row, [])[0] is False


# The search


def test_legal_changes() -> None:
    made = list(tensor_sweep.legal(DEFAULT, [{"bm": 100}, {"group": 8}, {"group": 3}, {"group": 3}]))
    assert [plan.to_dict()["group"] for plan in made] == [3], "impossible, the same, new, again"
    tiles: list[Any] = list(tensor_sweep.legal(DEFAULT, tensor_sweep.tiles(), most_stages=True))
    assert len(tiles) > 20
    assert all(plan.shared_bytes + plan.tile_bytes > 227 << 10 for plan in tiles), "one more stage would not fit"


def test_the_steps_find_what_is_best(bench: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def cost(plan: Any) -> float:
        off: float = (
            abs(plan.bm - 256) + abs(plan.bn - 192) + 5 * abs(plan.group - 6) + 10 * abs(plan.epilogue_slabs - 3)
        )
        return 900.0 + off - 20 * bool(plan.half_tail) + 30 * bool(plan.along_n)

    monkeypatch.setattr(tensor_sweep, "check", lambda candidates: {})
    row = Row(PROBLEM, Candidate("tilewright", RUNG, DEFAULT), must=1.0)
    leaders = tensor_sweep.sweep(bench(cost), row, seconds=1000)
    best: Any = leaders[0].plan
    assert (best.bm, best.bn, best.group, best.epilogue_slabs, best.half_tail) == (256, 192, 6, 3, True)
    assert not best.along_n
    assert '"half_tail": true' in capsys.readouterr().out


def test_plans_that_fail_their_check_are_left_out(bench: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    bad = {"256x192": "hangs"}
    monkeypatch.setattr(
        tensor_sweep,
        "check",
        lambda candidates: {c.name: bad["256x192"] for c in candidates if (c.plan.bm, c.plan.bn) == (256, 192)},
    )
    row = Row(PROBLEM, Candidate("tilewright", RUNG, DEFAULT), must=1.0)
    leaders = tensor_sweep.sweep(bench(lambda plan: 900.0 - plan.bm), row, seconds=60)
    assert all((leader.plan.bm, leader.plan.bn) != (256, 192) for leader in leaders)
    assert "is left out: hangs" in capsys.readouterr().out


def test_values_make_the_plan_again() -> None:
    for row in read_rows():
        values = tensor_sweep._values(row.candidate.plan)
        assert values.pop("dtype") == row.problem.dtype.name
        default = row.candidate.rung.plan(row.problem.dtype, a_layout=values["a_layout"], b_layout=values["b_layout"])
        assert default.with_(**values) == row.candidate.plan


CHECKER = """
import json, sys, time
for number, plan in enumerate(json.load(sys.stdin)):
    if plan["group"] == 3: time.sleep(60)
    if plan["group"] == 4: raise SystemExit(1)
    print("row 1 is wrong" if plan["group"] == 2 else "", flush=True)
"""


def test_a_check_that_hangs_or_dies_costs_only_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "checker.py"
    script.write_text(textwrap.dedent(CHECKER))
    real = subprocess.Popen
    started: list[Any] = []

    def popen(command: Sequence[str], **options: Any) -> Any:
        started.append(real([sys.executable, str(script)], **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.setattr(tensor_sweep, "HANG_S", 1.0)
    monkeypatch.setattr(tensor_sweep, "START_S", 1.0)
    monkeypatch.setattr(tensor_bench, "compile_all", lambda cs: {c.name: COMPILED for c in cs})
    groups = (1, 2, 3, 5, 4, 6)
    found = tensor_sweep.check([Candidate(f"g{g}", RUNG, DEFAULT.with_(group=g)) for g in groups])
    assert found.pop("g2") == "row 1 is wrong"
    assert sorted(found) == ["g3", "g4"]
    assert all("no result" in reason for reason in found.values())
    assert len(started) == 3
    assert all(process.poll() is not None for process in started)
