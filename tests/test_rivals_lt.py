"""cublasLt through a library that is none: what it is told, in which order, and what becomes of its answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from tilewright import rivals_lt
from tilewright.backends.base import Matrix
from tilewright.dtypes import BF16, FP16, DType
from tilewright.errors import UnavailableError, UsageError
from tilewright.measure import Launch, Slot
from tilewright.problem import Layout
from tilewright.rivals_lt import LtLibrary, LtMatmul, alignment, lt_best
from tilewright.run import Operands

TIMES_US = {0: 12.0, 1: 10.0, 3: 11.0}  # of the algorithms that run; the second launch in this order is best


class FakeLt:
    """Remembers every call. Objects are numbered as they are made; the heuristic answers with four algorithms."""

    def __init__(self, failing: str = "", usable: Sequence[int] = (0, 1, 3)) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.failing, self.usable = failing, usable
        self.made = 0
        self.slow: list[float] = []

    def __getattr__(self, name: str) -> Callable[..., int]:
        def function(*args: Any) -> int:
            plain = tuple(_plain(arg) for arg in args)
            self.calls.append((name, plain))
            if name == self.failing:
                return 7
            if name.endswith("Create"):
                self.made += 1
                args[0]._obj.value = self.made
            if name == "cublasLtGetVersion":
                return 130100
            if name == "cublasLtMatmulAlgoGetHeuristic":
                for index in range(4):
                    args[-2][index].state = 0 if index in self.usable else 15
                    args[-2][index].workspace_bytes = 1024 * index
                    args[-2][index].algorithm[0] = index
                args[-1]._obj.value = 4
            if name == "cublasLtMatmulAlgoConfigGetAttribute":
                if args[1] == 7:
                    return 15
                args[2]._obj.value = 100 + args[1]
            if name == "cublasLtMatmul" and args[12]._obj[0] not in TIMES_US:
                return 15
            return 0

        if name.startswith("cublasLt"):
            self.__dict__[name] = function
            return function
        raise AttributeError(name)

    def named(self, name: str) -> list[tuple[Any, ...]]:
        return [args for called, args in self.calls if called == name]


def _plain(arg: Any) -> Any:
    found = getattr(arg, "_obj", arg)
    return getattr(found, "value", found)


def operands(dtype: DType = BF16, a: Layout = "row", b: Layout = "column", pointer: int = 4096) -> Operands:
    """m, n, k = 3, 5, 7, with leading dimensions of their own."""
    return Operands(
        Matrix(pointer, 3, 7, 16, dtype, None, a),
        Matrix(pointer + 1024, 7, 5, 24, dtype, None, b),
        Matrix(pointer + 2048, 3, 5, 32, dtype, None),
    )


class Workspace:
    pointer = 0xABC000


class Stream:
    handle = 99


@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize("a", ["row", "column"])
@pytest.mark.parametrize("b", ["row", "column"])
def test_row_major_c_is_the_transposed_product(dtype: DType, a: Layout, b: Layout) -> None:
    fake = FakeLt()
    LtMatmul(LtLibrary(fake), [operands(dtype, a, b)])
    kind = {BF16: 14, FP16: 2}[dtype]
    first, second, out = [args[1:] for args in fake.named("cublasLtMatrixLayoutCreate")]
    # C^T (n, m) = B^T (n, k) A^T (k, m), column-major: a row-major matrix is its own transpose there.
    assert first == ((kind, 5, 7, 24) if b == "row" else (kind, 7, 5, 24))
    assert second == ((kind, 7, 3, 16) if a == "row" else (kind, 3, 7, 16))
    assert out == (kind, 5, 3, 32)
    assert fake.named("cublasLtMatmulDescCreate")[0][1:] == (68, 0), "fp32 sums, no TF32"
    attributes = {args[1]: args[2] for args in fake.named("cublasLtMatmulDescSetAttribute")}
    assert attributes == {3: b == "column", 4: a == "column"}


def test_the_heuristic_is_asked_for_16_and_told_the_alignment() -> None:
    fake = FakeLt()
    matmul = LtMatmul(LtLibrary(fake), [operands(), operands(pointer=4096 + 32)])
    found = matmul.algorithms()
    preferences = {args[1]: args[2] for args in fake.named("cublasLtMatmulPreferenceSetAttribute")}
    assert preferences == {1: 64 << 20, 5: 32, 6: 32, 7: 32, 8: 32}
    (asked,) = fake.named("cublasLtMatmulAlgoGetHeuristic")
    assert asked[-3] == 16
    assert asked[1:6] == (2, 3, 4, 5, 5), "description, B, A, C and C again as D, after the handle"
    assert [algorithm.index for algorithm in found] == [0, 1, 3], "one was marked as unusable"
    assert found[1].workspace_bytes == 1024
    assert found[1].config["tile_id"] == 101
    assert "inner_shape_id" not in found[1].config, "not every algorithm has every attribute"


def test_a_launch() -> None:
    fake = FakeLt()
    matmul = LtMatmul(LtLibrary(fake), [operands()])
    (launch,) = matmul.launches(matmul.algorithms()[1], Workspace())  # type: ignore[arg-type]
    launch(Stream())
    (call,) = fake.named("cublasLtMatmul")
    assert call[:12] == (1, 2, 1.0, 4096 + 1024, 3, 4096, 4, 0.0, 4096 + 2048, 5, 4096 + 2048, 5)
    assert call[12][0] == 1
    assert call[13:] == (0xABC000, 64 << 20, 99)


def test_objects_are_destroyed_with_the_matmul() -> None:
    fake = FakeLt()
    matmul = LtMatmul(LtLibrary(fake), [operands()])
    matmul.algorithms()
    del matmul
    destroyed = [name for name, _ in fake.calls if name.endswith("Destroy")]
    assert sorted(destroyed) == sorted(
        ["cublasLtMatmulDescDestroy", *["cublasLtMatrixLayoutDestroy"] * 3, "cublasLtMatmulPreferenceDestroy"]
    )


def test_c_is_row_major() -> None:
    found = operands()
    column = Matrix(0, 3, 5, 3, BF16, None, "column")
    for sets in ([], [Operands(found.a, found.b, column)]):
        with pytest.raises(UsageError, match="row-major C"):
            LtMatmul(LtLibrary(FakeLt()), sets)


@pytest.mark.parametrize(("pointers", "want"), [([0], 256), ([512], 256), ([512, 48], 16), ([2], 2), ([1024, 96], 32)])
def test_alignment(pointers: list[int], want: int) -> None:
    assert alignment(pointers) == want


class FakeBackend:
    @contextmanager
    def current(self) -> Iterator[None]:
        yield


class FakeTimer:
    """An algorithm takes what TIMES_US says, by what the fake library was last called with."""

    def __init__(self, fake: FakeLt) -> None:
        self.fake = fake

    def prepare(self, launches: Sequence[Launch], count: int) -> Any:
        for launch in launches:
            launch(Stream())
        algorithm = self.fake.named("cublasLtMatmul")[-1][12][0]
        return type("Prepared", (), {"launches": count, "method": "graph", "note": "", "us": TIMES_US[algorithm]})()

    def slot(self, prepared: Any, warm: int, timed: int, sample: Any = None) -> Slot:
        return Slot(prepared.us)


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rivals_lt, "DeviceMemory", lambda backend, size: Workspace())


def best(fake: FakeLt, **more: Any) -> Any:
    sets = [operands(), operands(pointer=8192)]
    backend: Any = FakeBackend()
    return lt_best(backend, sets, FakeTimer(fake), library=LtLibrary(fake), **more)


def test_the_fastest_is_the_rival() -> None:
    fake = FakeLt(usable=(0, 1, 2, 3))
    rival, described = best(fake, kernels=lambda launch: ["sm90_xmma"])
    assert rival.name == "Lt best"
    assert len(rival.launches) == 2
    rival.launches[1](Stream())
    assert fake.named("cublasLtMatmul")[-1][12][0] == 1
    assert (described["returned"], described["ran"], described["index"]) == (4, 3, 1)
    assert described["first_over_best"] == pytest.approx(1.2)
    assert described["algorithm"]["split_k"] == 102
    assert described["algorithm"]["workspace_bytes"] == 1024
    assert described["kernels"] == ["sm90_xmma"]
    assert described["cublaslt"] == 130100


def test_names_are_optional() -> None:
    def nameless(launch: Launch) -> Sequence[str]:
        raise UnavailableError("no capture")

    assert best(FakeLt(), kernels=nameless)[1]["kernels"] == []
    assert best(FakeLt())[1]["kernels"] == []


@pytest.mark.parametrize(
    ("fake", "why"),
    [
        (FakeLt(usable=()), "knows no algorithm for 3x5x7 bf16"),
        (FakeLt(usable=(2,)), "none of cublasLt's algorithms runs.*status 15"),
        (
            FakeLt(failing="cublasLtMatmulAlgoGetHeuristic"),
            "cublasLtMatmulAlgoGetHeuristic failed with cuBLAS status 7",
        ),
        (FakeLt(failing="cublasLtMatmulDescCreate"), "cublasLtMatmulDescCreate failed"),
    ],
)
def test_failures_are_one_sentence(fake: FakeLt, why: str) -> None:
    with pytest.raises(UnavailableError, match=why) as failed:
        best(fake)
    assert "\n" not in str(failed.value)


def test_a_library_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    pathfinder = pytest.importorskip("cuda.pathfinder", reason="it comes with the extra cuda13")

    def missing(name: str) -> Any:
        raise RuntimeError(f"no lib{name}.so.13\nmore")

    monkeypatch.setattr(rivals_lt, "vendor_library", lambda: None)
    monkeypatch.setattr(pathfinder, "load_nvidia_dynamic_lib", missing)
    with pytest.raises(UnavailableError, match=r"libcublasLt cannot be loaded .*: no libcublasLt.so.13$"):
        LtLibrary.find()


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize("a", ["row", "column"])
@pytest.mark.parametrize("b", ["row", "column"])
def test_on_a_gpu_it_computes_what_numpy_does(cuda: Any, dtype: DType, a: Layout, b: Layout) -> None:
    from tilewright.backends.cuda_timer import CudaTimer
    from tilewright.measure import Schedule

    rng = np.random.default_rng(0)
    m, n, k = 256, 384, 512
    left, right = (rng.standard_normal(shape).astype(dtype.numpy) for shape in ((m, k), (k, n)))

    def placed(array: Any, layout: Layout) -> Matrix:
        lines = array if layout == "row" else np.ascontiguousarray(array.T)
        up = cuda.upload(lines)
        rows, cols = array.shape
        return Matrix(up.pointer, rows, cols, up.ld, dtype, up.owner, layout)

    sets = [Operands(placed(left, a), placed(right, b), cuda.empty(m, n, dtype))]
    timer = CudaTimer(cuda)
    schedule = Schedule(slot_ms=5, rounds=1, graph_ms=1)
    try:
        rival, described = lt_best(cuda, sets, timer, schedule=schedule, kernels=timer.kernel_names)
    except UnavailableError as error:
        if "cannot be loaded" in str(error):
            pytest.skip(str(error))
        raise
    assert 1 <= described["returned"] <= 16
    assert described["kernels"]
    cuda.poison(sets[0].c)
    with cuda.current():
        rival.launches[0](cuda.stream)
    exact = left.astype(np.float64) @ right.astype(np.float64)
    bound = np.abs(left.astype(np.float64)) @ np.abs(right.astype(np.float64)) * k * 2.0**-23
    off = np.abs(cuda.download(sets[0].c).astype(np.float64) - exact)
    assert (off <= bound + dtype.unit_roundoff * np.abs(exact) * 2).all()
