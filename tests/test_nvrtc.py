from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tilewright import nvrtc, settings
from tilewright.errors import CompileError, UnavailableError, UsageError
from tilewright.ptxas import CompileReport, parse_report
from tilewright.source import KernelSource

pytestmark = pytest.mark.skipif(not nvrtc.available(), reason="cuda-core or NVRTC is not installed")

REVERSE = """\
extern "C" __global__ void tw_gemm(int m, const float* a, float* c) {
    __shared__ float tile[64];
    tile[threadIdx.x] = a[threadIdx.x];
    __syncthreads();
    c[threadIdx.x] = tile[63 - threadIdx.x] * m;
}
"""


def kernel(text: str = REVERSE, name: str = "00_reverse", arch: str | None = "sm_90a") -> KernelSource:
    return KernelSource(name, text, "gpu", arch)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "a cache with spaces, é"))
    nvrtc.forget()
    yield tmp_path / "a cache with spaces, é" / nvrtc.CACHE_FOLDER
    nvrtc.forget()


def entries(cache: Path) -> list[Path]:
    return sorted(path for path in (cache / "entries").rglob("*") if path.is_file())


def test_compiles_and_reports() -> None:
    compiled = nvrtc.compile_kernel(kernel())
    report = compiled.report
    assert compiled.cubin.startswith(b"\x7fELF")
    assert not compiled.cached
    assert report.registers is not None
    assert 8 <= report.registers <= 32
    assert (report.shared_bytes, report.barriers, report.spill_bytes, report.stack_bytes) == (256, 1, 0, 0)
    assert report.seconds > 0
    assert report == CompileReport.from_dict(report.to_dict())


def test_second_time_needs_no_compiler(cache: Path) -> None:
    first = nvrtc.compile_kernel(kernel())
    assert nvrtc.compile_kernel(kernel()).cached
    nvrtc.forget()
    again = nvrtc.compile_kernel(kernel())
    assert again.cached
    assert (again.cubin, again.report) == (first.cubin, first.report)
    assert first.cubin in [path.read_bytes() for path in entries(cache)], "entries are raw cubins, for cuobjdump"


def test_a_read_only_cache_is_read(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = nvrtc.compile_kernel(kernel())
    before = entries(cache)
    settings._usable.clear()
    monkeypatch.setattr(
        settings, "_why_unusable", lambda path: "Read-only file system" if path == cache.parent else None
    )
    nvrtc.forget()
    with pytest.warns(UserWarning, match=r"the cache folder .* cannot be used"):
        again = nvrtc.compile_kernel(kernel())
    assert again.cached
    assert again.cubin == first.cubin
    new = kernel(REVERSE.replace("63", "62"))
    for cached in (False, True):
        assert nvrtc.compile_kernel(new).cached == cached
        nvrtc.forget()
    assert entries(cache) == before, "what is new goes elsewhere"


def test_key_has_text_and_arch() -> None:
    nvrtc.compile_kernel(kernel())
    assert not nvrtc.compile_kernel(kernel(REVERSE + "\n")).cached
    assert not nvrtc.compile_kernel(kernel(arch="sm_80")).cached


@pytest.mark.parametrize("damage", ["cubin", "record", "both"])
def test_damaged_entry_is_built_again_with_one_warning(cache: Path, damage: str) -> None:
    first = nvrtc.compile_kernel(kernel())
    for path in entries(cache):
        is_cubin = path.read_bytes() == first.cubin
        if damage == "both" or (damage == "cubin") == is_cubin:
            path.write_bytes(path.read_bytes()[:-40] + b"x")
    nvrtc.forget()
    with pytest.warns(UserWarning, match="damaged cache entry of 00_reverse") as caught:
        again = nvrtc.compile_kernel(kernel())
    assert len(caught) == 1
    assert not again.cached
    nvrtc.forget()
    assert nvrtc.compile_kernel(kernel()).cached, "the entry was repaired"


def test_record_that_is_no_record_is_damage(cache: Path) -> None:
    first = nvrtc.compile_kernel(kernel())
    for path in entries(cache):
        if path.read_bytes() != first.cubin:
            path.write_bytes(b"[1]")
    nvrtc.forget()
    with pytest.warns(UserWarning, match="damaged"):
        assert not nvrtc.compile_kernel(kernel()).cached


def test_evicted_cubin_is_no_damage(cache: Path) -> None:
    first = nvrtc.compile_kernel(kernel())
    next(path for path in entries(cache) if path.read_bytes() == first.cubin).unlink()
    nvrtc.forget()
    assert not nvrtc.compile_kernel(kernel()).cached


def test_unusable_cache_folder_costs_one_warning(cache: Path) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="not kept") as caught:
        assert not nvrtc.compile_kernel(kernel()).cached
        assert not nvrtc.compile_kernel(kernel(REVERSE + " ")).cached
    assert len(caught) == 1


