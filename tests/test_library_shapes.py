from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.errors import UsageError
from tilewright.library.layouts import lines_of, packed_layout
from tilewright.library.shapes import MOST_BATCH_DIMENSIONS, TooManyDimensions, View, as_matrices, product, result_shape

Array = np.ndarray[Any, Any]


def axes(array: Array) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return array.shape, tuple(s // array.itemsize for s in array.strides)


def matrix(array: Array, view: View, place: tuple[int, ...]) -> Array:
    """One matrix of a batch, by the view alone."""
    start = sum(i * s for i, s in zip(place, view.batch, strict=True)) * array.itemsize
    held = np.lib.stride_tricks.as_strided
    described = {
        "version": 3,
        "data": (array.__array_interface__["data"][0] + start, False),
        "shape": (1,),
        "typestr": array.dtype.str,
    }
    first = np.asarray(type("At", (), {"__array_interface__": described})())
    return held(first, (view.rows, view.cols), (view.row * array.itemsize, view.col * array.itemsize))


def multiply(a: Array, b: Array, out: Array, more: list[Array]) -> None:
    """``out = a @ b + sum(more)``, matrix after matrix as ``product`` lays them out."""
    p = product(axes(a), axes(b), axes(out), [as_matrices(axes(each), a.ndim, b.ndim) for each in more])
    assert len(p.batch) <= MOST_BATCH_DIMENSIONS
    for place in np.ndindex(*p.batch):
        total = matrix(a, p.a, place) @ matrix(b, p.b, place)
        for array, view in zip(more, p.more, strict=True):
            total = total + matrix(array, view, place)
        matrix(out, p.c, place)[...] = total


@st.composite
def operands(draw: st.DrawFn) -> tuple[Array, Array]:
    sizes = st.integers(1, 3)
    m, n, k = draw(sizes), draw(sizes), draw(sizes)
    batch = draw(st.lists(sizes, max_size=3))

    def one(rows: int, cols: int) -> Array:
        own: list[int] = [draw(st.sampled_from([size, 1])) for size in batch]
        own = own[draw(st.integers(0, len(own))) :]
        shape = [*own, rows, cols]
        order: list[int] = draw(st.permutations(range(len(shape))))
        steps = [draw(st.sampled_from([1, 2, -1])) for _ in shape]
        flat = np.arange(1, 1 + int(np.prod([shape[i] * abs(steps[i]) for i in order])), dtype=np.float64)
        array = flat.reshape([shape[i] * abs(steps[i]) for i in order])
        array = array[tuple(slice(None, None, steps[i]) for i in order)]
        array = array.transpose([order.index(i) for i in range(len(order))])
        expanded: bool = draw(st.booleans())
        if own and expanded:  # an expanded axis
            array = np.broadcast_to(array[:1], array.shape)
        return array

    a, b = one(m, k), one(k, n)
    if a.ndim == 2 and draw(st.booleans()):
        a = a[0]
    if b.ndim == 2 and draw(st.booleans()):
        b = b[:, 0]
    return a, b


@settings(max_examples=150)
@given(operands(), st.data())
def test_a_product_of_views_is_numpys_matmul(pair: tuple[Array, Array], data: st.DataObject) -> None:
    a, b = pair
    wanted = np.matmul(a, b)
    assert result_shape(a.shape, b.shape) == wanted.shape
    out = np.full(wanted.shape, np.nan)
    if out.ndim > 1 and data.draw(st.booleans()):
        out = np.swapaxes(np.full(np.swapaxes(out, 0, 1).shape, np.nan), 0, 1)
    shape = [data.draw(st.sampled_from([n, 1])) for n in wanted.shape]
    more = np.arange(np.prod(shape, dtype=int), dtype=np.float64).reshape(shape)
    multiply(a, b, out, [more])
    np.testing.assert_array_equal(out, wanted + more)


def test_a_batch_with_one_weight_is_one_product() -> None:
    p = product(((2, 3, 4, 8), (96, 32, 8, 1)), ((8, 5), (1, 8)), ((2, 3, 4, 5), (60, 20, 5, 1)))
    assert (p.m, p.n, p.k, p.batch) == (24, 5, 8, ())
    assert p.a == View(24, 8, 8, 1)
    assert p.c == View(24, 5, 5, 1)


def test_a_batch_that_no_stride_merges_stays() -> None:
    p = product(((2, 4, 8), (32, 8, 1)), ((2, 8, 5), (40, 5, 1)), ((2, 4, 5), (20, 5, 1)))
    assert p.batch == (2,)
    assert p.a.batch == (32,)
    assert p.b.batch == (40,)
    p = product(((3, 4, 8), (64, 8, 1)), ((8, 5), (5, 1)), ((3, 4, 5), (20, 5, 1)))
    assert p.batch == (3,)
    assert p.b.batch == (0,)


def test_batch_dimensions_merge() -> None:
    a, b, c = (100_000, 7, 4, 8), (100_000, 7, 8, 5), (100_000, 7, 4, 5)
    p = product((a, (224, 32, 8, 1)), (b, (280, 40, 5, 1)), (c, (140, 20, 5, 1)))
    assert p.batch == (700_000,)


def test_more_than_three_batch_dimensions_are_no_one_product() -> None:
    a = np.zeros((2, 1, 2, 1, 2, 2))
    b = np.zeros((1, 2, 1, 2, 2, 2))
    with pytest.raises(TooManyDimensions, match="come to 4 that cannot be merged"):
        product(axes(a), axes(b), axes(np.zeros((2, 2, 2, 2, 2, 2))))


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ((2, 3), (4, 5), r"a \(2, 3\) has 3 columns and b \(4, 5\) has 4 rows"),
        ((), (2, 2), "a has no dimensions"),
        ((2,), (), "b has no dimensions"),
        ((2, 1, 3), (3, 3, 2), r"batch dimensions do not fit: a \(2, 1, 3\) has \(2,\) and b \(3, 3, 2\) has \(3,\)"),
        ((3,), (4,), "3 columns and b .4,. has 4 rows"),
    ],
)
def test_shapes_that_do_not_fit(a: tuple[int, ...], b: tuple[int, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        result_shape(a, b)


# rows, cols, row step, column step, offset, batch -> layout, ld, aligned
@pytest.mark.parametrize(
    ("view", "offset", "layout", "ld", "aligned"),
    [
        (View(4, 8, 8, 1), 0, "row", 8, True),
        (View(4, 8, 24, 1), 0, "row", 24, True),
        (View(4, 8, 9, 1), 0, "row", 9, False),
        (View(4, 8, 8, 1), 2, "row", 8, False),
        (View(4, 8, 1, 8), 0, "column", 8, True),
        (View(4, 8, 1, 5), 0, "column", 5, False),
        (View(1, 8, 16384, 1), 0, "row", 8, True),  # the step of an axis of length 1 means nothing
        (View(1, 9, 0, 1), 0, "row", 16, True),
        (View(1, 9, 0, 1), 2, "row", 16, False),
        (View(1, 9, 1, 3), 0, "column", 3, False),
        (View(9, 1, 1, 7), 0, "column", 16, True),
        (View(9, 1, 8, 7), 0, "row", 8, True),
        (View(1, 1, 5, 9), 0, "row", 8, True),
        (View(0, 8, 0, 0), 0, "row", 8, True),
        (View(4, 8, 0, 1), 0, None, 0, False),
        (View(4, 8, 1, 0), 0, None, 0, False),
        (View(4, 8, -8, 1), 0, None, 0, False),
        (View(4, 8, 8, -1), 0, None, 0, False),
        (View(4, 8, 16, 2), 0, None, 0, False),
        (View(4, 8, 4, 1), 0, None, 0, False),
        (View(4, 8, 8, 1, (32, 0)), 0, "row", 8, True),
        (View(4, 8, 8, 1, (33,)), 0, "row", 8, False),
        (View(4, 8, 8, 1, (-32,)), 0, "row", 8, False),
    ],
)
def test_how_a_kernel_takes_an_operand(view: View, offset: int, layout: str | None, ld: int, aligned: bool) -> None:
    lines = lines_of(view, 2, offset, "a")
    assert (lines.layout, lines.aligned) == (layout, aligned)
    if layout is not None and view.rows:
        assert lines.ld == ld
    assert bool(lines.why) == (not aligned), "what is not aligned says why"


def test_a_packed_copy_runs_along_the_shorter_step() -> None:
    assert packed_layout(View(4, 9, 18, 2)) == "row"
    assert packed_layout(View(4, 9, 2, 8)) == "column"
