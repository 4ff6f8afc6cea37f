"""``Matmul.tune``: a call's own candidates on arrays that lie as its own do; all but the clock in the emulator."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated_tune_child import bench, command
from fake_tune_child import command as fake
from matmul_cases import integers
from tune_cases import HERE

import tilewright as tw
from tilewright import BF16, FP16, FP32, Matmul, settings
from tilewright.backends.base import Backend
from tilewright.backends.emulator import EmulatorBackend
from tilewright.errors import UnavailableError, UsageError, VerifyError
from tilewright.library import hot, ready
from tilewright.library.calls import laid_out
from tilewright.library.choose import needs
from tilewright.library.prepared import C
from tilewright.library.trial import Calls, Trial
from tilewright.library.tuning import contest, tune_call
from tilewright.library.winners import named
from tilewright.library.workspaces import Workspaces
from tilewright.tune import lookup, session
from tilewright.tune.session import Contest
from tilewright.tune.store import Store


def forget() -> None:
    lookup.forget()
    ready.forget()
    hot.forget()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A database of this test alone, of a GPU that the child plays."""
    monkeypatch.setattr(settings, "WINNERS", tmp_path / "winners.sqlite3")
    for module in (session, lookup):
        monkeypatch.setattr(module, "here", lambda: HERE)
    forget()
    yield Store()
    forget()


def after(acc: Any, r: Any, s: Any) -> Any:
    return tw.gelu(acc) * s + r, tw.row_sum(acc), tw.col_absmax(acc)


def fused(**changed: Any) -> dict[str, Any]:
    a, b, r = integers(1, (40, 24), BF16), integers(2, (24, 48), BF16), integers(3, (40, 48), BF16)
    given = {"a": a, "b": b, "bias": r[0], "epilogue": after, "args": {"r": r, "s": 2.0}, "backend": "emulator"}
    return {**given, **changed}


def pair() -> dict[str, Any]:
    gate, up = integers(2, (72, 48), FP16), np.asfortranarray(integers(3, (72, 48), FP16))
    return {"a": integers(1, (40, 72), FP16), "b": (gate, up), "epilogue": tw.swiglu, "backend": "emulator"}


def batch(**changed: Any) -> dict[str, Any]:
    a, b = integers(1, (3, 40, 72), BF16), integers(2, (3, 72, 48), BF16)
    return {"a": a, "b": b, "backend": "emulator", **changed}


def strided() -> dict[str, Any]:
    """An A that runs backwards, a B off 16-byte lines, a column-major C that is read too, and fp32 results."""
    out = np.zeros((48, 40), np.float32).T
    a, b = integers(1, (40, 65), FP16)[::-1], integers(2, (65, 49), FP16)[:, :48]
    return {"a": a, "b": b, "c": out, "out": out, "alpha": 2, "beta": 0.5, "backend": "emulator"}


def precise() -> dict[str, Any]:
    a, b = integers(1, (40, 72), FP32), integers(2, (72, 48), FP32)
    return {"a": a, "b": b, "epilogue": lambda acc: (tw.relu(acc), tw.col_sum(acc)), "backend": "emulator"}


def contests(given: dict[str, Any], top: int = 3) -> list[Contest]:
    request, found = Matmul(**given).request, []
    for laid in laid_out(request):
        problem, kind, _ = named(laid.question)
        found.append(contest(laid, request.after, problem, kind, top))
    return found


