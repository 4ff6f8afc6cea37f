"""The timed half of a climb, on a GPU that is none: kernels compute with NumPy and say what they cost."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runner import run

from tilewright import backends, climb_timing, ladder, measure, nvrtc, results
from tilewright import climb as engine
from tilewright.backends.base import DeviceInfo, Kernel, Matrix, TensorMap
from tilewright.backends.cuda import CudaBackend
from tilewright.climb import ClimbResult, Row, climb
from tilewright.dtypes import DTYPES, DType
from tilewright.errors import CompileError, LaunchError, UnavailableError
from tilewright.gpu import GpuSpec, get_gpu
from tilewright.measure import Launch, Rival, Schedule, Slot, rotation
from tilewright.problem import Layout
from tilewright.source import KernelSource
from tilewright.telemetry import Snapshot

SIZE = 128
FLOPS = 2 * SIZE**3
# Microseconds a launch; a counter-example costs four times as much as its rung.
COSTS = {"00_naive": 800.0, "01_shared_tile": 400.0, "02_register_block": 100.0, "03_vectorised": 80.0,
         "04_double_buffered": 50.0, "cuBLAS": 40.0}  # fmt: skip
MISTAKES = ("SWAPPED = true", "INTERLEAVED = false")


class FakeGpu(CudaBackend):
    """A GPU as far as a climb can tell. Launches on a list, as the timer makes them, only note their cost there."""

    def __init__(self, wrong: str = "", failing: str = "", refused: str = "", deadly: str = "") -> None:
        self.device_id = 0
        self.compute_capability = (9, 0)
        self.wrong, self.failing, self.refused, self.deadly = wrong, failing, refused, deadly
        self.dead = False
        self.top = 1 << 40  # where its last matrix lies

    def device(self) -> DeviceInfo:
        return DeviceInfo("NVIDIA Fake", None, {"uuid": "GPU-0", "driver_cuda": (13, 0), "l2_bytes": 0})

    @contextmanager
    def telemetry(self) -> Iterator[Callable[[], Snapshot]]:
        yield lambda: Snapshot(sm_clock_mhz=1980, power_w=650.0)

    def upload(self, array: np.ndarray[Any, Any], ld: int | None = None, layout: Layout = "row") -> Matrix:
        dtype = next(d for d in DTYPES.values() if d.numpy == array.dtype)
        if self.dead:
            raise LaunchError("the context is gone")
        rows, cols = array.shape
        line = cols if layout == "row" else rows
        self.top += 1 << 30
        return Matrix(self.top, rows, cols, ld or max(line, 1), dtype, array.copy(), layout)

    def empty(self, rows: int, cols: int, dtype: DType, ld: int | None = None, layout: Layout = "row") -> Matrix:
        return self.upload(np.full((rows, cols), np.nan, dtype.numpy), ld)

    def download(self, matrix: Matrix) -> np.ndarray[Any, Any]:
        return np.array(matrix.owner)

    def compile(self, source: KernelSource) -> Any:
        assert source.target == "gpu"
        assert source.arch == "sm_90a"
        if source.name == self.refused:
            raise CompileError("it does not compile", log="line 3: no")
        return FakeKernel(source.name, any(text in source.text for text in MISTAKES))

    def launch(
        self, kernel: Kernel, grid: Any, block: Any, args: Sequence[Any], shared_bytes: int, *, cluster: int = 1,
        dependent: bool = False, stream: Any = None,
    ) -> None:  # fmt: skip
        assert isinstance(kernel, FakeKernel)
        matrices = [arg.matrix if isinstance(arg, TensorMap) else arg for arg in args]
        a, b, c, *_ = (each.owner for each in matrices if isinstance(each, Matrix))  # C of rung 11 comes twice
        if isinstance(stream, list):
            if kernel.name == self.failing:
                raise LaunchError("it went up in smoke\nand more")
            stream.append(COSTS[kernel.name] * (4 if kernel.mistaken else 1))
        else:
            if kernel.name == self.deadly:
                self.dead = True
                raise LaunchError("it read what is not its own")
            c[...] = a.astype(np.float32) @ b.astype(np.float32) + (kernel.name == self.wrong)


@dataclass(frozen=True)
class FakeKernel:
    name: str
    mistaken: bool


class FakeTimer:
    """Adds up what the launches say they cost."""

    def __init__(self, backend: FakeGpu) -> None:
        assert isinstance(backend, FakeGpu)

    def prepare(self, launches: Sequence[Launch], count: int) -> Any:
        assert count % len(launches) == 0
        return Prepared(count, launches)

    def slot(self, prepared: Any, warm: int, timed: int, sample: Callable[[], None] | None = None) -> Slot:
        noted: list[float] = []
        for launch in prepared.in_turn:
            launch(noted)
        if sample is not None:
            sample()
        return Slot(sum(noted) / len(noted), 1300.0)


@dataclass(frozen=True)
class Prepared:
    launches: int
    in_turn: Sequence[Launch]
    method: str = "graph"
    note: str = ""


def fake_cublas(backend: FakeGpu, sets: Sequence[Any], name: str) -> Rival:
    return Rival(name, [lambda stream: stream.append(COSTS["cuBLAS"])] * len(sets))


def no_cublas(backend: FakeGpu, sets: Sequence[Any], name: str) -> Rival:
    raise UnavailableError("neither torch nor cupy")


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    """No NVRTC, no host compiler, no records, two operand sets, and a vendor's library that costs what COSTS says."""
    monkeypatch.setattr(measure, "rotation", partial(rotation, max_sets=2))
    monkeypatch.setattr(climb_timing, "CudaTimer", FakeTimer)
    monkeypatch.setattr(climb_timing, "cublas", fake_cublas)
    monkeypatch.setattr(engine, "query_gpu", lambda ordinal: get_gpu("h200"))
    monkeypatch.setattr(nvrtc, "available", lambda: False)
    monkeypatch.setattr(nvrtc, "nvrtc_version", lambda: (13, 5))
    monkeypatch.setattr(results, "recorded", list)
    monkeypatch.setenv("TILEWRIGHT_CXX", "no-such-compiler")


