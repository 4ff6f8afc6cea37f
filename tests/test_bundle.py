"""Kernels made ahead: ``warmup``, bundles on a machine that has no compiler, and the count of compiles."""

from __future__ import annotations

import errno
import json
import re
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matmul_cases import integers

import tilewright as tw
from tilewright import nvrtc
from tilewright.backends.base import Backend
from tilewright.compile_counter import count
from tilewright.library import answers, bundle, kept, warm
from tilewright.library.calls import laid_out
from tilewright.library.request import Options

ROOT = Path(__file__).parents[1]
EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "matmul.md").read_text(encoding="utf-8"), re.DOTALL)
needs_nvrtc = pytest.mark.skipif(not nvrtc.available(), reason=str(nvrtc.unavailable_reason()))

WITHOUT_CUDA = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "cuda":
            raise ImportError(f"{name} is not installed here")

sys.meta_path.insert(0, Missing())
"""
THE_CUBIN_IS_THE_BUNDLES = """
import hashlib, zipfile
from tilewright.library.warm import prepared, requests
from tilewright.library.request import Options

more = {"alpha": 1, "beta": 0, "c": None, "bias": "n", "epilogue": tw.gelu, "args": None}
(call,) = prepared(requests("32x64x48", "bf16", "rr", None, 0, Options(), more), "sm_90a")
with zipfile.ZipFile("gelu.bundle") as file:
    for kernel in call.kernels.values():
        digest = hashlib.sha256(kernel.compiled.cubin).hexdigest()
        assert file.read(f"cubins/{digest}.cubin") == kernel.compiled.cubin
assert tw.compiles() == tw.Compiles(0, 0, tw.compiles().bundled, 0.0)
assert tw.compiles().bundled > 0
assert not any(name.partition(".")[0] == "cuda" for name in sys.modules)
try:
    tw.warmup("48x64x48")
except tw.UnavailableError as error:
    assert "NVRTC" in str(error)
else:
    raise AssertionError("what the bundle lacks needs a compiler")
"""


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No bundle is loaded, and nothing compiled is in memory; what is made goes to the cache, not to a GPU."""
    monkeypatch.setattr(warm, "cuda_unavailable_reason", lambda: "none is asked for")
    answers.forget()
    nvrtc.forget()
    yield
    answers.forget()
    nvrtc.forget()


@pytest.fixture
def exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The bundle that the documentation exports."""
    monkeypatch.chdir(tmp_path)
    exec(compile(example("export_bundle("), "docs/matmul.md", "exec"), {"__name__": "example"})
    return tmp_path / "gelu.bundle"


def example(call: str) -> str:
    """The one example of the page with this call."""
    (text,) = [each for each in EXAMPLES if call in each]
    return str(text)


def run_alone(text: str, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", text], cwd=folder, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr


@needs_nvrtc
def test_what_was_warmed_is_not_compiled_again() -> None:
    exec(compile(example("before = tw.compiles()"), "docs/matmul.md", "exec"), {"__name__": "example"})
    nvrtc.forget()
    before = tw.compiles()
    (made,) = tw.warmup("32x64x48", bias="n", epilogue=tw.gelu)
    after = tw.compiles()
    assert made.cached
    assert not made.loaded
    assert (after.compiled, after.seconds) == (before.compiled, before.seconds)
    assert after.cached > before.cached
    assert json.loads(json.dumps(made.to_dict()))["plan"] == made.plan


@needs_nvrtc
def test_a_bundle_where_there_is_no_compiler(exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "another cache"))
    run_alone(WITHOUT_CUDA + example("load_bundle(") + THE_CUBIN_IS_THE_BUNDLES, exported.parent)


ON_A_GPU = """
import numpy as np
import tilewright as tw
from tilewright import nvrtc

def missing():
    raise tw.UnavailableError("NVRTC is not installed")

