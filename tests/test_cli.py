"""The command line: what goes to stdout, what to stderr, and the exit codes."""

from __future__ import annotations

import json
import re
import shutil
import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_runner import process, run, squeezed

from tilewright import __version__, ladder
from tilewright.cli.options import layouts
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
    for command in ("climb", "plan", "verify", "source", "diff", "doctor", "cache"):
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
    assert run("climb", "--dtype", "fp16", "--layout", "rc").exit_code == 0
    rows = {"a_layout": "row", "b_layout": "row"}
    for call in calls:
        del call["progress"], call["schedule"]
    assert calls == [
        {"shape": None, "dtype": None, "rungs": None, "branch": None, **rows, "backend": None, "seed": 0},
        {"shape": (64, 64, 64), "dtype": "bf16", "rungs": "0-2", "branch": None, **rows, "backend": None, "seed": 7},
        {"shape": (1, 2, 3), "dtype": None, "rungs": None, "branch": None, **rows, "backend": "emulator", "seed": 0},
        {
            "shape": None, "dtype": "fp16", "rungs": None, "branch": None, "a_layout": "row", "b_layout": "column",
            "backend": None, "seed": 0,
        },
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rr", ("row", "row")), ("rc", ("row", "column")), ("CR", ("column", "row")),
        ("column-column", ("column", "column")), ("row,col", ("row", "column")), ("col/row", ("column", "row")),
    ],
)  # fmt: skip
def test_layouts_by_name(text: str, expected: tuple[str, str]) -> None:
    assert layouts(text) == expected
    assert layouts(layouts(text)) == expected


@pytest.mark.parametrize("text", ["", "r", "rx", "rrr", "row", "row-", "row-row-row", "major-row"])
def test_layouts_that_are_none(text: str) -> None:
    done = run("climb", "--layout", text)
    assert done.exit_code == 2
    assert "is not one of rr, rc, cr, cc" in " ".join(done.stderr.split())


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
        assert "not verified: fp32 0 naive" in done.stderr
    assert json.loads(done.stdout)["rungs"][0]["verified"] is False


def test_climb_names_counter_examples_that_are_not_verified(engine: Callable[[Any], Any]) -> None:
    wrong = {"rung": 1, "name": "shared tile", "dtype": "bf16", "verified": False, "fault": "race"}
    engine({**result(), "counter_examples": [wrong, {**wrong, "verified": True}]})
    done = run("climb", "--json")
    assert done.exit_code == 1
    assert "not verified: bf16 1 shared tile (counter-example)\n" in done.stderr


def test_climb_warns_where_warnings_are_errors(engine: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    engine(result())
    module = sys.modules["tilewright.climb"]
    real = module.climb

    def warning(**arguments: Any) -> Any:
        warnings.warn("the cache is odd", stacklevel=1)
        return real(**arguments)

    monkeypatch.setattr(module, "climb", warning)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = run("climb", "--json")
    assert done.exit_code == 0
    assert done.stderr == "warning: the cache is odd\n"


def test_climb_record_is_tried_before_anything_is_measured(engine: Callable[[Any], Any], tmp_path: Path) -> None:
    calls = engine(result())
    for path in (tmp_path / "no folder" / "x.jsonl", tmp_path):
        done = run("climb", "--record", str(path))
        assert done.exit_code == 2
        assert squeezed(f"--record {path} cannot be written") in squeezed(done.stderr)
    run("climb", "--record", str(tmp_path / "x.jsonl"), "--backend", "emulator")
    assert calls == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["climb", "--size", "100000000"], ["verify", "--lda", "99999999999999"]])
def test_operands_larger_than_memory_are_a_sentence(arguments: list[str]) -> None:
    done = run(*arguments, "--backend", "emulator")
    assert done.exit_code == 2
    assert re.search(r"the operands of .* need [\d,]+ GB", done.stderr)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        MemoryError("Unable to allocate 37.3 GiB for an array"),
        ValueError("array is too big; `arr.size * arr.dtype.itemsize` is larger than the maximum possible size."),
        ValueError("Maximum allowed dimension exceeded"),
        OverflowError("Python int too large to convert to C long"),
    ],
)
def test_no_memory_is_a_sentence(engine: Callable[[Any], Any], error: Exception) -> None:
    engine(error)
    done = run("climb")
    assert done.exit_code == 1
    assert f"not enough memory for this: {str(error) or 'an allocation failed'}" in done.stderr


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
    engine(ValueError("a bug"))
    assert isinstance(run("climb").exception, ValueError)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["climb", "--size", "-1"], "'--size': '-1' is not a whole number"),
        (["climb", "--m", "-3", "--n", "1", "--k", "1"], "'--m': '-3' is not"),
        (["climb", "--size", "8", "--m", "8"], "not both"),
        (["climb", "--m", "8"], "--n and --k missing"),
        (["climb", "--size", "many"], "many"),
        (["climb", "--size", "\uff11\uff12"], "is not a whole number"),
        (["climb", "--rungs", "\uff11"], "not of the form"),
        (["climb", "--seed", "9" * 5000], "too large"),
        (["diff", "1", "2", "--context", "9" * 20], "too large"),
        (["climb", "--dtype", "fp8"], "'fp32', 'bf16'"),
        (["climb", "--backend", "metal"], "'auto', 'cuda', 'emulator'"),
        (["climb", "--seed", "-1"], "--seed"),
        (["source", "99"], "rung 99 does not exist; the ladder has 0, 1, 2, 3, 4"),
        (["source", "one"], "one"),
        (["source", "0", "--target", "fpga"], "'gpu', 'host'"),
        (["diff", "0"], "Missing argument"),
        (["diff", "0", "17"], "rung 17 does not exist"),
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


def test_doctor_says_what_is_no_compiler() -> None:
    for command in ("/bin/true", '"'):
        done = process("doctor", "--json", TILEWRIGHT_CXX=command)
        checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
        assert not checks["host compiler"]["ok"]
        assert "TILEWRIGHT_CXX is" in checks["host compiler"]["found"]


def test_cache_clear_leaves_nothing_of_its_own_to_another_builder(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another process builds while the cache is cleared is no failure of the clearing."""
    library = empty_cache / "emulator" / "library.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"old")
    real = shutil.rmtree

    def rmtree(folder: Path, **options: Any) -> None:
        real(folder, **options)
        library.parent.mkdir(parents=True, exist_ok=True)
        library.write_bytes(b"new")

    monkeypatch.setattr("tilewright.cli.cache.shutil.rmtree", rmtree)
    done = run("cache", "clear", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["removed"] == 1


def test_cache_info_and_clear(empty_cache: Path) -> None:
    for folder in ("cuda", "emulator/deeper", "not ours"):
        (empty_cache / folder).mkdir(parents=True)
        (empty_cache / folder / "file").write_bytes(b"x" * 1000)
    data = json.loads(run("cache", "info", "--json").stdout)
    assert data["path"] == str(empty_cache)
    held, none = {"files": 1, "bytes": 1000}, {"files": 0, "bytes": 0}
    assert data["folders"] == {"emulator": held, "cuda": held, "choices": none}
    assert str(empty_cache) in run("cache", "info").stdout.replace("\n", "")
    done = run("cache", "clear", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["removed"] == 2
    assert [path.name for path in empty_cache.iterdir()] == ["not ours"]
    assert run("cache", "clear").exit_code == 0  # of an empty cache too
