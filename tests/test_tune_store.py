"""The database of winners, in the places where it goes wrong; and the table that is shipped."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import warnings
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from tune_cases import HERE, posed, row

from tilewright import settings
from tilewright.errors import UsageError
from tilewright.problem import Problem
from tilewright.tune import forget, store, winner
from tilewright.tune.key import What, Where, key_of, key_values
from tilewright.tune.rows import Row, read_table, table, write_table
from tilewright.tune.store import Store, on_network


@pytest.fixture(autouse=True)
def _fresh() -> None:
    forget()
    store._warned.clear()
    settings._usable.clear()
    settings._instead.clear()


@pytest.fixture
def db(tmp_path: Path) -> Store:
    return Store(tmp_path / "a folder of ours" / "winners.sqlite3")


def best(found: Row) -> dict[str, Any]:
    assert found.best is not None
    return dict(found.best.plan)


def test_rows_come_back_as_they_were(db: Store) -> None:
    rows = [row(), row(posed(m=128)), row(posed(m=256), winner=None)]
    db.put(rows)
    assert db.rows() == rows
    assert db.rows(HERE) == rows
    assert db.rows(replace(HERE, driver="1")) == []
    later = replace(rows[0], date="2026-12-01T00:00:00Z", rounds=20)
    db.put([later])
    assert db.rows() == [later, *rows[1:]]
    assert db.forget([rows[0].what, What.of(posed(m=4))]) == 1
    assert db.rows() == rows[1:]
    assert db.forget(None) == 2
    assert db.rows() == []


def test_nothing_is_made_by_looking(db: Store) -> None:
    assert db.rows() == []
    assert db.forget(None) == 0
    assert not db.path.parent.exists()


def test_keys_are_values_in_a_row() -> None:
    key = row().key
    assert key_of(key_values(key)) == key


@pytest.mark.parametrize("name", [each.name for each in fields(Where)])
def test_another_place_is_another_key(db: Store, name: str) -> None:
    kept = row()
    changed: dict[str, Any] = {name: 131 if name == "sms" else "another"}
    other = replace(HERE, **changed)
    db.put([kept, replace(kept, where=other, winner=0)])
    assert len(db.rows()) == 2
    mine, theirs = winner(posed(), HERE, db=db.path), winner(posed(), other, db=db.path)
    assert mine is not None
    assert theirs is not None
    assert mine.to_dict() == kept.tried[1].plan
    assert theirs.to_dict() == kept.tried[0].plan


@pytest.mark.parametrize(
    ("problem", "options"),
    [
        (posed(m=65), {}), (posed(n=520), {}), (posed(k=264), {}), (posed(dtype="fp16"), {}),
        (posed(b_layout="row"), {}), (posed(a_layout="column"), {}), (posed(lda=257), {}), (posed(ldc=513), {}),
        (posed(), {"epilogue": "bias"}), (posed(), {"alignment": "bc"}),
    ],
)  # fmt: skip
def test_another_problem_layout_epilogue_or_alignment_is_another_key(
    db: Store, problem: Problem, options: dict[str, str]
) -> None:
    db.put([row()])
    assert winner(problem, HERE, db=db.path, **options) is None
    assert winner(posed(), HERE, db=db.path) is not None


def test_leading_dimensions_of_one_alignment_are_one_key(db: Store) -> None:
    db.put([row()])
    assert winner(posed(lda=264, ldc=1024), HERE, db=db.path) == winner(posed(), HERE, db=db.path) is not None
    assert str(What.of(posed(lda=257))) == "64x512x256 bf16 rc, 16-byte lines: bc"
    assert What.of(posed(k=255)).alignment == "c"
    assert What.of(posed(n=511, k=255)).alignment == "none"


def test_what_was_tuned_since_is_found_after_forget(db: Store) -> None:
    assert winner(posed(), HERE, db=db.path) is None
    db.put([row()])
    assert winner(posed(), HERE, db=db.path) is None
    forget()
    assert winner(posed(), HERE, db=db.path) is not None


# ---- many at once ----------------------------------------------------------------------------------------------------

WRITER = """\
import sys
from dataclasses import replace
from pathlib import Path
from tune_cases import posed, row
from tilewright.tune.key import What
from tilewright.tune.store import Store

who, made, store = int(sys.argv[1]), row(), Store(Path(sys.argv[2]))
sys.stdin.readline()
for number in range(8):
    rows = [replace(made, what=replace(made.what, m=100 * who + number)), replace(made, rounds=who)]
    store.put(rows)