nvrtc.nvrtc_version = nvrtc.compiler = missing
tw.load_bundle("product.bundle")
a, b = np.ones((32, 48), np.float16), np.ones((48, 64), np.float16)
assert tw.explain(a, b).source == "bundled"
assert (tw.matmul(a, b) == 48).all()
assert tw.compiles().compiled == 0
"""


@pytest.mark.cuda
def test_a_bundle_on_a_gpu_without_a_compiler(cuda: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tw.export_bundle(tmp_path / "product.bundle", "32x64x48", dtype="fp16")
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "another cache"))
    run_alone(ON_A_GPU, tmp_path)


@pytest.mark.cuda
def test_the_first_call_finds_what_was_warmed(cuda: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "cuda_unavailable_reason", lambda: None)
    (made,) = tw.warmup((40, 64, 48), dtype="fp16")
    assert made.loaded
    before = tw.compiles()
    assert (tw.matmul(np.ones((40, 48), np.float16), np.ones((48, 64), np.float16)) == 48).all()
    assert tw.compiles() == before, "it is found in memory"


def rewritten(path: Path, change: Callable[[dict[str, Any]], Any], cubins: Callable[[bytes], bytes]) -> None:
    """The same bundle with another manifest and other cubins."""
    with zipfile.ZipFile(path) as file:
        files = {name: file.read(name) for name in file.namelist()}
    manifest = json.loads(files.pop(bundle.MANIFEST))
    changed = change(manifest)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(bundle.MANIFEST, json.dumps(manifest if changed is None else changed))
        for name, data in files.items():
            file.writestr(name, cubins(data))


def other_plan(manifest: dict[str, Any]) -> None:
    manifest["calls"][0]["choice"]["plan"]["bm"] = 7


def another(**values: Any) -> Callable[[dict[str, Any]], None]:
    """Another record of a choice."""

    def changed(manifest: dict[str, Any]) -> None:
        manifest["calls"][0]["choice"].update(values)

    return changed


def no_runner_up(manifest: dict[str, Any]) -> None:
    del manifest["calls"][0]["choice"]["runner_up"]


def other_cubin(manifest: dict[str, Any]) -> None:
    manifest["kernels"][0]["sha256"] = "0" * 64


REFUSED: tuple[tuple[str, Callable[[dict[str, Any]], Any]], ...] = (
    ("has schema 'tilewright.bundle/9'; this tilewright reads", lambda m: {**m, "schema": "tilewright.bundle/9"}),
    (r"has kernels 0123 of tilewright 0.1.*export it with", lambda m: {**m, "kernels_digest": "0123"}),
    ("is for sm_80; the GPU that is present takes sm_90a", lambda m: {**m, "arch": "sm_80"}),
    (r"gelu\.bundle is damaged: of a \(32, 48\) .*bm|tile", other_plan),
    (r"gelu\.bundle is damaged: of a \(32, 48\) .*'fast' is no time in microseconds", another(us="fast")),
    (r"gelu\.bundle is damaged: .*inf is no time in microseconds", another(us=float("inf"))),
    (r"gelu\.bundle is damaged: .*KeyError\('runner_up'\)", no_runner_up),
    (r"gelu\.bundle is damaged: .*the record of a choice is none", another(runner_up=["one"])),
    (r"gelu\.bundle is damaged: .*'zz' is no operand to pack; a, b, second are", another(packs={"zz": 1})),
    (r"gelu\.bundle is damaged: .*has one b, and a second is to be packed", another(packs={"second": 1})),
    (r"gelu\.bundle is damaged: .*the record of a choice is none", another(packs=[1])),
    (r"gelu\.bundle is damaged: .*label is 7; it is a text", another(label=7)),
    (r"is no bundle, .*sms is 'many'", lambda m: {**m, "sms": "many"}),
    (r"is damaged: .* cannot be read", other_cubin),
    (r"is no bundle, for its manifest\.json is none", lambda m: [1]),
    (r"is no bundle, .*'calls'", lambda m: {name: value for name, value in m.items() if name != "calls"}),
)


@needs_nvrtc
def test_what_is_refused(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "query_gpu", lambda: tw.get_gpu("h200"))
    whole = exported.read_bytes()
    for message, change in REFUSED:
        exported.write_bytes(whole)
        rewritten(exported, change, lambda data: data)
        with pytest.raises(tw.UsageError, match=message) as caught:
            tw.load_bundle(exported)
        assert "\n" not in str(caught.value)
    exported.write_bytes(whole)
    rewritten(exported, lambda m: m, lambda data: data[:-1] + b"x")
    with pytest.raises(tw.UsageError, match=r"is damaged: .* is not the kernel that was exported"):
        tw.load_bundle(exported)
    for damaged in (whole[: len(whole) // 2], whole[:5000] + b"damage" + whole[5006:], b""):
        exported.write_bytes(damaged)
        with pytest.raises(tw.UsageError, match=r"cannot be read|is damaged"):
            tw.load_bundle(exported)
    with pytest.raises(tw.UsageError, match=r"nothing\.bundle cannot be read: .*No such file"):
        tw.load_bundle(exported.with_name("nothing.bundle"))
    assert not nvrtc._provided
    with pytest.raises(tw.UsageError, match="cannot be written"):
        tw.export_bundle(exported / "below a file", "32x64x48", bias="n", epilogue=tw.gelu)


@needs_nvrtc
def test_a_full_disk_leaves_the_bundle_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "gelu.bundle"
    path.write_bytes(b"before")
    written = zipfile.ZipFile.writestr

    def full(archive: zipfile.ZipFile, info: Any, *more: Any) -> None:
        written(archive, info, *more)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "writestr", full)
    with pytest.raises(tw.UsageError, match=r"gelu.bundle cannot be written: .*No space left on device"):
        bundle._write(path, {"manifest.json": b"{}"})
    assert [each.name for each in tmp_path.iterdir()] == ["gelu.bundle"]
    assert path.read_bytes() == b"before"


def test_a_bundles_plan_comes_first_where_it_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = integers(1, (32, 48), tw.BF16), integers(2, (48, 64), tw.BF16)
    free = tw.explain(a, b, backend="emulator")
    plan = next(
        each.plan
        for each in tw.plan(32, 64, 48).ranked
        if each.plan is not None and each.plan.to_dict() != free.plan and each.plan.takes_batch
    )
    with tw.Matmul(a, b, plan=plan, backend="emulator") as forced:
        made = tw.export_bundle(tmp_path / "forced.bundle", [forced])
    assert (made.kernels, len(made.calls)) == (1, 1)
    assert tw.load_bundle(made.path) == made
    told = tw.explain(a, b, backend="emulator")
    assert (told.source, told.plan) == ("bundled", plan.to_dict())
    assert tw.explain(a[:31], b, backend="emulator").source == "planned", "another problem"
    smaller = replace(tw.get_gpu("h200"), sm_count=114)
    monkeypatch.setattr(bundle, "query_gpu", lambda: smaller)
    with pytest.warns(UserWarning, match=r"has plans for 132 SMs .* not used on H200 SXM with 114"):
        tw.load_bundle(made.path)


def test_every_kind_of_launch_of_many_batch_dimensions_is_made(tmp_path: Path) -> None:
    whole = np.ones((2, 1, 3, 1, 8, 12), np.float16)  # rows 24 bytes apart
    a, b = whole[..., 4:], np.ones((1, 3, 1, 3, 8, 16), np.float16)
    a = np.lib.stride_tricks.as_strided(a, (2, 1, 3, 1, 8, 8), (2, 0, *a.strides[2:]))  # the second is 2 bytes further
    with tw.Matmul(a, b, backend="emulator") as call:
        every = laid_out(call.request)
        launches = call.explain().launches
        made = tw.export_bundle(tmp_path / "turns.bundle", [call])
        (warmed,) = tw.warmup([call])
    assert (len(every), launches) == (2, 2)
    assert [each.question.offsets[0] for each in every] == [a.ctypes.data % 16, (a.ctypes.data + 2) % 16]
    assert made.calls[1] == f"{made.calls[0]}, launch 2"
    assert (warmed.call, warmed.cached) == (made.calls[0], True)
    assert tw.load_bundle(made.path) == made
    assert {answers.answer(each.question).source for each in every} == {"bundled"}


def test_a_plan_is_not_taken_for_other_sms() -> None:
    a, b = integers(1, (32, 48), tw.BF16), integers(2, (48, 64), tw.BF16)
    with tw.Matmul(a, b, backend="emulator") as call:
        question = laid_out(call.request)[0].question
    choice = answers.answer(question)
    record = {kept.digest_of(kept.described(question)): kept.record_of(choice)}
    answers.take(record, 114)
    assert answers.answer(question).source == "planned"
    answers.take(record, kept.gpu_here()[1])
    assert answers.answer(question).source == "bundled"


def after(acc: Any, residual: Any, row: Any, scale: Any) -> Any:
    return tw.gelu(acc * scale) + residual * row, acc


CONVERTED = {"layout": "cc", "dtype": "fp32", "out_dtype": "bf16"}


@pytest.mark.parametrize(
    ("said", "given"),
    [
        ({}, {}),
        ({"bias": "n"}, {"bias": (64,)}),
        ({"bias": "m,1:fp32"}, {"bias": (32, 1, "fp32")}),
        ({"alpha": 0.5, "beta": 2, "c": "m,n"}, {"alpha": 0.5, "beta": 2, "c": (32, 64)}),
        (
            {"epilogue": after, "args": {"residual": "m,n", "row": "m,1", "scale": 0.5}},
            {"epilogue": after, "args": {"residual": (32, 64), "row": (32, 1), "scale": 0.5}},
        ),
        (
            {"layout": "cc", "dtype": "fp32", "out_dtype": "bf16"},
            {"layout": "cc", "dtype": "fp32", "out_dtype": "bf16"},
        ),
    ],
)
def test_described_arrays_are_like_real_ones(said: dict[str, Any], given: dict[str, Any]) -> None:
    kind = tw.FP32 if said.get("dtype") == "fp32" else tw.BF16

    def made(shape: Any) -> Any:
        if not isinstance(shape, tuple):
            return shape
        numbers = [each for each in shape if isinstance(each, int)]
        return np.ones(numbers, (tw.FP32 if "fp32" in shape else kind).numpy)

    options = {name: made(value) for name, value in given.items() if name not in ("layout", "dtype", "args")}
    if "args" in given:
        options["args"] = {name: made(value) for name, value in given["args"].items()}
    a, b = np.ones((32, 48), kind.numpy), np.ones((48, 64), kind.numpy)
    if given.get("layout") == "cc":
        a, b = np.asfortranarray(a), np.asfortranarray(b)
    more = {"alpha": 1, "beta": 0, "c": None, "bias": None, "epilogue": None, "args": None}
    more |= {name: value for name, value in said.items() if name in more}
    (expected,) = warm.requests(
        "32x64x48", said.get("dtype", "bf16"), said.get("layout", "rr"), said.get("out_dtype"), 0, Options(), more
    )
    with tw.Matmul(a, b, backend="emulator", **options) as call:
        (real,), (seen,) = laid_out(call.request), laid_out(expected)
    assert seen.question == real.question
    assert (seen.after is None) == (real.after is None)
    if seen.after is not None and real.after is not None:
        assert seen.after.bound.compiled == real.after.bound.compiled
        assert seen.after.members == real.after.members


@pytest.mark.parametrize(
    ("shapes", "options", "message"),
    [
        ("32x64", {}, "'32x64' is no shape"),
        (7, {}, "shapes is 7"),
        ([(1, 2)], {}, r"shapes is \(1, 2\); a shape is M, N and K"),
        ("8x8x8", {"layout": "rx"}, "layout 'rx' is not one of"),
        ("8x8x8", {"dtype": "fp8"}, "dtype 'fp8' is not one of"),
        ("8x8x8", {"bias": "k"}, "bias is 'k'; 'm,n', 'm,1'"),
        ("8x8x8", {"epilogue": tw.relu, "args": {"x": np.ones(3)}}, r"args\['x'\] is a ndarray; 'm,n', 'm,1'"),
        ("8x8x8", {"epilogue": tw.relu, "args": 3}, "args is a int; it must map names"),
        ("8x8x8", {"alpha": "2"}, "alpha is a str; it must be a number"),
        ("8x8x8", {"c": "m,n", "beta": True}, "beta is a bool; it must be a number"),
        ("8x8x8", {"c": "m,n:fp64", "beta": 1}, "dtype 'fp64'"),
    ],
)
def test_what_cannot_be_warmed(shapes: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(tw.UsageError, match=message):
        tw.warmup(shapes, **options)


def test_a_result_without_elements_needs_no_kernel() -> None:
    assert tw.warmup([(0, 64, 48), tw.Problem(8, 0, 4)]) == []


def test_the_count_is_right_whoever_counts() -> None:
    def work() -> None:
        for _ in range(500):
            count("compiled", 0.5)

    before = tw.compiles()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert tw.compiles().compiled - before.compiled == 2000
    assert tw.compiles().seconds - before.seconds == pytest.approx(1000)
