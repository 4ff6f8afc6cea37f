"""The flat text of a kernel: everything in it, each line where it says it is from, and compilers that agree."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from ladder_cases import CASES, IDS

from tilewright import nvrtc, source
from tilewright.backends.emulator import EmulatorBackend
from tilewright.backends.host_compiler import HostCompiler, available_compilers
from tilewright.dtypes import BF16, FP32, DType
from tilewright.epilogue.code import PLAIN
from tilewright.errors import CompileError, UsageError
from tilewright.ladder import Rung, rungs
from tilewright.source import CUDA_ROOT, KernelSource, Target, flatten

TARGETS = get_args(Target)
needs_nvrtc = pytest.mark.skipif(not nvrtc.available(), reason="cuda-core or NVRTC is not installed")
Located = tuple[str, int, str]


def located(text: str) -> Iterator[Located]:
    """Each line of a flat text with the file and number that its ``#line`` directives give it."""
    label, number = "", 0
    for line in text.splitlines():
        match = re.fullmatch(r'#line (\d+) "([^"]+)"', line)
        if match is None:
            yield label, number, line
            number += 1
        else:
            label, number = match[2], int(match[1])


def flat(rung: Rung, target: Target, dtype: DType = BF16) -> str:
    return rung.source(rung.plan(dtype), target).text


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("number", rungs())
def test_every_line_is_where_it_says(number: int, target: Target) -> None:
    rung = rungs()[number]
    text = flat(rung, target)
    files: dict[str, dict[int, str]] = {}
    for label, line_number, line in located(text):
        assert line_number not in files.setdefault(label, {}), f"{label}:{line_number} stands there twice"
        files[label][line_number] = line
    head, plan = files.pop(""), files.pop("plan")
    assert head == {0: f"// rungs/{rung.path.name}, flattened for the {target}"}
    given = rung.plan(BF16)
    assert "\n".join(plan.values()) + "\n" == given.header() + (PLAIN.header() if given.has_epilogue else "")
    assert files.pop("export", None) == ({1: "TW_EXPORT(tw_gemm)"} if target == "host" else None)
    for label, lines in files.items():
        original = (CUDA_ROOT / label).read_text("utf-8").splitlines()
        own = {i: line for i, line in enumerate(original, start=1) if not line.startswith(("#include", "#pragma once"))}
        assert {i: line for i, line in lines.items() if line} == {i: line for i, line in own.items() if line}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("number", rungs())
def test_the_text_needs_no_other_file(number: int, target: Target, tmp_path: Path) -> None:
    text = flat(rungs()[number], target)
    assert not re.search(r"^\s*#\s*include|#pragma once|__has_include", text, re.MULTILINE)
    once = re.findall(r'^#line 1 "(.*)"$', text, re.MULTILINE)
    assert len(once) == len(set(once)), "a header stands there twice"
    assert flat(rungs()[number], target) == text
    # What is flat already comes through as it is.
    again = tmp_path / "again.cu"
    again.write_text(text)
    body = flatten(again, target, "").splitlines()
    begin = body.index('#line 1 "again.cu"') + 1
    assert body[begin : begin + len(text.splitlines())] == text.splitlines()


@pytest.mark.parametrize("number", rungs())
def test_host_and_gpu_text_differ_in_the_headers_of_each_side_only(number: int) -> None:
    rung = rungs()[number]
    sides: dict[Target, list[Located]] = {target: list(located(flat(rung, target))) for target in TARGETS}
    shared = {
        target: [each for each in lines if each[0] not in ("", "export") and not each[0].startswith(f"{target}/")]
        for target, lines in sides.items()
    }
    assert shared["gpu"] == shared["host"]
    own = {
        target: {label.removeprefix(f"{target}/") for label, _, _ in lines if label.startswith(f"{target}/")}
        for target, lines in sides.items()
    }
    assert own["host"] - own["gpu"] == {"tw/cuda.cuh", "tw/abi.cuh"}, "what a host needs to know of CUDA itself"
    assert own["gpu"] <= own["host"]
    assert "asm" not in "".join(line for _, _, line in shared["gpu"])


# ---- where a mistake is ----------------------------------------------------------------------------------------------