"""


def test_many_processes_write_at_once_and_every_row_is_there(db: Store, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "PYTHONWARNINGS": "error"}
    command = [sys.executable, "-c", WRITER]
    writers = [
        subprocess.Popen([*command, str(who), str(db.path)], stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
        for who in range(1, 5)
    ]
    for each in writers:  # all begin together, with a database that is not there yet
        assert each.stdin is not None
        each.stdin.write(b"\n")
        each.stdin.flush()
    for each in writers:
        _, said = each.communicate(timeout=100)
        assert (each.returncode, said) == (0, b"")
    rows = db.rows()
    assert sorted(found.what.m for found in rows) == sorted(
        [64, *(100 * who + number for who in range(1, 5) for number in range(8))]
    )
    assert next(found.rounds for found in rows if found.what.m == 64) in range(1, 5)
    with closing(sqlite3.connect(db.path)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_writer_waits_for_another_and_then_says_so(db: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    db.put([row()])
    monkeypatch.setattr(store, "BUSY_S", 0.2)
    with closing(sqlite3.connect(db.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(UsageError, match=r"winners\.sqlite3 cannot be written: database is locked"):
            db.put([row(posed(m=128))])
        assert len(db.rows()) == 1, "who only reads is not kept waiting"


def test_a_transaction_that_fails_leaves_nothing_half_done(db: Store) -> None:
    db.put([row()])

    def rows() -> Any:
        yield row(posed(m=128))
        raise UsageError("no more")

    with pytest.raises(UsageError, match="no more"):
        db.put(rows())
    assert db.rows() == [row()]


# ---- bad places ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage", [b"not a database at all, whatever its name says" * 99, b"SQLite format 3\0" + b"\xa5" * 9000]
)
@pytest.mark.parametrize("first", ["read", "write"])
def test_a_damaged_database_is_set_aside_with_one_warning(db: Store, damage: bytes, first: str) -> None:
    db.path.parent.mkdir()
    db.path.write_bytes(damage)
    with pytest.warns(UserWarning, match=r"is damaged .*: it is now .*/winners.sqlite3.damaged-") as caught:
        if first == "read":
            assert db.rows() == []
        db.put([row()])
        assert db.rows() == [row()]
    assert len(caught) == 1
    (aside,) = db.path.parent.glob("*.damaged-*")
    assert aside.read_bytes() == damage


def test_pages_that_are_overwritten_are_found(db: Store) -> None:
    db.put([row(posed(m=m)) for m in range(1, 40)])
    size = db.path.stat().st_size
    assert size > 5 * 4096
    with db.path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (size - 4096))
    again = Store(db.path)
    with pytest.warns(UserWarning, match="is damaged") as caught:
        again.put([row()])
    assert len(caught) == 1
    assert again.rows() == [row()]


def test_a_database_of_a_later_version_is_left_alone(db: Store) -> None:
    db.put([row()])
    with closing(sqlite3.connect(db.path)) as connection:
        connection.execute("PRAGMA user_version = 2")
    for use in (db.rows, lambda: Store(db.path).put([row()])):
        with pytest.raises(UsageError, match="is of schema 2; this version of tilewright reads 1"):
            use()
    with pytest.warns(UserWarning, match="is of schema 2"):
        assert winner(posed(), HERE, db=db.path) is None
    assert len(list(db.path.parent.glob("*damaged*"))) == 0


def test_a_row_that_is_none_is_left_out(db: Store) -> None:
    db.put([row(), row(posed(m=128))])
    with closing(sqlite3.connect(db.path)) as connection:
        connection.execute("UPDATE winners SET details = '{}' WHERE m = 64")
        connection.commit()
    with pytest.warns(UserWarning, match="has a row that is none"):
        assert [found.what.m for found in db.rows()] == [128]


def unwritable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a cache folder read-only, also for root, whom modes do not keep out."""
    monkeypatch.setattr(settings, "_why_unusable", lambda path: "Read-only file system" if path == folder else None)
    settings._usable.clear()


