"""A request carried out: results made, launches found, everything queued on the right stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tilewright.backends.cuda_capture import outside_capture
from tilewright.backends.cuda_prepared import Fill
from tilewright.dtypes import DType
from tilewright.epilogue.functions import INITIAL
from tilewright.library import staging
from tilewright.library.aliases import read_and_reduced, read_apart
from tilewright.library.answers import answer
from tilewright.library.arrange import Arranged, Results, results_of
from tilewright.library.arrays import HOST, Array, place, view
from tilewright.library.fused import After, bits
from tilewright.library.ready import Place, Ready, place_of, ready_for, require_place
from tilewright.library.request import Request, require_apart, require_outs
from tilewright.library.results import empty, stream_of, used_on, wait_for, written
from tilewright.library.turns import counted

if TYPE_CHECKING:
    from tilewright.library.explain import Explanation


def run(request: Request, out: Any, stream: Any) -> tuple[Any, Ready]:
    """Queue a request; the result, and what ran. ``out`` is what the caller gave, returned where it was given.

    Several results are a tuple.
    """
    at = place_of(request)
    results = results_of(request)
    require_outs(request, results.shapes)
    require_apart(request.outs, request)
    if request.a.device == HOST and at.backend.name == "cuda":
        return _run_staged(request, at, out, results)
    on = 0 if at.backend.name != "cuda" else stream_of(stream, request.arrays)
    if at.backend.name == "cuda":
        wait_for(request.arrays, on, at.backend)
    given = None if stream is None else on
    made = []
    if not request.outs:
        made = [_made(request, *each, given) for each in zip(results.shapes, results.dtypes, strict=True)]
    outs = request.outs or tuple(view(each, "out") for each in made)
    with read_apart(at, request, results.marks, on) as seen:
        ready = ready_for(at, seen.a, seen.b, outs, seen, results.digest)
        ready(seen.a.pointer, seen.b.pointer, outs[0].pointer, on, members(ready, seen.after, outs))
    _fill_of_nothing(at, request, results, outs, on)
    if not made:
        written(request.outs)
        return out, ready
    if stream is not None and at.backend.name == "cuda":
        for each in made:
            used_on(each, request.a, on)
    return made[0] if len(made) == 1 else tuple(made), ready


def _made(request: Request, shape: tuple[int, ...], dtype: DType, stream: int | None) -> Any:
    """A new result; of a pair a view of one with longer rows, where its own are no whole 16 bytes."""
    *front, n = shape or (1,)
    line = _line(request, shape, dtype)
    made = empty(request.a, (*front, line) if shape else (), dtype, stream)
    return made if line == n else made[..., :n]


def _fill_of_nothing(at: Place, request: Request, results: Results, outs: Sequence[Array], stream: int) -> None:
    """The reductions of a result without elements, for which no kernel is launched: fp32, one after the other."""
    if 0 in request.shape:
        for each, mark in zip(outs, results.marks, strict=True):
            if mark and each.size:
                low, high = each.extent
                Fill(at.backend, 0, (high - low) // each.dtype.itemsize, bits(INITIAL[mark]))((low,), stream)


def _line(request: Request, shape: tuple[int, ...], dtype: DType) -> int:
    """Elements from one row of a new result of that shape to the next."""
    n = shape[-1] if shape else 1
    if request.after is None or request.after.second is None or len(shape) < len(request.shape):
        return n
    chunk = 16 // dtype.itemsize
    return -(-n // chunk) * chunk


def members(ready: Ready, after: After | None, outs: Sequence[Array]) -> tuple[int, ...]:
    """What the epilogue of a launch is handed in: addresses, and the bits of numbers."""
    if not ready.members or after is None:
        return ()
    held = after.pointers | {f"out{number}": each.pointer for number, each in enumerate(outs)}
    return tuple(held[name] for name in ready.members)


def made_ready(request: Request) -> Ready:
    """Choose and compile, for results that are still to be made where none are given."""
    at = place_of(request)
    results = results_of(request)
    require_outs(request, results.shapes)
    if request.a.device != HOST or at.backend.name != "cuda":
        return ready_for(at, request.a, request.b, request.outs or tight(request, results), request, results.digest)
    with outside_capture(True):
        there = _copied(request, at)
        return ready_for(at, there.a, there.b, _rooms(request, at, results), there, results.digest)


def tight(request: Request, results: Results) -> tuple[Array, ...]:
    """The results that a request without ``out`` gets, before they have memory."""
    found = []
    for shape, dtype in zip(results.shapes, results.dtypes, strict=True):
        strides, step = [], 1
        for length in reversed(shape):
            strides.append(step)
            step *= max(length if strides[1:] else _line(request, shape, dtype), 1)
        made = tuple(reversed(strides))
        found.append(Array(0, shape, made, dtype, request.a.device, request.a.kind, None))
    return tuple(found)


def laid_out(request: Request) -> list[Arranged]:
    """The product of a request, or those of its turns that are not alike, as its arrays will lie when it is run."""
    seen, outs = _expected(request)
    return [each for each, _ in counted(seen, seen.a, seen.b, outs)]


def _expected(request: Request) -> tuple[Request, tuple[Array, ...]]:
    """A request and its results, NumPy's arrays as they will lie on a GPU."""
    results = results_of(request)
    require_outs(request, results.shapes)
    seen, outs = request, request.outs or tight(request, results)
    if request.a.device == HOST and request.options.backend != "emulator":
        seen = _with_arrays(request, lambda each: staging.laid(each, 0))
        outs = tuple(staging.laid_room(*each, 0) for each in zip(results.shapes, results.dtypes, strict=True))
    return seen, outs


