"""The edges of the emulated machine: what lies just beyond them is a fault, what lies just inside works."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from observed import Call, kernel_source
from test_emulator_process import child, finish

from tilewright.backends.emulator import EmulatorBackend
from tilewright.backends.emulator_checks import check_bounds, check_races
from tilewright.backends.emulator_trace import trace
from tilewright.backends.host_compiler import HostCompiler, available_compilers
from tilewright.errors import EmulatorFault

Check = Callable[..., Any]


@pytest.fixture(params=available_compilers(), ids=lambda c: c.kind)
def compiler(request: pytest.FixtureRequest) -> HostCompiler:
    """Every compiler found here."""
    found: HostCompiler = request.param
    return found


@pytest.fixture
def emulator(compiler: HostCompiler) -> EmulatorBackend:
    return EmulatorBackend(compiler=compiler)


def plain(backend: EmulatorBackend, source: Any, *rest: Any) -> None:
    """The plain build, called as the checks are."""
    backend.launch(backend.compile(source), *rest[:4])


def edge(backend: EmulatorBackend, case: int, at: int = 0, threads: int = 32, run: Check = plain) -> None:
    """Run a case of limits.cu; each thread has to say that it found what it should."""
    out = backend.upload(np.zeros((1, threads), np.float32))
    values = backend.upload(np.arange(8, dtype=np.float32).reshape(1, 8))
    args = [np.int64(at), values, out]
    source = kernel_source("core/limits.cu", CASE=case, SHARED_BYTES=256)
    run(backend, *Call(source, (1, 1, 1), (threads, 1, 1), args, 256))
    assert (backend.download(out) > 0).all()


# ---- shared memory ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", [check_bounds, check_races, trace])
@pytest.mark.parametrize("case", [1, 2, 4, 8, 16, 20])
def test_below_shared_memory_is_outside(emulator: EmulatorBackend, case: int, run: Check) -> None:
    width = 4 if case == 20 else case
    with pytest.raises(EmulatorFault, match=f"shared-{width} of block rank 0, which has 256 shared bytes") as caught:
        edge(emulator, case, -width, run=run)
    assert caught.value.kind == "out-of-bounds"
    with pytest.raises(EmulatorFault, match=r"shared\+256 of block rank 0"):
        edge(emulator, case, 256, run=run)
    edge(emulator, case, 256 - width, threads=1, run=check_bounds)


@pytest.mark.parametrize("at", [-8192, -4, 256, 1024])
def test_the_plain_build_sees_stores_around_shared_memory(emulator: EmulatorBackend, at: int) -> None:
    for _ in range(2):
        with pytest.raises(EmulatorFault, match=rf"shared\{at:+} of block rank 0.*\[block 0,0,0") as caught:
            edge(emulator, 4, at)
        assert caught.value.kind == "out-of-bounds"
        edge(emulator, 4, 0)  # what one launch spoilt is not the next one's


# ---- matrices --------------------------------------------------------------------------------------------------------


def test_the_last_rows_padding_is_not_the_matrixs(emulator: EmulatorBackend) -> None:
    two = [emulator.upload(np.ones((1, 32), np.float32)) for _ in range(2)]
    below, out = sorted(two, key=lambda matrix: matrix.pointer)
    values = replace(below, ld=(out.pointer - below.pointer) // 4 + 64)  # lines so far apart reach beyond the other
    assert values.pointer < out.pointer < values.pointer + 4 * values.ld
    source = kernel_source("core/limits.cu", CASE=0, SHARED_BYTES=256)
    check_bounds(emulator, source, (1, 1, 1), (32, 1, 1), [np.int64(0), values, out], 256)
    with pytest.raises(EmulatorFault, match="0 bytes past the end of matrix 1 of 1x32"):
        check_bounds(emulator, source, (1, 1, 1), (33, 1, 1), [np.int64(0), values, out], 256)


# ---- local memory ----------------------------------------------------------------------------------------------------


def test_each_thread_has_the_local_memory_of_a_gpu(emulator: EmulatorBackend) -> None:
    edge(emulator, 30, threads=64)
    edge(emulator, 30, threads=64, run=check_bounds)


def test_a_frame_beyond_it_is_a_fault_and_not_a_neighbours_memory(emulator: EmulatorBackend) -> None:
    for run in (plain, check_bounds):
        with pytest.raises(EmulatorFault, match=r"local memory of 512 KB has overflowed.*thread 5\]"):
            edge(emulator, 31, run=run)


@pytest.mark.skipif(sys.platform != "linux", reason="macOS has no limit of address space")
def test_too_little_address_space_is_said(emulator: EmulatorBackend) -> None:
    edge(emulator, 0)  # built and cached
    text = (
        "import resource, sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_emulator_limits import EmulatorBackend, edge\n"
        "emulator = EmulatorBackend()\n"
        "edge(emulator, 0)\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), resource.RLIM_INFINITY))\n"
        "try:\n    edge(emulator, 0, threads=1024)\n"
        "except MemoryError as error:\n    print(error)\n"
        "edge(emulator, 0, threads=64)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", text, str(Path(__file__).parent)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "no memory for 1024 threads: 640 MB of address space" in done.stdout


# ---- barriers and atomics --------------------------------------------------------------------------------------------


def test_a_warp_at_two_barriers_has_diverged(emulator: EmulatorBackend) -> None:
    with pytest.raises(EmulatorFault, match="lanes 0x0000ffff of it wait at another, of line") as caught:
        edge(emulator, 40, threads=64)
    assert caught.value.kind == "divergence"
    assert "lane 16 of warp 0 is at the __syncthreads of line" in caught.value.detail
    assert "[block 0,0,0 thread 16]" in caught.value.detail
    edge(emulator, 41, threads=64)
    edge(emulator, 41, threads=64, run=check_bounds)


@pytest.mark.parametrize("threads", [1, 31, 32, 33, 63, 96, 1023])
def test_a_partial_warp_counts_as_a_whole_one(emulator: EmulatorBackend, threads: int) -> None:
    edge(emulator, 42, threads=threads)


@pytest.mark.parametrize("case", [50, 51])
@pytest.mark.parametrize("threads", [32, 96])
def test_a_thread_that_spins_on_an_atomic_lets_others_run(emulator: EmulatorBackend, case: int, threads: int) -> None:
    edge(emulator, case, threads=threads)


def test_ctrl_c_ends_a_spin_on_an_atomic() -> None:
    process = child("try:\n    spin(9)\nexcept KeyboardInterrupt:\n    print('interrupted', works(), flush=True)\n")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    assert finish(process)[0] == "interrupted True\n"


# ---- instructions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "kind", "text"),
    [(60, "trap", "a trap, such as __builtin_trap"), (61, "misaligned", "an address that no memory can have")],
)
def test_what_the_cpu_refuses_ends_the_launch(emulator: EmulatorBackend, case: int, kind: str, text: str) -> None:
    for _ in range(2):
        with pytest.raises(EmulatorFault, match=text) as caught:
            edge(emulator, case)
        assert caught.value.kind == kind
        assert "[block 0,0,0 thread 5]" in caught.value.detail


def test_copies_in_flight_have_no_limit(emulator: EmulatorBackend) -> None:
    edge(emulator, 70)
