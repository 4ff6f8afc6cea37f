"""A request carried out: results made, launches found, everything queued on the right stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tilewright.errors import UsageError
from tilewright.library import staging
from tilewright.library.arrange import Results, arranged, results_of
from tilewright.library.arrays import HOST, Array, place, view
from tilewright.library.choose import choose
from tilewright.library.explain import Explanation, explanation
from tilewright.library.fused import After
from tilewright.library.ready import Place, Ready, forget, place_of, ready_for, require_place
from tilewright.library.request import Request, require_apart, require_outs
from tilewright.library.results import empty, stream_of, used_on, written


def run(request: Request, out: Any, stream: Any) -> tuple[Any, Ready]:
    """Queue a request; the result, and what ran. ``out`` is what the caller gave, returned where it was given.

    Several results are a tuple.
    """
    at = place_of(request)
    results = results_of(request)
    require_outs(request, len(results.dtypes))
    require_apart(request.outs, request)
    if request.a.device == HOST and at.backend.name == "cuda":
        return _run_staged(request, at, out, results)
    on = 0 if at.backend.name != "cuda" else stream_of(stream, request.arrays)
    made = [] if request.outs else [empty(request.a, request.shape, dtype) for dtype in results.dtypes]
    outs = request.outs or tuple(view(each, "out") for each in made)
    ready = ready_for(at, request.a, request.b, outs, request, results.digest)
    ready(request.a.pointer, request.b.pointer, outs[0].pointer, on, members(ready, request.after, outs))
    if not made:
        written(request.outs)
        return out, ready
    if stream is not None and at.backend.name == "cuda":
        for each in made:
            used_on(each, request.a, on)
    return made[0] if len(made) == 1 else tuple(made), ready


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
    require_outs(request, len(results.dtypes))
    if request.a.device != HOST or at.backend.name != "cuda":
        return ready_for(at, request.a, request.b, request.outs or tight(request, results), request, results.digest)
    there = _copied(request, at)
    return ready_for(at, there.a, there.b, _rooms(request, at, results), there, results.digest)


def tight(request: Request, results: Results) -> tuple[Array, ...]:
    """The results that a request without ``out`` gets, before they have memory."""
    strides, step = [], 1
    for length in reversed(request.shape):
        strides.append(step)
        step *= max(length, 1)
    made = tuple(reversed(strides))
    return tuple(Array(0, request.shape, made, each, request.a.device, request.a.kind, None) for each in results.dtypes)


def explained(request: Request) -> Explanation:
    """What a request would do: nothing is compiled."""
    require_place(request)
    results = results_of(request)
    require_outs(request, len(results.dtypes))
    require_apart(request.outs, request)
    emulated = request.options.backend == "emulator"
    seen, outs = request, request.outs or tight(request, results)
    if request.a.device == HOST and not emulated:
        seen = _with_arrays(request, lambda each: staging.laid(each, 0))
        outs = tuple(staging.laid_room(request.shape, each, 0) for each in results.dtypes)
    laid = arranged(seen, seen.a, seen.b, outs)
    choice = None if laid.empty else choose(laid.question, request.options.plan)
    where = "the emulator" if emulated else place(max(request.a.device, 0))
    return explanation(request, laid.question.product, choice, where, laid.after, results.dtypes)


def tuned(request: Request, top: int, limit_s: float) -> None:
    """Measure the candidates of a request's product, for every later call. Raises as ``Matmul.tune`` says."""
    from tilewright.library import hot
    from tilewright.tune.session import tune
    from tilewright.tune.store import Store

    laid = arranged(request, request.a, request.b, request.outs or tight(request, results_of(request)))
    if laid.empty or laid.after is not None or laid.question.product.batch or request.options.plan is not None:
        raise UsageError(
            "tune measures plain products, which this call is not: a result without elements, a batch, what follows "
            "the product, or a given plan cannot be tuned"
        )
    problem = choose(laid.question).problem
    found = tune([problem], Store(), lambda done, count, doing: None, top=top, limit_s=limit_s)
    if found.errors:
        raise UsageError(found.errors[problem])
    forget()
    hot.forget()


def _run_staged(request: Request, at: Place, out: Any, results: Results) -> tuple[Any, Ready]:
    """NumPy's arrays on a GPU."""
    backend: Any = at.backend
    there, outs = _copied(request, at), _rooms(request, at, results)
    ready = ready_for(at, there.a, there.b, outs, there, results.digest)
    more = members(ready, there.after, outs)
    ready(there.a.pointer, there.b.pointer, outs[0].pointer, int(backend.stream.handle), more)
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
        after = replace(after, arrays=tuple((name, there(each)) for name, each in after.arrays))
    return replace(request, a=there(request.a), b=there(request.b), outs=(), after=after)


def _rooms(request: Request, at: Place, results: Results) -> tuple[Array, ...]:
    backend: Any = at.backend
    return tuple(staging.room(backend, request.shape, each) for each in results.dtypes)
