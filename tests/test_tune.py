"""Tuning from shapes to rows, with a child process whose candidates hang, crash and err as they are told."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_tune_child import command
from tune_cases import H200, HERE, posed

import tilewright
from tilewright.errors import UsageError
from tilewright.plan_base import Plan
from tilewright.problem import Problem
from tilewright.tune import forget, winner
from tilewright.tune.key import What
from tilewright.tune.measurer import Measurer
from tilewright.tune.rows import Row
from tilewright.tune.session import HOT, SHORT, Tuned, schedule_of, time_left, tune
from tilewright.tune.shapes import problems_of
from tilewright.tune.store import Store

SHAPE = posed()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    forget()
    return Store(tmp_path / "winners.sqlite3")


def run(store: Store, does: dict[str, Any], problems: Sequence[Problem] = (SHAPE,), **options: Any) -> Tuned[Problem]:
    told: list[tuple[float, int, str]] = []
    given = {"where": HERE, "gpu": H200, "limit_s": 20.0, "command": command(does), **options}
    found = tune(problems, store, lambda *each: told.append(each), **given)
    shares = [share for share, _, _ in told]
    assert shares == sorted(shares)
    return found


def verdicts(row: Row) -> list[str]:
    return [each.verdict for each in row.tried]


def test_the_fastest_of_the_planners_first_is_kept_and_found(store: Store) -> None:
    found = run(store, {"1": {"us": 12.0, "noise": 0.001}, "3": {"us": 9.0, "noise": 0.001}})
    row = found.rows[SHAPE]
    ranked = tilewright.plan(problem=SHAPE, gpu=H200).ranked
    assert found.ok
    assert [each.label for each in row.tried] == [each.label for each in ranked[:4]]
    assert verdicts(row) == ["timed"] * 4
    assert row.winner == 2
    assert row.decided
    assert row.best is not None
    assert row.best.time_us is not None
    assert row.best.time_us["median"] == pytest.approx(9, rel=0.01)
    assert row.best.error_over_bound == 0.25
    assert "L2-cold" in row.method
    assert store.rows() == [row]
    assert winner(SHAPE, HERE, db=store.path) == ranked[2].plan


@pytest.mark.parametrize(
    ("does", "verdict", "reason"),
    [
        ({"check": "wrong"}, "wrong", "2 of 100 elements wrong, first row 3, column 4: got 0, want 1 within 0.1"),
        ({"check": "segv"}, "crashed", "its process was ended by signal 11"),
        ({"check": "launch"}, "crashed", "a kernel read or wrote an address that is not its own"),
        ({"check": "compile"}, "refused", "it does not compile"),
        ({"us": 1.0, "slot": "segv", "at": 9}, "crashed", "its process was ended by signal 11"),
        ({"us": 1.0, "slot": "launch", "at": 9}, "crashed", "a kernel read or wrote an address that is not its own"),
        ({"us": 1.0, "slot": "launch"}, "crashed", "a kernel read or wrote an address that is not its own"),
    ],
)
def test_a_candidate_that_fails_costs_itself_alone(
    store: Store, does: dict[str, Any], verdict: str, reason: str
) -> None:
    found = run(store, {"1": {"us": 11.0}, "2": does, "3": {"us": 9.0}, "4": {"us": 10.0}})
    row = found.rows[SHAPE]
    assert verdicts(row) == ["timed", verdict, "timed", "timed"]
    assert row.tried[1].reason == reason
    assert row.tried[1].time_us is None
    assert row.winner == 2, "though what failed claims to be faster"
    assert found.ok == (verdict != "wrong")
    assert not found.errors


@pytest.mark.parametrize("hang", [{"check": "hang"}, {"us": 1.0, "slot": "hang", "at": 6}])
def test_a_candidate_that_hangs_is_ended_and_the_others_go_on(store: Store, hang: dict[str, Any]) -> None:
    begin = time.monotonic()
    found = run(store, {"1": hang, "2": {"us": 9.0}, "3": {"us": 10.0}}, top=3, limit_s=1.0)
    row = found.rows[SHAPE]
    assert verdicts(row) == ["hung", "timed", "timed"]
    assert row.tried[0].reason == "it did not end within 1 s"
    assert row.winner == 1
    assert time.monotonic() - begin < 30


def test_the_time_of_the_reference_is_no_fault_of_the_candidates(store: Store) -> None:
    found = run(store, {"1": {"us": 10.0, "reference_s": 1.0}}, top=1, limit_s=0.6)
    assert verdicts(found.rows[SHAPE]) == ["timed"]


def test_where_all_fail_there_is_no_winner_and_the_next_run_tries_again(store: Store) -> None:
    found = run(store, {str(rank): {"check": "wrong"} for rank in range(1, 5)})
    row = found.rows[SHAPE]
    assert (row.winner, row.best, row.rounds, found.ok) == (None, None, 0, False)
    assert len(row.wrong) == 4
    assert winner(SHAPE, HERE, db=store.path) is None
    assert run(store, {}).rows[SHAPE].best is not None
    assert winner(SHAPE, HERE, db=store.path) is not None


def test_shapes_that_have_a_winner_are_not_measured_again(store: Store, tmp_path: Path) -> None:
    log = tmp_path / "log"
    one, other = SHAPE, posed(m=128)
    run(store, {"log": str(log)}, [one], top=2)
    found = run(store, {"log": str(log), "1": {"us": 20.0}}, [one, other, one], top=2)
    assert log.read_text().splitlines() == ["64x512x256 2", "128x512x256 2"]
    assert found.known == {one}
    assert list(found.rows) == [one, other]
    assert [row.winner for row in found.rows.values()] == [0, 1]
    again = run(store, {"log": str(log), "1": {"us": 20.0}}, [one], top=2, again=True)
    assert again.known == set()
    assert again.rows[one].winner == 1
    assert store.rows(HERE) == [again.rows[one], found.rows[other]]
    assert len(log.read_text().splitlines()) == 3


def test_a_wrong_candidate_is_told_of_again_when_the_shape_is_known(store: Store) -> None:
    assert not run(store, {"4": {"check": "wrong"}}).ok
    found = run(store, {})
    assert found.known == {SHAPE}
    assert not found.ok


def test_what_goes_wrong_with_one_shape_leaves_the_others(store: Store) -> None:
    odd = posed(m=0)
    found = run(store, {}, [odd, SHAPE])
    assert list(found.rows) == [SHAPE]
    assert "C has no elements" in found.errors[odd]
    assert not found.ok
    lost = run(store, {"pose": "segv"}, [posed(m=96)])
    assert lost.errors == {
        posed(m=96): f"{posed(m=96)} could not be made ready to measure: its process was ended by signal 11"
    }
    refused = run(store, {"pose": "launch"}, [posed(m=96)])
    assert "could not be made ready to measure: a kernel read or wrote" in refused.errors[posed(m=96)]


def test_a_child_that_cannot_begin_says_why(store: Store, tmp_path: Path) -> None:
    script = tmp_path / "child.py"
    script.write_text("raise SystemExit('there is no GPU any more')")
    import sys

    found = run(store, {}, command=[sys.executable, str(script)])
    assert "it ended with 1: there is no GPU any more" in found.errors[SHAPE]


def test_a_database_that_cannot_be_written_is_told_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "folder.sqlite3").mkdir()
    with pytest.raises(UsageError, match="cannot be written"):
        run(Store(tmp_path / "folder.sqlite3"), {"log": str(tmp_path / "log")})
    assert not (tmp_path / "log").exists()


def test_no_process_is_left(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Measurer] = []

    class Kept(Measurer):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(self)

    monkeypatch.setattr("tilewright.tune.session.Measurer", Kept)
    run(store, {}, top=1)
    (kept,) = made
    assert kept._child is None


def test_long_slots_are_for_what_the_power_limit_holds_back() -> None:
    assert schedule_of(tilewright.plan(8, 4096, 4096, layout="rc", gpu="h200")) == SHORT
    assert schedule_of(tilewright.plan(8192, 8192, 8192, layout="rc", gpu="h200")) == HOT


def test_time_left() -> None:
    assert time_left(5.0, 0.05, 10) == ""
    assert time_left(20.0, 2.0, 10) == "about 80 s left, "
    assert time_left(100.0, 1.0, 11) == "about 17 min left, "
    assert time_left(3600.0, 1.0, 3) == "about 2.0 h left, "


# ---- shapes ----------------------------------------------------------------------------------------------------------

RC = ("row", "column")


def shapes(*words: str) -> list[Problem]:
    return problems_of(words, "fp16", ("row", "column"))


def test_shapes_as_words_and_in_files(tmp_path: Path) -> None:
    lines, listed, named = tmp_path / "lines.txt", tmp_path / "list.json", tmp_path / "named.json"
    lines.write_text("# mine\n8x64x128\n\n16, 64, 128  # and this\n8x64x128\n")
    listed.write_text('[[1, 2, 3], "4x5x6", {"m": 7, "n": 8, "k": 9, "dtype": "fp32", "b_layout": "row"}]')
    named.write_text('{"decode": [[1, 64, 128]], "small": ["128x64X128"]}')
    expected = [Problem(8, 64, 128, "fp16", None, *RC), Problem(16, 64, 128, "fp16", None, *RC)]  # type: ignore[arg-type]
    assert shapes("8x64x128", "16,64,128") == shapes(str(lines)) == expected
    assert shapes(str(listed))[2] == Problem(7, 8, 9, "fp32")
    assert [(each.m, each.n, each.k) for each in shapes(str(named), "2x3x4")] == [
        (1, 64, 128),
        (128, 64, 128),
        (2, 3, 4),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("8x64\n", "it.txt:1 is '8x64'; a shape is M, N and K as 4096x4096x4096"),
        ('[[1, 2]]', "it.txt, shape 1 is [1, 2]; a shape is M, N and K"),
        ('[[1, 2, -3]]', "it.txt, shape 1: k is -3"),
        ('{"a": 3}', "it.txt, a is 3; a list of shapes is possible"),
        ('[[1, 2', "it.txt is no JSON"),
        ('{"a":' * 50_000, "it.txt is no JSON"),
        (f"[[{'1' * 6000}, 2, 3]]", "it.txt is no JSON"),
        ('[{"m": 1, "n": 2, "k": 3, "x": 4}]', "shape 1: problem field 'x' is not one of"),
    ],
)  # fmt: skip
def test_what_is_no_shape_is_told_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "it.txt").write_text(text)
    with pytest.raises(UsageError) as caught:
        shapes(str(tmp_path / "it.txt"))
    assert said in str(caught.value)


def test_a_word_that_is_neither_shape_nor_file() -> None:
    with pytest.raises(UsageError, match=r"'8xx8' is no shape, and as a file it cannot be read \(No such file"):
        shapes("8xx8")


# ---- the lookup ------------------------------------------------------------------------------------------------------


def test_an_answer_from_memory_is_quick(store: Store) -> None:
    run(store, {}, top=1)
    assert winner(SHAPE, HERE, db=store.path) is not None
    begin = time.perf_counter()
    for _ in range(1000):
        winner(SHAPE, HERE, db=store.path)
    assert time.perf_counter() - begin < 0.05 * 3, "50 us each, on a machine that may be three times as slow"


def test_a_plan_that_does_not_fit_its_key_is_not_used(store: Store) -> None:
    run(store, {}, top=1)
    (row,) = store.rows()
    other = Problem(64, 512, 256, "bf16", None, "row", "row")
    from dataclasses import replace

    store.put([replace(row, what=What.of(other))])
    with pytest.warns(UserWarning, match="is not used: it is for bf16, A row- and B column-major"):
        assert winner(other, HERE, db=store.path) is None
    assert isinstance(winner(SHAPE, HERE, db=store.path), Plan)
