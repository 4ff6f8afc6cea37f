"""How a kernel takes an operand: row- or column-major with a leading dimension, by TMA or not, or only once packed."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.library.shapes import View
from tilewright.plan_tensor import LARGEST_PITCH
from tilewright.problem import Layout

CHUNK = 16  # bytes: of a wide access, and what TMA steps by


@dataclass(frozen=True, slots=True)
class Lines:
    """``layout`` and ``ld`` describe an operand whose lines are contiguous; ``ld`` is at least a line.

    ``aligned``: 16-byte accesses, and TMA, are legal on every line. ``why`` is the sentence that says why not, or why
    there are no lines at all, where ``layout`` is None.
    """

    layout: Layout | None
    ld: int
    aligned: bool
    why: str = ""


def lines_of(view: View, itemsize: int, offset: int, name: str) -> Lines:
    """What an operand is to the kernels, whose first element lies ``offset`` bytes past a multiple of 16.

    The step along an axis of length 1 means nothing, and so does that of an operand without elements.
    """
    rows, cols, row, col = view.rows, view.cols, view.row, view.col
    if not rows or not cols:
        return Lines("row", _padded(cols, itemsize), True)
    layout: Layout
    if rows == 1 and (col == 1 or cols == 1):
        layout, ld, count = "row", _padded(cols, itemsize), 1
    elif cols == 1 and row == 1:
        layout, ld, count = "column", _padded(rows, itemsize), 1
    elif col == 1 or cols == 1:
        layout, ld, count = "row", row, rows
    elif row == 1 or rows == 1:
        layout, ld, count = "column", col, cols
    else:
        return Lines(None, 0, False, f"{name} has no axis along which elements lie next to each other{_steps(view)}")
    line = cols if layout == "row" else rows
    if ld < line:
        what = "run backwards" if ld < 0 else "are one and the same" if ld == 0 else "overlap"
        return Lines(None, 0, False, f"the {layout}s of {name} {what}{_steps(view)}")
    why = _unaligned(view, itemsize, offset, ld if count > 1 else 0, name, layout)
    return Lines(layout, ld, not why, why)


def packed_layout(view: View) -> Layout:
    """The layout of a packed copy: its lines run along the axis with the shorter step."""
    return "row" if abs(view.col) <= abs(view.row) or view.rows == 1 else "column"


def _padded(line: int, itemsize: int) -> int:
    chunk = CHUNK // itemsize
    return max(-(-line // chunk), 1) * chunk


def _unaligned(view: View, itemsize: int, offset: int, ld: int, name: str, layout: Layout) -> str:
    if offset % CHUNK:
        return f"{name} starts {offset % CHUNK} bytes past a multiple of 16"
    pitch = ld * itemsize
    if pitch % CHUNK or pitch >= LARGEST_PITCH:
        return f"the {layout}s of {name} are {pitch} bytes apart, and TMA steps by multiples of 16 below 2^40"
    for step in view.batch:
        if step * itemsize % CHUNK or not 0 <= step * itemsize < LARGEST_PITCH:
            return (
                f"the matrices of {name} are {step * itemsize} bytes apart, and TMA steps by multiples of 16 below 2^40"
            )
    return ""


def _steps(view: View) -> str:
    return f" (its rows are {view.row} elements apart, its columns {view.col})"
