"""``tilewright tune``: what it prints at 80 and 120 columns, its JSON, its exit codes, the table to and fro."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_runner import run, squeezed
from fake_tune_child import command
from tune_cases import H200, HERE, posed, row
from typer.testing import CliRunner, Result

from tilewright.cli.app import app
from tilewright.errors import UnavailableError
from tilewright.tune import forget, key, session
from tilewright.tune.key import What
from tilewright.tune.store import Store

RC = ("--layout", "rc")


@pytest.fixture(autouse=True)
def _fresh() -> None:
    forget()
    key.here.cache_clear()


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "winners.sqlite3"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], None]:
    """A GPU whose candidates do as they are told."""
    monkeypatch.setattr(session, "here", lambda: HERE)
    monkeypatch.setattr(session, "query_gpu", lambda: H200)

    def does(what: dict[str, Any]) -> None:
        monkeypatch.setattr(session, "CHILD", command(what))

    does({"1": {"us": 12.0}, "2": {"us": 10.0}})
    return does


def document(*arguments: str, code: int = 0) -> dict[str, Any]:
    done = run("tune", *arguments, "--json")
    assert done.exit_code == code, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def wide(columns: int, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["tune", *arguments], env={"COLUMNS": str(columns)})


@pytest.mark.parametrize("columns", [80, 120])
def test_what_is_shown_fits_the_terminal_and_no_cell_is_cut(gpu: Any, db: Path, columns: int) -> None:
    gpu({"1": {"us": 1812.25}, "2": {"us": 1790.5}, "3": {"check": "launch"}, "4": {"us": 1999.0}})
    store = Store(db)
    long = posed(128256, 128256, 128256, a_layout="column", lda=128257)
    store.put([row(long, us=1234567.8, origin="imported"), replace(row(), where=replace(HERE, gpu="NVIDIA B200"))])
    shape = "8192x8192x8192"
    done = [wide(columns, shape, *RC, "--db", str(db)), wide(columns, "--list", "--db", str(db))]
    for each in done:
        assert each.exit_code == 0, each.output
        lines = each.stdout.splitlines()
        assert max(map(len, lines)) <= columns
        assert "…" not in each.stdout
    first, listed = done
    kept = next(found for found in store.rows() if found.what.m == 8192)
    assert kept.best is not None
    for said in (f"{kept.best.label} ({kept.best.family})", "1,790.50", "1.012x", "0.5%", HERE.gpu, HERE.kernels):
        assert squeezed(said) in squeezed(first.stdout)
    assert f"crashed: 8192x8192x8192 bf16 rc, {kept.tried[2].label}" in " ".join(first.stdout.split())
    assert "1 measured, 0 known before" in first.stderr
    for said in ("128256x128256x128256 bf16 cc", "1,234,567.80", "(imported)"):
        assert said in listed.stdout
    unknown = listed.stdout.index("a GPU that tilewright does not know")
    assert listed.stdout.index("NVIDIA H200") < listed.stdout.index("NVIDIA B200") < unknown
    assert "3 shapes in" in listed.stderr


def test_json_has_every_candidate_and_what_was_known(gpu: Any, db: Path) -> None:
    first = document("64x512x256", *RC, "--db", str(db), "--top", "3")
    assert (first["schema"], first["db"], first["known"], first["errors"]) == (
        "tilewright.tune/1",
        str(db),
        [False],
        [],
    )
    (found,) = first["rows"]
    assert (found["winner"], len(found["tried"]), found["where"]["sms"]) == (1, 3, 132)
    assert found["what"] == {
        "m": 64, "n": 512, "k": 256, "dtype": "bf16", "layout": "rc", "epilogue": "none", "alignment": "abc"
    }  # fmt: skip
    again = document("64,512,256", "128x512x256", *RC, "--db", str(db))
    assert again["known"] == [True, False]
    assert again["rows"][0] == found
    assert document("64x512x256", *RC, "--again", "--db", str(db))["known"] == [False]


def test_a_wrong_candidate_ends_with_1_and_is_named(gpu: Any, db: Path) -> None:
    gpu({"1": {"check": "wrong"}, "2": {"us": 10.0}})
    done = run("tune", "64x512x256", *RC, "--db", str(db))
    assert done.exit_code == 1
    (kept,) = Store(db).rows()
    assert kept.winner == 1
    assert f"64x512x256 bf16 rc: {kept.tried[0].label} computes wrong results: 2 of 100 elements" in done.stderr
    assert "wrong: 64x512x256" in done.stdout
    assert document("64x512x256", *RC, "--db", str(db), code=1)["known"] == [True]


def test_a_shape_that_fails_ends_with_1_and_the_others_are_there(gpu: Any, db: Path) -> None:
    done = run("tune", "64x0x256", "64x512x256", *RC, "--db", str(db))
    assert done.exit_code == 1
    assert "64x0x256 bf16, B column-major: no kernel computes" in done.stderr
    assert len(Store(db).rows()) == 1


def test_without_a_gpu_only_measuring_fails(monkeypatch: pytest.MonkeyPatch, db: Path, tmp_path: Path) -> None:
    monkeypatch.setattr(key, "cuda_unavailable_reason", lambda: "no driver is installed here")
    done = run("tune", "64x512x256", "--db", str(db))
    assert done.exit_code == UnavailableError.exit_code == 3
    assert "tune measures on a GPU, and there is none to use here: no driver is installed here" in done.stderr
    assert not done.stdout
    assert not db.exists()
    table = tmp_path / "table.json"
    for arguments in (("--list",), ("--export", str(table)), ("--import", str(table)), ("--forget", "all")):
        assert run("tune", *arguments, "--db", str(db)).exit_code == 0


def test_a_table_goes_to_another_machine(db: Path, tmp_path: Path) -> None:
    table, there = tmp_path / "table.json", tmp_path / "there.sqlite3"
    foreign = replace(row(), where=replace(HERE, gpu="NVIDIA B200", sms=148))
    Store(db).put([row(), foreign])
    assert document("--export", str(table), "--db", str(db))["exported"] == 2
    own = replace(row(), rounds=21)
    Store(there).put([own])
    found = document("--import", str(table), "--db", str(there))
    assert (found["imported"], found["of"], found["unknown_gpus"]) == (1, 2, ["NVIDIA B200"])
    assert Store(there).rows() == [replace(foreign, origin="imported"), own]
    done = run("tune", "--import", str(table), "--overwrite", "--db", str(there))
    assert done.exit_code == 0
    assert "2 of 2 winners imported; those of NVIDIA B200, which tilewright does not know" in " ".join(
        done.stderr.split()
    )
    assert {found.origin for found in Store(there).rows()} == {"imported"}
    assert [found["origin"] for found in document("--list", "--db", str(there))["rows"]] == ["imported"] * 2


def test_forget_takes_shapes_of_a_dtype_and_layout(db: Path) -> None:
    Store(db).put([row(), row(posed(m=128))])
    assert document("--forget", "64x512x256", "--db", str(db))["forgotten"] == 0, "these are row-row"
    assert document("--forget", "64x512x256", *RC, "--db", str(db))["forgotten"] == 1
    assert [found.what for found in Store(db).rows()] == [What.of(posed(m=128))]
    assert document("--forget", "all", "--db", str(db))["forgotten"] == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "SHAPES are missing: a shape is M, N and K as 4096x4096x4096"),
        (("64x64",), "'64x64' is no shape"),
        (("64x64x64", "--top", "0"), "--top is 0; at least 1 candidate is measured"),
        (("--list", "--export", "it"), "--list and --export are different things to do"),
        (("64x64x64", "--list"), "--list is about all winners"),
        (("--forget",), "--forget needs SHAPES, or the word all"),
        (("64x64x64", "--overwrite"), "--overwrite says what --import does"),
        (("--import", "none.json"), "none.json cannot be read"),
        (("64x64x64", "--db", "none/it.sqlite3"), "--db none/it.sqlite3 cannot be written: there is no folder"),
    ],
)
def test_mistakes_are_one_sentence_and_end_with_2(arguments: tuple[str, ...], said: str) -> None:
    done = run("tune", *arguments)
    assert done.exit_code == 2, done.output
    assert said in " ".join(done.stderr.split())


def test_the_winners_are_no_compiled_kernels(empty_cache: Path) -> None:
    Store().put([row()])
    assert run("cache", "clear").exit_code == 0
    assert Store().rows() == [row()]
