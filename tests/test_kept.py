"""Choices on disk: the next process neither plans nor loads a compiler, whoever else writes there; and bad places."""

from __future__ import annotations

import _ctypes
import errno
import hashlib
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tilewright import BF16, Plan, nvrtc, settings
from tilewright.backends import library_cache
from tilewright.library import answers, kept
from tilewright.library.choose import Choice, Question, choose
from tilewright.library.shapes import product

QUESTION = Question(product(((32, 47), (47, 1)), ((47, 64), (64, 1)), ((32, 64), (64, 1))), BF16, BF16)
ASKED = """
from tilewright import BF16
from tilewright.library import answers, kept
from tilewright.library.choose import Question
from tilewright.library.shapes import product

QUESTION = Question(product(((32, 47), (47, 1)), ((47, 64), (64, 1)), ((32, 64), (64, 1))), BF16, BF16)
"""


@pytest.fixture(autouse=True)
def _forgotten(empty_cache: Path) -> Iterator[None]:
    kept.forget()
    nvrtc.forget()
    yield
    kept.forget()
    nvrtc.forget()


def no_planner(*_: object) -> Choice:
    raise AssertionError("the planner is asked again")


def files(cache: Path) -> list[Path]:
    return sorted(path for path in (cache / kept.FOLDER).rglob("*") if path.is_file())


