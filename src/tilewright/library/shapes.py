"""Shapes and strides: from NumPy's rules for ``matmul`` to one matrix product with at most three batch dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.errors import UsageError
from tilewright.problem import SIZE_LIMIT

MOST_BATCH_DIMENSIONS = 3

Axes = tuple[tuple[int, ...], tuple[int, ...]]
"""A shape and its strides, in elements."""


@dataclass(frozen=True, slots=True)
class View:
    """``rows x cols`` elements, ``row`` and ``col`` apart. Steps count elements.

    ``batch`` has the step along each batch dimension, 0 where all share one matrix.
    """

    rows: int
    cols: int
    row: int
    col: int
    batch: tuple[int, ...] = ()

    @property
    def transposed(self) -> View:
        """The same elements with rows and columns exchanged."""
        return View(self.cols, self.rows, self.col, self.row, self.batch)


@dataclass(frozen=True, slots=True)
class Product:
    """C ``(m, n)`` = A ``(m, k)`` B ``(k, n)`` for each place of a batch.

    ``batch`` are its sizes, outermost first. ``more`` are arrays that are broadcast to C's shape. ``swapped`` says that
    A, B and C are the transposes of the caller's B, A and C. ``second`` is the other B of a pair, or its transpose.
    """

    m: int
    n: int
    k: int
    batch: tuple[int, ...]
    a: View
    b: View
    c: View
    more: tuple[View, ...] = ()
    swapped: bool = False
    second: View | None = None

    @property
    def transposed(self) -> Product:
        """C^T = B^T A^T."""
        more = tuple(each.transposed for each in self.more)
        a, b, c = self.b.transposed, self.a.transposed, self.c.transposed
        second = None if self.second is None else self.second.transposed
        return Product(self.n, self.m, self.k, self.batch, a, b, c, more, not self.swapped, second)

    @property
    def apart(self) -> tuple[int, ...]:
        """Of a pair, 1 for each batch dimension along which one of the Bs has more than one matrix.

        The kernel steps over both alike: where one has a matrix of its own, so must the other.
        """
        if self.second is None:
            return ()
        return tuple(int(x != 0 or y != 0) for x, y in zip(self.b.batch, self.second.batch, strict=True))


class TooManyDimensions(UsageError):
    """A batch has more dimensions than kernels step over, and they cannot be merged."""


def result_shape(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """The shape of NumPy's ``matmul``. Raises ``UsageError`` where the shapes do not fit."""
    for name, shape in (("a", a), ("b", b)):
        if not shape:
            raise UsageError(f"{name} has no dimensions; matmul needs at least 1, and * multiplies by a number")
    inner = b[-2] if len(b) > 1 else b[-1]
    if a[-1] != inner:
        raise UsageError(
            f"shapes do not fit: a {tuple(a)} has {a[-1]} columns and b {tuple(b)} has {inner} rows; both are k"
        )
    rows, cols = a[-2:-1], b[-1:] if len(b) > 1 else ()
    return (*batch_shape(a, b), *rows, *cols)