def test_full_disk_costs_one_warning(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.mkstemp", full)
    with pytest.warns(UserWarning, match="No space left") as caught:
        nvrtc.compile_kernel(kernel())
        nvrtc.compile_kernel(kernel(REVERSE + " "))
    assert len(caught) == 1
    assert entries(cache) == []


def test_cleared_while_it_stores_is_no_warning(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = tempfile.mkstemp, []

    def mkstemp(*args: Any, **options: Any) -> tuple[int, str]:
        calls.append(options)
        if len(calls) == 1:
            shutil.rmtree(cache)
        return real(*args, **options)

    monkeypatch.setattr("tempfile.mkstemp", mkstemp)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nvrtc.compile_kernel(kernel())
    nvrtc.forget()
    assert nvrtc.compile_kernel(kernel()).cached
    assert len(calls) >= 3


def test_threads_share_one_compile() -> None:
    start = threading.Barrier(8)
    found: list[bool] = []

    def work() -> None:
        start.wait()
        found.append(nvrtc.compile_kernel(kernel()).cached)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [False] + [True] * 7


def test_processes_at_once(cache: Path, tmp_path: Path) -> None:
    script = tmp_path / "compile.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import hashlib, sys, warnings
            warnings.simplefilter("error")
            from tilewright import nvrtc
            from tilewright.source import KernelSource
            nvrtc.available()
            print("ready", flush=True)
            sys.stdin.readline()
            made = nvrtc.compile_kernel(KernelSource("00_reverse", {REVERSE!r}, "gpu", "sm_90a"))
            print(hashlib.sha256(made.cubin).hexdigest(), made.report.registers)
            """
        )
    )
    command = [sys.executable, str(script)]
    pipe = subprocess.PIPE
    running = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(2)]
    for process in running:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=60)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mine = nvrtc.compile_kernel(kernel())
    assert mine.cached
    assert all(answer.split()[1] == str(mine.report.registers) for answer in answers)


def test_refused_text_gives_log_line_and_source(cache: Path) -> None:
    text = '#line 7 "rungs/00_reverse.cu"\n' + REVERSE.replace("* m", "* q")
    with pytest.raises(CompileError) as caught:
        nvrtc.compile_kernel(kernel(text))
    assert 'rungs/00_reverse.cu(11): error: identifier "q" is undefined' in caught.value.log
    assert caught.value.source == text
    assert "\0" not in str(caught.value)
    assert "00_reverse does not compile for sm_90a with NVRTC" in str(caught.value)
    assert entries(cache) == []


def test_text_without_the_kernel() -> None:
    with pytest.raises(CompileError, match="has no kernel tw_gemm"):
        nvrtc.compile_kernel(kernel(REVERSE.replace('extern "C" ', "")))


@pytest.mark.parametrize("arch", [None, "90a", "compute_90a"])
def test_arch_that_is_none(arch: str | None) -> None:
    with pytest.raises(UsageError, match="'sm_90a'"):
        nvrtc.compile_kernel(kernel(arch=arch))


def test_arch_that_nvrtc_does_not_know() -> None:
    with pytest.raises(UnavailableError, match=r"cannot compile for sm_42.*sm_90"):
        nvrtc.compile_kernel(kernel(arch="sm_42"))


def test_warnings_are_reported() -> None:
    text = REVERSE.replace("__syncthreads();", "__syncthreads(); int unused;")
    found = nvrtc.compile_kernel(kernel(text)).report.warnings
    assert len(found) == 1
    assert '"unused" was declared but never referenced' in found[0]


OLD_LOG = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'other' for 'sm_90a'
ptxas info    : Function properties for other
    800 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 48 registers, used 0 barriers, 400 bytes cmem[0]
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized
ptxas info    : Compiling entry function 'tw_gemm' for 'sm_90a'
ptxas info    : Function properties for tw_gemm
    344 bytes stack frame, 340 bytes spill stores, 348 bytes spill loads
ptxas info    : Used 32 registers, used 2 barriers, 352 bytes cumulative stack size, 1024 bytes smem, 400 bytes cmem[0]
ptxas info    : Function properties for _Z6helperf
    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
"""


def test_report_of_one_kernel_among_others() -> None:
    report = parse_report(OLD_LOG, "tw_gemm", 0.5)
    assert (report.registers, report.barriers, report.shared_bytes, report.stack_bytes) == (32, 2, 1024, 352)
    assert (report.spill_store_bytes, report.spill_load_bytes) == (344, 352)
    assert report.spill_bytes == 696
    assert len(report.warnings) == 1
    assert "C7510" in report.warnings[0]


def test_report_that_is_not_there() -> None:
    report = parse_report("nothing of use", "tw_gemm", 0.5)
    assert report.registers is None
    assert report.spill_bytes is None
