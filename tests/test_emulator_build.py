"""How the emulator builds kernels: what it asks of a compiler, what it says when one fails, and forks meanwhile."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from observed import kernel_source

from tilewright.backends import emulator as emulator_module
from tilewright.backends import host_compiler, library_cache
from tilewright.backends.emulator import EmulatorBackend
from tilewright.backends.host_compiler import HostBuild, HostCompiler, available_compilers
from tilewright.errors import CompileError


@pytest.fixture(params=available_compilers(), ids=lambda c: c.kind)
def compiler(request: pytest.FixtureRequest) -> HostCompiler:
    """Every compiler found here."""
    found: HostCompiler = request.param
    return found


def test_a_symbol_of_nowhere_is_a_compile_error(compiler: HostCompiler) -> None:
    source = kernel_source("observed/copies.cu", SHARED_BYTES=32 * 5 * 4 + 32 * 32 * 4, CASE=9)
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(CompileError, match="tw_of_nowhere") as caught:
                EmulatorBackend(compiler=compiler).compile(source)
        assert "tw_of_nowhere" in caught.value.log
        assert caught.value.source == source.text


def test_options_are_asked_for_once(compiler: HostCompiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.backends.host_compiler._OPTIONAL", ("-fno-such-option", "-fno-math-errno"))
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(library_cache, "load", lambda *_: None)  # the runtime is not what this is about
    assert HostBuild(compiler).optional == ("-fno-math-errno",)
    monkeypatch.setattr(HostBuild, "_run", lambda *_: pytest.fail("asked again"))
    assert HostBuild(compiler).optional == ("-fno-math-errno",)


def test_the_whole_command_is_in_the_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    names: list[str] = []
    monkeypatch.setattr(library_cache, "load", lambda folder, name, build: names.append(name))
    monkeypatch.setattr(HostBuild, "_accepted_options", lambda self: ())
    compiler = available_compilers()[0]
    for more in ((), ("-O0",), ("-DX",)):
        HostBuild(dataclasses.replace(compiler, command=(*compiler.command, *more)))
    other = tmp_path / "other"
    other.write_text("")
    HostBuild(dataclasses.replace(compiler, command=(str(other), *compiler.command[1:])))
    assert len(set(names)) == len(names) == 4


def test_scratch_of_killed_processes_goes(tmp_path: Path) -> None:
    old, young = (tmp_path / f"{library_cache.SCRATCH}{name}" for name in ("old", "young"))
    for folder in (old, young):
        folder.mkdir()
        (folder / "file").touch()
    os.utime(old, (0, 0))
    with library_cache.scratch_folder(tmp_path) as scratch:
        assert {path.name for path in tmp_path.iterdir()} == {young.name, scratch.name}
    assert list(tmp_path.iterdir()) == [young]


def die_after(seconds: int) -> None:
    """End this process then, whatever handler the tests' own time limit has put in place."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(seconds)


def in_child(work: Callable[[], bool]) -> bool:
    """What ``work`` says in a forked child, which is killed when it hangs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks while there are threads, as is meant
        child = os.fork()
    if child == 0:
        die_after(20)
        try:
            os._exit(0 if work() else 1)
        finally:
            os._exit(2)
    return os.waitpid(child, 0)[1] == 0


def test_a_fork_while_a_thread_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, real = EmulatorBackend(), host_compiler.host_build
    built = backend.build
    building, go_on = threading.Event(), threading.Event()

    def slow(*args: object) -> HostBuild:
        building.set()
        go_on.wait()
        return built

    monkeypatch.setattr(emulator_module, "host_build", slow)
    other = threading.Thread(target=lambda: backend.build)
    other.start()
    building.wait()
    monkeypatch.setattr(emulator_module, "host_build", real)
    try:
        assert in_child(lambda: backend.runtime is not None)
    finally:
        go_on.set()
        other.join()


def test_a_fork_while_a_thread_holds_a_lock_file(tmp_path: Path) -> None:
    """The child's copy of the open file must not keep the lock."""
    taken, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with library_cache._locked(tmp_path, "name"):
            taken.set()
            let_go.wait()

    other = threading.Thread(target=hold)
    other.start()
    taken.wait()
    try:
        read, write = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:  # lives on while others want the lock
            die_after(30)
            os.close(write)
            os.read(read, 1)
            os._exit(0)
        os.close(read)
        let_go.set()
        other.join()
        code = f"""
from pathlib import Path
from tilewright.backends import library_cache
with library_cache._locked(Path({str(tmp_path)!r}), "name"):
    print("locked")
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
        assert done.stdout == "locked\n", done.stderr
        os.close(write)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        let_go.set()
        other.join()