def explained(request: Request) -> Explanation:
    """What a request would do: nothing is compiled."""
    from tilewright.library.explain import Launches, explanation  # with the planner's words, for who asks

    require_place(request)
    results = results_of(request)
    require_outs(request, results.shapes)
    require_apart(request.outs, request)
    seen, made = _expected(request)
    laid = counted(seen, seen.a, seen.b, made)
    emulated = request.options.backend == "emulator"
    launches = [
        Launches(each.question.product, answer(each.question, request.options.plan, anew=True), each.after, count)
        for each, count in laid
        if not each.empty
    ]
    where = "the emulator" if emulated else place(max(request.a.device, 0))
    outs = list(zip(results.shapes, results.dtypes, strict=True))
    # NumPy's arrays are copied to a GPU one by one, so that none lies where another does.
    apart = emulated or request.a.device != HOST
    shared = read_and_reduced(request, results.marks) if apart else {}
    return explanation(request, laid[0][0].question.product, launches, where, outs, shared)


def _run_staged(request: Request, at: Place, out: Any, results: Results) -> tuple[Any, Ready]:
    """NumPy's arrays on a GPU, while other threads may capture."""
    backend: Any = at.backend
    with outside_capture(True):
        there, outs = _copied(request, at), _rooms(request, at, results)
        ready = ready_for(at, there.a, there.b, outs, there, results.digest)
        more = members(ready, there.after, outs)
        on = int(backend.stream.handle)
        ready(there.a.pointer, there.b.pointer, outs[0].pointer, on, more)
        _fill_of_nothing(at, request, results, outs, on)
        back = [staging.brought_back(backend, each) for each in outs]
    for given, result in zip(request.outs, back, strict=False):
        given.owner[...] = result
    if request.outs:
        return out, ready
    return back[0] if len(back) == 1 else tuple(back), ready


def _copied(request: Request, at: Place) -> Request:
    """The request with its arrays in the GPU's memory."""
    return _with_arrays(request, lambda each: staging.copied(at.backend, each))


def _with_arrays(request: Request, there: Callable[[Array], Array]) -> Request:
    after = request.after
    if after is not None:
        second = None if after.second is None else there(after.second)
        after = replace(after, arrays=tuple((name, there(each)) for name, each in after.arrays), second=second)
    return replace(request, a=there(request.a), b=there(request.b), outs=(), after=after)


def _rooms(request: Request, at: Place, results: Results) -> tuple[Array, ...]:
    backend: Any = at.backend
    return tuple(staging.room(backend, *each) for each in zip(results.shapes, results.dtypes, strict=True))
