"""``tilewright calibrate``: without a GPU, from readings that were kept, and when a microbenchmark fails."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from calibration_cases import PROVENANCE, readings
from cli_runner import run, squeezed

from tilewright.calibrate import readings as raw
from tilewright.calibrate import session
from tilewright.errors import UnavailableError
from tilewright.gpu import get_gpu
from tilewright.planner.calibration import Calibration, constant_names


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A file of readings."""
    raw.append(tmp_path / "kept.jsonl", readings())
    return tmp_path / "kept.jsonl"


def no_gpu() -> Any:
    raise UnavailableError("a calibration measures a GPU, and there is none to use here: no driver")


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "cuda_unavailable_reason", lambda: "no driver is installed here")
    result = run("calibrate")
    assert result.exit_code == 3
    assert "there is none to use here: no driver is installed here" in result.stderr
    assert not result.stdout


def test_on_a_gpu_of_another_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    monkeypatch.setattr(session, "cuda_unavailable_reason", lambda: None)
    monkeypatch.setattr(session, "query_gpu", lambda: replace(get_gpu("h200"), name="A100", compute_capability=(8, 0)))
    result = run("calibrate")
    assert result.exit_code == 3
    assert "A100 has compute capability 8.0; a calibration needs 9.0" in result.stderr


def test_a_file_of_readings_is_fitted_again(kept: Path, tmp_path: Path) -> None:
    out = tmp_path / "it.json"
    result = run("calibrate", "--from", str(kept), "--out", str(out))
    assert result.exit_code == 0, result.stderr
    calibration = Calibration.load(out)
    assert calibration.label == "H200 SXM, measured 2026-11-30, driver 580.1"
    assert calibration.key == "h200"
    shown = squeezed(result.stdout)
    assert all(squeezed(name) in shown for name in ("launch_us", "l2_curve", "wgmma+l2"))


def test_json_is_the_calibration(kept: Path) -> None:
    result = run("calibrate", "--from", str(kept), "--json")
    assert result.exit_code == 0, result.stderr
    assert set(Calibration.from_dict(json.loads(result.stdout)).sources) == set(constant_names())


def test_folders_that_are_not_there_are_told_before_anything_runs(tmp_path: Path) -> None:
    for option in ("--out", "--readings"):
        result = run("calibrate", option, str(tmp_path / "none" / "it"))
        assert result.exit_code == 2
        assert "there is no folder" in result.stderr


def test_readings_of_no_gpu(tmp_path: Path) -> None:
    (tmp_path / "it.jsonl").write_text("")
    result = run("calibrate", "--from", str(tmp_path / "it.jsonl"))
    assert result.exit_code == 2
    assert "has no readings that tell which GPU they are of" in result.stderr


def measured(monkeypatch: pytest.MonkeyPatch, without: str | None, error: str) -> None:
    found = tuple(reading for reading in readings() if reading.microbenchmark != without)
    spec = get_gpu("h200")
    errors = {} if without is None else {without: error}
    monkeypatch.setattr(session, "require_hopper", lambda: spec)
    monkeypatch.setattr(session, "run", lambda names, progress: session.Session(found, errors, spec, PROVENANCE))


def test_what_was_measured_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    measured(monkeypatch, None, "")
    out, kept = tmp_path / "it.json", tmp_path / "it.jsonl"
    result = run("calibrate", "--out", str(out), "--readings", str(kept))
    assert result.exit_code == 0, result.stderr
    assert raw.load(kept) == readings()
    assert Calibration.load(out).measured


def test_a_microbenchmark_that_fails_costs_no_readings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    measured(monkeypatch, "hbm_stream", "it did not end within 20 s")
    out, kept = tmp_path / "it.json", tmp_path / "it.jsonl"
    result = run("calibrate", "--out", str(out), "--readings", str(kept))
    assert result.exit_code == 1
    assert "hbm_stream: it did not end within 20 s" in result.stderr
    assert "the calibration is not complete: there are no readings of hbm_stream" in result.stderr
    assert len(raw.load(kept)) == len(readings()) - 3
    assert not out.exists()


# ---- processes -----------------------------------------------------------------------------------------------------


def child(monkeypatch: pytest.MonkeyPatch, code: str, limit_s: float = 20) -> tuple[list[Any], str | None]:
    """What is made of a process that runs this code in place of a microbenchmark."""
    real = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **options: real([sys.executable, "-c", code], **options))
    each = session.Microbenchmark("it", list, lambda backend, sms: iter(()), limit_s)
    return session._in_process(each)


ONE = f"print({raw.line(readings()[0])!r}, flush=True);"


def test_a_process_that_ends_well(monkeypatch: pytest.MonkeyPatch) -> None:
    assert child(monkeypatch, ONE) == ([readings()[0]], None)


def test_a_process_that_fails_has_told_what_it_knew(monkeypatch: pytest.MonkeyPatch) -> None:
    assert child(monkeypatch, ONE + "raise SystemExit('the GPU said no')") == ([readings()[0]], "the GPU said no")


def test_a_process_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = time.monotonic()
    found, error = child(monkeypatch, ONE + "print('{\"half', end='', flush=True); import time; time.sleep(60)", 2)
    assert (found, error) == ([readings()[0]], "it did not end within 2 s")
    assert time.monotonic() - begin < 30


def test_every_microbenchmark_of_the_fit_is_run() -> None:
    assert set(session.MICROBENCHMARKS) == {reading.microbenchmark for reading in readings()}
    assert sum(each.limit_s for each in session.MICROBENCHMARKS.values()) < 300
