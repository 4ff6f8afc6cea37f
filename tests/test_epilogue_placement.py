"""Which value of an argument belongs to which element of C, from its shape; and shapes that do not say."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from tilewright.epilogue.placement import Along, Role, place
from tilewright.errors import UsageError

sizes = st.sampled_from([1, 2, 3, 5])


def elements(array: np.ndarray[Any, Any], m: int, n: int, batch: tuple[int, ...], role: Role) -> Any:
    """An array under C as a kernel would read it: by the strides of its placement."""
    at = place("x", array.shape, [s // array.itemsize for s in array.strides], m, n, batch, role)
    strides = [each * array.itemsize for each in (*at.batch, at.row, at.col)]
    assert at.along == {(True, False): "column", (False, False): "full", (True, True): "row", (False, True): "row"}.get(
        (at.row == 0, at.col == 0)
    ) or (at.along == "strided" and at.col not in (0, 1))
    assert (at.along in ("full", "column")) <= (at.col == 1)
    return as_strided(array, (*batch, m, n), strides)


@given(st.data(), sizes, sizes, st.lists(sizes, max_size=2))
def test_what_fits_is_read_as_numpy_broadcasts_it(data: st.DataObject, m: int, n: int, batch: list[int]) -> None:
    front = [data.draw(st.sampled_from([1, each])) for each in batch]
    front = front[data.draw(st.integers(0, len(front))) :]
    shape = (*front, data.draw(st.sampled_from([1, m])), data.draw(st.sampled_from([1, n])))
    step = data.draw(st.sampled_from([1, 2, -1]))
    array: Any = np.arange(2 * math.prod(shape)).reshape(*shape[:-1], -1)[..., :: abs(step)][..., : shape[-1]]
    array = array[..., ::-1] if step < 0 else array
    if data.draw(st.booleans()):
        array = np.ascontiguousarray(array.swapaxes(-1, -2)).swapaxes(-1, -2)
    np.testing.assert_array_equal(
        elements(array, m, n, tuple(batch), "argument"), np.broadcast_to(array, (*batch, m, n))
    )


@pytest.mark.parametrize(
    ("shape", "strides", "role", "along"),
    [
        ((), (), "argument", "row"),
        ((1,), (9,), "argument", "row"),
        ((8,), (1,), "argument", "column"),
        ((8,), (3,), "argument", "strided"),
        ((4,), (1,), "argument", "row"),
        ((1, 8), (9, 1), "argument", "column"),
        ((4, 1), (1, 9), "argument", "row"),
        ((4, 8), (8, 1), "argument", "full"),
        ((4, 8), (1, 4), "argument", "strided"),
        ((4, 8), (0, 1), "argument", "column"),
        ((4, 8), (1, 0), "argument", "row"),
        ((8,), (1,), "bias", "column"),
        ((4, 1), (1, 1), "bias", "row"),
        ((8,), (1,), "addend", "column"),
        ((4, 8), (10, 1), "addend", "full"),
    ],
)
def test_the_ways_an_array_lies_under_c(shape: Any, strides: Any, role: Role, along: Along) -> None:
    found = place("x", shape, strides, 4, 8, role=role)
    assert found.along == along
    assert place("x", shape, strides, 4, 8, (3, 2), role).batch == (0, 0)


def test_length_one_axes_may_have_any_stride() -> None:
    found = place("x", (1, 1, 8), (123, 77, 1), 4, 8, (5,))
    assert (found.row, found.col, found.batch) == (0, 1, (0,))
    found = place("x", (2, 4, 1), (40, 8, 123), 4, 8, (5, 2))
    assert (found.row, found.col, found.batch) == (8, 0, (0, 40))


def test_a_vector_of_a_square_c_has_to_say_what_it_is() -> None:
    with pytest.raises(
        UsageError, match=r"args\['s'\] has shape \(6,\) and C is 6x6.* \(6, 1\) for rows and \(1, 6\) for"
    ):
        place("args['s']", (6,), (1,), 6, 6)
    assert place("bias", (6,), (1,), 6, 6, role="bias").along == "column"
    assert place("c", (6,), (1,), 6, 6, role="addend").along == "column"
    assert place("x", (6, 1), (1, 1), 6, 6).along == "row"


@pytest.mark.parametrize("role", ["argument", "addend", "bias"])
@pytest.mark.parametrize("shape", [(5,), (8, 4), (4, 7), (2, 4, 1), (3, 4, 1, 8), (8, 1), (0,), (3, 1, 1, 8)])
def test_what_does_not_fit_is_named_with_what_would(shape: Any, role: Role) -> None:
    with pytest.raises(
        UsageError, match=r"^x has shape \(.*\), which does not fit C, 4x8 in a batch of \(3,\): \(8,\) or "
    ):
        place("x", shape, [1] * len(shape), 4, 8, (3,), role)


def test_a_vector_a_row_is_an_arguments_alone_and_a_full_array_no_bias() -> None:
    with pytest.raises(UsageError, match=r"bias has shape \(4,\).* \(4, 1\) for a value per row are possible$"):
        place("bias", (4,), (1,), 4, 8, role="bias")
    with pytest.raises(UsageError, match=r"c has shape \(4,\)"):
        place("c", (4,), (1,), 4, 8, role="addend")
    with pytest.raises(UsageError, match=r"bias has shape \(4, 8\)"):
        place("bias", (4, 8), (8, 1), 4, 8, role="bias")
