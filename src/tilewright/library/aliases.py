"""Arrays that an epilogue reads and a reduction writes: read from a copy, made on the same stream before the launch.

What rows or columns are reduced to does not lie under the result element by element: it is set before the kernel, or
written by one of several launches, while others still read the array. A running maximum, ``out=(y, amax)`` with
``args={"amax": amax}``, is one such array.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from tilewright.backends.cuda_prepared import copy
from tilewright.epilogue.functions import is_sum
from tilewright.library.arrays import Array, overlap
from tilewright.library.ready import Place
from tilewright.library.request import Request
from tilewright.library.shapes import MOST_BATCH_DIMENSIONS

PLACE_BYTES = 256  # a copy starts on a multiple, plus what the array itself starts past a multiple of 16


def read_and_reduced(request: Request, marks: Sequence[str]) -> dict[str, Array]:
    """The epilogue's arrays that share memory with a reduction, by the names of ``After.arrays``.

    Sums are left out where one launch does all: theirs are written by a kernel after it.
    """
    if request.after is None or not request.outs or not any(marks):
        return {}
    once = len(request.shape) - 2 <= MOST_BATCH_DIMENSIONS
    outs = [
        out for out, mark in zip(request.outs, marks, strict=True) if mark and out.size and not (once and is_sum(mark))
    ]
    return {name: array for name, array in request.after.arrays if any(overlap(out, array) for out in outs)}


@contextmanager
def read_apart(place: Place, request: Request, marks: Sequence[str], stream: int) -> Iterator[Request]:
    """The request with these arrays in copies, which nobody else on the stream uses meanwhile."""
    shared = read_and_reduced(request, marks)
    if not shared or request.after is None:
        yield request
        return
    begins, end = {}, 0
    for name, array in shared.items():
        low, high = array.extent
        begins[name] = end + low % 16
        end = -(-(begins[name] + high - low) // PLACE_BYTES) * PLACE_BYTES
    held, there = place.copies.of(stream, end), {}
    with held.lock:
        for name, array in shared.items():
            low, high = array.extent
            to = held.memory.pointer + begins[name]
            copy(place.backend, to, low, high - low, stream)
            there[name] = replace(array, pointer=to + array.pointer - low)
        arrays = tuple((name, there.get(name, array)) for name, array in request.after.arrays)
        yield replace(request, after=replace(request.after, arrays=arrays))
