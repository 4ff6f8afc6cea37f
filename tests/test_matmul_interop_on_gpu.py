"""``tilewright.matmul`` with arrays of other libraries than PyTorch, on streams of theirs, on a GPU."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matmul_cases import operand, wanted

from tilewright import UsageError, explain, matmul
from tilewright.backends.base import Backend
from tilewright.library import hot, ready

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_cupy(cupy: Any, dtype: str) -> None:
    a = cupy.random.randint(-4, 5, (130, 70)).astype(dtype)
    b = cupy.random.randint(-4, 5, (70, 258)).astype(dtype)
    expected = (a.astype("float64") @ b.astype("float64")).astype("float32").astype(dtype)
    found = matmul(a, b)
    assert isinstance(found, cupy.ndarray)
    assert bool((found == expected).all())
    for left, right in ((a[::-1], b), (a[:, ::2], b[::2]), (a.T.copy().T, b), (a, cupy.asfortranarray(b))):
        assert bool((matmul(left, right) == (left.astype("float64") @ right.astype("float64")).astype(dtype)).all())
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        found = matmul(a, b)
    stream.synchronize()
    assert bool((found == expected).all())


def test_anything_with_the_cuda_array_interface(torch: Any) -> None:
    a, b = operand(torch, "row", 128, 64, "float16"), operand(torch, "column", 64, 96, "float16")
    out = torch.empty((128, 96), device="cuda", dtype=torch.float16)

    def plain(tensor: Any) -> Any:
        return SimpleNamespace(__cuda_array_interface__=tensor.__cuda_array_interface__)

    torch.cuda.synchronize()
    with pytest.raises(UsageError, match="of which no new one can be made"):
        matmul(plain(a), plain(b))
    matmul(plain(a), plain(b), out=plain(out))
    torch.cuda.synchronize()
    assert torch.equal(out, wanted(a, b))


def test_dlpack(torch: Any) -> None:
    whole = operand(torch, "row", 129, 80, "bfloat16")
    a, b = whole[1:, 8:72], operand(torch, "column", 64, 96, "bfloat16")
    out = torch.empty((128, 96), device="cuda", dtype=torch.bfloat16)
    matmul(Exports(a), Exports(b), out=Exports(out))
    torch.cuda.synchronize()
    assert torch.equal(out, wanted(a, b))


class Named:
    """A tensor that others see by the CUDA array interface, ready on a stream, or by DLPack."""

    def __init__(self, tensor: Any, stream: int) -> None:
        self.__cuda_array_interface__ = {**tensor.__cuda_array_interface__, "stream": stream}


class Exports:
    """A tensor that others see by DLPack alone."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.tensor.__dlpack__(**keywords)

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()


@pytest.mark.parametrize("how", ["the array interface", "DLPack"])
def test_a_given_stream_waits_for_the_one_that_arrays_are_ready_on(torch: Any, how: str) -> None:
    producer, side = torch.cuda.Stream(), torch.cuda.Stream()
    a, b = operand(torch, "row", 512, 512, "float16"), operand(torch, "row", 512, 512, "float16")
    out, late, expected = torch.zeros_like(a), torch.zeros_like(a), wanted(a, b)
    torch.cuda.synchronize()
    with torch.cuda.stream(producer):
        torch.cuda._sleep(100_000_000)
        late.copy_(a)
        if how == "DLPack":  # PyTorch's export orders after its current stream
            matmul(Exports(late), Exports(b), out=Exports(out), stream=side)
        else:
            named = [Named(each, producer.cuda_stream) for each in (late, b, out)]
            matmul(named[0], named[1], out=named[2], stream=side)
    side.synchronize()
    assert torch.equal(out, expected)


def test_numpy_while_another_thread_captures(torch: Any) -> None:
    ready.close_all()
    hot.forget()
    a, b = np.ones((64, 48), np.float16), np.ones((48, 32), np.float16)
    x = torch.zeros(16, device="cuda")
    torch.cuda.synchronize()
    found: list[Any] = []
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # PyTorch's capture forbids unsafe calls to every thread
        x += 1
        thread = threading.Thread(target=lambda: found.append(matmul(a, b)))
        thread.start()
        thread.join()
        x += 1
    graph.replay()
    torch.cuda.synchronize()
    assert (found[0] == 48).all()
    assert x.tolist() == [2] * 16


def test_cupy_on_another_stream(cupy: Any) -> None:
    """Results come from the pool of the stream that writes them: memory freed at once is not handed out under it."""
    side = cupy.cuda.Stream(non_blocking=True)
    a = cupy.random.randint(-4, 5, (1024, 1024)).astype("float16")
    b = cupy.random.randint(-4, 5, (1024, 1024)).astype("float16")
    expected = (a.astype("float64") @ b.astype("float64")).astype("float32").astype("float16")
    cupy.cuda.Device().synchronize()
    for _ in range(20):
        matmul(a, b, stream=side)  # let go of at once
        other = cupy.zeros((1024, 1024), "float16")
        found = matmul(a, b, stream=side)
        assert not bool(other.any()), "nobody wrote to what the current stream was given"
    side.synchronize()
    assert bool((found == expected).all())


def test_numpy_is_copied_there_and_back(cuda: Backend) -> None:
    rng = np.random.default_rng(0)
    a = rng.integers(-4, 5, (3, 33, 65)).astype(np.float16)
    b = rng.integers(-4, 5, (65, 31)).astype(np.float16)
    np.testing.assert_array_equal(matmul(a, b), np.matmul(a.astype(np.float32), b.astype(np.float32)).astype(a.dtype))
    assert [each.what for each in explain(a, b).copied] == ["a", "b", "out"]