def timed(gpu: FakeGpu | None = None, **arguments: Any) -> ClimbResult:
    schedule = Schedule(slot_ms=1, rounds=3, graph_ms=0.1)
    given = {"shape": (SIZE,) * 3, "dtype": "fp32", "schedule": schedule, "backend": gpu or FakeGpu(), **arguments}
    return climb(**given)


def by_label(result: ClimbResult) -> dict[str, Row]:
    return {row.label: row for row in result.rows}


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_times_and_what_follows_from_them(dtype: str) -> None:
    result = timed(dtype=dtype)
    assert all(row.report is not None and row.report.ok for row in result.rows)
    found = {row["name"]: row for row in (each.to_dict() for each in result.rows)}
    names = ["naive", "shared tile", "register block", "vectorised", "double-buffered"]
    times = dict(zip(names, COSTS.values(), strict=False))
    times["swapped"] = 4 * times["naive"]
    for name, time_us in times.items():
        row = found[name]
        assert row["time_us"] == time_us
        assert row["tflops"] == pytest.approx(FLOPS / time_us / 1e6)
        # bf16 is multiplied in fp32: the same roof.
        assert row["percent_of_roof"] == pytest.approx(100 * row["tflops"] / get_gpu("h200").fp32_tflops)
        assert row["speedup_over_vendor"] == {"cuBLAS": pytest.approx(COSTS["cuBLAS"] / time_us)}
    assert [found[name]["speedup_over_previous"] for name in names] == [None, 2, 4, 1.25, 1.6]
    assert [found[name]["speedup_over_naive"] for name in names] == [None, 2, 8, 10, 16]
    assert result.to_dict()["vendor"] == [
        {"name": "cuBLAS", "dtype": dtype, "time_us": 40.0, "tflops": pytest.approx(FLOPS / 40e6)}
    ]


def test_a_mistake_is_compared_with_the_rung_below_and_no_rung_with_a_mistake() -> None:
    rows = by_label(timed())
    adjacent = rows["2 adjacent"]
    assert adjacent.time_us == 400
    assert (adjacent.speedup_over_previous, adjacent.speedup_over_naive) == (1, 2)
    assert rows["3 vectorised"].speedup_over_previous == 1.25
    assert rows["1 shared tile"].speedup_over_previous == 2
    swapped = rows["0 swapped"]
    assert (swapped.speedup_over_previous, swapped.speedup_over_naive) == (None, None)


def test_both_dtypes_are_compared_each_with_its_own() -> None:
    result = timed(dtype=None, rungs="0-1")
    assert [(row.plan.dtype.name, row.label, row.speedup_over_naive) for row in result.rows] == [
        (dtype, label, speedup)
        for dtype in ("fp32", "bf16")
        for label, speedup in (("0 naive", None), ("0 swapped", None), ("1 shared tile", 2.0))
    ]
    assert [vendor["dtype"] for vendor in result.to_dict()["vendor"]] == ["fp32", "bf16"]