@pytest.fixture(params=available_compilers(), ids=lambda compiler: compiler.kind)
def compiler(request: pytest.FixtureRequest) -> HostCompiler:
    """Every host compiler found here."""
    found: HostCompiler = request.param
    return found


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A copy of the kernels in which the first line that contains a text is followed by a mistake; its line number."""
    root = tmp_path / "cuda"
    shutil.copytree(CUDA_ROOT, root)
    monkeypatch.setattr(source, "CUDA_ROOT", root)

    def spoil(file: str, after: str, target: Target) -> tuple[int, KernelSource]:
        lines = (root / file).read_text("utf-8").splitlines()
        at = next(number for number, line in enumerate(lines) if after in line) + 1
        lines.insert(at, "  flaot mistake;")
        (root / file).write_text("\n".join(lines) + "\n", "utf-8")
        rung = rungs()[3]
        text = flatten(root / "rungs" / rung.path.name, target, rung.plan(FP32).header())
        return at + 1, KernelSource("spoiled", text, target, "sm_90a" if target == "gpu" else None)

    return spoil


PLACES = [
    ("rungs/03_vectorised.cu", "Shared& s ="),
    ("rungs/03_vectorised.cu", "using namespace plan"),
    ("tw/row.cuh", "namespace tw {"),
    ("tw/vec.cuh", "T data[N];"),
]


@pytest.mark.parametrize(("file", "after"), PLACES)
def test_a_host_compiler_names_file_and_line(broken: Any, compiler: HostCompiler, file: str, after: str) -> None:
    line, text = broken(file, after, "host")
    with pytest.raises(CompileError, match=re.escape(f"{file}:{line}:")) as caught:
        EmulatorBackend(compiler=compiler).compile(text)
    assert "flaot" in caught.value.log
    assert "flaot" in caught.value.source


@needs_nvrtc
@pytest.mark.parametrize(("file", "after"), [*PLACES, ("gpu/tw/memory.cuh", "namespace tw {")])
def test_nvrtc_names_file_and_line(broken: Any, file: str, after: str) -> None:
    line, text = broken(file, after, "gpu")
    with pytest.raises(CompileError, match=re.escape(f"{file}({line})")) as caught:
        nvrtc.compile_kernel(text)
    assert "flaot" in caught.value.log


def test_a_mistake_in_the_plan_is_named_as_such(compiler: HostCompiler) -> None:
    text = flatten(rungs()[0].path, "host", "namespace plan {\nusing T = flaot;\n}\n")
    with pytest.raises(CompileError, match=r"plan:2:.*flaot"):
        EmulatorBackend(compiler=compiler).compile(KernelSource("spoiled", text, "host"))


# ---- what may be included --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    ["#include <cuda_runtime.h>", '#include "tw/row.cuh"', "  #  include <vector>", "#include <cutlass/gemm.h>",
     "#include MACRO", "#include <../tw/row.cuh>"],
)  # fmt: skip
def test_a_foreign_include_is_refused(tmp_path: Path, line: str) -> None:
    file = tmp_path / "mine.cu"
    file.write_text(f"#include <tw/types.cuh>\n\n{line}\n")
    says = f"mine.cu:3 includes something that is not a <tw/...> header: {line.strip()}"
    with pytest.raises(UsageError, match=f"^{re.escape(says)}$"):
        flatten(file, "gpu", "")


def test_a_header_that_does_not_exist(tmp_path: Path) -> None:
    file = tmp_path / "mine.cu"
    file.write_text("#include <tw/nothing.cuh>\n")
    with pytest.raises(UsageError, match=r"^mine\.cu:1 includes tw/nothing\.cuh, which is in none of .*gpu, .*cuda"):
        flatten(file, "gpu", "")


@pytest.mark.parametrize("name", ["tw/../../../source.py", "tw//types.cuh", "tw/."])
def test_an_include_cannot_leave_the_project_or_name_a_folder(tmp_path: Path, name: str) -> None:
    file = tmp_path / "mine.cu"
    file.write_text(f"#include <{name}>\n#include <tw/types.cuh>\n")
    try:
        text = flatten(file, "gpu", "")
    except UsageError:
        return
    assert "KernelSource" not in text
    assert text.count("struct bf16") == 1


# ---- the compilers ---------------------------------------------------------------------------------------------------


@needs_nvrtc
@pytest.mark.parametrize(("rung", "dtype"), CASES, ids=IDS)
def test_nvrtc_compiles_the_gpu_text(rung: Rung, dtype: DType) -> None:
    report = nvrtc.compile_kernel(rung.source(rung.plan(dtype), "gpu", "sm_90a")).report
    assert report.registers is not None
    assert 16 <= report.registers <= 255
    assert (report.spill_bytes, report.stack_bytes, report.warnings) == (0, 0, ())
    assert report.shared_bytes == 0, "all of it is dynamic"


def nvcc_missing() -> str:
    """Why plain nvcc cannot be tried here; empty when it can."""
    if shutil.which("nvcc") is None:
        return "nvcc is not on PATH"
    found = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=False).stdout
    release = re.search(r"release (\d+)", found)
    return "" if release and int(release[1]) >= 12 else "nvcc is older than 12.0, which does not know sm_90a"


@pytest.mark.skipif(bool(nvcc_missing()), reason=nvcc_missing() or "-")
@pytest.mark.parametrize("number", [0, 4, 5, 11])
def test_plain_nvcc_compiles_the_gpu_text(number: int, tmp_path: Path) -> None:
    rung = rungs()[number]
    dtypes = rung.dtypes[:1]  # scripts/check_kernels.py compiles all of them, with NVRTC
    for dtype in dtypes:
        (tmp_path / f"{dtype}.cu").write_text(flat(rung, "gpu", dtype))
    command = ["nvcc", "-cubin", "-arch=sm_90a", "-Werror=all-warnings", *(f"{dtype}.cu" for dtype in dtypes)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for dtype in dtypes:
        assert b".text.tw_gemm\0" in (tmp_path / f"{dtype}.cubin").read_bytes()
