"""The project's own checks, shown to fail on what they are there to catch."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import check_budget as budget
import check_kernels as kernels
import check_seam as seam
import pytest
import readme_table

from tilewright import branches, ladder
from tilewright.problem import Problem
from tilewright.results import Provenance, Record

ROOT = Path(__file__).parent.parent
CUDA = Path("src/tilewright/cuda")


def run(script: str, *args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts" / script), *map(str, args)], capture_output=True, text=True, check=False
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the kernels in a repository of its own, to be damaged."""
    shutil.copytree(ROOT / CUDA, tmp_path / CUDA)
    return tmp_path


# The seam


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("__device__ __forceinline__ float f(float a);", "inline float f(float) { return 0; }"),
        ("template <int N> __device__ void f(int id);", "template <int COUNT> static void f(int name) {}"),
        ("template <class T> __device__ T& g();", "template <class U> inline U& g() { static U u{}; return u; }"),
        ("template <int N, class T> V<T, N> h(const T* p);", "template <int M, class E> V<E, M> h(const E* q) {}"),
        ("void f(float (&d)[64], int x = 3);", "void f(float (&acc)[64], int) noexcept { }"),
        ("struct S { void hidden(); }; void f(u32* p);", "namespace detail { int own(int); } void f(u32*) {}"),
        ('void f(); // a comment with f(int);\n#define F(x) void f(x)', "/* void g(); */ void f() {}"),
        ("void f(int a);", "namespace inner { MACRO(1)\n } void f(int a);"),
        ("void f(int a);", "\n#define M \\\n void g(); \\\n void h(); \\\n void i();\nvoid f(int a);"),
    ],
)  # fmt: skip
def test_seam_signatures_that_mean_the_same(one: str, other: str) -> None:
    first, second = (seam.signatures(f"namespace tw {{ {text} }}") for text in (one, other))
    assert first == second
    assert len(first) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("void f(int a);", "void f(unsigned a);"),
        ("void f(int a);", "void f(int a, int b);"),
        ("void f(int a);", "int f(int a);"),
        ("void f(const float* p);", "void f(float* p);"),
        ("template <int N> void f();", "template <class T> void f();"),
        ("template <> float f<float>(float x);", "template <> float f<half>(float x);"),
        ("void f(float (&d)[64]);", "void f(float (&d)[32]);"),
        ("void f(int);", "struct f { f(int); };"),
        ("void f(int);", "namespace inner { void f(int); }"),
    ],
)
def test_seam_signatures_that_differ(one: str, other: str) -> None:
    first, second = (seam.signatures(f"namespace tw {{ {text} }}") for text in (one, other))
    assert first != second


def test_seam_holds_here() -> None:
    done = run("check_seam.py")
    assert done.returncode == 0, done.stderr


def test_seam_misses_nothing_that_is_taken_away(copy: Path) -> None:
    host = copy / CUDA / "host/tw"
    (host / "sync.cuh").unlink()
    (copy / CUDA / "gpu/tw/extra.cuh").write_text("namespace tw { void extra(); }")
    math = host / "math.cuh"
    math.write_text(math.read_text("utf-8").replace("ffma(float a,", "ffma(double a,"), "utf-8")
    done = run("check_seam.py", copy)
    assert done.returncode == 1
    assert "gpu/tw/sync.cuh has no host/tw/sync.cuh" in done.stderr
    assert "gpu/tw/extra.cuh has no host/tw/extra.cuh" in done.stderr
    assert "math.cuh: only host/tw declares: float ffma ( double" in done.stderr


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('asm volatile("nop;");', "inline assembly"),
        ("#ifdef __CUDA_ARCH__", "conditional compilation"),
        ("  #if 1", "conditional compilation"),
        ("int a = __CUDA_ARCH__;", "architecture"),
        ("__shared__ float tile[32];", "__shared__"),
        ("memcpy(to, from, 16);", "copy of bytes"),
        ("__builtin_memset(to, 0, 16);", "copy of bytes"),
        ("cute::print(x);", "template library"),
    ],
)
def test_seam_kernels_stay_portable(copy: Path, line: str, what: str) -> None:
    rung = next((copy / CUDA / "rungs").glob("01_*.cu"))
    rung.write_text(rung.read_text("utf-8") + line + "\n", "utf-8")
    done = run("check_seam.py", copy)
    assert done.returncode == 1
    assert what in done.stderr
    assert rung.name in done.stderr