def batch_shape(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """The batch dimensions of both, broadcast. Raises ``UsageError`` where they do not fit."""
    one, other = a[:-2], b[:-2]
    count = max(len(one), len(other))
    sizes = []
    for x, y in zip(_left(one, count), _left(other, count), strict=True):
        if x != y and 1 not in (x, y):
            raise UsageError(
                f"batch dimensions do not fit: a {tuple(a)} has {tuple(one)} and b {tuple(b)} has {tuple(other)}; "
                "they must be equal or 1"
            )
        sizes.append(y if x == 1 else x)
    return tuple(sizes)


def product(a: Axes, b: Axes, c: Axes, more: Sequence[Axes] = (), second: Axes | None = None) -> Product:
    """The product of arrays whose shapes fit. C and ``more`` have the result's shape, ``more`` as a batch of matrices
    (``as_matrices``) or what broadcasts to it; ``second``, the other B of a pair, has B's.

    Batch dimensions that every array steps over as over one are merged, and those that A or B does not have become
    rows or columns where the others allow it: a batch of inputs times one weight is one product. Of a pair none
    becomes columns of C that lie apart. Raises ``TooManyDimensions`` where more than three are left.
    """
    batch = batch_shape(a[0], b[0])
    one_row, one_col = len(a[0]) == 1, len(b[0]) == 1
    a_shape, a_strides = ((1, *a[0]), (0, *a[1])) if one_row else a
    b_shape, b_strides = ((*b[0], 1), (*b[1], 0)) if one_col else b
    m, k, n = a_shape[-2], a_shape[-1], b_shape[-1]
    full = (*batch, m, n)
    outs = [_broadcast(each, full) for each in (as_matrices(c, len(a[0]), len(b[0])), *more)]
    seen_a = _view(a_shape, a_strides, batch, m, k)
    seen_b = _view(b_shape, b_strides, batch, k, n)
    # The strides of an array without elements mean nothing: those of B serve as well.
    other = None if second is None else _view(b_shape, second[1] if k and n else b_strides, batch, k, n)
    return _collapsed(Product(m, n, k, batch, seen_a, seen_b, outs[0], tuple(outs[1:]), second=other))


def _left(sizes: Sequence[int], count: int, fill: int = 1) -> tuple[int, ...]:
    return (*[fill] * (count - len(sizes)), *sizes)


def _view(shape: Sequence[int], strides: Sequence[int], batch: Sequence[int], rows: int, cols: int) -> View:
    own = _left(shape[:-2], len(batch))
    steps = _left(strides[:-2], len(batch), 0)
    return View(
        rows, cols, strides[-2], strides[-1], tuple(0 if n == 1 else s for n, s in zip(own, steps, strict=True))
    )


def as_matrices(axes: Axes, a_dimensions: int, b_dimensions: int) -> Axes:
    """An array of the result's shape with the axes of length 1 that a vector ``a`` or ``b`` leaves out."""
    shape, strides = list(axes[0]), list(axes[1])
    if b_dimensions == 1:
        shape, strides = [*shape, 1], [*strides, 0]
    if a_dimensions == 1:
        at = max(len(shape) - 1, 0)
        shape, strides = [*shape[:at], 1, *shape[at:]], [*strides[:at], 0, *strides[at:]]
    return tuple(shape), tuple(strides)


def _broadcast(axes: Axes, full: Sequence[int]) -> View:
    """An array that is broadcast to a batch of matrices."""
    own, steps = _left(axes[0], len(full)), _left(axes[1], len(full), 0)
    if len(own) != len(full) or any(x not in (1, y) for x, y in zip(own, full, strict=True)):
        raise UsageError(f"an array of shape {axes[0]} cannot be broadcast to the result's {tuple(full)}")
    steps = tuple(0 if n == 1 else s for n, s in zip(own, steps, strict=True))
    return View(full[-2], full[-1], steps[-2], steps[-1], steps[:-2])


def _collapsed(p: Product) -> Product:
    p = _without(p, [i for i, size in enumerate(p.batch) if size == 1])
    # C's widest step first: dimensions that the caller permuted lie next to each other again.
    order = sorted(range(len(p.batch)), key=lambda i: -abs(p.c.batch[i]))
    p = _ordered(p, order)
    changed = True
    while changed:
        changed = False
        for merge in (_merge_neighbours, _fold_into_rows, _fold_into_columns):
            merged = merge(p)
            apart = merge is _fold_into_columns and merged is not None and merged.c.col != 1
            if merged is not None and not (apart and p.second is not None):
                p, changed = merged, True
    if len(p.batch) > MOST_BATCH_DIMENSIONS and 0 not in p.batch:
        raise TooManyDimensions(
            f"the batch dimensions come to {len(p.batch)} that cannot be merged, {p.batch}; the kernels step over "
            f"{MOST_BATCH_DIMENSIONS}: a copy of an operand whose batch is contiguous has fewer"
        )
    return p


def _views(p: Product) -> tuple[View, ...]:
    return (p.a, p.b, p.c, *(() if p.second is None else (p.second,)), *p.more)


def _rebuilt(p: Product, views: Sequence[View], batch: Sequence[int]) -> Product:
    a, b, c, *more = views
    second = None if p.second is None else more.pop(0)
    return replace(p, m=c.rows, n=c.cols, batch=tuple(batch), a=a, b=b, c=c, more=tuple(more), second=second)


def _ordered(p: Product, order: Sequence[int]) -> Product:
    views = [replace(v, batch=tuple(v.batch[i] for i in order)) for v in _views(p)]
    return _rebuilt(p, views, [p.batch[i] for i in order])


def _without(p: Product, dropped: Sequence[int]) -> Product:
    return _ordered(p, [i for i in range(len(p.batch)) if i not in dropped])


def _merge_neighbours(p: Product) -> Product | None:
    for i in range(len(p.batch) - 1):
        inner = p.batch[i + 1]
        if all(v.batch[i] == v.batch[i + 1] * inner for v in _views(p)):
            kept = [j for j in range(len(p.batch)) if j != i]
            merged = _ordered(p, kept)
            return replace(merged, batch=tuple(p.batch[j] * (p.batch[i] if j == i + 1 else 1) for j in kept))
    return None


def _fold_into_rows(p: Product) -> Product | None:
    """A batch of A with one B: the matrices below each other are one."""
    paired = p.second is not None
    shared = {1, 3} if paired and not p.swapped else {1}  # what has the columns: the second B is with B
    inputs = {0, 3} if paired and p.swapped else {0}
    for i, size in enumerate(p.batch):
        views = _views(p)
        if any(views[j].batch[i] for j in shared) or not 0 < p.m * size < SIZE_LIMIT:
            continue
        if all(p.m == 1 or v.batch[i] == v.row * p.m for j, v in enumerate(views) if j not in shared):
            below = [
                v if j in shared else replace(v, rows=p.m * size, row=v.batch[i] if p.m == 1 else v.row)
                for j, v in enumerate(views)
            ]
            if not _has_lines(below[2]) or any(_has_lines(views[j]) and not _has_lines(below[j]) for j in inputs):
                continue
            return _without(_rebuilt(p, below, p.batch), [i])
    return None


def _fold_into_columns(p: Product) -> Product | None:
    """A batch of B with one A: the matrices beside each other are one."""
    folded = _fold_into_rows(p.transposed)
    return None if folded is None else folded.transposed


def _has_lines(v: View) -> bool:
    """Whether rows or columns are contiguous and do not overlap: what was so before it was folded should stay so."""
    by_row = (v.cols == 1 or v.col == 1) and (v.rows == 1 or v.row >= v.cols)
    by_column = (v.rows == 1 or v.row == 1) and (v.cols == 1 or v.col >= v.rows)
    return by_row or by_column
