"""Raw readings of the microbenchmarks as JSON lines: what was measured, under which conditions, and its provenance.

They stand beside the records of ``results`` in ``results/*.jsonl``, under a schema of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tilewright.errors import UsageError
from tilewright.results import READING_SCHEMA, Provenance


@dataclass(frozen=True)
class Reading:
    """One run of one microbenchmark. ``values`` are numbers, or lists of them, with their units in the names."""

    microbenchmark: str
    conditions: Mapping[str, Any]
    values: Mapping[str, Any]
    provenance: Provenance | None = None

    def of(self, provenance: Provenance) -> Reading:
        """The same, with where it comes from."""
        return replace(self, provenance=provenance)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values, the schema first."""
        return {"schema": READING_SCHEMA, **asdict(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Reading:
        """The inverse of ``to_dict``. Raises ``UsageError`` for another schema, and for missing or unknown fields."""
        if values.get("schema") != READING_SCHEMA:
            raise UsageError(f"a reading has schema {values.get('schema')!r}; this version reads {READING_SCHEMA!r}")
        given = {name: value for name, value in values.items() if name != "schema"}
        try:
            if given.get("provenance") is not None:
                given["provenance"] = Provenance(**given["provenance"])
            return cls(**given)
        except TypeError as error:
            raise UsageError(f"a reading is not of schema {READING_SCHEMA}: {error}") from error


def append(path: Path, readings: Iterable[Reading]) -> None:
    """Add readings to a file, a line each. Raises ``UsageError`` when it cannot be written."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write("".join(line(reading) + "\n" for reading in readings))
    except OSError as error:
        raise UsageError(f"the readings cannot be written to {path}: {error.strerror or error}") from error


def line(reading: Reading) -> str:
    """One reading as a line of JSON."""
    return json.dumps(reading.to_dict(), allow_nan=False)


def load(path: Path) -> list[Reading]:
    """Every reading of a file. Raises ``UsageError`` naming file and line where one is none."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the readings in {path} cannot be read: {getattr(error, 'strerror', error)}") from error
    return list(parse(text, str(path)))


def parse(text: str, where: str) -> Iterator[Reading]:
    """The readings of a text, a line each. Raises ``UsageError``."""
    for number, each in enumerate(text.splitlines(), start=1):
        if not each.strip():
            continue
        try:
            yield Reading.from_dict(json.loads(each))
        except (json.JSONDecodeError, AttributeError, UsageError) as error:
            raise UsageError(f"{where}:{number}: {error}") from error


def latest(readings: Iterable[Reading]) -> list[Reading]:
    """Of readings from several calibrations, those of the newest."""
    found = list(readings)
    dates = [reading.provenance.date for reading in found if reading.provenance]
    return [r for r in found if r.provenance is None or r.provenance.date == max(dates)]