def test_seam_does_not_read_comments(copy: Path) -> None:
    rung = next((copy / CUDA / "rungs").glob("01_*.cu"))
    rung.write_text(rung.read_text("utf-8") + "// no asm and no __shared__ here\n/* #if 0 */\n", "utf-8")
    assert run("check_seam.py", copy).returncode == 0


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('__asm("nop;");', "inline assembly"),
        ('__asm__("nop;");', "inline assembly"),
        ("%:ifdef X", "conditional compilation"),
        ("#\\\nifdef X", "conditional compilation"),
        ("#if\\\ndef X", "conditional compilation"),
        ("#/* a\ncomment */ifdef X", "conditional compilation"),
        ("__sha\\\nred__ float x;", "__shared__"),
        ('const char* s = "//"; asm("");', "inline assembly"),
        ('const char* s = "\\"/*"; asm("*/");', "inline assembly"),
        ('char c = \'"\'; asm("//");', "inline assembly"),
        ("int i = 1'000; asm(\"'\");", "inline assembly"),
        ('auto s = R"x(" // )x"; asm("");', "inline assembly"),
    ],
)
def test_seam_sees_through_spellings(tmp_path: Path, text: str, what: str) -> None:
    (tmp_path / "x.cu").write_text("// one\n" + text + "\nint last;\n", "utf-8")
    (problem,) = seam.kernel_problems([tmp_path / "x.cu"])
    assert f"x.cu:2: {what}" in problem


