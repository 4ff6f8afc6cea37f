"""``matmul``, ``Matmul`` and ``explain``: what a user calls."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from tilewright.errors import UsageError
from tilewright.library import hot
from tilewright.library.arrange import results_of
from tilewright.library.arrays import Array, view
from tilewright.library.calls import explained, made_ready, run, tight
from tilewright.library.fused import after_of
from tilewright.library.pair import pair_of
from tilewright.library.ready import Ready
from tilewright.library.request import Options, Request, request_of
from tilewright.plan_base import Plan

if TYPE_CHECKING:
    from tilewright.library.explain import Explanation

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
    """``epilogue(alpha * (a @ b) + beta * c + bias)``; ``@`` as NumPy's ``matmul``, on the planner's kernel.

    The result is the caller's kind of array. ``a`` and ``b`` are arrays of PyTorch, CuPy, anything with
    ``__cuda_array_interface__`` or DLPack, or NumPy, of one element type (``supported``), with any strides: what no
    kernel can read is copied first, and ``explain`` says so. ``out`` is an array for the result, whose rows or columns
    are contiguous; ``out_dtype`` is its element type where there is none, that of the operands if left out.

    All that follows the product is done in fp32 by the same kernel, and rounded once. ``c`` is broadcast to the result
    and not read where ``beta`` is 0; ``out`` may be ``c``. ``bias`` has a value a column ``(n,)`` or a row ``(m, 1)``.
    ``epilogue`` is a function of the fp32 values and of ``args``, arrays and numbers by its parameters' names. A tuple
    that it returns is as many results, and ``out`` and ``out_dtype`` may then be tuples too. Of a pair
    ``b=(gate, up)``, two arrays of one shape, it is a function of both products' values, and makes of them one result:
    ``epilogue=tilewright.swiglu`` is ``silu(a @ gate) * (a @ up)``, in one kernel that reads ``a`` once. Where
    ``alpha`` is 0, NaN and infinities of the product still show.

    The kernel is queued on ``stream`` (a CUDA stream or its handle; None: the current one of the arrays' library) and
    not waited for; with NumPy's arrays everything is copied there and back, and is done on return. ``plan`` forces a
    plan, ``sms`` limits the SMs. ``backend`` is ``auto`` or ``cuda``, or ``emulator`` for arrays in host memory.
    The result has the same bits from run to run, ``deterministic`` or not; with ``batch_invariant`` row i has the same
    for every number of rows too, by one plan for all of them: ``explain`` says what that costs.

    Raises ``UsageError`` for arguments that do not fit, naming the first, ``UnavailableError`` where there is no GPU.
    """
    torch = sys.modules.get("torch")
    if torch is not None and (torch.compiler.is_compiling() or hot.watched()):
        return _operation(
            a, b, out, c, alpha, beta, bias, epilogue, args, out_dtype, stream, plan, deterministic, batch_invariant,
            sms, backend,
        )  # fmt: skip
    options, out_dtype = _PLAIN, tuple(out_dtype) if type(out_dtype) is list else out_dtype
    if plan is not None or sms is not None or batch_invariant or not deterministic or backend != "auto":
        options = Options(plan, sms, deterministic, batch_invariant, backend)
    more = None if options is _PLAIN and out_dtype is None else (out_dtype, options)
    found: hot.Found | None
    values: hot.Values | None = None
    if c is bias is epilogue is args is None and type(alpha) is type(beta) is int and alpha == 1 and beta == 0:
        found = hot.found_by(a, b, out, more)
    else:
        found, values = hot.found_fused(a, b, out, more, c, alpha, beta, bias, epilogue, args)
    if found is not None:
        known = hot.look_up(found[0])
        if known is not None:
            result = known.run(a, out, found, stream, values)
            if result is not hot.MISSED:
                return result
    if torch is not None and (_learns(a, b, out, c, bias, args) or hot.elsewhere(a, b, c, bias)):
        return _operation(
            a, b, out, c, alpha, beta, bias, epilogue, args, out_dtype, stream, plan, deterministic, batch_invariant,
            sms, backend,
        )  # fmt: skip
    after = after_of(c, alpha, beta, bias, epilogue, args, b)
    request = request_of(a, b, out, out_dtype, options, after)
    result, ready = run(request, out, stream)
    if found is not None:
        hot.remember(found, request, result, ready)
    return result


def _learns(a: Any, b: Any, out: Any, c: Any, bias: Any, args: Any) -> bool:
    """Whether a gradient or a tangent is asked for."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    outs = out if isinstance(out, tuple | list) else (out,)
    bs = b if isinstance(b, tuple | list) else (b,)
    held = (a, *bs, *outs, c, bias, *(args.values() if isinstance(args, Mapping) else ()))
    if torch.is_grad_enabled() and any(getattr(each, "requires_grad", False) is True for each in held):
        return True
    return hot.has_tangent(held)


def _operation(
    a: Any, b: Any, out: Any, c: Any, alpha: Any, beta: Any, bias: Any, epilogue: Any, args: Any, out_dtype: Any,
    stream: Any, plan: Any, deterministic: Any, batch_invariant: Any, sms: Any, backend: str,
) -> Any:  # fmt: skip
    """The same as an operation of PyTorch, which its autograd and its compiler see."""
    from tilewright.torch_op import of_call

    return of_call(
        a, b, c=c, alpha=alpha, beta=beta, bias=bias, epilogue=epilogue, args=args, out_dtype=out_dtype,
        backend=backend, out=out, stream=stream, plan=plan, sms=sms, deterministic=deterministic,
        batch_invariant=batch_invariant,
    )  # fmt: skip


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
        options = Options(plan, sms, deterministic, batch_invariant, backend)
        out_dtype = tuple(out_dtype) if type(out_dtype) is list else out_dtype
        self._given: dict[str, Any] = {
            "c": c, "alpha": alpha, "beta": beta, "bias": bias, "epilogue": epilogue, "args": args, "b": b
        }  # fmt: skip
        after = after_of(**self._given)
        self._request: Request | None = request_of(a, b, out, out_dtype, options, after)
        self._a, self._b, self._out, self._stream = a, b, out, stream
        self._plain = after is None
        self._more = (out_dtype, options)
        self._ready: Ready | None = None
        self._known: hot.Known | None = None
        self._again: tuple[Any, ...] | None = None
        self._keys: tuple[Any, ...] = ()

    @property
    def request(self) -> Request:
        """The call that it makes. Raises ``UsageError`` once it is closed."""
        return self._open()

    def plan(self) -> Plan | None:
        """Choose and compile, if that was not done. Returns the plan; None where the result has no elements."""
        if self._ready is None:
            self._ready = made_ready(self._with(None, None, None, {}))
        return None if self._ready.choice is None else self._ready.choice.plan

    def tune(self, *, top: int = 4, limit_s: float = 30.0, again: bool = False) -> Plan | None:
        """Measure the planner's first ``top`` candidates for this call on this GPU, and take the fastest.

        What is measured is what the call queues: the kernel with its epilogue, pair and batch, copies of operands that
        it needs, and what adds up sums; on arrays that lie as these do, which are not touched. The winner is kept in
        the database, where every later call of the kind finds it; ``again`` measures one that is there. Each candidate
        may take ``limit_s`` seconds (docs/tune.md says how it is done). One that computes a wrong element is left out,
        with a warning.

        Raises ``UsageError`` for a result without elements, for ``plan``, ``sms`` and ``batch_invariant``, and where no
        candidate could be timed, ``UnavailableError`` without a GPU.
        """
        from tilewright.library.tuning import tune_call  # with the planner and SQLite

        tune_call(self._with(None, None, None, {}), top, limit_s, again)
        self._ready = self._known = self._again = None
        return self.plan()

    def execute(self, a: Any = None, b: Any = None, *, out: Any = None, stream: Any = None, **changed: Any) -> Any:
        """Queue the call and return the result: of the arrays given at the start where none are given here.

        Others must be alike in kind, device, shape, strides, element type and alignment to 16 bytes. ``changed`` may
        have other ``c``, ``bias``, ``args``, ``alpha`` and ``beta``, which must decide for the same kernel. Without an
        ``out``, here or at the start, each call makes a new result. Raises ``UsageError``, for tensors that need a
        gradient too: ``matmul`` gives one.
        """
        # A repeated call first: each look costs it a per cent. What traces it finds addresses here, and stops.
        again = self._again
        if again is not None and a is None and b is None and out is None and not changed:
            on = self._stream if stream is None else stream
            if type(on) is int:
                (
                    modes, where_a, at_a, where_b, at_b, where_out, at_out,
                    how_a, lay_a, how_b, lay_b, how_out, lay_out, start, pointers, written, outs,
                ) = again  # fmt: skip
                if (
                    not modes() and where_a() == at_a and where_b() == at_b and where_out() == at_out
                    and how_a() == lay_a and how_b() == lay_b and how_out() == lay_out
                ):  # fmt: skip
                    start(pointers, on)
                    written(outs)
                    return outs[0]
        torch = sys.modules.get("torch")
        if torch is not None and torch.compiler.is_compiling():
            from tilewright.torch_eager import eagerly

            return eagerly(self.execute, a, b, out=out, stream=stream, **changed)
        if torch is not None and hot.recorded():
            raise UsageError(
                "a dispatch mode of PyTorch is active, which would not see what a Matmul queues: matmul goes through it"
            )
        if self._known is not None and not changed:
            same = a is None and b is None and out is None
            x, y = self._a if a is None else a, self._b if b is None else b
            into = self._out if out is None else out
            found, values = self._found(x, y, into)
            if found is not None and found[0] in self._keys:
                result = self._known.run(x, into, found, self._stream if stream is None else stream, values)
                if result is not hot.MISSED:
                    if same and into is not None and self._known.start is not None and values is None:
                        self._again = hot.again(self._known, x, y, into, found)
                    return result
        new, given = self._with(a, b, out, changed), self._out if out is None else out
        held = {**self._given, **changed}
        if _learns(
            self._a if a is None else a, self._b if b is None else b, given, held["c"], held["bias"], held["args"]
        ):
            raise UsageError(
                "a, b or another tensor needs a gradient, which a Matmul does not give: matmul does, and under "
                "torch.no_grad() none is needed"
            )
        result, self._ready = run(new, given, self._stream if stream is None else stream)
        self._remember(result)
        return result

    def explain(self) -> Explanation:
        """What was chosen, or would be."""
        return explained(self._with(None, None, None, {}))

    def close(self) -> None:
        """Let go of the arrays. What was queued runs; ``execute`` raises ``UsageError`` from then on."""
        self._request = self._ready = self._known = self._again = None
        self._a = self._b = self._out = None
        self._given = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _open(self) -> Request:
        if self._request is None:
            raise UsageError("this Matmul was closed; make another")
        return self._request

    def _with(self, a: Any, b: Any, out: Any, changed: dict[str, Any]) -> Request:
        """The request with other arrays, its own as they lie now. Raises ``UsageError`` for what is not alike."""
        first = self._open()
        a, out = self._a if a is None else a, self._out if out is None else out
        outs: tuple[Array, ...] = ()
        if out is not None:
            given = tuple(out) if isinstance(out, tuple | list) else (out,)
            likes = first.outs or tight(first, results_of(first))
            if len(given) != len(likes):
                raise UsageError(f"out has {len(given)} arrays; this Matmul has {len(likes)} results")
            outs = tuple(_alike(view(x, "out"), y, "out") for x, y in zip(given, likes, strict=True))
        for name in changed:
            if name not in self._given or name == "epilogue":
                raise UsageError(f"{name} cannot be changed; c, alpha, beta, bias and args can")
        if b is not None:
            changed = {**changed, "b": b}
        held = {**self._given, **changed}
        after, pair = after_of(**held), pair_of(held["b"])
        if (None if after is None else after.key) != (None if first.after is None else first.after.key):
            raise UsageError(
                f"{', '.join(changed) or 'an array that was changed'} asks for another kernel: shapes, strides and "
                "types must stay, and numbers that are 0 or 1"
            )
        return Request(
            _alike(view(a, "a"), first.a, "a"),
            _alike(view(held["b"] if pair is None else pair[0], "b"), first.b, "b"),
            outs,
            first.shape,
            first.out_dtypes,
            first.options,
            after,
        )

    def _found(self, a: Any, b: Any, out: Any) -> tuple[hot.Found | None, hot.Values | None]:
        """What ``hot`` finds it by, and the values of what follows the product."""
        if self._plain:
            return hot.found_by(a, b, out, self._more), None
        given = {name: value for name, value in self._given.items() if name != "b"}
        return hot.found_fused(a, b, out, self._more, **given)

    def _remember(self, result: Any) -> None:
        """From the next call on tensors go the short way: with and without an ``out`` of this geometry."""
        request = self._request
        if request is None or self._ready is None or self._known is not None:
            return
        found, _ = self._found(self._a, self._b, self._out)
        if found is None:
            return
        self._known = hot.remember(found, request, result, self._ready)
        other, _ = self._found(self._a, self._b, result)
        self._keys = (found[0],) if other is None else (found[0], other[0])


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