@pytest.mark.parametrize("call", [fused, pair, batch, strided, precise])
def test_candidates_of_a_call_are_checked_on_arrays_that_lie_as_its_own(
    emulator: Backend, monkeypatch: pytest.MonkeyPatch, call: Any
) -> None:
    monkeypatch.setattr(Workspaces, "of", None)  # a new one cannot be filled while the stream is captured to be timed
    (contested,) = contests(call(), 2)
    work, place = contested.work, bench([10.0, 9.0])
    assert isinstance(work, Trial)
    assert Trial.decoded(work.encoded()) == work, "it goes through a pipe"
    place.pose(Trial.decoded(work.encoded()), [], 0)
    assert len(contested.entries) == 2
    for each in contested.entries:
        report = place.check(each.label, each.plan, lambda: None)
        assert report.ok
        assert report.max_error_over_bound <= 1
    assert isinstance(place.posed, Calls)
    for stage in (place.posed._exact, *place.posed.sets):
        for array, pointer in zip(work.arrays, [stage.pointers[each.role] for each in work.arrays], strict=True):
            assert pointer % 16 == array.offset
    names = [each.label for each in contested.entries]
    found = place.measure(names, replace(session.SHORT, rounds=8), lambda name: None)
    assert [found.rounds[0][name] for name in names] == [10.0, 9.0]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("nothing", "1,920 of 1,920 elements of out were not written, first row 0, column 0"),
        ("beside", "memory beside out was overwritten"),
        ("later", "out in a second run: 1 of 1,920 elements wrong, first row 0, column 1"),
        ("other", "out beside the first candidate: 1 of 1,920 elements wrong, first row 0, column 1"),
        ("first", "out beside NumPy: 1 of 768 elements wrong, first row 0, column 1"),
    ],
)
def test_a_wrong_candidate_of_a_call_is_told(
    emulator: Backend, monkeypatch: pytest.MonkeyPatch, wrong: str, said: str
) -> None:
    (contested,) = contests(fused())
    place, (right, other, _) = bench(), contested.entries
    assert isinstance(contested.work, Trial)
    place.pose(contested.work, [], 0)
    assert isinstance(place.posed, Calls)
    if wrong != "first":
        place.check("1", right.plan, lambda: None)
    out, real, count = place.posed._exact.pointers[C], EmulatorBackend.launch, 0

    def launch(self: EmulatorBackend, kernel: Any, *given: Any, **named: Any) -> None:
        nonlocal count
        gemm = "sum" not in kernel.name
        count += gemm
        if wrong == "nothing" and gemm:
            return
        real(self, kernel, *given, **named)
        at = {"beside": 40 * 48 * 2, "later": 2 if count == 2 else None}.get(wrong, 2)
        if gemm and at is not None:
            ctypes.memset(out + at, 0x41, 2)

    monkeypatch.setattr(EmulatorBackend, "launch", launch)
    with pytest.raises(VerifyError) as told:
        place.check("2", other.plan, lambda: None)
    assert str(told.value).startswith(said)


@pytest.mark.parametrize("call", [fused, pair])
def test_the_winner_of_a_call_is_kept_and_taken(
    emulator: Backend, monkeypatch: pytest.MonkeyPatch, store: Store, call: Any
) -> None:
    given = call()
    monkeypatch.setattr(session, "CHILD", command([12.0, 9.0, 11.0]))
    wanted = [each.plan for each in contests(given)[0].entries]
    before = tw.matmul(**given)
    held: Any = before if isinstance(before, tuple) else (before,)
    outs = tuple(np.full_like(each, 7) for each in held)
    with Matmul(**given, out=outs) as prepared:
        assert prepared.explain().source == "planned"
        assert prepared.tune(top=3) == wanted[1]
        assert all((each == 7).all() for each in outs), "the caller's arrays are not touched"
        assert prepared.explain().source == "tuned"
        prepared.execute()
    for found, kept in zip(outs, held, strict=True):
        np.testing.assert_allclose(found.astype(np.float32), kept.astype(np.float32), rtol=1e-5)
    (row,) = store.rows()
    assert (row.winner, [each.verdict for each in row.tried]) == (1, ["timed"] * 3)
    assert tw.explain(**given).plan == wanted[1].to_dict()
    tw.matmul(**given)
    monkeypatch.setattr(session, "CHILD", ["nobody starts this"])
    assert Matmul(**given).tune(top=3) == wanted[1], "it is known"
    assert tw.explain(**fused(epilogue=lambda acc, r, s: acc + r * s)).source == "planned", "another kind"
    first = given["b"][0] if isinstance(given["b"], tuple) else given["b"]
    assert tw.explain(given["a"], first, backend="emulator").source == "planned", "without what follows it"


def test_a_winner_that_cannot_compute_the_call_is_left_with_a_warning(store: Store) -> None:
    given = batch()
    row = tune_call(Matmul(**given).request, 1, 60.0, False, command=command([9.0]))[0]
    plan = tw.plan(40, 48, 72, dtype="bf16").pick.plan
    assert plan is not None
    assert not plan.takes_batch
    store.put([replace(row, tried=(replace(row.tried[0], plan=plan.to_dict()),))])
    forget()
    with pytest.warns(
        UserWarning, match=r"the tuned plan for 40x48x72 .* is not used: plan is of .* computes no batch"
    ):
        assert tw.explain(**given).source != "tuned"