def test_a_read_only_home_is_read_and_what_is_new_is_kept_for_this_process(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Store()
    own.put([row()])
    assert own.lasting
    path = own.path
    assert path == empty_cache / "tune" / "winners.sqlite3"
    unwritable(empty_cache, monkeypatch)
    with pytest.warns(UserWarning, match="cannot be used") as caught:
        later = Store()
        assert not later.lasting
        later.put([row(posed(m=128)), row(rounds=20)])
    assert len(caught) == 1
    assert not later.path.is_relative_to(empty_cache)
    assert [(found.what.m, found.rounds) for found in later.rows()] == [(64, 20), (128, 9)]
    assert winner(posed(), HERE) is not None
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM winners").fetchone() == (1,)


def test_a_file_in_a_folder_that_may_not_be_written_is_read(db: Store) -> None:
    db.put([row()])
    folder = db.path.parent
    code = (
        "import os, sys; from pathlib import Path\n"
        "from tilewright.tune.store import Store\n"
        "os.geteuid() or (os.setgid(65534), os.setuid(65534))\n"  # modes do not keep root out
        "print(len(Store(Path(sys.argv[1])).rows()), os.access(Path(sys.argv[1]).parent, os.W_OK))\n"
    )
    for each in (folder, *folder.parents):
        if each.stat().st_uid == os.geteuid() and each != Path("/tmp") and Path("/tmp") in each.parents:
            each.chmod(0o755)
    folder.chmod(0o555)
    db.path.chmod(0o444)
    try:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        done = subprocess.run([sys.executable, "-c", code, str(db.path)], capture_output=True, text=True, env=env)
    finally:
        folder.chmod(0o755)
    assert (done.stdout, done.stderr) == ("1 False\n", "")


def test_a_network_home_gets_no_write_ahead_log(db: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = "/dev/sda / ext4 rw 0 0\nserver:/home /home nfs4 rw 0 0\n/dev/sdb /home/me/my\\040disk xfs rw 0 0\n"
    assert on_network(Path("/home/me/.cache/tilewright/it.sqlite3"), mounts)
    assert not on_network(Path("/home/me/my disk/it.sqlite3"), mounts)
    assert not on_network(Path("/var/it.sqlite3"), mounts)
    assert not on_network(Path("/homes/it.sqlite3"), mounts)
    monkeypatch.setattr(store, "on_network", lambda path: True)
    db.put([row()])
    with closing(sqlite3.connect(db.path)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    assert db.rows() == [row()]


# ---- the table that is shipped ---------------------------------------------------------------------------------------


def test_a_table_there_and_back(db: Store, tmp_path: Path) -> None:
    rows = [row(), row(posed(m=128), winner=None)]
    write_table(tmp_path / "it.json", rows)
    assert read_table(tmp_path / "it.json") == rows
    imported = [replace(found, origin="imported") for found in rows]
    assert db.add_imported(imported) == 2
    assert db.rows() == imported


def test_what_was_measured_here_stays_unless_asked(db: Store) -> None:
    mine = row()
    theirs = replace(mine, origin="imported", date="2027-01-01T00:00:00Z", rounds=20)
    older = replace(theirs, what=What.of(posed(m=128)), date="2026-01-01T00:00:00Z")
    newer = replace(older, date="2026-06-01T00:00:00Z", rounds=10)
    db.put([mine])
    assert db.add_imported([theirs, newer]) == 1
    assert db.add_imported([older]) == 0
    assert db.rows() == [mine, newer]
    assert db.add_imported([theirs, older], overwrite=True) == 2
    assert db.rows() == [theirs, older]
    db.put([mine])
    assert db.rows() == [mine, older]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": "tilewright.plan/1"}, "is no table of winners"),
        ({"rows": 3}, "is no table of winners"),
        ({"rows": [3]}, "row 1: a row is 3; it must be an object"),
        ({"winner": 2}, r"row field 'winner' is 2; timed candidates are \[0, 1\]"),
        ({"winner": -1}, "row field 'winner' is -1"),
        ({"band": "wide"}, "row field 'band' is 'wide'; a number is possible"),
        ({"other": 1}, "row field 'other' is not one of"),
        ({"where": {"gpu": "it"}}, "a row|a key is incomplete"),
        ({"tried": [{"verdict": "best"}]}, "candidate field 'verdict' is 'best'; timed, wrong, hung"),
        (
            {"tried": [{"plan": {"x": float("nan")}}]},
            "candidate field 'plan' is .* an object of numbers that are finite",
        ),
        ({"tried": [{"predicted_us": 10**400}]}, "candidate field 'predicted_us' is .* a number is possible"),
        ({"rounds": 2**70}, "row field 'rounds' is .* a whole number is possible"),
        ({"what": {"m": -5}}, "key field 'm' is -5; a whole number above 0"),
        ({"method": "\ud800x"}, "row field 'method' is .* a string is possible"),
    ],
)
def test_what_is_no_table_is_told_with_row_and_field(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    made = json.loads(json.dumps(table([row()])))
    if set(change) <= set(made):
        made |= change
    else:
        made["rows"][0] |= change
    (tmp_path / "it.json").write_text(json.dumps(made))
    with pytest.raises(UsageError, match=said):
        read_table(tmp_path / "it.json")


def test_a_winner_has_a_time(tmp_path: Path) -> None:
    made = json.loads(json.dumps(table([row()])))
    made["rows"][0]["tried"][0]["time_us"] = {}
    (tmp_path / "it.json").write_text(json.dumps(made))
    with pytest.raises(UsageError, match="row 1: candidate 0 is timed and its field 'time_us' has no median"):
        read_table(tmp_path / "it.json")


def test_a_directory_is_no_database(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a directory; the database of winners is a file"):
        Store(tmp_path).rows()


def test_a_table_that_is_not_there_or_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"it\.json cannot be read: No such file"):
        read_table(tmp_path / "it.json")
    (tmp_path / "it.json").write_text("{")
    with pytest.raises(UsageError, match=r"it\.json cannot be read: "):
        read_table(tmp_path / "it.json")
    with pytest.raises(UsageError, match=r"--export .* cannot be written: No such file"):
        write_table(tmp_path / "none" / "it.json", [])


def test_a_plan_of_another_version_is_shipped_and_not_used(db: Store) -> None:
    kept = row()
    tried = [replace(each, plan={"rung": 99, "novel": True}) for each in kept.tried]
    db.put([replace(kept, tried=tuple(tried))])
    assert best(db.rows()[0]) == {"rung": 99, "novel": True}
    with pytest.warns(UserWarning, match="the tuned plan for 64x512x256 bf16 rc is not used: rung 99 does not exist"):
        assert winner(posed(), HERE, db=db.path) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert winner(posed(), HERE, db=db.path) is None
