"""``matmul``, ``Matmul`` and ``explain``: what a user calls."""

from __future__ import annotations

from typing import Any, Self

from tilewright.errors import UsageError
from tilewright.library import hot, staging
from tilewright.library.arrays import HOST, Array, place, view
from tilewright.library.explain import Explanation, explanation
from tilewright.library.ready import Place, Ready, place_of, question_of, ready_for
from tilewright.library.request import Options, Request, request_of, require_apart
from tilewright.library.results import empty, stream_of, used_on
from tilewright.plan_base import Plan

_PLAIN = Options()


def matmul(
    a: Any,
    b: Any,
    *,
    out: Any = None,
    c: Any = None,
    alpha: Any = 1,
    beta: Any = 0,
    bias: Any = None,
    epilogue: Any = None,
    args: Any = None,
    out_dtype: Any = None,
    stream: Any = None,
    plan: Plan | None = None,
    deterministic: bool = True,
    batch_invariant: bool = False,
    sms: int | None = None,
    backend: str = "auto",
) -> Any:
    """``a @ b`` as NumPy's ``matmul`` defines it, on the planner's kernel; the result is the caller's kind of array.

    ``a`` and ``b`` are arrays of PyTorch, CuPy, anything with ``__cuda_array_interface__`` or DLPack, or NumPy, of one
    element type (``supported``), with any strides: what no kernel can read is copied first, and ``explain`` says so.
    ``out`` is an array for the result, whose rows or columns are contiguous; ``out_dtype`` is its element type where
    there is none, that of the operands if left out. Sums are in fp32 and rounded once.

    The kernel is queued on ``stream`` (a CUDA stream or its handle; None: the current one of the arrays' library) and
    not waited for; with NumPy's arrays everything is copied there and back, and is done on return. ``plan`` forces a
    plan, ``sms`` limits the SMs. ``backend`` is ``auto`` or ``cuda``, or ``emulator`` for arrays in host memory.
    The result has the same bits from run to run, ``deterministic`` or not.

    Raises ``UsageError`` for arguments that do not fit, naming the first, ``UnavailableError`` where there is no GPU.
    """
    options = _PLAIN
    if plan is not None or sms is not None or batch_invariant or not deterministic or backend != "auto":
        options = Options(plan, sms, deterministic, batch_invariant, backend)
    _only_plain(c, alpha, beta, bias, epilogue, args)
    found = hot.found_by(a, b, out, (out_dtype, options) if options is not _PLAIN or out_dtype is not None else None)
    if found is not None:
        known = hot.look_up(found[0])
        if known is not None:
            return known.run(a, b, out, found, stream)
    result, ready = _run(request_of(a, b, out, out_dtype, options), out, stream)
    if found is not None:
        hot.remember(found, a, result, ready)
    return result


def explain(a: Any, b: Any, *, out: Any = None, **options: Any) -> Explanation:
    """What ``matmul`` would do with these arguments: nothing is compiled, launched or written.

    Raises as ``matmul`` does.
    """
    with Matmul(a, b, out=out, **options) as prepared:
        return prepared.explain()


class Matmul:
    """``matmul`` taken apart, for a call that is made many times.

    Its arguments are ``matmul``'s. ``plan`` chooses and compiles, ``execute`` queues, on the arrays given here or on
    others of the same shapes, strides, types and alignment; ``explain`` says what was chosen and why. Each call is safe
    from any thread. ``close``, or leaving the ``with``, lets go of the arrays.
    """

    def __init__(
        self,
        a: Any,
        b: Any,
        *,
        out: Any = None,
        c: Any = None,
        alpha: Any = 1,
        beta: Any = 0,
        bias: Any = None,
        epilogue: Any = None,
        args: Any = None,
        out_dtype: Any = None,
        stream: Any = None,
        plan: Plan | None = None,
        deterministic: bool = True,
        batch_invariant: bool = False,
        sms: int | None = None,
        backend: str = "auto",
    ) -> None:
        _only_plain(c, alpha, beta, bias, epilogue, args)
        options = Options(plan, sms, deterministic, batch_invariant, backend)
        self._request: Request | None = request_of(a, b, out, out_dtype, options)
        self._a, self._b, self._out, self._stream = a, b, out, stream
        self._more = (out_dtype, options)
        self._ready: Ready | None = None
        self._known: hot.Known | None = None
        self._found: hot.Found | None = None
        self._keys: tuple[Any, ...] = ()

    def plan(self) -> Plan | None:
        """Choose and compile, if that was not done. Returns the plan; None where the result has no elements."""
        ready = self._made_ready()
        return None if ready.choice is None else ready.choice.plan

    def execute(self, a: Any = None, b: Any = None, *, out: Any = None, stream: Any = None) -> Any:
        """Queue the product and return the result: of the arrays given at the start where none are given here.

        Others must be alike in kind, device, shape, strides, element type and alignment to 16 bytes. Without an
        ``out``, here or at the start, each call makes a new result. Raises ``UsageError``.
        """
        known, found = self._known, self._found
        if known is not None:
            same = a is None and b is None and out is None
            a, b = self._a if a is None else a, self._b if b is None else b
            out = self._out if out is None else out
            if not same or found is None or found[1:] != (a.data_ptr(), b.data_ptr(), out.data_ptr()):
                found = hot.found_by(a, b, out, self._more)
            if found is not None and found[0] in self._keys:
                return known.run(a, b, out, found, self._stream if stream is None else stream)
        request = self._open()
        given = self._out if out is None else out
        new = Request(
            request.a if a is None else _alike(view(a, "a"), request.a, "a"),
            request.b if b is None else _alike(view(b, "b"), request.b, "b"),
            request.out if out is None else _alike(view(out, "out"), request.out or tight(request), "out"),
            request.shape,
            request.out_dtype,
            request.options,
        )
        result, self._ready = _run(new, given, self._stream if stream is None else stream)
        self._remember(result)
        return result

    def _remember(self, result: Any) -> None:
        """From the next call on tensors go the short way: with and without an ``out`` of this geometry."""
        found = hot.found_by(self._a, self._b, self._out, self._more)
        if found is None or self._ready is None or self._known is not None:
            return
        self._known = hot.remember(found, self._a, result, self._ready)
        other = hot.found_by(self._a, self._b, result, self._more)
        self._keys = (found[0],) if other is None else (found[0], other[0])
        self._found = found if self._out is not None else None

    def explain(self) -> Explanation:
        """What was chosen, or would be."""
        return _explained(self._open())

    def close(self) -> None:
        """Let go of the arrays. What was queued runs; ``execute`` raises ``UsageError`` from then on."""
        self._request = self._ready = self._known = self._found = None
        self._a = self._b = self._out = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _open(self) -> Request:
        if self._request is None:
            raise UsageError("this Matmul was closed; make another")
        return self._request

    def _made_ready(self) -> Ready:
        request = self._open()
        if self._ready is None:
            at = place_of(request)
            a, b, out = _seen_there(request, at)
            self._ready = ready_for(at, a, b, out, request)
        return self._ready


