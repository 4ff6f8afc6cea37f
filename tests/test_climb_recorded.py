"""A climb without a GPU shows the figures that were recorded on one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli_runner import run, squeezed
from climb_cases import SPEED, every_row, small

from tilewright import nvrtc, results
from tilewright.climb import climb
from tilewright.problem import Problem


def record(rung: int, tflops: float | None, **more: Any) -> results.Record:
    gpu, date = more.pop("gpu", "NVIDIA H200"), more.pop("date", "2026-11-28T10:00:00Z")
    problem = Problem(*(more.pop("size", 4096),) * 3, more.pop("dtype", "fp32")).to_dict()
    time_us = None if tflops is None else {"median": 1.0, "min": 1.0, "max": 1.0, "iqr": 0.0}
    values = {"what": "rung", "name": "x", "rung": rung, "time_us": time_us, "tflops": tflops, **more}
    return results.Record(problem=problem, provenance=results.Provenance(gpu, date), **values)


def committed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *records: results.Record) -> None:
    """Put a results folder of the test's own in place of the repository's."""
    results.append(tmp_path / "results" / "records.jsonl", records)
    monkeypatch.setattr(results, "recorded_results_dir", lambda: tmp_path / "results")
    monkeypatch.setattr(nvrtc, "available", lambda: False)


def test_the_latest_recorded_figure_stands_beside_its_rung(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    committed(
        monkeypatch,
        tmp_path,
        record(0, 2.5),
        record(0, 1.5, date="2026-11-20T10:00:00Z"),
        record(0, None, date="2026-12-01T10:00:00Z", error="LaunchError: no"),
        record(0, 3.5, dtype="bf16"),
        record(0, 99.0, what="counter-example", date="2026-12-01T10:00:00Z"),
        record(2, 39.5),
    )
    problem = {"m": 4096, "n": 4096, "k": 4096}
    expected = {"gpu": "NVIDIA H200", "date": "2026-11-28", "problem": problem, "tflops": 2.5}
    found = climb(shape=(64, 64, 64), dtype="fp32", rungs="0-1", backend="emulator").to_dict()
    naive, tile, swapped = every_row(found)
    assert naive["recorded"] == expected
    assert swapped["recorded"] is tile["recorded"] is None
    assert small(rungs="0", dtype="bf16")[0]["recorded"] == {**expected, "tflops": 3.5}
    assert all(row[key] is None for row in (naive, swapped, tile) for key in SPEED), "recorded is not measured"
    shown = run("climb", "--size", "64", "--rungs", "0", "--dtype", "fp32", "--backend", "emulator").stdout
    assert "2.5" in shown
    assert squeezed("* measured on NVIDIA H200, 4096x4096x4096, 2026-11-28") in squeezed(shown)


def test_a_recorded_figure_is_of_an_h200_on_the_problem_that_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    newer = {"date": "2027-01-01T00:00:00Z"}
    others = record(0, 9.9, gpu="NVIDIA B200", **newer), record(0, 8.8, size=64, **newer)
    committed(monkeypatch, tmp_path, record(0, 2.5), *others)
    assert small(rungs="0")[0]["recorded"]["tflops"] == 2.5


def test_without_records_there_is_nothing_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "recorded_results_dir", lambda: None)
    assert [row["recorded"] for row in small()] == [None] * 2
