"""The emulator among threads, processes, signals and damaged files."""

from __future__ import annotations

import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tilewright.backends import host_compiler, library_cache
from tilewright.backends.emulator import EmulatorBackend
from tilewright.backends.host_compiler import available_compilers, find_compiler
from tilewright.dtypes import FP32
from tilewright.errors import EmulatorFault, UnavailableError, UsageError
from tilewright.source import KernelSource, flatten

KERNELS = Path(__file__).parent / "kernels" / "core"
NO_SHARED = "namespace plan { constexpr int SHARED_BYTES = 0, CASE = %d; }"

# What a child process runs: a kernel that works, and one that does not end.
PRELUDE = f"""
import numpy as np
from pathlib import Path
from tilewright.backends.emulator import EmulatorBackend
from tilewright.source import KernelSource, flatten
backend = EmulatorBackend()
def kernel(name, case=0):
    return backend.compile(KernelSource(name, flatten(Path({str(KERNELS)!r}) / f"{{name}}.cu", "host",
                                                      {NO_SHARED!r} % case), "host"))
def works():
    out = backend.upload(np.zeros((1, 256), np.float32))
    backend.launch(kernel("indices"), (4, 1, 1), (64, 1, 1), [out], 0)
    return bool((backend.download(out)[0] == np.arange(256)).all())
def spin(case):
    out = backend.upload(np.zeros((1, 64), np.float32))
    stuck = kernel("stuck", case)
    print("ready", flush=True)
    backend.launch(stuck, (1, 1, 1), (64, 1, 1), [out], 0)
"""


def child(code: str, cache: Path | None = None) -> subprocess.Popen[str]:
    environment = {**os.environ, **({"TILEWRIGHT_CACHE_DIR": str(cache)} if cache else {})}
    command = [sys.executable, "-c", PRELUDE + code]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    try:
        out, err = process.communicate(timeout=100)
    except subprocess.TimeoutExpired:
        process.kill()  # one that spins would for ever
        raise
    assert process.returncode == 0, err
    return out, err


@pytest.mark.parametrize(("case", "presses"), [(7, 1), (8, 2)], ids=["one that switches", "one that spins"])
def test_ctrl_c_ends_a_kernel(case: int, presses: int) -> None:
    process = child(f"""
try:
    spin({case})
except KeyboardInterrupt:
    print("interrupted", works(), flush=True)
""")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    for _ in range(presses):
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
    out, _ = finish(process)
    assert out == "interrupted True\n"


def test_ctrl_c_reaches_the_handler_that_was_there() -> None:
    process = child("""
import signal
signal.signal(signal.SIGINT, lambda *_: print("handler", flush=True))
try:
    spin(7)
except Exception as error:
    print(type(error).__name__, error.kind, works())
""")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    assert finish(process)[0] == "handler\nEmulatorFault interrupted True\n"


def test_pythons_fault_handler_is_put_back() -> None:
    process = child("""
import ctypes, faulthandler
faulthandler.enable()
print(works(), flush=True)
ctypes.string_at(8)
""")
    out, err = process.communicate(timeout=100)
    assert out == "True\n"
    assert process.returncode == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in err


def test_a_child_forked_during_a_launch_can_launch() -> None:
    process = child("""
import os, threading, time, warnings
warnings.simplefilter("ignore")
assert works()
threading.Thread(target=spin, args=(7,), daemon=True).start()
time.sleep(0.5)
pid = os.fork()
if pid == 0:
    os._exit(0 if works() else 1)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
os._exit(0)
""")
    assert finish(process)[0] == "ready\n0\n"


def test_threads_launch_side_by_side() -> None:
    compilers = available_compilers()
    backends = [EmulatorBackend(compiler=compilers[i % len(compilers)]) for i in range(4)]
    sources = [
        KernelSource(name, flatten(KERNELS / f"{name}.cu", "host", NO_SHARED % 0), "host")
        for name in ("indices", "stuck")
    ]
    wrong: list[str] = []
    start = threading.Barrier(len(backends))

    def work(backend: EmulatorBackend) -> None:
        start.wait()
        for _ in range(10):
            out = backend.upload(np.zeros((1, 1024), np.float32))
            backend.launch(backend.compile(sources[0]), (16, 1, 1), (64, 1, 1), [out], 0)
            if not (backend.download(out)[0] == np.arange(1024)).all():
                wrong.append("result")
            with pytest.raises(EmulatorFault, match="deadlock"):
                backend.launch(backend.compile(sources[1]), (1, 1, 1), (96, 1, 1), [backend.empty(1, 96, FP32)], 0)

    with ThreadPoolExecutor(len(backends)) as pool:
        list(pool.map(work, backends))
    assert not wrong


def test_processes_share_a_cache(empty_cache: Path) -> None:
    processes = [child("print(works())", empty_cache) for _ in range(4)]
    assert [finish(p) for p in processes] == [("True\n", "")] * 4
    built = [p.name.partition("-")[0] for p in (empty_cache / "emulator").glob("*.so")]
    assert sorted(built) == ["indices", "libtw_runtime"]
    assert not list((empty_cache / "emulator").glob("*build-*"))


def test_a_cache_cleared_all_the_time_fails_nothing(empty_cache: Path) -> None:
    process = child("print(works())", empty_cache)
    while process.poll() is None:
        shutil.rmtree(empty_cache / "emulator", ignore_errors=True)
        time.sleep(0.002)
    assert finish(process)[0] == "True\n"


