from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright import supported
from tilewright.dtypes import BF16, DTYPES, FP16, FP32
from tilewright.errors import UsageError
from tilewright.library import arrays
from tilewright.library.arrays import HOST, lies_as, overlap, require_alike, view


class OnGpu:
    """An array that says it lies on a GPU; nothing here looks."""

    def __init__(self, device: int = 0, **described: Any) -> None:
        self.device = SimpleNamespace(id=device)
        self.__cuda_array_interface__ = {
            "shape": (2, 3), "typestr": "<f4", "data": (0x7000, False), "version": 3, **described
        }  # fmt: skip


def test_the_cuda_array_interface() -> None:
    seen = view(OnGpu(device=1))
    assert (seen.pointer, seen.shape, seen.strides, seen.dtype) == (0x7000, (2, 3), (3, 1), FP32)
    assert (seen.device, seen.kind, seen.stream, seen.writable) == (1, "cuda array", None, True)
    seen = view(OnGpu(data=(0x7002, True), typestr="<f2", strides=[2, 8], stream=7))
    assert (seen.pointer, seen.strides, seen.dtype, seen.stream, seen.writable) == (0x7002, (1, 4), FP16, 7, False)
    assert view(OnGpu(shape=[0, 3], data=(0, False))).shape == (0, 3)


def test_bf16_of_the_cuda_array_interface_is_by_the_arrays_own_dtype() -> None:
    named = OnGpu(typestr="<V2")
    named.dtype = np.dtype(ml_dtypes.bfloat16)  # type: ignore[attr-defined]
    assert view(named).dtype is BF16
    with pytest.raises(UsageError, match=r"a has dtype \|V2"):
        view(OnGpu(typestr="|V2"))


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ({"typestr": "<f8"}, "b has dtype float64; both operands can be bf16"),
        ({"typestr": ">f4"}, "b has dtype >f4"),
        ({"typestr": "<c8"}, "b has dtype complex64"),
        ({"strides": (12, 3)}, "b has elements 3 bytes apart along axis 1; it must be a multiple of the 4"),
        ({"mask": object()}, "b has a mask"),
        ({"stream": 0}, "b names stream 0"),
    ],
)
def test_what_the_cuda_array_interface_must_not_say(described: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        view(OnGpu(**described), "b")


def test_a_device_that_the_array_does_not_name_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "device_of_pointer", lambda pointer: {0x7000: 3}[pointer])
    described = SimpleNamespace(__cuda_array_interface__=OnGpu().__cuda_array_interface__)
    assert view(described).device == 3


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_numpy(dtype: Any) -> None:
    whole = np.zeros((4, 6), dtype.numpy)
    seen = view(whole[1:, ::-2])
    assert seen.pointer == whole.ctypes.data + (6 + 5) * dtype.itemsize
    assert (seen.shape, seen.strides, seen.dtype, seen.device) == ((3, 3), (6, -2), dtype, HOST)
    whole.flags.writeable = False
    assert not view(whole).writable


def test_a_field_of_records_that_no_element_steps_over() -> None:
    records = np.zeros((3, 2), np.dtype([("x", np.float32), ("y", np.int16)]))
    with pytest.raises(UsageError, match="a has elements 6 bytes apart along axis 1"):
        view(records["x"])


class Capsule:
    """What exports host memory by DLPack, as any library may."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def test_dlpack_with_an_offset() -> None:
    whole = np.arange(12, dtype=np.float32).reshape(3, 4)
    seen = view(Capsule(whole[1:, 1:]))
    assert (seen.pointer, seen.strides, seen.kind) == (whole.ctypes.data + 20, (4, 1), "dlpack")
    assert ctypes.c_float.from_address(seen.pointer).value == 5


def test_dlpack_of_another_device() -> None:
    elsewhere = SimpleNamespace(__dlpack__=None, __dlpack_device__=lambda: (10, 0))
    with pytest.raises(UsageError, match="a is on a device of DLPack's type 10"):
        view(elsewhere)


@pytest.mark.parametrize("value", [[[1.0]], 3, None, "array"])
def test_what_is_no_array(value: Any) -> None:
    with pytest.raises(UsageError, match=r"a is a \w+; it must be an array of PyTorch"):
        view(value)


def test_arrays_of_one_call_are_alike() -> None:
    with pytest.raises(UsageError, match=r"a is a numpy.ndarray and b a \w+.OnGpu; all arrays"):
        require_alike([("a", view(np.zeros((2, 3), np.float32))), ("b", view(OnGpu()))])
    with pytest.raises(UsageError, match="a lies on GPU 0 and b on GPU 1"):
        require_alike([("a", view(OnGpu())), ("b", view(OnGpu(device=1)))])
    require_alike([("a", view(OnGpu())), ("b", view(OnGpu()))])


def test_what_overlaps() -> None:
    whole = np.zeros((6, 8), np.float32)
    left, right = view(whole[:, :4]), view(whole[:, 4:])
    assert not overlap(left, right), "side by side in the same rows"
    assert overlap(left, view(whole[:, 3:5]))
    assert overlap(view(whole[::-1]), view(whole[5:]))
    assert not overlap(view(whole[::2]), view(whole[1::2]))
    assert not overlap(view(whole[:0]), view(whole))
    assert lies_as(left, view(whole[:, :4]))
    assert not lies_as(left, right)
    assert not lies_as(view(whole), view(whole.T.copy().T))


def test_the_table_is_what_errors_say_and_the_docs_print() -> None:
    table = supported()
    assert [row["operands"] for row in table] == ["bf16", "fp16", "fp32"]
    assert all(row["out"] == ["fp32", "bf16", "fp16"] and row["accumulate"] == "fp32" for row in table)
    with pytest.raises(UsageError) as caught:
        view(np.zeros((2, 2), np.int8))
    for row in table:
        assert f"{row['operands']} ({row['multiplied_on']})" in str(caught.value)
