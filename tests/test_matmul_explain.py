"""What ``matmul`` refuses, what ``explain`` says, and what ``tune`` changes; little is run here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from matmul_cases import integers

import tilewright
from tilewright import BF16, FP16, Matmul, UsageError, explain, matmul
from tilewright.library import answers, calls, ready, winners
from tilewright.library.request import Options, request_of
from tilewright.tune import lookup


@pytest.mark.parametrize(("ratio", "tie"), [(0.9995, True), (1.0, True), (1.0004, False)])
def test_explain_says_that_a_runner_up_is_as_fast(monkeypatch: pytest.MonkeyPatch, ratio: float, tie: bool) -> None:
    """The planner ranks in steps of a thousandth, and within one by the order of its families."""

    def answer(*given: Any, **named: Any) -> Any:
        choice = answers.answer(*given, **named)
        return replace(choice, runner_up=("another", choice.us * ratio))

    monkeypatch.setattr(calls, "answer", answer)
    a = integers(1, (16, 16), BF16)
    why = explain(a, a, backend="emulator").why[0]
    assert why.startswith("the planner predicts the shortest time for it")
    assert ("within a thousandth: the runner-up's is as short" in why) == tie


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "tpu"}, "backend 'tpu' is not one of"),
        ({"sms": 0}, "sms is 0; H200 SXM has 1 to 132"),
        ({"plan": "fast"}, "plan is a str; it must be a Plan"),
        ({"deterministic": 1}, "deterministic is 1; it must be True or False"),
        ({"out_dtype": "fp64"}, "out_dtype is 'fp64'; it can be fp32, bf16, fp16"),
    ],
)
def test_arguments_that_are_refused(options: dict[str, Any], message: str) -> None:
    a = integers(1, (16, 16), BF16)
    with pytest.raises(UsageError, match=message):
        matmul(a, a, **{"backend": "emulator", **options})


def test_operands_of_two_types() -> None:
    with pytest.raises(UsageError, match="a is bf16 and b is fp16; both operands can be bf16"):
        matmul(integers(1, (8, 8), BF16), integers(1, (8, 8), FP16), backend="emulator")


def test_what_explain_tells() -> None:
    a, b = integers(1, (40, 32), BF16), integers(2, (32, 24), BF16)
    told = explain(a, b, backend="emulator")
    pick = tilewright.plan(40, 24, 32).pick
    assert pick.predicted_us is not None
    assert told.label == pick.label
    assert told.predicted_us == pick.predicted_us.sustained
    assert told.runner_up is not None
    assert told.predicted_us is not None
    assert told.runner_up[1] >= told.predicted_us
    assert not told.copied
    assert not told.transposed
    assert "copied     nothing" in str(told)
    values = told.to_dict()
    assert values["schema"] == "tilewright.explain/1"
    assert values["runner_up"]["label"] == told.runner_up[0]
    out = np.zeros((24, 40), BF16.numpy).T
    told = explain(a, b, out=out, backend="emulator")
    assert told.transposed
    assert (told.m, told.n) == (24, 40)
    assert "its transpose is computed" in str(told)


def test_explain_of_what_tma_cannot_describe() -> None:
    a, b = integers(1, (40, 33), BF16)[:, :32], integers(2, (32, 24), BF16)
    told = explain(a, b, backend="emulator")
    assert any("the rows of a are 66 bytes apart" in line for line in (*told.path, *(c.why for c in told.copied)))
    told = explain(a[::-1], b, backend="emulator")
    assert [(each.what, each.bytes_moved) for each in told.copied] == [("a, packed", 2 * 40 * 32 * 2)]
    assert "the rows of a run backwards" in told.copied[0].why
    assert "A from a packed copy" in told.path
    turned = explain(a[::-1], b, out=np.zeros((24, 40), BF16.numpy).T, backend="emulator")
    assert [each.what for each in turned.copied] == ["a, packed"]
    assert "B from a packed copy" in turned.path


def test_explain_raises_as_the_call_does() -> None:
    a, b = integers(1, (40, 32), BF16), integers(2, (32, 24), BF16)
    for options in ({"out": a.ravel()[:960].reshape(40, 24)}, {"out": a[:, :24], "c": a[:, 1:25], "beta": 1}):
        for call in (matmul, explain):
            with pytest.raises(UsageError, match="out shares memory with a"):
                call(a, b, backend="emulator", **options)


def test_explain_counts_packed_copies_into_the_workspace() -> None:
    a, b = integers(1, (40, 32), BF16)[::-1], integers(2, (32, 24), BF16)
    with Matmul(a, b, backend="emulator") as prepared:
        told = prepared.explain()
        prepared.execute()
    (held,) = ready.place_of(prepared_request(a, b)).workspaces._held.values()
    assert 40 * 32 * 2 < told.workspace_bytes <= held.nbytes
    assert f"{told.workspace_bytes:,} bytes, kept for the stream" in str(told)


def prepared_request(a: Any, b: Any) -> Any:
    return request_of(a, b, None, None, Options(backend="emulator"))


def test_explain_has_every_array_that_is_copied_to_a_gpu() -> None:
    a, b, bias = integers(1, (3, 40, 32), BF16), integers(2, (32, 24), BF16), integers(3, (24,), BF16)
    x = np.broadcast_to(integers(4, (40, 24), BF16), (3, 40, 24))
    told = explain(a, b, bias=bias, epilogue=lambda acc, x: (acc + x, acc), args={"x": x}, out_dtype=("bf16", "fp32"))
    copied = {each.what: each.bytes_moved for each in told.copied}
    wanted = {"a": 3 * 40 * 32 * 2, "b": 32 * 24 * 2, "bias": 24 * 2, "x": 40 * 24 * 2}
    assert copied == {**wanted, "out[0]": 3 * 40 * 24 * 2, "out[1]": 3 * 40 * 24 * 4}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": "x"}, "alpha is a str; it must be a number"),
        ({"beta": 1}, "beta is 1.0 and c is None"),
        ({"beta": 0, "c": np.zeros((3, 16), np.float16)}, r"c has shape \(3, 16\), which does not fit C, 24x16"),
        ({"bias": np.zeros(7, np.float16)}, r"bias has shape \(7,\)"),
        ({"bias": np.zeros(16, np.float64)}, "bias has dtype float64; bias can be fp32, bf16, fp16: others, masks of"),
        ({"args": {"x": 1}}, "args has x and epilogue is None"),
        ({"epilogue": tilewright.relu, "args": [1]}, "args is a list; it must map names"),
        ({"epilogue": lambda acc, v: acc, "args": {"v": [1.0]}}, r"args\['v'\] is a list"),
        ({"epilogue": lambda acc: acc.sum()}, "sum"),
    ],
)
def test_what_cannot_follow_a_product(options: dict[str, Any], message: str) -> None:
    a, b = integers(1, (24, 40), FP16), integers(2, (40, 16), FP16)
    with pytest.raises(UsageError, match=message):
        matmul(a, b, backend="emulator", **options)


def test_a_tuned_plan_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = integers(1, (24, 40), BF16)[::-1], integers(2, (40, 16), BF16)
    plan = tilewright.plan(24, 16, 40).ranked[3].plan
    asked: list[Any] = []

    def winner(problem: tilewright.Problem, **more: Any) -> Any:
        asked.append((problem.m, problem.n, problem.k, more["alignment"]))
        return plan

    monkeypatch.setattr(winners, "_any_winners", lambda: True)
    monkeypatch.setattr(lookup, "measured", lambda problem, **more: True)
    monkeypatch.setattr(lookup, "winner", winner)
    told = explain(a, b, backend="emulator")
    assert asked == [(24, 16, 40, "abc")]
    assert told.source == "tuned"
    assert told.plan == plan.to_dict()  # type: ignore[union-attr]
    assert "a, packed" in [each.what for each in told.copied]


@pytest.mark.parametrize("k", [512, 516, 1001])
@pytest.mark.parametrize("n", [1, 256, 257])
def test_the_invariant_plan_is_one_however_rows_lie(k: int, n: int) -> None:
    x, whole = integers(1, (40, k), BF16), integers(2, (k, 264), BF16)
    b = whole[:, :n]  # its rows lie on 16-byte boundaries

    def plan(a: Any, **out: Any) -> Any:
        return explain(a, b, batch_invariant=True, backend="emulator", **out).plan

    column = np.asfortranarray(x)
    for rows in (x[:1], x[1:2], x[8:9], x[3:20], column, column[3:4], x[0], np.zeros((40, k + 8), x.dtype)[:, 8:]):
        assert plan(rows) == plan(x)
    told = explain(x, b, batch_invariant=True, backend="emulator")
    assert [each.what for each in told.copied] == ([] if k == 512 else ["a, packed"])


def test_a_dependent_launch_does_not_read_what_is_being_packed() -> None:
    a, b = integers(1, (8, 512), BF16), integers(2, (512, 256), BF16)
    pick = tilewright.plan(8, 256, 512, pdl=True).pick.plan
    assert pick is not None
    assert pick.dependent
    for right, kept in ((b, True), (b[::-1], False)):
        told = explain(a, right, plan=pick, backend="emulator")
        assert told.plan is not None
        assert told.plan["dependent_launch"] is kept
        assert [each.what for each in told.copied] == ([] if kept else ["b, packed"])


def test_what_batch_invariance_costs() -> None:
    a, b = integers(1, (3, 512), BF16), integers(2, (512, 256), BF16)
    told, free = explain(a, b, batch_invariant=True, backend="emulator"), explain(a, b, backend="emulator")
    assert told.source == "invariant"
    assert told.runner_up == (free.label, free.predicted_us)
    assert told.predicted_us is not None
    assert told.predicted_us >= told.runner_up[1]
    out = np.zeros((256, 3), BF16.numpy).T
    turned = explain(a, b, out=out, batch_invariant=True, backend="emulator")
    assert turned.transposed
    assert turned.source == "invariant"
    with pytest.raises(UsageError, match="plan is given and batch_invariant is True"):
        explain(a, b, plan=tilewright.plan(3, 256, 512).pick.plan, batch_invariant=True, backend="emulator")
