"""The database of winners: SQLite, one row a key, safe with many writers, gentle with bad places.

Each call opens the file, does one transaction and closes it, so that processes and threads share nothing but the file.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import sqlite3
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tilewright import settings
from tilewright.errors import UsageError
from tilewright.results import now
from tilewright.tune.key import INTEGERS, KEY_FIELDS, Key, What, Where, key_of, key_values
from tilewright.tune.rows import Row

SCHEMA_VERSION = 1
BUSY_S = 30.0
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
# File systems of another machine: write-ahead logging needs memory that all who use the file share
# (sqlite.org/wal.html, "WAL does not work over a network filesystem").
NETWORK = (
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse.glusterfs", "fuse.sshfs", "glusterfs", "gpfs", "lustre", "ncpfs",
    "nfs", "nfs4", "smb3", "smbfs",
)  # fmt: skip

_KEY = ", ".join(KEY_FIELDS)
_TABLE = (
    "CREATE TABLE IF NOT EXISTS winners ("
    + ", ".join(f"{name} {'INTEGER' if name in INTEGERS else 'TEXT'} NOT NULL" for name in KEY_FIELDS)
    + ", origin TEXT NOT NULL, date TEXT NOT NULL, details TEXT NOT NULL, "
    + f"PRIMARY KEY ({_KEY})) WITHOUT ROWID"
)
_PUT = (
    f"INSERT INTO winners ({_KEY}, origin, date, details) VALUES ({', '.join('?' * (len(KEY_FIELDS) + 3))}) "
    f"ON CONFLICT ({_KEY}) DO UPDATE SET origin = excluded.origin, date = excluded.date, details = excluded.details"
)
_IF_NEWER_IMPORT = " WHERE winners.origin = 'imported' AND excluded.date > winners.date"


class Store:
    """The database at a path, by default in the cache folder. Nothing is opened before it is used."""

    def __init__(self, path: Path | None = None) -> None:
        self._given = path
        self._ready: set[Path] = set()

    @property
    def path(self) -> Path:
        """Where rows are written to. Where the cache folder cannot be written it is a temporary one."""
        return self._given or settings.cache_dir() / settings.WINNERS

    @property
    def lasting(self) -> bool:
        """Whether what is written stays when this process ends."""
        wanted = settings.wanted_cache_dir()
        return self._given is not None or (wanted is not None and self.path.is_relative_to(wanted))

    def read_from(self) -> list[Path]:
        """The files that are read, the later ones first to be believed: that of a read-only home is one of them."""
        if self._given is not None:
            return [self._given]
        wanted = settings.wanted_cache_dir()
        return list(dict.fromkeys([wanted / settings.WINNERS] * (wanted is not None) + [self.path]))  # type: ignore[operator]

    def put(self, rows: Iterable[Row]) -> None:
        """Add rows, in place of those of the same keys, in one transaction. Raises ``UsageError``."""
        with self._writing() as connection:
            connection.executemany(_PUT, map(_values, rows))

    def add_imported(self, rows: Iterable[Row], *, overwrite: bool = False) -> int:
        """Add rows from elsewhere, and say how many. A key's own measurement stays, unless ``overwrite``.

        Of two that were imported the later measured one stays.
        """
        with self._writing() as connection:
            statement = _PUT if overwrite else _PUT + _IF_NEWER_IMPORT
            return sum(connection.execute(statement, _values(row)).rowcount for row in rows)

    def rows(self, where: Where | None = None) -> list[Row]:
        """All rows, or those of a place; in the order of their keys."""
        found: dict[Key, Row] = {}
        for path in self.read_from():
            for row in self._read(path):
                if where is None or row.where == where:
                    found[row.key] = row
        return [found[key] for key in sorted(found, key=key_values)]

    def forget(self, kinds: Sequence[What] | None) -> int:
        """Remove the rows of these problems wherever they were measured, or all, and say how many."""
        if not self.path.exists():
            return 0
        with self._writing() as connection:
            if kinds is None:
                return connection.execute("DELETE FROM winners").rowcount
            names = KEY_FIELDS[len(KEY_FIELDS) - len(What.__dataclass_fields__) :]
            statement = f"DELETE FROM winners WHERE {' AND '.join(f'{name} = ?' for name in names)}"
            return sum(
                connection.execute(statement, [getattr(kind, name) for name in names]).rowcount for kind in kinds
            )

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction; of a database that is damaged in another, new one."""
        path = self.path
        try:
            if path not in self._ready or not path.exists():
                _prepare(path)
                self._ready.add(path)
            with closing(_connect(path)) as connection:
                connection.execute("BEGIN IMMEDIATE")
                yield connection
                connection.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            raise UsageError(f"the database of winners {path} cannot be written: {error}") from error

    def _read(self, path: Path) -> Iterator[Row]:
        if path.is_dir():
            raise UsageError(f"{path} is a directory; the database of winners is a file")
        if not path.exists():
            return
        try:
            with closing(_open_to_read(path)) as connection:
                _require_schema(connection, path)
                lines = connection.execute(f"SELECT {_KEY}, origin, date, details FROM winners").fetchall()
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in DAMAGED:
                try:
                    _prepare(path)
                except (sqlite3.Error, OSError):
                    _warn_once(path, f"the database of winners {path} is damaged ({error}) and is not read")
            elif "no such table" not in str(error):  # made by a process that has not come further yet
                _warn_once(path, f"the database of winners {path} cannot be read: {error}")
            return
        for *key, origin, date, details in lines:
            try:
                yield _row(key_of(tuple(key)), origin, date, details)
            except (ValueError, AttributeError, TypeError) as error:
                _warn_once(path, f"the database of winners {path} has a row that is none ({error}); it is left out")


