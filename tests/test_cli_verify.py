"""``tilewright verify``: right kernels pass, wrong ones are caught, and each ends with its exit code."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_runner import process, run, squeezed

from tilewright import ladder
from tilewright.cli import options


def test_verify_json_and_padded_rows() -> None:
    done = run(
        "verify", "--size", "40", "--lda", "44", "--ldc", "51", "--backend", "emulator", "--rungs", "0,2", "--json"
    )
    assert done.exit_code == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["schema"] == "tilewright.verify/1"
    assert [(row["rung"], row["problem"]["dtype"], row["problem"]["ldc"]) for row in data["results"]] == [
        (rung, dtype, 51) for dtype in ("fp32", "bf16") for rung in (0, 2)
    ]
    assert all(row["ok"] and 0 < row["error_over_bound"] <= 1 for row in data["results"])


def test_verify_of_every_rung_in_any_layout() -> None:
    for layout, rungs in (("rr", range(12)), ("cr", range(5, 12))):
        done = run("verify", "--layout", layout, "--dtype", "bf16", "--backend", "emulator", "--json")
        assert done.exit_code == 0, done.stdout
        found = json.loads(done.stdout)["results"]
        assert [row["rung"] for row in found] == list(rungs)
        for row in found:
            assert row["ok"] is True, row["says"]
            # Lines of an odd length, but where TMA moves them.
            assert (row["problem"]["ldc"] % 8 == 0) == (row["rung"] >= 7)


def test_verify_says_which_operands_a_rung_does_not_take() -> None:
    arguments = (
        "verify",
        "--size",
        "40",
        "--ldb",
        "45",
        "--rungs",
        "6-7,11",
        "--dtype",
        "fp16",
        "--backend",
        "emulator",
    )
    done = run(*arguments, "--json")
    assert done.exit_code == 0
    found = {row["rung"]: row for row in json.loads(done.stdout)["results"]}
    assert [found[number]["ok"] for number in (6, 7, 11)] == [True, None, None]
    assert "rung 7 moves B by TMA, whose lines start on 16-byte boundaries; it lies at" in found[7]["says"]
    assert "with rows 90 bytes apart" in found[7]["says"]
    assert "FAILED" not in run(*arguments).stdout


@pytest.mark.parametrize("shape", [("0", "5", "3"), ("5", "0", "3"), ("5", "3", "0"), ("1", "1", "1"), ("0", "0", "0")])
def test_verify_of_empty_and_tiny_problems(shape: tuple[str, str, str]) -> None:
    sizes = [part for pair in zip(("--m", "--n", "--k"), shape, strict=True) for part in pair]
    done = run("verify", *sizes, "--backend", "emulator", "--dtype", "fp32")
    assert done.exit_code == 0, done.stderr
    assert "FAILED" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--size", "8", "--lda", "7"], "lda is 7, shorter than the row"),
        (["--rungs", "4-2"], "rungs '4-2'"),
        (["--rungs", "0-12"], "rung 12 does not exist"),
        (["--rungs", "two"], "rungs 'two'"),
        (["--rungs", "0-4", "--dtype", "fp16"], "no rung of '0-4' runs fp16 with A row-major and B row-major"),
        (["--layout", "rc", "--rungs", "4-5"], "rung 4 (double-buffered) reads row-major operands; A row-major and B"),
        (["--layout", "rc", "--dtype", "fp32"], "no rung runs fp32 with A row-major and B column-major"),
        (["--size", "2147483648"], "below 2**31"),
        (["--policy", "never"], "'eager', 'lazy', 'random'"),
        (["--fill", "zeros"], "'normal'"),
    ],
)
def test_verify_of_nonsense(arguments: list[str], says: str) -> None:
    done = run("verify", "--backend", "emulator", *arguments)
    assert done.exit_code == 2
    assert squeezed(says) in squeezed(done.stderr)


def test_verify_without_a_gpu_exits_3_and_says_why() -> None:
    done = process("verify", "--backend", "cuda", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 3
    assert "kernels cannot run on a GPU here" in done.stderr


def test_verify_without_a_compiler_exits_3_and_says_what_to_install() -> None:
    done = process("verify", "--backend", "emulator", TILEWRIGHT_CXX="no-such-compiler")
    assert done.returncode == 3
    assert "tilewright[emulator]" in done.stderr


@pytest.fixture
def wrong_rung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Make rung 0 wrong: replace a part of its text."""

    def replace(old: str, new: str) -> None:
        right = ladder.rung(0)
        text = right.path.read_text("utf-8")
        assert old in text
        path = tmp_path / right.path.name
        path.write_text(text.replace(old, new), "utf-8")
        wrong = dataclasses.replace(right, path=path)
        monkeypatch.setattr(ladder, "rungs", lambda: {0: wrong})

    return replace


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("kk < k;", "kk < k - 1;", "elements wrong, first row 0, column 0"),
        ("col >= n", "col >= n - 1", "column 31: got nan"),
        ("c[row * ldc + col] =", "c[row * ldc + col + 32 - (row + 1 < m ? 0 : 32)] =", "padding"),
        ("kk < k;", "kk < k + 10000;", "out-of-bounds"),
        ("float acc", "flaot acc", "flaot"),
    ],
)
def test_verify_exits_1_on_a_wrong_kernel(
    wrong_rung: Callable[[str, str], None], old: str, new: str, says: str
) -> None:
    wrong_rung(old, new)
    arguments = [
        "verify",
        "--m",
        "8",
        "--n",
        "32",
        "--k",
        "4",
        "--ldc",
        "64",
        "--dtype",
        "fp32",
        "--backend",
        "emulator",
    ]
    done = run(*arguments)
    assert done.exit_code == 1
    assert squeezed(says) in squeezed(done.stdout)
    assert "FAILED" in done.stdout
    assert json.loads(run(*arguments, "--json").stdout)["results"][0]["ok"] is False


@pytest.mark.parametrize("command", ["verify", "climb"])
def test_the_padding_that_tma_needs_counts_as_memory(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "machine_memory", lambda: 8_000)
    sizes = ("--m", "1000", "--n", "1", "--k", "1", "--dtype", "fp16", "--backend", "emulator")
    assert run(command, *sizes, "--rungs", "6").exit_code == 0
    done = run(command, *sizes, "--rungs", "7")
    assert done.exit_code == 2, "A and C have 2 KB each, and 16 with lines of 16 bytes"
    assert squeezed("the operands of 1000x1x1 fp16, lda 8, ldb 8, ldc 8 need") in squeezed(done.stderr)
