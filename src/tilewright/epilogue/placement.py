"""How an array lies under C, from its shape: a value for each element, a row, a column or all of them.

``(m, n)``, ``(m, 1)``, ``(1, n)`` and ``(1, 1)`` say it, and so does a shape without dimensions; a vector says it by
its length. Batch dimensions in front are broadcast against C's, as NumPy does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tilewright.errors import UsageError

# As in ``epilogue_operand.cuh``: columns side by side, or apart; one value a row; one a column, side by side.
Along = Literal["full", "strided", "row", "column"]
# What may be an argument: any of the above; C's own addend, whose vector is a row as torch's is; a bias.
Role = Literal["argument", "addend", "bias"]


@dataclass(frozen=True)
class Placement:
    """Strides in elements, 0 where the array stays the same; ``batch`` has one for each batch dimension of C."""

    along: Along
    row: int
    col: int
    batch: tuple[int, ...] = ()


def place(
    what: str,
    shape: Sequence[int],
    strides: Sequence[int],
    m: int,
    n: int,
    batch: Sequence[int] = (),
    role: Role = "argument",
) -> Placement:
    """How an array of ``shape`` and ``strides`` (elements) lies under a C of shape ``(*batch, m, n)``.

    Raises ``UsageError``, in which ``what`` is its name, for a shape that does not fit; for an argument that is a
    vector where ``m == n``, which may be a value a row or a column; for a bias of a value for each element.
    """
    shape, strides, batch = tuple(shape), tuple(strides), tuple(batch)
    if len(shape) == 1 and shape != (1,):
        shape, strides = _matrix(what, shape, strides, m, n, batch, role)
    elif len(shape) < 2:
        shape, strides = (1,) * (2 - len(shape)) + shape, (0,) * (2 - len(strides)) + strides
    front, (rows, columns) = shape[:-2], shape[-2:]
    missing = len(batch) - len(front)
    fits = rows in (1, m) and columns in (1, n) and missing >= 0
    fits = fits and all(own in (1, of_c) for own, of_c in zip(front, batch[missing:], strict=True))
    if not fits or (role == "bias" and rows != 1 and columns != 1):
        raise _misfit(what, shape, m, n, batch, role)
    steps = [0 if length == 1 else stride for length, stride in zip(shape, strides, strict=True)]
    row, col = steps[-2:]
    return Placement(along_of(row, col), row, col, (0,) * missing + tuple(steps[:-2]))


def _matrix(
    what: str, shape: tuple[int, ...], strides: tuple[int, ...], m: int, n: int, batch: tuple[int, ...], role: Role
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A vector as the row or the column that it stands for."""
    (length,) = shape
    if role == "argument" and m == n == length:
        raise UsageError(
            f"{what} has shape ({length},) and C is {m}x{n}, so that it may hold a value for each row or for each "
            f"column: ({m}, 1) for rows and (1, {n}) for columns are possible"
        )
    if length == n:
        return (1, length), (0, *strides)
    if role == "argument" and length == m:
        return (length, 1), (*strides, 0)
    raise _misfit(what, shape, m, n, batch, role)


def along_of(row: int, col: int) -> Along:
    """How an array with these strides, 0 where it stays the same, lies under C."""
    if col == 0:
        return "row"
    if col != 1:
        return "strided"
    return "column" if row == 0 else "full"


def _misfit(what: str, shape: tuple[int, ...], m: int, n: int, batch: tuple[int, ...], role: Role) -> UsageError:
    possible = [f"({n},) or (1, {n}) for a value per column"]
    possible.append(f"({m}, 1){f' or ({m},)' if role == 'argument' and m != n else ''} for a value per row")
    if role != "bias":
        possible += [f"({m}, {n})", "() for one value"]
    front = f", with dimensions before these that broadcast to {batch}" if batch else ""
    of = f"{m}x{n}" + (f" in a batch of {batch}" if batch else "")
    return UsageError(
        f"{what} has shape {shape}, which does not fit C, {of}: {', '.join(possible)} are possible{front}"
    )