def _values(row: Row) -> tuple[int | str, ...]:
    details = {name: value for name, value in row.to_dict().items() if name not in ("where", "what", "origin", "date")}
    return (*key_values(row.key), row.origin, row.date, json.dumps(details, allow_nan=False))


def _row(key: Key, origin: str, date: str, details: str) -> Row:
    where, what = ({name: getattr(part, name) for name in part.__dataclass_fields__} for part in key)
    return Row.from_dict({**json.loads(details), "where": where, "what": what, "origin": origin, "date": date})


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection


def _open_to_read(path: Path) -> sqlite3.Connection:
    """A connection that writes nothing, also where the folder may not be written.

    There a write-ahead log cannot be made ready, and the file is read as one that nobody changes.
    """
    address = f"file:{quote(str(path.absolute()))}?mode=ro"
    for options in ("", "&immutable=1"):
        connection = sqlite3.connect(address + options, uri=True, timeout=BUSY_S)
        try:
            connection.execute("SELECT * FROM sqlite_master").fetchall()
            return connection
        except sqlite3.DatabaseError as error:
            connection.close()
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if options or code not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
                raise
    raise AssertionError("one of the two ways returns or raises")


def _require_schema(connection: sqlite3.Connection, path: Path) -> None:
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version not in (0, SCHEMA_VERSION):
        raise UsageError(
            f"the database of winners {path} is of schema {version}; this version of tilewright reads "
            f"{SCHEMA_VERSION}: --db names another file"
        )


def _prepare(path: Path) -> None:
    """Make the database if there is none, and set aside one that is damaged. One process at a time does this."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _alone(path):
        damage = _damage(path)
        if damage is not None:
            aside = _set_aside(path)
            _warn_once(
                path, f"the database of winners {path} is damaged ({damage}): it is now {aside}, a new one begins"
            )
        with closing(_connect(path)) as connection:
            _require_schema(connection, path)
            connection.execute(f"PRAGMA journal_mode = {'DELETE' if on_network(path) else 'WAL'}").fetchone()
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(_TABLE)
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            connection.execute("COMMIT")


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """No other process of this machine is in here, where the file system has locks."""
    with path.with_name(path.name + ".lock").open("w") as lock:
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _damage(path: Path) -> str | None:
    if not path.exists():
        return None
    try:
        with closing(_connect(path)) as connection:
            said = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
            if said != "ok":
                return said
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            return None if version != SCHEMA_VERSION or "winners" in tables else "it has no winners"
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in DAMAGED:
            return str(error)
        raise


def _set_aside(path: Path) -> Path:
    stamp = now().replace(":", "")
    names = (f"{path.name}.damaged-{stamp}" + (f"-{number}" if number else "") for number in range(1000))
    aside = next(found for name in names if not (found := path.with_name(name)).exists())
    path.rename(aside)
    for suffix in ("-wal", "-shm", "-journal"):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    return aside


def on_network(path: Path, mounts: str | None = None) -> bool:
    """Whether a path lies on a file system of another machine, by the mounts that Linux lists."""
    if mounts is None:
        try:
            mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
    place = path.absolute().resolve()
    found: list[tuple[int, str]] = []
    for line in mounts.splitlines():
        words: list[Any] = line.split(" ")
        if len(words) < 3:
            continue
        at = Path(words[1].replace("\\040", " "))
        if place.is_relative_to(at):
            found.append((len(at.parts), words[2]))
    return bool(found) and max(enumerate(found), key=lambda each: (each[1][0], each[0]))[1][1] in NETWORK


_warned: set[Path] = set()
_guard = threading.Lock()


def _warn_once(path: Path, message: str) -> None:
    with _guard:
        if path in _warned:
            return
        _warned.add(path)
    warnings.warn(message, stacklevel=4)