def test_a_cache_cleared_between_runtime_and_kernel_is_filled_again(empty_cache: Path) -> None:
    process = child(
        """
import shutil
backend.upload(np.zeros((1, 1), np.float32))
shutil.rmtree(backend.build.folder)
print(works())
""",
        empty_cache,
    )
    assert finish(process) == ("True\n", "")
    assert [p.name.partition("-")[0] for p in (empty_cache / "emulator").glob("*.so")] == ["indices"]


def a_file(folder: Path) -> None:
    folder.parent.mkdir(parents=True)
    folder.touch()


def a_dangling_link(folder: Path) -> None:
    folder.parent.mkdir(parents=True)
    folder.symlink_to("/nonexistent/folder")


def dangling_locks(folder: Path) -> None:
    folder.mkdir(parents=True)
    for number in range(library_cache.LOCKS):
        (folder / f"lock-{number}").symlink_to("/nonexistent/lock")


@pytest.mark.parametrize(("make", "warns"), [(a_file, 1), (a_dangling_link, 1), (dangling_locks, 0)])
def test_a_folder_that_cannot_be_used_costs_one_warning(
    empty_cache: Path, make: Callable[[Path], None], warns: int
) -> None:
    make(empty_cache / "emulator")
    out, err = finish(child("print(works())", empty_cache))
    assert out == "True\n"
    assert err.count("Warning") == warns
    assert err.count("cannot be used") == warns


def test_a_full_disk_costs_one_warning(empty_cache: Path) -> None:
    """The folder takes small files and no library, as one that is all but full."""
    out, err = finish(
        child(
            """
import errno, shutil
real = shutil.copyfile
def copyfile(source, target):
    if "cache/emulator" in str(target):
        raise OSError(errno.ENOSPC, "No space left on device")
    return real(source, target)
shutil.copyfile = copyfile
print(works())
backend = EmulatorBackend()
print(works())
""",
            empty_cache,
        )
    )
    assert out == "True\nTrue\n"
    assert err.count("Warning") == 1
    assert "No space left on device" in err


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def garbage(path: Path) -> None:
    path.write_bytes(b"this is no library" * 1000)


def of_another_machine(path: Path) -> None:
    """Whole, and with the right checksum, but not for this machine."""
    import hashlib

    data = bytearray(path.read_bytes())
    data[18] ^= 0x55  # e_machine of an ELF header
    path.write_bytes(data)
    path.with_name(path.name + ".sha256").write_text(hashlib.sha256(data).hexdigest())


@pytest.mark.parametrize(
    ("which", "damage"),
    [("indices", truncated), ("libtw_runtime", garbage), ("indices", of_another_machine)],
)
def test_a_damaged_library_costs_one_warning(
    tmp_path_factory: pytest.TempPathFactory, which: str, damage: Callable[[Path], None]
) -> None:
    cache = tmp_path_factory.getbasetemp() / "damaged"
    finish(child("print(works())", cache))
    (library,) = (cache / "emulator").glob(f"{which}-*.so")
    damage(library)
    out, err = finish(child("print(works())", cache))
    assert out == "True\n"
    assert err.count("Warning") == 1
    assert f"the cached library {library} cannot be used" in err
    assert finish(child("print(works())", cache)) == ("True\n", "")


# ---- which compiler --------------------------------------------------------------------------------------------------


def test_a_compiler_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for compiler in available_compilers():
        monkeypatch.setenv("TILEWRIGHT_CXX", "zig" if compiler.kind == "zig" else " ".join(compiler.command))
        assert find_compiler() == compiler
    monkeypatch.setenv("TILEWRIGHT_CXX", "no-such-compiler -O2")
    with pytest.raises(UnavailableError, match=r"TILEWRIGHT_CXX is 'no-such-compiler -O2'.*tilewright\[emulator\]"):
        find_compiler()


@pytest.mark.parametrize(
    ("named", "says"),
    [("/bin/true", "is not a C"), ("/bin/ls", "is not a C"), ("g++ -bogusflag", "-bogusflag"), ("/", "is not a C")],
)
def test_a_program_that_compiles_nothing_is_no_compiler(monkeypatch: pytest.MonkeyPatch, named: str, says: str) -> None:
    monkeypatch.setenv("TILEWRIGHT_CXX", named)
    with pytest.raises(UnavailableError, match=rf"TILEWRIGHT_CXX is '{re.escape(named)}'.*{says}"):
        find_compiler()


def test_a_quotation_that_does_not_end_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CXX", '"')
    with pytest.raises(UsageError, match="TILEWRIGHT_CXX is '\"': No closing quotation"):
        find_compiler()


def test_without_a_compiler_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if any(c.kind == "zig" for c in available_compilers()):
        assert find_compiler().kind == "zig"
    monkeypatch.setattr(host_compiler, "_ziglang", lambda: None)
    with pytest.raises(UnavailableError, match=r"pip install 'tilewright\[emulator\]'"):
        find_compiler()
    backend = EmulatorBackend()
    with pytest.raises(UnavailableError, match="C\\+\\+ compiler"):
        backend.empty(1, 1, FP32)


def test_a_compiler_on_path_that_fails_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("c++", "g++"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(host_compiler, "_ziglang", lambda: None)
    with pytest.raises(UnavailableError, match="found none"):
        find_compiler()


@pytest.mark.parametrize(("system", "machine"), [("win32", "AMD64"), ("linux", "riscv64"), ("darwin", "x86_64")])
def test_other_machines_are_told_so(monkeypatch: pytest.MonkeyPatch, system: str, machine: str) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    with pytest.raises(UnavailableError, match=r"Linux .* and macOS"):
        find_compiler()
