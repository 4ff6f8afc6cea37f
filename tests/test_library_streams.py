"""On which stream a call runs, which streams it waits for, and where its result's memory comes from."""

from __future__ import annotations

import sys
from contextlib import contextmanager, nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tilewright import FP32, UsageError, matmul
from tilewright.backends.base import Backend
from tilewright.library import arrays, calls, ready, results
from tilewright.library.arrays import HOST, LEGACY_STREAM, Array, view
from tilewright.library.ready import Place

HERE = SimpleNamespace(current=nullcontext)


class Exported:
    """What exports by DLPack, and notes for which stream."""

    def __init__(self) -> None:
        self.streams: list[int] = []

    def __dlpack__(self, stream: int) -> None:
        if stream == 99:
            raise BufferError("not on that one")
        self.streams.append(stream)


def array(kind: Any, owner: Any = None, stream: int | None = None, device: int = 0) -> Array:
    return Array(0x7000, (2, 3), (3, 1), FP32, device, kind, owner, stream)


def test_the_library_of_a_dlpack_array_has_the_stream_wait() -> None:
    exported = Exported()
    held = arrays._Held(exported, None)
    for stream in (7, 0, LEGACY_STREAM):
        results.wait_for([array("dlpack", held), array("dlpack", held, device=HOST)], stream, HERE)
    assert exported.streams == [7, LEGACY_STREAM, LEGACY_STREAM], "of the host's there is nothing to wait for"
    with pytest.raises(UsageError, match=r"a \w+.Exported cannot be used on stream 99: not on that one"):
        results.wait_for([array("dlpack", held)], 99, HERE)


def test_looking_at_a_dlpack_array_makes_no_stream_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    class View:
        ptr, shape, strides, dtype, readonly = 0x7000, (2, 3), None, np.float32, False

        @staticmethod
        def from_dlpack(array: Any, stream_ptr: int) -> type:
            asked.append(stream_ptr)
            return View

    utils = pytest.importorskip("cuda.core.utils")
    monkeypatch.setattr(utils, "StridedMemoryView", View)
    seen = view(SimpleNamespace(__dlpack__=None, __dlpack_device__=lambda: (2, 1)))
    assert (seen.device, seen.kind, seen.strides, seen.stream, asked) == (1, "dlpack", (3, 1), None, [-1])


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the driver was asked for, captures being those of ``capturing``."""
    driver, found = pytest.importorskip("cuda.bindings.driver"), list[Any]()
    success = (driver.CUresult.CUDA_SUCCESS,)
    monkeypatch.setattr(driver, "cuEventCreate", lambda flags: (*success, "event"))

    def noting(name: str) -> Any:
        def note(*given: Any) -> Any:
            found.append((name, *given))
            return success

        return note

    for name in ("cuEventRecord", "cuStreamWaitEvent", "cuEventDestroy"):
        monkeypatch.setattr(driver, name, noting(name))
    return found


def test_a_stream_waits_for_those_that_arrays_name(noted: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "capture_of", {5: None, 7: None, 8: 1, 9: 1}.get)
    ready_on = [array("cuda array", stream=stream) for stream in (7, None, 5, 7)]
    results.wait_for([*ready_on, array("torch"), array("cupy")], 5, HERE)
    assert noted == [("cuEventRecord", "event", 7), ("cuStreamWaitEvent", 5, "event", 0), ("cuEventDestroy", "event")]
    noted.clear()
    results.wait_for([array("cuda array", stream=7)], 8, HERE)
    assert not noted, "a capture depends on nothing outside of it"
    results.wait_for([array("cuda array", stream=9)], 8, HERE)
    assert [name for name, *_ in noted] == ["cuEventRecord", "cuStreamWaitEvent", "cuEventDestroy"]


def test_a_result_of_cupy_is_made_on_the_stream_that_writes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    current: list[Any] = []

    @contextmanager
    def entered(what: Any) -> Any:
        current.append(what)
        yield
        current.pop()

    cupy: Any = ModuleType("cupy")
    cupy.empty = lambda shape, dtype: (shape, dtype, tuple(current))
    cupy.cuda = SimpleNamespace(
        Device=lambda number: entered(f"device {number}"),
        ExternalStream=lambda handle, device: entered(f"stream {handle} of {device}"),
        Stream=SimpleNamespace(null=entered("null")),
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    like = array("cupy", device=1)
    assert results.empty(like, (2,), FP32)[2] == ("device 1",)
    assert results.empty(like, (2,), FP32, 7)[2] == ("device 1", "stream 7 of 1")
    assert results.empty(like, (2,), FP32, 0)[2] == ("device 1", "null")
    cupy.cuda.Stream.from_external = lambda stream: entered(f"stream {stream.__cuda_stream__()} of CuPy 14")
    assert results.empty(like, (2,), FP32, 7)[2] == ("device 1", "stream (0, 7) of CuPy 14")


def test_numpy_on_a_gpu_ends_nobodys_capture(emulator: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that it asks of the driver is asked in relaxed mode, from the first copy to the last."""
    relaxed, seen = [False], list[bool]()

    @contextmanager
    def outside(on_gpu: bool) -> Any:
        assert on_gpu
        relaxed[0] = True
        yield
        relaxed[0] = False

    class Gpu:
        """The emulator by another name."""

        name, device_id, stream = "cuda", 0, SimpleNamespace(handle=0)

        def upload(self, *given: Any) -> Any:
            seen.append(relaxed[0])
            return emulator.upload(*given)

        def room(self, *given: Any) -> Any:
            seen.append(relaxed[0])
            return emulator.empty(*given)

        def fetch(self, matrix: Any) -> Any:  # a download would wait for all streams, that which is captured too
            seen.append(relaxed[0])
            return emulator.download(matrix)

    monkeypatch.setattr(calls, "outside_capture", outside)
    monkeypatch.setattr(calls, "ready_for", lambda *given: lambda *pointers: seen.append(relaxed[0]))
    monkeypatch.setattr(calls, "members", lambda *given: ())
    gpu: Any = Gpu()
    monkeypatch.setitem(ready._places, 0, Place(gpu))
    matmul(np.ones((2, 3), np.float32), np.ones((3, 2), np.float32))
    assert seen == [True] * 5, "two copies, the result's memory, the launch, the copy back"