def test_without_compilers_counted_and_compiled_are_null() -> None:
    document = json.loads(json.dumps(timed(rungs="0-1").to_dict(), allow_nan=False))
    assert document["backend"] == "cuda"
    assert document["device"]["name"] == "NVIDIA Fake"
    for row in document["rungs"]:
        assert row["counted"] is row["compiled"] is row["recorded"] is None
        assert row["verified"] is True


def test_a_host_compiler_counts_beside_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILEWRIGHT_CXX")
    naive = timed(rungs="0").rows[0].to_dict()
    assert naive["counted"]["flop_per_byte"] == 0.25
    assert naive["counted"]["operands"]["b"]["sectors_per_request"] == 4
    assert naive["time_us"] == 800


# ---- records ---------------------------------------------------------------------------------------------------------


def test_records_hold_everything_that_judges_a_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "rotation", rotation)
    result = timed(shape=(512, 512, 512), rungs="2-4")
    records = {record.name: record for record in result.records}
    assert {(record.name, record.what, record.rung) for record in result.records} == {
        *(
            (row.label, "counter-example" if row.mistake else "rung", row.kernel.identity["rung"])
            for row in result.rows
        ),
        ("cuBLAS", "vendor", None),
    }
    best = records["4 double-buffered"]
    assert best.problem == {**best.problem, "m": 512, "n": 512, "k": 512, "dtype": "fp32"}
    assert best.plan == ladder.rung(4).plan(DTYPES["fp32"]).to_dict()
    assert best.time_us == {"median": 50.0, "min": 50.0, "max": 50.0, "iqr": 0.0}
    assert best.samples_us == (50.0, 50.0, 50.0)
    assert best.ratios["cuBLAS"]["median"] == pytest.approx(0.8)
    assert best.ratios["3 vectorised"]["median"] == pytest.approx(1.6)
    assert best.noise == {"median": 1.0, "min": 1.0, "max": 1.0, "iqr": 0.0}
    assert best.verified is not None
    assert 0 < best.verified["error_over_bound"] <= 1
    assert (best.clock_mhz, best.power_w) == (1980, 650)
    made = best.provenance
    assert (made.gpu, made.nvrtc, made.driver_cuda, made.fill) == ("NVIDIA Fake", "13.5", "13.0", "normal")
    assert made.l2 is not None
    assert made.l2.startswith("L2-cold: "), "so many operand sets that none is found in the cache"
    assert made.method == "CUDA graph replays in 1 ms slots, the first 40% untimed, 3 rounds in random order"
    assert made.before is not None
    assert made.before["sm_clock_mhz"] == 1980
    assert made.command
    results.append(tmp_path / "r.jsonl", result.records)
    assert results.load(tmp_path / "r.jsonl") == result.records


def test_the_command_shows_times_and_keeps_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpu = FakeGpu()
    for module in (backends, engine):
        monkeypatch.setattr(module, "open_backend", lambda name: gpu)
    file = tmp_path / "r.jsonl"
    arguments = ("climb", "--size", str(SIZE), "--dtype", "fp32", "--rungs", "0-1")
    done = run(*arguments, "--record", str(file))
    assert done.exit_code == 0, done.stderr
    for shown in ("time us", "800", "400", "NVIDIA Fake", "cuBLAS"):
        assert shown in done.stdout
    assert [record.name for record in results.load(file)] == ["0 naive", "0 swapped", "1 shared tile", "cuBLAS"]
    assert "800" in run(*arguments).stdout, "without --record too"
    gpu.wrong = "01_shared_tile"
    done = run(*arguments, "--record", str(tmp_path / "wrong.jsonl"))
    assert done.exit_code == 1
    assert "not verified: fp32 1 shared tile" in done.stderr
    assert not (tmp_path / "wrong.jsonl").exists()


# ---- what cannot be timed --------------------------------------------------------------------------------------------


def test_a_wrong_result_has_no_speed() -> None:
    result = timed(FakeGpu(wrong="02_register_block"))
    rows = by_label(result)
    for label in ("2 register block", "2 adjacent"):
        document = rows[label].to_dict()
        assert document["verified"] is False
        assert document["error_over_bound"] > 1
        assert document["time_us"] is document["tflops"] is document["percent_of_roof"] is None
        assert document["speedup_over_vendor"] == {}
        assert label not in {record.name for record in result.records}
    assert rows["3 vectorised"].time_us == 80
    assert rows["3 vectorised"].speedup_over_previous is None, "the rung below has no time"
    assert rows["3 vectorised"].speedup_over_naive == 10