def test_candidates_that_computed_wrong_results_are_warned_of(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    request = Matmul(**fused()).request
    wrong = {"check": "wrong"}
    with pytest.warns(UserWarning, match="is left out, as it computes wrong results: 2 of 100 elements wrong"):
        tune_call(request, 2, 20.0, False, command=fake({"2": wrong}))
    with pytest.warns(UserWarning, match="is left out"), pytest.raises(UsageError, match="no candidate could be timed"):
        tune_call(request, 2, 20.0, True, command=fake({"1": wrong, "2": wrong}))


def test_calls_have_names_of_their_own() -> None:
    def name(**given: Any) -> str:
        (laid,) = laid_out(Matmul(**given).request)
        return ": ".join(named(laid.question)[1:])

    a, b = integers(1, (40, 72), FP16), integers(2, (72, 48), FP16)
    assert name(a=a, b=b, backend="emulator") == "none: abc"
    assert name(a=a[::-1], b=b, backend="emulator") == "none: abc", "what must be packed is packed for every candidate"
    odd = integers(1, (40, 73), FP16)[:, :72]
    assert name(a=odd, b=b, backend="emulator") == "none, a packed or not: bc"
    assert name(**batch()) == "none, batch 3 (a 1, b 1): abc"
    assert name(**pair()).endswith(", pair with b[1] column: abc")
    assert name(**batch(b=integers(2, (72, 48), BF16))) == "none: abc", "one product"
    both = contests({"a": odd, "b": b, "backend": "emulator"}, 4)[0]
    assert isinstance(both.work, Trial)
    assert len(both.entries) == 4
    assert both.entries[0].predicted_us <= both.entries[-1].predicted_us
    precise = {name: value.astype(np.float32) for name, value in (("a", odd), ("b", b))}
    (found,) = contests({"a": precise["a"][:, :65], "b": precise["b"][:65, 1:], "backend": "emulator"}, 4)
    assert len({each.plan for each in found.entries}) == len(found.entries), "a plan that packs nothing is there once"


def test_a_winner_may_need_a_copy_that_only_some_candidates_make(store: Store) -> None:
    a, b = integers(1, (40, 65), FP16)[:, :64], integers(2, (64, 48), FP16)
    odd: dict[str, Any] = {"a": a, "b": b, "backend": "emulator"}
    entries = contests(odd, 4)[0].entries
    packing = next(rank for rank, each in enumerate(entries, 1) if "a" in needs(each.plan))
    tune_call(Matmul(**odd).request, 4, 20.0, False, command=fake({str(packing): {"us": 5.0}}))
    told = tw.explain(**odd)
    assert (told.source, told.plan) == ("tuned", entries[packing - 1].plan.to_dict())
    assert [each.what for each in told.copied] == ["a, packed"]


def test_every_kind_of_turn_is_tuned(store: Store) -> None:
    a = integers(1, (2, 3, 2, 3, 8, 16), BF16)[:, :, :, ::2]
    b = integers(2, (2, 3, 1, 2, 16, 24), BF16)
    call = Matmul(np.swapaxes(a, 1, 2), np.swapaxes(b, 1, 2), backend="emulator")
    kinds = {laid.question for laid in laid_out(call.request)}
    rows = tune_call(call.request, 1, 60.0, False, command=command([9.0] * 9))
    assert 1 <= len(rows) <= len(kinds)
    assert call.explain().source == "tuned"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"plan": tw.plan(40, 48, 72).pick.plan}, "plan is what would be found"),
        ({"sms": 64}, "sms leaves SMs to others"),
        ({"batch_invariant": True}, "batch_invariant has one plan for every number of rows"),
    ],
)
def test_what_cannot_be_tuned(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Matmul(**fused(**options)).tune()
    nothing = Matmul(integers(1, (0, 72), BF16), integers(2, (72, 48), BF16), backend="emulator")
    with pytest.raises(UsageError, match="the result has no elements"):
        nothing.tune()
    with pytest.raises(UsageError, match="top is 0"):
        Matmul(**fused()).tune(top=0)


def test_tune_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Any:
        raise UnavailableError("tune measures on a GPU, and there is none")

    monkeypatch.setattr(session, "here", nowhere)
    with pytest.raises(UnavailableError, match="tune measures on a GPU"):
        Matmul(**fused()).tune()


@pytest.mark.cuda
@pytest.mark.parametrize("call", [fused, pair, batch, strided, precise])
def test_a_call_is_tuned_on_a_gpu(cuda: Backend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, call: Any) -> None:
    monkeypatch.setattr(settings, "WINNERS", tmp_path / "winners.sqlite3")
    forget()
    given = {name: value for name, value in call().items() if name != "backend"}
    before = tw.matmul(**{**given, "out": None})
    with Matmul(**given) as prepared:
        prepared.tune(top=3)
        (row,) = Store().rows()
        assert [each.verdict for each in row.tried] == ["timed"] * 3, [each.reason for each in row.tried]
        assert row.best is not None
        assert prepared.explain().source == "tuned"
        found = prepared.execute()
    for one, other in zip(*(each if isinstance(each, tuple) else (each,) for each in (found, before)), strict=True):
        np.testing.assert_allclose(one.astype(np.float32), other.astype(np.float32), rtol=1e-4)
    forget()