@pytest.mark.parametrize(
    "text", ["// asm \\\n asm", 'const char* s = "asm";', '/* " */ int x; /* asm " */', "// it's\n/* asm */ // '"]
)
def test_seam_of_what_is_no_code(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.cu").write_text(text + "\n", "utf-8")
    assert seam.kernel_problems([tmp_path / "x.cu"]) == []
    assert seam.without_comments(text).count("\n") == text.count("\n")


def test_seam_of_nothing_is_a_failure(tmp_path: Path) -> None:
    done = run("check_seam.py", tmp_path)
    assert done.returncode == 1
    assert "nothing was checked" in done.stderr


# The budgets


def test_budgets_hold_here() -> None:
    done = run("check_budget.py")
    assert done.returncode == 0, done.stderr


def test_budget_of_a_module(copy: Path) -> None:
    for name, lines in (("fits.py", 400), ("too_long.py", 401)):
        (copy / "src/tilewright" / name).write_text("x = 1\n" * lines)
    done = run("check_budget.py", copy)
    assert done.returncode == 1
    assert "too_long.py: 401 lines" in done.stderr
    assert "fits.py" not in done.stderr


def rung_files(root: Path, old: str, new: str) -> None:
    folder = root / CUDA / "rungs"
    folder.mkdir(parents=True)
    (folder / "00_old.cu").write_text("// rung: 0\n" + old)
    (folder / "01_new.cu").write_text("// rung: 1\n// idea: a new one\n" + new)


def numbered(word: str, count: int) -> str:
    return "".join(f"int {word}{i};\n" for i in range(count))


def test_budget_of_a_rung(tmp_path: Path) -> None:
    rung_files(tmp_path, numbered("a", 149), numbered("a", 149))
    done = run("check_budget.py", tmp_path)
    assert done.returncode == 1
    assert "01_new.cu: 151 lines; a rung has at most 150" in done.stderr  # the front matter is part of a file
    assert "00_old.cu" not in done.stderr


@pytest.mark.parametrize(("changed", "status"), [(45, 0), (46, 1)])
def test_budget_of_a_difference(tmp_path: Path, changed: int, status: int) -> None:
    rung_files(tmp_path, numbered("a", changed) + "int same;\n", numbered("b", changed) + "\n\nint same;\n")
    done = run("check_budget.py", tmp_path)
    assert done.returncode == status, done.stdout
    assert f"+{changed} -{changed}" in done.stdout  # blank lines and front matter are no change


def test_budget_does_not_count_what_moved_into_a_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    headers = tmp_path / "headers"
    (headers / "tw").mkdir(parents=True)
    (headers / "tw/moved.cuh").write_text("namespace tw {\n" + numbered("moved", 60).replace("int", "  int") + "}\n")
    monkeypatch.setattr("tilewright.report.diff.include_dirs", lambda target: (headers,))
    old = "{\n" + numbered("moved", 60) + "}\n" + numbered("a", 20)
    rung_files(tmp_path, old, "#include <tw/moved.cuh>\n" + numbered("b", 20))
    assert budget.problems(tmp_path) == []
    new = tmp_path / CUDA / "rungs/01_new.cu"
    new.write_text(new.read_text().replace("#include <tw/moved.cuh>\n", ""))
    assert len(budget.problems(tmp_path)) == 1


# The kernels


def test_kernels_cover_the_ladder() -> None:
    jobs = list(kernels.jobs())
    for rung in ladder.rungs().values():
        for dtype in rung.dtypes:
            mine = [job for job in jobs if job.kernel is rung and job.plan.dtype == dtype]
            assert {job.plan.aligned for job in mine} == ({True, False} if rung.number < 11 else {True})
            layouts = {(job.plan.a_layout, job.plan.b_layout) for job in mine}
            first = rung.any_layout and dtype == rung.dtypes[0]  # the measured plans have layouts of their own
            assert len(layouts) == 4 if first else ("row", "row") in layouts
            assert "sm_90a" in {job.arch for job in mine}
    assert {"sm_80", "sm_120"} <= {job.arch for job in jobs}


def test_kernels_cover_the_branches() -> None:
    jobs = list(kernels.jobs())
    for branch in branches.branches().values():
        for kernel in branch.kernels:
            mine = [job.plan for job in jobs if job.kernel is kernel]
            assert {plan.dtype for plan in mine} == set(kernel.dtypes)
            assert {plan.dependent for plan in mine} == {False, True}
            by_tma = {box.operand for plan in mine for box in plan.tensor_boxes}
            assert {plan.aligned for plan in mine} == ({True} if "c" in by_tma else {True, False})


SPILLING = """
extern "C" __global__ void __launch_bounds__(1024, 2) tw_gemm(float* p, int n) {
  float v[96];
  for (int r = 0; r < n; ++r) {
#pragma unroll
    for (int i = 0; i < 96; ++i) v[i] = p[i * n + r] + (r ? v[i] : 0.0f);
#pragma unroll
    for (int i = 0; i < 96; ++i) p[(95 - i) * n] = v[i] * v[(i + 7) % 96];
  }
}
"""


def test_kernels_that_spill_or_do_not_compile_are_named() -> None:
    pytest.importorskip("cuda.core", reason="NVRTC is installed by the extra cuda13, which has no macOS packages")
    from tilewright.errors import TilewrightError
    from tilewright.nvrtc import compile_kernel
    from tilewright.source import KernelSource

    report = compile_kernel(KernelSource("spilling", SPILLING, "gpu", "sm_90a")).report
    assert any("spilled" in problem for problem in kernels.problems(report))
    assert kernels.problems(report, spills_allowed=True) == []
    with pytest.raises(TilewrightError, match="flaot"):
        compile_kernel(KernelSource("broken", SPILLING.replace("float v", "flaot v"), "gpu", "sm_90a"))


def test_kernels_a_clean_report_has_no_problem() -> None:
    from tilewright.ptxas import CompileReport

    assert kernels.problems(CompileReport(128, 0, 0, 0, 0, 1, 0.1)) == []
    assert kernels.problems(CompileReport(128, 0, 8, 0, 0, 1, 0.1)) == ["8 bytes of stack"]
    assert kernels.problems(CompileReport(128, 0, 0, 0, 0, 1, 0.1, ("(C7510) wgmma serialised",)))
    assert kernels.problems(CompileReport(None, None, None, None, None, None, 0.1))


# The README's table


def record(tflops: float, **more: Any) -> Record:
    problem = Problem(4096, 4096, 4096, more.pop("dtype", "fp32")).to_dict()
    provenance = Provenance("NVIDIA H200", more.pop("date", "2026-11-29T12:00:00Z"), driver="580.1")
    time_us = {"median": 1.0, "min": 1.0, "max": 1.0, "iqr": 0.0}
    values = {"what": "rung", "name": "naive", "rung": 0, **more}
    return Record(problem=problem, provenance=provenance, time_us=time_us, tflops=tflops, **values)


def test_readme_table_shows_the_newest_record_of_each_rung() -> None:
    ratio = {"median": 0.1, "min": 0.09, "max": 0.11, "iqr": 0.0}
    records = [
        record(1.0, date="2026-11-28T12:00:00Z"),
        record(5.55, ratios={"cuBLAS": ratio}),
        record(6.7, dtype="bf16"),
        record(51.2, what="vendor", name="cuBLAS", rung=None),
        record(742.05, what="vendor", name="cuBLAS", rung=None, dtype="bf16"),
        dataclasses.replace(record(99.0), provenance=Provenance("NVIDIA A100", "2027-01-01T00:00:00Z")),
    ]
    shown = readme_table.table(records)
    line = next(line for line in shown.splitlines() if line.startswith("| 0 naive"))
    assert [cell.strip() for cell in line.split("|")][3:-1] == ["5.5", "8%", "0.100x (0.090-0.110)", "6.7", "10%", "-"]
    # The library multiplies bf16 on tensor cores, as rungs 5 and up do: 742.05 of 989.4 TFLOPS.
    assert "cuBLAS, in the run of rung 0 | 51.2 | 76% |  | 742.0 | 75% |  |" in shown
    assert "cuBLAS, in the run of rung 0 | 51.2 | 76% |  | - | - |  |" in readme_table.table(records[:-2])
    assert "99" not in shown
    assert "NVIDIA H200, driver 580.1; measured 2026-11-29" in shown


def test_readme_table_without_records_says_so() -> None:
    assert "No record of this problem" in readme_table.table([])


def test_readme_table_check_fails_on_a_stale_table(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    readme = tmp_path / "README.md"
    markers = [(readme_table.BEGIN.format(name), readme_table.END.format(name)) for name in readme_table.TABLES]
    readme.write_text("before\n" + "between\n".join(f"{begin}\nstale\n{end}\n" for begin, end in markers) + "after\n")
    assert run("readme_table.py", "--check", tmp_path).returncode == 1
    assert "stale" in readme.read_text()
    assert run("readme_table.py", tmp_path).returncode == 0
    assert run("readme_table.py", "--check", tmp_path).returncode == 0
    assert readme.read_text().startswith("before\n")
    assert readme.read_text().endswith("\nafter\n")


def test_readme_table_here_is_current() -> None:
    done = run("readme_table.py", "--check")
    assert done.returncode == 0, done.stdout
