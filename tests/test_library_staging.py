"""NumPy's arrays on a GPU, the emulator's memory in its place: copies lie as was promised and hold the same."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from tilewright.backends.base import Backend
from tilewright.dtypes import BF16, FP32
from tilewright.library import staging
from tilewright.library.arrays import Array, view

Held = np.ndarray[Any, Any]
BASE = np.random.default_rng(0).standard_normal((3, 5, 7)).astype(np.float32)


def read(array: Array) -> Held:
    """The elements, one after another, where the strides say."""
    found = np.empty(array.shape, np.float32)
    for place in np.ndindex(*array.shape):
        at = sum(i * step for i, step in zip(place, array.strides, strict=True))
        found[place] = ctypes.c_float.from_address(array.pointer + 4 * at).value
    return found


@pytest.mark.parametrize(
    "array",
    [
        BASE, BASE[::-1, ::2], BASE.swapaxes(1, 2), BASE.transpose(2, 0, 1), BASE[0, 0], BASE[:, :, 0], BASE[0, :, :1],
        np.array(3, np.float32), np.broadcast_to(BASE[0], (4, 5, 7)), np.broadcast_to(BASE[:, :1], (3, 5, 7)),
    ],
)  # fmt: skip
def test_a_copy_lies_as_was_promised(array: Held, emulator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulator, "device_id", 0, raising=False)
    promised, copy = staging.laid(view(array), 0), staging.copied(emulator, view(array))
    assert (copy.shape, copy.strides, copy.dtype) == (promised.shape, promised.strides, FP32)
    np.testing.assert_array_equal(read(copy), array)
    assert all(step % 4 == 0 for n, step in zip(copy.shape, copy.strides, strict=True) if n > 1 and step != 1)


def test_what_is_broadcast_is_copied_once(emulator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulator, "device_id", 0, raising=False)
    copy = staging.copied(emulator, view(np.broadcast_to(BASE[0], (4, 5, 7))))
    assert copy.strides == (0, 8, 1)
    assert copy.owner.rows == 5


def test_a_result_comes_back(emulator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulator, "device_id", 0, raising=False)
    monkeypatch.setattr(emulator, "room", emulator.empty, raising=False)
    monkeypatch.setattr(emulator, "fetch", emulator.download, raising=False)
    for shape in ((3, 5, 7), (5,), ()):
        made = staging.room(emulator, shape, BF16)
        assert made.strides == staging.laid_room(shape, BF16, 0).strides
        backend: Backend = emulator
        back = staging.brought_back(backend, made)
        assert back.shape == shape
        assert np.isnan(back.astype(np.float32)).all(), "as it was made"
