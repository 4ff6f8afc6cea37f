"""Records of measurements: one JSON object a line, each with everything needed to judge or repeat it.

Committed records lie in ``results/`` of the repository and travel in the wheel as ``tilewright/_results``: every
measured figure in the documentation and in ``climb`` comes from them.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tilewright import settings
from tilewright.errors import UsageError
from tilewright.measure import Measurement
from tilewright.problem import Problem

SCHEMA = "tilewright.record/1"
READING_SCHEMA = "tilewright.reading/1"  # of calibrate/readings.py, whose files lie beside those of records
SWEEP_SCHEMA = "tilewright.sweep/1"  # of scripts/sweep_file.py, likewise
CHAIN_SCHEMA = "tilewright.chain/1"  # of scripts/decode_chain.py, in one file with records
FUSED_SCHEMA = "tilewright.fused/1"  # of scripts/bench_fused.py
_OTHERS = (READING_SCHEMA, SWEEP_SCHEMA, CHAIN_SCHEMA, FUSED_SCHEMA)


@dataclass(frozen=True)
class Provenance:
    """Where a figure comes from. Versions are text; ``before`` and ``after`` are telemetry snapshots.

    ``method`` says how it was timed, ``l2`` what the operands found in the cache, ``fill`` what the operands held,
    ``command`` what was typed; ``commit`` ends in ``-dirty`` when the checkout had changes, and is None outside one.
    """

    gpu: str
    date: str
    driver: str | None = None
    driver_cuda: str | None = None
    nvrtc: str | None = None
    libraries: Mapping[str, str] = field(default_factory=dict)
    version: str | None = None
    commit: str | None = None
    command: str | None = None
    fill: str | None = None
    l2: str | None = None
    method: str | None = None
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Record:
    """One implementation measured on one problem.

    ``what`` is ``rung``, ``kernel`` or ``vendor``; ``name`` is the implementation's. ``time_us`` holds ``median``,
    ``min``, ``max`` and ``iqr`` in microseconds a launch, ``samples_us`` each slot's figure. ``ratios`` holds, by
    rival, the rival's time over this one's (above 1: this one is faster) as the same four numbers, and ``noise`` the
    same for the baseline against itself. ``error`` says why there is no figure. ``verified`` has the largest
    ``error_over_bound``, or of a baseline that was timed though it is wrong, ``outside``: the sentence that says where.

    ``clock_mhz`` is NVML's SM clock, which reads high at the power limit; ``sm_clock_mhz_in_kernel`` the clock that
    the kernels saw (``gpu_clock``). ``details`` is what else there is to know of an implementation, such as which of
    the vendor's algorithms it is.
    """

    what: str
    name: str
    problem: Mapping[str, Any]
    provenance: Provenance
    rung: int | None = None
    plan: Mapping[str, Any] | None = None
    time_us: Mapping[str, float] | None = None
    samples_us: tuple[float, ...] = ()
    tflops: float | None = None
    ratios: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    noise: Mapping[str, float] | None = None
    compiled: Mapping[str, Any] | None = None
    verified: Mapping[str, Any] | None = None
    clock_mhz: float | None = None
    sm_clock_mhz_in_kernel: float | None = None
    power_w: float | None = None
    details: Mapping[str, Any] | None = None
    error: str | None = None
    schema: str = SCHEMA

    @property
    def outside(self) -> str | None:
        """Where its results are outside the bound; None where they are not."""
        found = (self.verified or {}).get("outside")
        return None if found is None else str(found)

    @property
    def dtype(self) -> str:
        """The element type of A and B, by name."""
        return str(self.problem["dtype"])

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values, the schema first."""
        values = asdict(self)
        return {"schema": values.pop("schema"), **values, "samples_us": list(self.samples_us)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Record:
        """The inverse of ``to_dict``. Raises ``UsageError`` for another schema, and for missing or unknown fields."""
        schema = values.get("schema")
        if schema != SCHEMA:
            raise UsageError(f"a record has schema {schema!r}; this version reads {SCHEMA!r}")
        given = dict(values)
        try:
            given["provenance"] = Provenance(**given["provenance"])
            given["samples_us"] = tuple(given.get("samples_us", ()))
            record = cls(**given)
            Problem.from_dict(record.problem)
        except (KeyError, TypeError) as error:
            raise UsageError(f"a record is not of schema {SCHEMA}: {error}") from error
        return record


def records_of(
    measurement: Measurement,
    problem: Problem,
    provenance: Provenance,
    describe: Mapping[str, Mapping[str, Any]],
) -> list[Record]:
    """One record for each rival of a measurement, failed ones too.

    ``describe`` maps a rival's name to further fields of its record: ``what`` at least, and ``rung``, ``plan``,
    ``compiled`` and ``verified`` where there are some.
    """
    found = []
    for name, timing in measurement.timings.items():
        time_us = timing.time_us
        others = [rival for rival in measurement.timings if rival != name]
        ratios = {rival: ratio.to_dict() for rival in others if (ratio := measurement.ratio(name, rival))}
        noise = measurement.noise
        found.append(
            Record(
                name=name,
                problem=problem.to_dict(),
                provenance=provenance,
                time_us=None if time_us is None else time_us.to_dict(),
                samples_us=tuple(timing.samples_us),
                tflops=timing.tflops(problem.flops),
                ratios=ratios,
                noise=None if noise is None else noise.to_dict(),
                clock_mhz=timing.clock_mhz(),
                sm_clock_mhz_in_kernel=timing.clock_mhz_in_kernel(),
                power_w=timing.power_w(),
                error=timing.error,
                **{"what": "kernel", **describe.get(name, {})},
            )
        )
    return found


def append(path: Path, records: Iterable[Record]) -> None:
    """Add records to a file, a line each, in one write, so that two writers cannot mix their lines."""
    append_lines(path, (record.to_dict() for record in records))


def append_lines(path: Path, objects: Iterable[Mapping[str, Any]]) -> None:
    """Add JSON objects to a file as ``append`` adds records."""
    lines = "".join(json.dumps(each, allow_nan=False) + "\n" for each in objects)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        if file.tell() and _last_byte(file) != b"\n":  # an earlier writer was cut off: keep its line apart
            lines = "\n" + lines
        file.write(lines.encode())


def load(path: Path) -> list[Record]:
    """Every record of a file, or of all ``*.jsonl`` files of a folder in the order of their names; nothing else there.

    Raises ``UsageError`` naming file and line when one is no record of this schema.
    """
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    return [record for file in files for record in _load_file(file)]


def select(records: Iterable[Record], **wanted: Any) -> list[Record]:
    """The records whose fields equal ``wanted``; one that is None is not asked for.

    Understands the fields of ``Record``, those of ``Provenance`` (``gpu``) and those of the problem (``m``,
    ``dtype``); ``problem`` may be a ``Problem``. Raises ``UsageError`` for another name.
    """
    asked = {name: value for name, value in wanted.items() if value is not None}
    return [record for record in records if all(_field(record, name) == _plain(v) for name, v in asked.items())]


def latest(records: Iterable[Record], **wanted: Any) -> Record | None:
    """The newest record of ``select`` that has a figure; of two with one date, the one that stands later."""
    found = [record for record in select(records, **wanted) if record.time_us is not None]
    return max(enumerate(found), key=lambda item: (item[1].provenance.date, item[0]))[1] if found else None


def recorded_results_dir() -> Path | None:
    """The folder of committed records: inside an installed package, else of the checkout; None when there is none."""
    here = Path(__file__).resolve().parent
    installed, checkout = here / "_results", _checkout()
    if installed.is_dir():
        return installed
    if checkout is not None and (checkout / "results").is_dir():
        return checkout / "results"
    return None


def recorded() -> list[Record]:
    """Every committed record."""
    folder = recorded_results_dir()
    return [] if folder is None else load(folder)


def now() -> str:
    """The time now, in UTC, as records hold it: ``2026-11-29T22:54:00Z``."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def command() -> str:
    """The command line of this process, as it would be typed again: ``python -m tilewright`` is ``tilewright``."""
    name = Path(sys.argv[0]).name
    return shlex.join(["tilewright" if name == "__main__.py" else name, *sys.argv[1:]])


def commit() -> str | None:
    """``TILEWRIGHT_COMMIT``, else that of the checkout this package runs from, ``-dirty`` after it when files differ.

    None where there is neither.
    """
    checkout, named = _checkout(), settings.COMMIT.value()
    if named is not None or checkout is None:
        return named
    try:
        name = _git(checkout, "rev-parse", "--short=12", "HEAD")
        return name + "-dirty" if _git(checkout, "status", "--porcelain", "--untracked-files=no") else name
    except (OSError, subprocess.SubprocessError):
        return None


def _git(checkout: Path, *arguments: str) -> str:
    command = ["git", "-C", str(checkout), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()


def _checkout() -> Path | None:
    """The repository, when this file lies in its ``src`` folder."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "pyproject.toml").is_file() and (root / "src" / "tilewright").is_dir() else None


def _last_byte(file: Any) -> bytes:
    file.seek(-1, os.SEEK_END)
    return bytes(file.read(1))


def _load_file(path: Path) -> Iterator[Record]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the records in {path} cannot be read: {getattr(error, 'strerror', error)}") from error
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
            if not isinstance(values, dict):
                raise UsageError("a line is not a JSON object")
            if values.get("schema") in _OTHERS:
                continue
            yield Record.from_dict(values)
        except (json.JSONDecodeError, UsageError) as error:
            raise UsageError(f"{path}:{number}: {error}") from error


_RECORD_FIELDS = {f.name for f in fields(Record)} | {"dtype"}
_PROVENANCE_FIELDS = {f.name for f in fields(Provenance)}
_PROBLEM_FIELDS = {f.name for f in fields(Problem)}


def _field(record: Record, name: str) -> Any:
    if name in _RECORD_FIELDS:
        return getattr(record, name)
    if name in _PROVENANCE_FIELDS:
        return getattr(record.provenance, name)
    if name in _PROBLEM_FIELDS:
        return record.problem.get(name)
    raise UsageError(f"records have no field {name!r}")


def _plain(value: Any) -> Any:
    return value.to_dict() if isinstance(value, Problem) else value
