"""What tuning one shape gave: each candidate with its verdict, and the winner. As JSON in a table to ship."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from tilewright.errors import UsageError
from tilewright.planner import reading
from tilewright.tune.key import INTEGERS, Key, What, Where

SCHEMA = "tilewright.tuned/1"
Verdict = Literal["timed", "wrong", "hung", "crashed", "refused"]
Origin = Literal["local", "imported"]


@dataclass(frozen=True)
class Tried:
    """One candidate. Times are microseconds: ``predicted_us`` the planner's, ``time_us`` median, min, max and iqr.

    ``verdict`` other than ``timed`` comes with its ``reason``: it computed a *wrong* element, it *hung* beyond its
    time limit, it *crashed*, or a compiler or driver *refused* it.
    """

    label: str
    family: str
    plan: Mapping[str, Any]
    predicted_us: float
    verdict: Verdict
    reason: str | None = None
    error_over_bound: float | None = None
    time_us: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Row:
    """One shape. ``tried`` are the candidates in the planner's order, ``winner`` one of them, None where all failed.

    ``band`` is the noise: differences of times up to that share are none. ``decided`` says that more rounds would
    change nothing, else the limit on rounds ended it.
    """

    where: Where
    what: What
    tried: tuple[Tried, ...]
    winner: int | None
    band: float
    decided: bool
    rounds: int
    method: str
    date: str
    origin: Origin = "local"

    @property
    def key(self) -> Key:
        """What it is looked up by."""
        return self.where, self.what

    @property
    def best(self) -> Tried | None:
        """The winner."""
        return None if self.winner is None else self.tried[self.winner]

    @property
    def wrong(self) -> tuple[Tried, ...]:
        """The candidates that computed a wrong element."""
        return tuple(each for each in self.tried if each.verdict == "wrong")

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return asdict(self) | {"tried": [asdict(each) for each in self.tried]}

    @classmethod
    def from_dict(cls, values: Any) -> Row:
        """The inverse of ``to_dict``. Raises ``UsageError`` for what is no row, naming the field."""
        row: Row = reading.build("row", cls, reading.read_fields("row", values, _ROW))
        timed = [number for number, each in enumerate(row.tried) if each.verdict == "timed"]
        for number in timed:
            if "median" not in (row.tried[number].time_us or {}):
                raise UsageError(f"candidate {number} is timed and its field 'time_us' has no median")
        if row.winner is not None and row.winner not in timed:
            raise UsageError(f"row field 'winner' is {row.winner}; timed candidates are {timed or 'none'}")
        return row


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError("an object is possible")
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        raise ValueError("an object of numbers that are finite is possible") from None
    return dict(value)


def _part(what: str, kind: type) -> reading.Reader:
    readers = {each.name: reading.counted if each.name in INTEGERS else reading.text for each in fields(kind)}
    return reading.record(what, kind, readers)


_tried = reading.each_of(
    reading.record(
        "candidate",
        Tried,
        {
            "label": reading.text,
            "family": reading.text,
            "plan": _object,
            "predicted_us": reading.real,
            "verdict": reading.choice(*get_args(Verdict)),
            "reason": reading.optional(reading.text),
            "error_over_bound": reading.optional(reading.real),
            "time_us": reading.optional(reading.reals),
        },
    )
)
_ROW: dict[str, reading.Reader] = {
    "where": _part("key", Where),
    "what": _part("key", What),
    "tried": lambda value: tuple(_tried(value)),
    "winner": reading.optional(reading.whole),
    "band": reading.real,
    "decided": reading.flag,
    "rounds": reading.whole,
    "method": reading.text,
    "date": reading.text,
    "origin": reading.choice(*get_args(Origin)),
}


def table(rows: Sequence[Row]) -> dict[str, Any]:
    """Rows as one JSON document."""
    return {"schema": SCHEMA, "rows": [row.to_dict() for row in rows]}


def write_table(path: Path, rows: Sequence[Row]) -> None:
    """Write a table to ship. Raises ``UsageError`` when it cannot be written."""
    try:
        path.write_text(json.dumps(table(rows), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--export {path} cannot be written: {error.strerror or error}") from None


def read_table(path: Path) -> list[Row]:
    """The rows of a table. Raises ``UsageError`` for what is none, naming the row and the field."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not isinstance(found, Mapping) or found.get("schema") != SCHEMA or not isinstance(found.get("rows"), list):
        raise UsageError(f"{path} is no table of winners: it is an object whose schema is {SCHEMA!r}, with rows")
    rows = []
    for number, values in enumerate(found["rows"], start=1):
        try:
            rows.append(Row.from_dict(values))
        except UsageError as error:
            raise UsageError(f"{path}, row {number}: {error}") from None
    return rows
