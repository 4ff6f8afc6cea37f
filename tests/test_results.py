from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tilewright import results
from tilewright.errors import UsageError
from tilewright.measure import Measurement, Schedule, Timing
from tilewright.problem import Problem
from tilewright.results import Provenance, Record
from tilewright.telemetry import Snapshot

PROBLEM = Problem(4096, 4096, 4096, "fp32")


def record(**changes: Any) -> Record:
    provenance = Provenance(gpu="NVIDIA H200", date="2026-01-02T03:04:05Z", driver="580.1", libraries={"torch": "2"})
    base = Record(
        what="rung",
        name="02_register_block",
        rung=2,
        problem=PROBLEM.to_dict(),
        provenance=provenance,
        time_us={"median": 2.0, "min": 1.0, "max": 3.0, "iqr": 0.5},
        samples_us=(1.0, 2.0, 3.0),
        tflops=39.5,
    )
    return replace(base, **changes)


def dated(date: str, **changes: Any) -> Record:
    return record(provenance=replace(record().provenance, date=date), **changes)


def test_round_trip_through_a_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "h200.jsonl"
    records = [record(), record(rung=3, name="03_vectorised", time_us=None, error="LaunchError: no")]
    results.append(path, records)
    results.append(path, [record(rung=4)])
    assert results.load(path) == [*records, record(rung=4)]
    assert results.load(tmp_path / "new") == results.load(path)
    lines = path.read_text().splitlines()
    assert len(lines) == 3
    assert all(line.startswith('{"schema": "tilewright.record/1"') for line in lines)


def test_a_line_cut_off_stays_apart_and_is_named(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"schema": "tilewr')
    results.append(path, [record()])
    assert len(path.read_text().splitlines()) == 2
    with pytest.raises(UsageError, match=r"r\.jsonl:1"):
        results.load(path)


def test_writers_at_once_do_not_mix_lines(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    script = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from tilewright import results
        from tilewright.problem import Problem
        made = results.Record(what="kernel", name="x" * 5000, problem=Problem(1, 1, 1).to_dict(),
                              provenance=results.Provenance(gpu="g", date="d"))
        for _ in range(50):
            results.append(Path(sys.argv[1]), [made])
        """
    )
    writers = [subprocess.Popen([sys.executable, "-c", script, str(path)]) for _ in range(2)]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0]
    assert len(results.load(path)) == 100


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "tilewright.record/2"}, "tilewright.record/2"),
        ({"schema": None}, "schema None"),
        ({"unknown": 1}, "unknown"),
        ({"provenance": {"gpu": "H200"}}, "date"),
        ({"problem": {"m": -1, "n": 1, "k": 1}}, "-1"),
    ],
)
def test_what_is_no_record_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text("\n" + json.dumps({**record().to_dict(), **change}) + "\n")
    with pytest.raises(UsageError, match=message) as caught:
        results.load(path)
    assert "r.jsonl:2" in str(caught.value)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere"):
        results.load(tmp_path / "nowhere.jsonl")
    assert results.load(tmp_path) == []


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"the records in .*r\.jsonl cannot be read: .* can't decode byte 0xff"):
        results.load(tmp_path)


def test_select_and_latest() -> None:
    bf16 = Problem(4096, 4096, 4096, "bf16").to_dict()
    records = [
        dated("2026-03-01T00:00:00Z", tflops=1.0),
        dated("2026-02-01T00:00:00Z", tflops=2.0),
        dated("2026-03-01T00:00:00Z", tflops=3.0),
        dated("2026-04-01T00:00:00Z", time_us=None, tflops=None, error="failed"),
        record(problem=bf16),
        record(rung=3),
    ]
    assert len(results.select(records, rung=2, dtype="fp32")) == 4
    assert results.select(records, problem=Problem(4096, 4096, 4096, "bf16")) == [records[4]]
    assert results.select(records, m=1) == []
    newest = results.latest(records, rung=2, dtype="fp32", gpu="NVIDIA H200")
    assert newest is records[2], "of two with one date the later line; a failure has no figure"
    assert results.latest(records, gpu="NVIDIA H100") is None
    with pytest.raises(UsageError, match="'speed'"):
        results.select(records, speed=1)


def test_records_of_a_measurement() -> None:
    fast = Timing("fast", samples_us=[1.0, 1.0], snapshots=[Snapshot(sm_clock_mhz=1980)], method="graph", launches=8)
    base = Timing("base", samples_us=[2.0, 2.2, 2.0, 2.2], method="graph", launches=8)
    failed = Timing("failed", error="LaunchError: no")
    rounds = [{"fast": 1.0, "base": 2.0, "base (again)": 2.2}, {"fast": 1.0, "base": 2.0, "base (again)": 2.2}]
    measurement = Measurement(
        {"fast": fast, "base": base, "failed": failed}, rounds, "base", Schedule(), Snapshot(), Snapshot()
    )
    describe: dict[str, dict[str, Any]] = {"fast": {"what": "rung", "rung": 4}, "base": {"what": "vendor"}}
    made = {r.name: r for r in results.records_of(measurement, PROBLEM, record().provenance, describe)}
    assert (made["fast"].what, made["fast"].rung) == ("rung", 4)
    assert made["fast"].ratios["base"]["median"] == pytest.approx(2.1)
    assert made["fast"].noise is not None
    assert made["fast"].noise["median"] == pytest.approx(1.1)
    assert made["fast"].tflops == pytest.approx(PROBLEM.flops / 1e6)
    assert made["fast"].clock_mhz == 1980
    assert made["base"].ratios["fast"]["median"] == pytest.approx(1 / 2.1)
    assert made["failed"].error == "LaunchError: no"
    assert made["failed"].time_us is None
    assert all(Record.from_dict(json.loads(json.dumps(r.to_dict()))) == r for r in made.values())


def test_committed_records_are_found_and_valid() -> None:
    folder = results.recorded_results_dir()
    assert folder is not None, "a checkout has results/, an installed package _results/"
    assert all(r.schema == results.SCHEMA for r in results.recorded())


@pytest.mark.parametrize("called", ["/lib/tilewright/__main__.py", "/bin/tilewright"])
def test_a_command_can_be_typed_again(called: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [called, "climb", "--record", "my results.jsonl"])
    assert results.command() == "tilewright climb --record 'my results.jsonl'"


def test_date_and_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(results.now()) == len("2026-11-29T22:54:00Z")
    monkeypatch.delenv("TILEWRIGHT_COMMIT", raising=False)
    found = results.commit()
    assert found is None or len(found.removesuffix("-dirty")) == 12
    monkeypatch.setenv("TILEWRIGHT_COMMIT", "0123456789ab")
    assert results.commit() == "0123456789ab", "what is named comes before the checkout's own"
