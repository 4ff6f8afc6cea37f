"""The command line: what goes to stdout, what to stderr, and the exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_runner import process, run, squeezed

from tilewright import __version__, ladder
from tilewright.errors import CompileError, EmulatorFault, TilewrightError, UnavailableError, UsageError


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], list[dict[str, Any]]]:
    """Put a stand-in for ``tilewright.climb``: it returns the dict it was given, or raises, and keeps its arguments."""
    calls: list[dict[str, Any]] = []

    def install(outcome: Any) -> list[dict[str, Any]]:
        def climb(**arguments: Any) -> Any:
            calls.append(arguments)
            arguments["progress"](1, 2, "a rung")
            if isinstance(outcome, BaseException):
                raise outcome
            return types.SimpleNamespace(to_dict=lambda: outcome)

        module = types.ModuleType("tilewright.climb")
        module.climb = climb  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "tilewright.climb", module)
        monkeypatch.setattr("tilewright.climb", module, raising=False)
        return calls

    return install


def result(verified: bool | None = True) -> dict[str, Any]:
    row = {"rung": 0, "name": "naive", "dtype": "fp32", "verified": verified, "error_over_bound": float("nan")}
    problem = {"m": 8, "n": 8, "k": 8, "dtype": "fp32"}
    return {"schema": "tilewright.climb/1", "problem": problem, "backend": "emulator", "device": "x", "rungs": [row]}


def test_version_and_help() -> None:
    assert run("--version").stdout == f"tilewright {__version__}\n"
    shown = run("--help")
    assert shown.exit_code == 0
    for command in ("climb", "verify", "source", "diff", "doctor", "cache"):
        assert command in shown.stdout
        assert run(command, "--help").exit_code == 0


# climb


def test_climb_json_is_one_document_and_nothing_else(engine: Callable[[Any], Any]) -> None:
    engine(result())
    done = run("climb", "--json")
    assert done.exit_code == 0
    data = json.loads(done.stdout)
    assert data["schema"] == "tilewright.climb/1"
    assert data["rungs"][0]["error_over_bound"] is None  # JSON has no NaN


def test_climb_passes_on_what_was_asked(engine: Callable[[Any], Any]) -> None:
    calls = engine(result())
    assert run("climb").exit_code == 0
    assert run("climb", "--size", "64", "--dtype", "bf16", "--rungs", "0-2", "--seed", "7").exit_code == 0
    assert run("climb", "--m", "1", "--n", "2", "--k", "3", "--backend", "emulator").exit_code == 0
    for call in calls:
        del call["progress"], call["schedule"]
    assert calls == [
        {"shape": None, "dtype": None, "rungs": None, "backend": None, "seed": 0},
        {"shape": (64, 64, 64), "dtype": "bf16", "rungs": "0-2", "backend": None, "seed": 7},
        {"shape": (1, 2, 3), "dtype": None, "rungs": None, "backend": "emulator", "seed": 0},
    ]


def test_climb_json_of_the_real_engine_has_what_is_documented() -> None:
    done = run("climb", "--size", "128", "--rungs", "0,1", "--dtype", "fp32", "--backend", "emulator", "--json")
    assert done.exit_code == 0, done.stderr
    data = json.loads(done.stdout)
    assert {"schema", "problem", "backend", "device", "rungs"} <= set(data)
    for row in data["rungs"]:
        assert row["verified"] is True
        assert {"flop_per_byte", "shared_load_bytes_per_mac", "bottleneck"} <= set(row["derived"])
        assert set(row["counted"]["operands"]) == {"a", "b", "c"}
        assert {"registers", "shared_bytes", "spill_bytes"} <= set(row["compiled"])
        assert row["time_us"] is row["tflops"] is row["percent_of_roof"] is None  # the emulator claims no speed


def test_climb_that_is_not_verified_exits_1_and_names_the_rung(engine: Callable[[Any], Any]) -> None:
    engine(result(verified=False))
    for arguments in ([], ["--json"]):
        done = run("climb", *arguments)
        assert done.exit_code == 1
        assert "not verified: 0 naive" in done.stderr
    assert json.loads(done.stdout)["rungs"][0]["verified"] is False


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (TilewrightError("no such luck"), 1),
        (CompileError("x does not compile", log="x.cu(1): error [red]"), 1),
        (EmulatorFault("race", "block 0 thread 1"), 1),
        (UsageError("m is -1"), 2),
        (UnavailableError("there is no driver [/bold]"), 3),
        (KeyboardInterrupt(), 130),
    ],
)
def test_an_expected_failure_is_a_sentence_and_an_exit_code(
    engine: Callable[[Any], Any], error: BaseException, status: int
) -> None:
    engine(error)
    done = run("climb")
    assert done.exit_code == status
    assert done.stdout == ""
    assert (str(error) or "interrupted") in done.stderr
    assert "Traceback" not in done.output


def test_a_bug_keeps_its_traceback(engine: Callable[[Any], Any]) -> None:
    engine(ZeroDivisionError("a bug"))
    assert isinstance(run("climb").exception, ZeroDivisionError)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["climb", "--size", "-1"], "'--size': '-1' is not a whole number"),
        (["climb", "--m", "-3", "--n", "1", "--k", "1"], "'--m': '-3' is not"),
        (["climb", "--size", "8", "--m", "8"], "not both"),
        (["climb", "--m", "8"], "--n and --k missing"),
        (["climb", "--size", "many"], "many"),
        (["climb", "--dtype", "fp8"], "'fp32', 'bf16'"),
        (["climb", "--backend", "metal"], "'auto', 'cuda', 'emulator'"),
        (["climb", "--seed", "-1"], "--seed"),
        (["source", "99"], "rung 99 does not exist; the ladder has 0, 1, 2, 3, 4"),
        (["source", "one"], "one"),
        (["source", "0", "--target", "fpga"], "'gpu', 'host'"),
        (["diff", "0"], "Missing argument"),
        (["diff", "0", "7"], "rung 7 does not exist"),
        (["ascend"], "ascend"),
    ],
)
def test_a_mistake_in_the_arguments_exits_2_and_says_what_is_possible(arguments: list[str], says: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert squeezed(says) in squeezed(done.stderr)


# source and diff


@pytest.mark.parametrize("rung", sorted(ladder.rungs()))
@pytest.mark.parametrize("target", ["gpu", "host"])
def test_source_prints_what_is_compiled(rung: int, target: Any) -> None:
    from tilewright.dtypes import BF16

    done = run("source", str(rung), "--dtype", "bf16", "--target", target)
    assert done.exit_code == 0
    chosen = ladder.rung(rung)
    assert done.stdout == chosen.source(chosen.plan(BF16), target).text


def test_source_unaligned_and_plain() -> None:
    aligned, unaligned = run("source", "3").stdout, run("source", "3", "--unaligned").stdout
    assert "bool ALIGNED = true" in aligned
    assert "bool ALIGNED = false" in unaligned
    plain = run("source", "3", "--plain").stdout
    assert "#line" in aligned
    assert "#line" not in plain
    assert plain.splitlines() == [line for line in aligned.splitlines() if not line.startswith("#line")]


def test_diff_shows_the_change_and_counts_it() -> None:
    done = run("diff", "1", "2")
    assert done.exit_code == 0
    assert done.stdout.startswith("--- 01_")
    assert ladder.rung(2).idea in done.stderr.replace("\n", " ")
    data = json.loads(run("diff", "1", "2", "--json").stdout)
    assert data["schema"] == "tilewright.diff/1"
    assert "\n".join(data["lines"]) == done.stdout.rstrip("\n")
    assert data["added"] > 0 < data["removed"]
    assert "// idea" not in done.stdout
    assert run("diff", "2", "2").stdout == ""


# doctor and cache


def test_doctor_reports_everything_and_never_fails() -> None:
    done = run("doctor", "--json")
    assert done.exit_code == 0
    data = json.loads(done.stdout)
    assert data["schema"] == "tilewright.doctor/1"
    checks = {check["name"]: check for check in data["checks"]}
    assert {"driver", "gpu", "nvrtc", "host compiler", "ziglang", "cache", "settings"} <= set(checks)
    assert all(isinstance(check["ok"], bool) and check["found"] for check in checks.values())
    shown = run("doctor")
    assert shown.exit_code == 0
    assert all(name in shown.stdout for name in checks)


def test_doctor_in_a_bad_place(tmp_path: Path) -> None:
    """No compiler on PATH, a compiler that is none, a cache that cannot be, a variable that means nothing."""
    (tmp_path / "file").touch()
    bad = {
        "PATH": str(tmp_path),
        "TILEWRIGHT_CXX": "no-such-compiler",
        "TILEWRIGHT_CACHE_DIR": str(tmp_path / "file" / "cache"),
        "TILEWRIGHT_BACKEND": "abacus",
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = process("doctor", "--json", **bad)
    assert done.returncode == 0, done.stderr
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert "no-such-compiler" in checks["host compiler"]["found"]
    assert "cannot be used" in checks["cache"]["advice"]
    assert "TILEWRIGHT_BACKEND is 'abacus'" in checks["settings"]["found"]
    assert not any(checks[name]["ok"] for name in ("host compiler", "cache", "settings", "gpu"))


def test_cache_info_and_clear(empty_cache: Path) -> None:
    for folder in ("cuda", "emulator/deeper", "not ours"):
        (empty_cache / folder).mkdir(parents=True)
        (empty_cache / folder / "file").write_bytes(b"x" * 1000)
    data = json.loads(run("cache", "info", "--json").stdout)
    assert data["path"] == str(empty_cache)
    assert data["folders"] == {"emulator": {"files": 1, "bytes": 1000}, "cuda": {"files": 1, "bytes": 1000}}
    assert str(empty_cache) in run("cache", "info").stdout.replace("\n", "")
    done = run("cache", "clear", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["removed"] == 2
    assert [path.name for path in empty_cache.iterdir()] == ["not ours"]
    assert run("cache", "clear").exit_code == 0  # of an empty cache too


# streams, colour, signals


@pytest.mark.parametrize("env", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_escape_codes_where_there_is_no_terminal(env: dict[str, str]) -> None:
    done = process("diff", "1", "2", **env)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout + done.stderr


def test_exit_codes_of_a_process() -> None:
    assert process("source", "0").returncode == 0
    assert process("source", "77").returncode == 2
    done = process("climb", "--backend", "metal")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_closed_pipe_is_no_error() -> None:
    command = f'"{sys.executable}" -m tilewright source 4 | head -n 1; echo "${{PIPESTATUS[0]}}"'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr
    assert done.stdout.splitlines()[-1] == "0"


IMPORT_NOTHING = """
import sys
import tilewright
heavy = {"numpy", "typer", "rich", "cuda", "torch", "cupy", "ctypes.util"} & set(sys.modules)
assert not heavy, heavy
assert tilewright.Problem(2, 3, 4).flops == 48 and "Problem" in dir(tilewright)
import tilewright.cli.app
heavy = {"cuda", "torch", "cupy", "pynvml"} & set(sys.modules)
assert not heavy, heavy
for name in tilewright.__all__:
    getattr(tilewright, name)
heavy = {"cuda", "torch", "cupy", "pynvml"} & set(sys.modules)
assert not heavy, heavy
"""


def test_import_touches_no_driver_and_no_compiler() -> None:
    subprocess.run([sys.executable, "-c", IMPORT_NOTHING], check=True, env={**os.environ, "PATH": ""})


def test_an_unknown_name_is_an_attribute_error() -> None:
    import tilewright

    with pytest.raises(AttributeError, match="no attribute 'gemm'"):
        tilewright.gemm  # noqa: B018


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")
def test_ctrl_c_ends_a_climb_with_130() -> None:
    command = [sys.executable, "-m", "tilewright", "climb", "--backend", "emulator", "--size", "1024", "--rungs", "0"]
    climb = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(3)
    assert climb.poll() is None, climb.communicate()
    climb.send_signal(signal.SIGINT)
    _, stderr = climb.communicate(timeout=30)
    assert climb.returncode == 130
    assert "Traceback" not in stderr