def _run(request: Request, out: Any, stream: Any) -> tuple[Any, Ready]:
    """Queue a request; the result, and what ran."""
    at = place_of(request)
    if request.a.device == HOST and at.backend.name == "cuda":
        return _run_staged(request, at, out)
    a, b = request.a, request.b
    on = 0 if at.backend.name != "cuda" else stream_of(stream, request.arrays)
    made = None
    if request.out is None:
        made = empty(a, request.shape, request.out_dtype)
        seen = view(made, "out")
    else:
        seen = request.out
        require_apart(seen, a, "a")
        require_apart(seen, b, "b")
    ready = ready_for(at, a, b, seen, request)
    ready(a.pointer, b.pointer, seen.pointer, on)
    if made is not None and stream is not None and at.backend.name == "cuda":
        used_on(made, a, on)
    return (out if made is None else made), ready


def _run_staged(request: Request, at: Place, out: Any) -> tuple[Any, Ready]:
    """NumPy's arrays on a GPU."""
    backend: Any = at.backend
    if request.out is not None:
        require_apart(request.out, request.a, "a")
        require_apart(request.out, request.b, "b")
    a, b = staging.copied(backend, request.a), staging.copied(backend, request.b)
    seen = staging.room(backend, request.shape, request.out_dtype)
    ready = ready_for(at, a, b, seen, request)
    ready(a.pointer, b.pointer, seen.pointer, int(backend.stream.handle))
    result = staging.brought_back(backend, seen)
    if out is None:
        return result, ready
    out[...] = result
    return out, ready


def _seen_there(request: Request, at: Place) -> tuple[Array, Array, Array]:
    """The arrays of a request as a kernel sees them, for choosing: a result that is still to be made is in C order."""
    a, b, out = request.a, request.b, request.out
    if a.device == HOST and at.backend.name == "cuda":
        backend: Any = at.backend
        return (
            staging.copied(backend, a),
            staging.copied(backend, b),
            staging.room(backend, request.shape, request.out_dtype),
        )
    return a, b, out or tight(request)


def tight(request: Request) -> Array:
    """The result that a request without ``out`` gets, before it has memory."""
    strides, step = [], 1
    for length in reversed(request.shape):
        strides.append(step)
        step *= max(length, 1)
    return Array(0, request.shape, tuple(reversed(strides)), request.out_dtype, request.a.device, request.a.kind, None)


def _explained(request: Request) -> Explanation:
    from tilewright.library.choose import choose

    question = question_of(request.a, request.b, request.out or tight(request), request)
    p = question.product
    choice = choose(question, request.options.plan) if p.m and p.n and 0 not in p.batch else None
    emulated = request.options.backend == "emulator"
    where = "the emulator" if emulated else place(max(request.a.device, 0))
    workspace = 0 if choice is None else choice.plan.workspace_bytes(choice.problem)
    return explanation(request, p, choice, where, workspace)


def _alike(new: Array, first: Array, name: str) -> Array:
    same = (new.kind, new.device, new.shape, new.strides, new.dtype) == (
        first.kind, first.device, first.shape, first.strides, first.dtype,
    )  # fmt: skip
    if not same or new.pointer % 16 != first.pointer % 16:
        raise UsageError(
            f"{name} is {new.dtype} {new.shape} with strides {new.strides} at {new.pointer:#x}; this Matmul was made "
            f"for {first.dtype} {first.shape} with strides {first.strides}, {first.pointer % 16} bytes past a multiple "
            "of 16"
        )
    return new


def _only_plain(c: Any, alpha: Any, beta: Any, bias: Any, epilogue: Any, args: Any) -> None:
    if c is None and bias is None and epilogue is None and args is None and alpha == 1 and beta == 0:
        return
    for name, value, plain in (
        ("c", c, None), ("alpha", alpha, 1), ("beta", beta, 0), ("bias", bias, None), ("epilogue", epilogue, None),
        ("args", args, None),
    ):  # fmt: skip
        if value is not plain and not (plain is not None and value == plain):
            raise UsageError(f"{name} is given, which no kernel takes yet; leave it out")
