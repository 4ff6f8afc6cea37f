"""The short way for tensors, with stand-ins for PyTorch's on a GPU, and the emulator in the GPU's place."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tilewright import BF16, DType, Matmul, UsageError, matmul, relu, swiglu
from tilewright.backends.base import Backend
from tilewright.library import arrays, calls, hot, ready
from tilewright.library.arrays import Array
from tilewright.library.prepared import Prepared
from tilewright.library.ready import Place
from tilewright.library.workspaces import PER_THREAD_STREAM, Workspaces

Held = np.ndarray[Any, Any]


class Tensor:
    """As much of a tensor as is asked for on the short way."""

    def __init__(self, held: Held, index: int = 0) -> None:
        self.held, self.dtype = held, held.dtype
        self.device = SimpleNamespace(index=index)
        self.requires_grad = False
        self.negative = False
        self.changes = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.held.shape)

    def numel(self) -> int:
        return self.held.size

    def is_contiguous(self) -> bool:
        return bool(self.held.flags.c_contiguous)

    def stride(self) -> tuple[int, ...]:
        return tuple(step // self.held.itemsize for step in self.held.strides)

    def data_ptr(self) -> int:
        return int(self.held.__array_interface__["data"][0])

    def get_device(self) -> int:
        return int(self.device.index)

    def __getitem__(self, at: Any) -> Tensor:
        return Tensor(self.held[at])

    def is_neg(self) -> bool:
        return self.negative


def seen(tensor: Tensor, name: str) -> Array:
    dtype = next(each for each in (BF16,) if each.numpy == tensor.dtype)
    device = tensor.device.index
    return Array(tensor.data_ptr(), tensor.shape, tensor.stride(), dtype, device, "cuda array", tensor)


def made(like: Array, shape: tuple[int, ...], dtype: DType, stream: int | None) -> Tensor:
    return Tensor(np.full(shape, np.nan, dtype.numpy))


def laid_out(shape: Any, strides: Any, dtype: Any) -> Tensor:
    """As PyTorch makes a tensor on the current device: from plain tuples."""
    assert type(shape) is type(strides) is tuple
    made_here = Tensor(np.full(shape, np.nan, dtype))
    assert made_here.stride() == strides
    return made_here


def noted_as_changed(tensors: tuple[Tensor, ...]) -> None:
    for each in tensors:
        each.changes += 1


@pytest.fixture
def long_way(emulator: Backend, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A list that grows with every call that is not short; tensors are the stand-ins."""
    taken: list[str] = []
    whole = ready.ready_for

    def noted(*given: Any) -> Any:
        taken.append("long")
        return whole(*given)

    monkeypatch.setattr(calls, "ready_for", noted)
    monkeypatch.setattr(calls, "empty", made)
    monkeypatch.setitem(arrays._readers, Tensor, seen)
    monkeypatch.setitem(ready._places, 0, Place(emulator))
    for name, value in (
        ("types", (Tensor,)),
        ("grad_enabled", lambda: True),
        ("raw_stream", lambda index: 0),
        ("written", noted_as_changed),
        ("device", lambda: 0),
        ("forward", SimpleNamespace(_current_level=-1)),
        ("modes", lambda: 0),
        ("transforms", lambda: None),
        ("autocast", lambda: False),
        ("empty_here", lambda shape, strides, dtype: laid_out(shape, strides, dtype)),
        ("empty", lambda shape, dtype, device: Tensor(np.full(shape, np.nan, dtype), device.index)),
    ):
        monkeypatch.setattr(hot._Torch, name, value)
    yield taken
    hot.forget()
    ready.forget()


def integers(seed: int, *shape: int) -> Tensor:
    return Tensor(np.random.default_rng(seed).integers(-4, 5, shape).astype(BF16.numpy))


def product(a: Tensor, b: Tensor) -> Held:
    found: Held = a.held.astype(np.float32) @ b.held.astype(np.float32)
    return found


def same(found: Tensor, wanted: Held) -> None:
    np.testing.assert_array_equal(found.held, wanted.astype(found.held.dtype))


def test_a_geometry_that_was_seen_goes_the_short_way(long_way: list[str]) -> None:
    for seed in range(3):
        a, b = integers(seed, 24, 40), integers(seed + 9, 40, 16)
        same(matmul(a, b), product(a, b))
    assert long_way == ["long"]
    out = Tensor(np.zeros((24, 16), BF16.numpy))
    for seed in range(3):
        a = integers(seed, 24, 40)
        assert matmul(a, b, out=out) is out
        same(out, product(a, b))
    assert len(long_way) == 2