def alone(text: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-W", "error", "-c", text], stderr=subprocess.PIPE, text=True)


def test_what_is_kept_is_the_same_choice(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = answers.answer(QUESTION)
    assert first.packs, "A's lines have 94 bytes"
    monkeypatch.setattr(answers, "choose", no_planner)
    again = answers.answer(QUESTION)
    assert again == replace(first, planning=None)
    assert [path.suffix for path in files(empty_cache)] == [".json"]
    with pytest.raises(AssertionError, match="asked again"):
        answers.answer(QUESTION, anew=True)


def test_what_decides_is_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    p = QUESTION.product
    others = [
        replace(QUESTION, sms=16),
        replace(QUESTION, offsets=(2, 0, 0)),
        replace(QUESTION, epilogue="a digest"),
        replace(QUESTION, batch_invariant=True),
        replace(QUESTION, product=replace(p, a=replace(p.a, row=48))),
        replace(QUESTION, product=replace(p, swapped=True)),
    ]
    digests = {kept.digest_of(kept.described(each)) for each in (QUESTION, *others)}
    assert len(digests) == 1 + len(others)
    assert kept.described(replace(QUESTION, epilogue="another")) == kept.described(replace(QUESTION, epilogue="digest"))
    kept.keep(QUESTION, choose(QUESTION))
    assert kept.find(QUESTION) is not None
    for name, other in (("gpu_here", ("another", 114, 1.0, 1)), ("installed", "another")):
        with monkeypatch.context() as patched:
            patched.setattr(kept, name, lambda other=other: other)
            assert kept.find(QUESTION) is None


def test_a_new_process_neither_plans_nor_loads_a_compiler() -> None:
    choice = answers.answer(QUESTION)
    text = ASKED + "import sys\nfound = answers.answer(QUESTION)\n"
    if nvrtc.available():
        from tilewright.selection import kernel_of

        nvrtc.compile_kernel(kernel_of(choice.plan).source(choice.plan, "gpu", "sm_90a"))
        text += """
from tilewright import compiles, nvrtc
from tilewright.selection import kernel_of

def missing():
    raise AssertionError("NVRTC is loaded")

nvrtc.nvrtc_version = missing
made = nvrtc.compile_kernel(kernel_of(found.plan).source(found.plan, "gpu", "sm_90a"))
assert made.cached and compiles().compiled == 0 and compiles().cached == 1
"""
    text += """
assert not [name for name in sys.modules if name.startswith(("tilewright.planner", "tilewright.tune.store", "sqlite3"))]
"""
    done = alone(text)
    assert done.communicate(timeout=100)[1] == ""
    assert done.returncode == 0


@pytest.mark.parametrize("damage", ["cut short", "another value", "no record", "not text"])
def test_a_damaged_choice_is_made_again_with_one_warning(empty_cache: Path, damage: str) -> None:
    first = answers.answer(QUESTION)
    (path,) = files(empty_cache)
    whole = path.read_bytes()
    path.write_bytes(
        {
            "cut short": whole[:-20],
            "another value": whole.replace(b'"bn": 64', b'"bn": 32'),
            "no record": hashlib.sha256(b"[1]").hexdigest().encode() + b"\n[1]",
            "not text": b"\xff\xfe",
        }[damage]
    )
    assert path.read_bytes() != whole
    with pytest.warns(UserWarning, match="a damaged choice in the cache is made again") as caught:
        again = answers.answer(QUESTION)
    assert len(caught) == 1
    assert again.plan == first.plan
    assert path.read_bytes() == whole, "it was repaired"


def test_many_processes_at_once(empty_cache: Path) -> None:
    choice = choose(QUESTION)
    kept.keep(QUESTION, choice)
    children = [
        alone(
            ASKED
            + "first = kept.find(QUESTION)\n"
            + "for _ in range(40):\n    kept.keep(QUESTION, first)\n    assert kept.find(QUESTION) == first\n"
        )
        for _ in range(2)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        while any(child.poll() is None for child in children):
            assert kept.find(QUESTION) == replace(choice, planning=None)
    assert [child.communicate()[1] for child in children] == ["", ""]
    assert len(files(empty_cache)) == 1, "nothing unfinished is left"


def test_where_nothing_can_be_written_one_warning_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("tempfile.mkstemp", read_only)
    with pytest.warns(UserWarning, match="choices are not kept: .*Read-only file system") as caught:
        first, second = answers.answer(QUESTION), answers.answer(QUESTION)
    assert len(caught) == 1
    assert isinstance(first.plan, Plan)
    assert first.plan == second.plan


def test_a_read_only_home_costs_one_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = tmp_path / "a file where the home should be"
    home.write_text("")
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(home / "cache"))
    with pytest.warns(UserWarning, match="cannot be used") as caught:
        first = answers.answer(QUESTION)
    assert len(caught) == 1
    monkeypatch.setattr(answers, "choose", no_planner)
    assert answers.answer(QUESTION).plan == first.plan, "kept in a temporary folder, for this process"


def test_a_read_only_home_that_is_filled_is_read(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library, loaded = Path(_ctypes.__file__), list[str]()

    def build(target: Path) -> None:
        loaded.append(target.name)
        shutil.copyfile(library, target)

    first = answers.answer(QUESTION)
    library_cache.load(empty_cache / "emulator", "one.so", build)
    before = sorted(empty_cache.rglob("*"))
    settings._usable.clear()
    monkeypatch.setattr(
        settings, "_why_unusable", lambda path: "Read-only file system" if path == empty_cache else None
    )
    with pytest.warns(UserWarning, match="cannot be used") as caught:
        instead = settings.cache_dir()
    monkeypatch.setattr(answers, "choose", no_planner)
    assert answers.answer(QUESTION) == replace(first, planning=None)
    for name in ("one.so", "two.so", "two.so"):
        library_cache.load(instead / "emulator", name, build)
    assert loaded == ["one.so", "two.so"]
    assert sorted(empty_cache.rglob("*")) == before, "what is new goes elsewhere"
    assert len(caught) == 1


def test_a_full_disk_costs_one_warning_and_leaves_nothing_half(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file has a name by then, and its first bytes fit."""
    opened = os.fdopen

    class Full:
        def __init__(self, file: Any) -> None:
            self.file = file

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *exception: object) -> None:
            self.file.close()

        def write(self, text: str) -> int:
            self.file.write(text[:10])
            raise OSError(errno.ENOSPC, "No space left on device")

    first = choose(QUESTION)
    monkeypatch.setattr(answers, "choose", lambda question: first)
    monkeypatch.setattr(os, "fdopen", lambda *given, **more: Full(opened(*given, **more)))
    with pytest.warns(UserWarning, match="choices are not kept: .*No space left") as caught:
        assert answers.answer(QUESTION) == answers.answer(QUESTION) == first
    assert len(caught) == 1
    assert not files(empty_cache)
    monkeypatch.setattr(os, "fdopen", opened)
    answers.answer(QUESTION)
    assert len(files(empty_cache)) == 1, "once there is room again"


def test_the_oldest_go_from_a_full_folder(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MOST_FILES", 2)
    folder = empty_cache / "full"
    folder.mkdir(parents=True)
    for age, name in enumerate("dcba"):
        (folder / name).write_text("")
        os.utime(folder / name, ns=(0, -age * 10**9 + 10**18))
    kept._let_go(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["c", "d"]