def test_a_rung_that_fails_while_timed_leaves_the_others_their_figures() -> None:
    result = timed(FakeGpu(failing="03_vectorised"))
    rows = by_label(result)
    assert rows["3 vectorised"].time_us is rows["3 vectorised"].tflops is None
    assert rows["4 double-buffered"].time_us == 50
    assert rows["4 double-buffered"].speedup_over_previous is None
    (failed,) = (record for record in result.records if record.name == "3 vectorised")
    assert failed.error == "LaunchError: it went up in smoke"
    assert failed.time_us is None


def test_a_kernel_that_does_not_compile_leaves_the_others_their_figures() -> None:
    rows = by_label(timed(FakeGpu(refused="03_vectorised")))
    refused = rows["3 vectorised"].to_dict()
    assert (refused["verified"], refused["fault"]) == (False, "it does not compile\nline 3: no")
    assert refused["time_us"] is None
    assert rows["4 double-buffered"].time_us == 50


def test_a_kernel_that_takes_the_gpu_along_leaves_what_was_verified_before() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = timed(FakeGpu(deadly="01_shared_tile"), dtype=None, rungs="0-2")
    found = [(row.plan.dtype.name, row.label, row.to_dict()["verified"], row.fault) for row in result.rows]
    gone = "the context is gone"
    assert found == [
        ("fp32", "0 naive", True, None),
        ("fp32", "0 swapped", True, None),
        ("fp32", "1 shared tile", False, "it read what is not its own"),
        ("fp32", "2 register block", False, gone),
        ("fp32", "2 adjacent", False, gone),
        ("bf16", "0 naive", False, gone),
        ("bf16", "0 swapped", False, gone),
        ("bf16", "1 shared tile", False, gone),
        ("bf16", "2 register block", False, gone),
    ]
    assert result.records == []
    assert [str(w.message) for w in caught] == ["fp32 is not timed: the context is gone"]


def test_a_gpu_lost_while_timed_ends_the_climb(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object, **__: object) -> None:
        raise LaunchError("the context is gone")

    monkeypatch.setattr(climb_timing, "operand_sets", lost)
    with pytest.raises(LaunchError, match="the context is gone"):
        timed(rungs="0")


def test_without_cublas_the_highest_rung_is_the_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(climb_timing, "cublas", no_cublas)
    result = timed(rungs="0-1")
    assert result.to_dict()["vendor"] == []
    assert all(row.time_us and row.ratios == {} for row in result.rows)
    records = {record.name: record for record in result.records}
    assert len(records["1 shared tile"].samples_us) == 2 * len(records["0 naive"].samples_us), "it runs twice a round"
    assert records["0 naive"].ratios["1 shared tile"]["median"] == 0.5


@pytest.mark.parametrize("shape", [(64, 64, 0), (0, 64, 64), (64, 0, 64)])
def test_a_problem_without_work_is_verified_and_not_timed(shape: tuple[int, int, int]) -> None:
    result = timed(shape=shape)
    assert all(row.report is not None and row.report.ok and row.time_us is None for row in result.rows)
    assert result.records == []


def test_roofs_are_those_of_the_gpu_that_is_present(monkeypatch: pytest.MonkeyPatch) -> None:
    a100 = dataclasses.replace(
        get_gpu("h200"), name="NVIDIA A100-SXM4-40GB", key=None, fp32_tflops=19.5, hbm_bytes_per_s=1.56e12,
        l2_bytes=40 * 2**20,
    )  # fmt: skip
    asked: list[int] = []
    rotated: list[int] = []

    def query(ordinal: int) -> GpuSpec:
        asked.append(ordinal)
        return a100

    def rotate(bytes_moved: int, l2_bytes: int) -> measure.Rotation:
        rotated.append(l2_bytes)
        return rotation(bytes_moved, l2_bytes, max_sets=2)

    monkeypatch.setattr(engine, "query_gpu", query)
    monkeypatch.setattr(measure, "rotation", rotate)
    result = timed(rungs="0")
    row = result.rows[0]
    assert "a ridge of 12 FLOP/B" in row.derived["bottleneck"]
    assert row.tflops is not None
    assert row.percent_of_roof == pytest.approx(100 * row.tflops / 19.5)
    assert (asked, rotated) == ([0], [40 * 2**20])
    assert result.to_dict()["gpu"] == {"key": None, "name": "NVIDIA A100-SXM4-40GB", "assumed": False}


def test_progress_of_a_timed_climb_never_goes_back() -> None:
    told: list[tuple[int, int, str]] = []
    timed(dtype=None, rungs="0-1", progress=lambda done, total, label: told.append((done, total, label)))
    fractions = [done / total for done, total, _ in told]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1
    assert any(label.startswith("bf16: timing cuBLAS") for _, _, label in told)