def test_a_result_is_made_on_the_device_of_the_operands(long_way: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = integers(1, 24, 40), integers(2, 40, 16)
    taken: list[str] = []

    def noted(name: str) -> Any:
        made = getattr(hot._Torch, name)

        def make(*given: Any, **more: Any) -> Any:
            taken.append(name)
            return made(*given, **more)

        return make

    for name in ("empty", "empty_here"):
        monkeypatch.setattr(hot._Torch, name, noted(name))
    for current in (0, 0, 1, 0):
        monkeypatch.setattr(hot._Torch, "device", lambda on=current: on)
        same(matmul(a, b), product(a, b))
    assert taken == ["empty_here", "empty", "empty_here"]


def test_what_differs_goes_the_long_way(long_way: list[str]) -> None:
    a, b = integers(1, 24, 40), integers(2, 40, 16)
    matmul(a, b)
    padded = Tensor(np.zeros((24, 48), BF16.numpy)[:, :40])
    off = Tensor(np.zeros(24 * 40 + 1, BF16.numpy)[1:].reshape(24, 40))
    for number, other in enumerate((padded, off, Tensor(np.zeros((25, 40), BF16.numpy))), 2):
        same(matmul(other, b), product(other, b))
        assert len(long_way) == number
    negative = integers(1, 24, 40)
    negative.negative = True
    matmul(negative, b)
    assert len(long_way) == 5


def test_memory_that_meets_is_seen_on_the_short_way(long_way: list[str]) -> None:
    square = integers(1, 16, 16)
    b, out = integers(2, 16, 16), Tensor(np.zeros((16, 16), BF16.numpy))
    matmul(square, b, out=out)
    matmul(square, b, out=out)
    assert len(long_way) == 1
    for a, other, message in ((out, b, "out shares memory with a"), (square, out, "out shares memory with b")):
        with pytest.raises(UsageError, match=message):
            matmul(a, other, out=out)


def test_an_epilogue_on_the_short_way(long_way: list[str]) -> None:
    b, c = integers(2, 40, 16), integers(3, 24, 16)
    for seed, factor in enumerate((0.5, 0.25, 3.0)):
        a, v = integers(seed, 24, 40), integers(seed + 5, 24, 1)
        found = matmul(
            a, b, alpha=factor, beta=1, c=c, epilogue=lambda acc, v, x: relu(acc) * x + v, args={"v": v, "x": 2}
        )
        same(found, np.maximum(product(a, b) * factor + c.held.astype(np.float32), 0) * 2 + v.held.astype(np.float32))
    assert len(long_way) == 1, "one kernel, whatever the numbers and whichever the function object"
    matmul(a, b, alpha=1, beta=1, c=c)
    assert len(long_way) == 2
    off = Tensor(np.concatenate([c.held.ravel(), c.held.ravel()])[1 : 1 + 24 * 16].reshape(24, 16))
    same(matmul(a, b, beta=1, c=off), product(a, b) + off.held.astype(np.float32))
    assert len(long_way) == 3, "off the 16-byte grid it is another kernel"
    for taken in (4, 4):
        wanted = product(a, b) + c.held.astype(np.float32)
        matmul(a, b, beta=1, c=c, out=c)
        same(c, wanted)
        assert len(long_way) == taken, "out may be c on the short way"
    shifted = Tensor(np.zeros(25 * 16, BF16.numpy))
    first, second = Tensor(shifted.held[:-16].reshape(24, 16)), Tensor(shifted.held[16:].reshape(24, 16))
    for _ in range(2):
        with pytest.raises(UsageError, match="out shares memory with c"):
            matmul(a, b, beta=1, c=first, out=second)


def test_pairs_on_the_short_way(long_way: list[str]) -> None:
    def of_both(a: Tensor, gate: Tensor, up: Tensor) -> Held:
        return product(a, gate) - product(a, up)

    gate, out = integers(2, 40, 16), Tensor(np.zeros((24, 16), BF16.numpy))
    for given in (None, out):
        for seed in range(3):
            a, up = integers(seed, 24, 40), integers(seed + 5, 40, 16)
            same(matmul(a, (gate, up), out=given, epilogue=lambda x, y: x - y), of_both(a, gate, up))
    assert len(long_way) == 2
    square, gate, up = integers(1, 16, 16), integers(2, 16, 16), integers(3, 16, 16)
    matmul(square, (gate, up), out=Tensor(np.zeros((16, 16), BF16.numpy)), epilogue=swiglu)
    with pytest.raises(UsageError, match=r"out shares memory with b\[1\]"):
        matmul(square, (gate, up), out=up, epilogue=swiglu)
    long_way.clear()
    for seed in range(3):
        a, up = integers(seed, 24, 40), integers(seed + 5, 40, 15)
        found = matmul(a, (integers(2, 40, 15), up), epilogue=lambda x, y: x - y)
        same(found, of_both(a, integers(2, 40, 15), up))
    assert len(long_way) == 3, "rows of 30 bytes need room between them, which only the long way makes"


def test_what_an_epilogue_captured_is_looked_at_each_time(long_way: list[str]) -> None:
    a, b = integers(1, 24, 40), integers(2, 40, 16)
    for factor in (2.0, 3.0, 2.0):
        same(matmul(a, b, epilogue=lambda acc, f=factor: acc * f), product(a, b) * factor)
    held = [5.0]
    for held[0] in (5.0, 7.0):
        same(matmul(a, b, epilogue=lambda acc: acc * held[0]), product(a, b) * held[0])


def test_a_prepared_matmul_on_the_short_way(long_way: list[str]) -> None:
    a, b = integers(1, 24, 40), integers(2, 40, 16)
    out = Tensor(np.zeros((24, 16), BF16.numpy))
    with Matmul(a, b, out=out, stream=0) as prepared:
        for _ in range(3):
            out.held[...] = 0
            assert prepared.execute() is out
            same(out, product(a, b))
        other = integers(5, 24, 40)
        prepared.execute(other)
        same(out, product(other, b))
        assert len(long_way) == 1
        assert out.changes == 3, "autograd is told by each call but the first, which went the long way"
        a.held = integers(6, 24, 40).held  # as ``tensor.data = ...`` does
        prepared.execute()
        same(out, product(a, b))
        with pytest.raises(UsageError, match="this Matmul was made for"):
            prepared.execute(integers(5, 25, 40))


def test_a_prepared_matmul_sees_tensors_that_were_changed_where_they_lie(long_way: list[str]) -> None:
    a, b, out = integers(1, 16, 16), integers(2, 16, 16), Tensor(np.zeros((16, 16), BF16.numpy))
    b.held = b.held.T
    with Matmul(a, b, out=out, stream=0) as prepared:
        for each in (a, b, out) * 2:
            for _ in range(3):
                prepared.execute()
            same(out, product(a, b))
            whole = each.held
            each.held = whole.T  # as ``t_`` does
            with pytest.raises(UsageError, match="this Matmul was made for"):
                prepared.execute()
            each.held = np.concatenate([whole, whole])  # as ``resize_`` to more does
            with pytest.raises(UsageError, match="this Matmul was made for"):
                prepared.execute()
            each.held = whole
    assert len(long_way) == 1


@pytest.mark.parametrize("way", ["short", "long"])
def test_a_prepared_matmul_with_an_epilogue_reads_what_its_tensors_hold_now(long_way: list[str], way: str) -> None:
    a, b, bias = integers(1, 24, 40), integers(2, 40, 16), integers(3, 16)
    shift = [1.0] if way == "long" else 1.0  # a list may have changed unseen

    def shifted(acc: Any, r: Any) -> Any:
        return acc + (shift[0] if isinstance(shift, list) else shift) * r

    r, out = integers(4, 24, 16), Tensor(np.zeros((24, 16), BF16.numpy))
    for given in (None, out):
        long_way.clear()
        with Matmul(a, b, out=given, bias=bias, epilogue=shifted, args={"r": r}) as prepared:
            for each in (a, b, bias, r, *(() if given is None else (given,)), a):
                each.held = integers(9, *each.shape).held  # as ``tensor.data = ...`` does
                found = prepared.execute()
                same(found, product(a, b) + bias.held.astype(np.float32) + r.held.astype(np.float32))
                assert given is None or found is out
            bias.held = integers(9, 17).held
            with pytest.raises(UsageError, match=r"an array that was changed asks for another kernel|does not fit"):
                prepared.execute()
            bias.held = integers(9, 16).held
        assert len(long_way) == (1 if way == "short" else 5 + (given is not None))


@pytest.mark.parametrize("pair", [False, True])
def test_a_prepared_pair_reads_what_its_tensors_hold_now(long_way: list[str], pair: bool) -> None:
    a, gate, up = integers(1, 24, 40), integers(2, 40, 16), integers(3, 40, 16)
    bs, fn = ((gate, up), lambda x, y: x - y) if pair else (gate, lambda x: x * 2)
    with Matmul(a, bs, epilogue=fn) as prepared:
        for each in (a, gate, up, a):
            each.held = integers(9, *each.shape).held
            second = product(a, up) if pair else -product(a, gate)
            same(prepared.execute(), product(a, gate) - second)
    assert len(long_way) == 1


def test_threads_share_no_workspace_on_their_default_streams(emulator: Backend) -> None:
    spaces, found = Workspaces(emulator), []
    for _ in range(2):
        thread = threading.Thread(target=lambda: found.append(spaces.of(PER_THREAD_STREAM, 64)))
        thread.start()
        thread.join()
    assert found[0].memory.pointer != found[1].memory.pointer
    assert spaces.of(PER_THREAD_STREAM, 64) is spaces.of(PER_THREAD_STREAM, 64)
    assert spaces.of(7, 64) is spaces.of(7, 64)


def test_nothing_comes_between_a_packed_copy_and_who_reads_it(emulator: Backend) -> None:
    spaces, order, threads = Workspaces(emulator), list[str](), list[threading.Thread]()
    alone = Prepared(SimpleNamespace(), (lambda pointers, stream: order.append("alone"),), 64, spaces)  # type: ignore[arg-type]

    def packed(pointers: tuple[int, ...], stream: int) -> None:
        order.append("packed")
        threads.append(threading.Thread(target=alone, args=((0, 0, 0, 0), 0)))
        threads[-1].start()
        threads[-1].join(0.1)

    both = Prepared(SimpleNamespace(), (packed, lambda pointers, stream: order.append("read")), 64, spaces)  # type: ignore[arg-type]
    both((0, 0, 0, 0), 0)
    threads[0].join()
    assert order == ["packed", "read", "alone"]
