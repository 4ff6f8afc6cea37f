"""The command line as a process: its streams, its signals, and what it imports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_runner import process


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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("arguments", ["source 4", "diff 1 2 --json", "cache info", "--help", "--version"])
@pytest.mark.parametrize(
    ("where", "says"), [("> /dev/full", "cannot be written: No space left on device"), (">&-", "is closed")]
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_stdout_that_takes_nothing_is_a_sentence(arguments: str, where: str, says: str, unbuffered: str) -> None:
    command = f'"{sys.executable}" -m tilewright {arguments} {where}'
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: standard output ")
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


def test_a_closed_stderr_is_no_error() -> None:
    command = f'"{sys.executable}" -m tilewright diff 1 2 2>&-'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stdout.startswith("--- 01_")


def test_ctrl_c_during_the_imports_ends_with_130() -> None:
    code = """
import os, signal, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
from tilewright.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


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
    try:
        _, stderr = climb.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        climb.kill()
        raise
    assert climb.returncode == 130
    assert "Traceback" not in stderr
