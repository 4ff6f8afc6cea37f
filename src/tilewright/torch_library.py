"""``torch.ops.tilewright``: ``matmul``, and ``matmul_with_input``, which also gives what the activation was applied to.

What they run, their fake kernels, their derivatives.

Loaded with ``tilewright`` itself where PyTorch is imported before it, so that a program which ``torch.export`` saved
finds them; so nothing here loads the library before an operation runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch  # noqa: TID253 - this module is PyTorch's; only who has tensors imports it
from torch.autograd import forward_ad  # noqa: TID253

from tilewright.errors import UsageError

ACTIVATIONS = ("none", "relu", "relu_squared", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh")
"""The names of functions that have a gradient here."""


@cache
def functions_of() -> dict[str, Any]:
    """The functions of these names, None for ``none``."""
    from tilewright.epilogue import functions

    def gelu_tanh(x: Any) -> Any:
        return functions.gelu(x, approximate="tanh")

    own = {"none": None, "gelu_tanh": gelu_tanh}
    return {name: own[name] if name in own else getattr(functions, name) for name in ACTIVATIONS}


@cache
def _and_its_input(function: Any) -> Any:
    return lambda acc: (function(acc), acc)


def _run(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, c: torch.Tensor | None, alpha: float, beta: float,
    epilogue: Any, out_dtype: torch.dtype | None, backend: str,
) -> Any:  # fmt: skip
    from tilewright.library import hot
    from tilewright.library.api import matmul as call

    if has_tangent((a, b, bias, c)):
        raise UsageError(
            "an operand of torch.ops.tilewright has a tangent, which the operation by itself would lose: "
            "tilewright.matmul and tilewright.torch_op.matmul give the result's"
        )
    with torch.no_grad():
        return hot.unwatched(
            call, a, b, bias=bias, c=c, alpha=alpha, beta=beta, epilogue=epilogue, out_dtype=out_dtype, backend=backend
        )  # fmt: skip


def _matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None,
    c: torch.Tensor | None,
    alpha: float,
    beta: float,
    activation: str,
    out_dtype: torch.dtype | None,
    backend: str,
) -> torch.Tensor:
    found: torch.Tensor = _run(a, b, bias, c, alpha, beta, functions_of()[activation], out_dtype, backend)
    return found


def _matmul_with_input(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None,
    c: torch.Tensor | None,
    alpha: float,
    beta: float,
    activation: str,
    out_dtype: torch.dtype | None,
    backend: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    found: tuple[torch.Tensor, torch.Tensor] = _run(
        a, b, bias, c, alpha, beta, _and_its_input(functions_of()[activation]), out_dtype, backend
    )
    return found


def _fake(
    a: torch.Tensor, b: torch.Tensor, bias: Any, c: Any, alpha: Any, beta: Any, activation: Any, out_dtype: Any,
    backend: Any,
) -> torch.Tensor:  # fmt: skip
    """A result of the right shape and type, for whoever traces without data."""
    torch._check(a.shape[-1] == b.shape[-2], lambda: f"a has {a.shape[-1]} columns and b {b.shape[-2]} rows")
    torch._check(a.dtype == b.dtype, lambda: f"a is {a.dtype} and b is {b.dtype}")
    shape = (*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    return a.new_empty(shape, dtype=out_dtype or a.dtype)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    a, b, bias, c, alpha, beta, activation, _, backend = inputs
    before = output[1] if isinstance(output, tuple) else None
    ctx.save_for_backward(a, b, before)
    ctx.alpha, ctx.beta, ctx.activation, ctx.backend = alpha, beta, activation, backend
    ctx.bias = None if bias is None else (bias.shape, bias.dtype)
    ctx.c = None if c is None else (c.shape, c.dtype)


def _gradients(ctx: Any, grad: torch.Tensor | None, before_grad: torch.Tensor | None = None) -> tuple[Any, ...]:
    a, b, before = ctx.saved_tensors
    if before is not None:
        through = None if grad is None else _derivative(ctx.activation, grad, before)
        grad = before_grad if through is None else through if before_grad is None else through + before_grad
    elif ctx.activation != "none":
        raise UsageError(
            f"the gradient of torch.ops.tilewright.matmul with activation {ctx.activation!r} needs its input: "
            "matmul_with_input keeps it"
        )
    if grad is None:
        return (None,) * 9
    grad_a = grad_b = grad_bias = grad_c = None
    narrow = grad.to(a.dtype)
    if ctx.needs_input_grad[0]:
        grad_a = _product(narrow, b.mT, ctx.alpha, ctx.backend).sum_to_size(a.shape)
    if ctx.needs_input_grad[1]:
        if b.dim() == 2 and a.dim() > 2:  # one weight: the batch is a part of what is summed over
            left, right = a.reshape(-1, a.shape[-1]), narrow.reshape(-1, narrow.shape[-1])
            grad_b = _product(left.mT, right, ctx.alpha, ctx.backend)
        else:
            grad_b = _product(a.mT, narrow, ctx.alpha, ctx.backend).sum_to_size(b.shape)
    if ctx.bias is not None and ctx.needs_input_grad[2]:
        grad_bias = grad.float().sum_to_size(ctx.bias[0]).to(ctx.bias[1])
    if ctx.c is not None and ctx.needs_input_grad[3]:
        grad_c = (grad.float() * ctx.beta).sum_to_size(ctx.c[0]).to(ctx.c[1])
        grad_c = grad_c if ctx.beta != 0 else torch.zeros_like(grad_c)  # of what was not read
    return grad_a, grad_b, grad_bias, grad_c, None, None, None, None, None


def _product(a: torch.Tensor, b: torch.Tensor, alpha: float, backend: str, out_dtype: Any = None) -> torch.Tensor:
    found: torch.Tensor = plain(a, b, None, None, alpha, 0.0, "none", out_dtype, backend)
    return found


def plain(*given: Any) -> Any:
    """The operation, or under a transform of ``torch.func`` what it can take a gradient of."""
    return _Plain.apply(*given) if transformed(given) else torch.ops.tilewright.matmul(*given)


def with_input(*given: Any) -> Any:
    """The same of the operation that keeps an activation's input."""
    return _WithInput.apply(*given) if transformed(given) else torch.ops.tilewright.matmul_with_input(*given)


def transformed(given: Sequence[Any]) -> bool:
    """Whether a derivative is asked for that PyTorch knows of no operation that Python registers.

    That is a transform of ``torch.func``, or a tangent of forward mode.
    """
    active = getattr(torch._C, "_are_functorch_transforms_active", None)
    return bool(active and active()) or has_tangent(given)


def has_tangent(given: Sequence[Any]) -> bool:
    """Whether one of them is a tensor with a tangent, which forward-mode differentiation asks about here."""
    if forward_ad._current_level < 0 or not torch._C._is_fwd_grad_enabled():
        return False
    tensors = [each for each in given if isinstance(each, torch.Tensor)]
    return any(forward_ad.unpack_dual(each).tangent is not None for each in tensors)


class _Plain(torch.autograd.Function):  # type: ignore[misc]
    """``torch.ops.tilewright.matmul`` for ``torch.func`` and for forward mode."""

    generate_vmap_rule = True  # in turns, as operations without a rule of their own are batched
    backward = staticmethod(_gradients)

    @staticmethod
    def forward(*given: Any) -> Any:
        return torch.ops.tilewright.matmul(*given)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _keep(ctx, inputs, output)
        before = output[1] if isinstance(output, tuple) else None
        ctx.save_for_forward(inputs[0], inputs[1], before)
        ctx.result = (output[0] if isinstance(output, tuple) else output).shape
        ctx.out_dtype = inputs[7] or inputs[0].dtype

    @staticmethod
    def jvp(ctx: Any, a_dot: Any, b_dot: Any, bias_dot: Any, c_dot: Any, *_: Any) -> Any:
        """The tangent of the result, and of what the activation was applied to where that is a result."""
        a, b, before = ctx.saved_tensors
        terms = [] if a_dot is None else [_product(a_dot, b, ctx.alpha, ctx.backend, ctx.out_dtype)]
        terms += [] if b_dot is None else [_product(a, b_dot, ctx.alpha, ctx.backend, ctx.out_dtype)]
        terms += [] if bias_dot is None else [bias_dot]
        terms += [] if c_dot is None or ctx.beta == 0 else [c_dot.float() * ctx.beta]
        dot = sum((each.float() for each in terms), torch.zeros((), device=a.device))
        dot = dot.expand(ctx.result).contiguous()
        if before is None:
            return dot.to(ctx.out_dtype)
        return _derivative(ctx.activation, dot, before.float()).to(ctx.out_dtype), dot.to(ctx.out_dtype)


class _WithInput(_Plain):
    """``torch.ops.tilewright.matmul_with_input`` for the same."""

    @staticmethod
    def forward(*given: Any) -> Any:
        return torch.ops.tilewright.matmul_with_input(*given)


def _derivative(activation: str, grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The gradient at an activation's input ``x``, by PyTorch's own."""
    aten = torch.ops.aten
    if activation == "relu":
        return torch.where(x > 0, grad, 0)
    if activation == "relu_squared":
        return grad * 2 * torch.relu(x)
    if activation in ("gelu", "gelu_tanh"):
        found: torch.Tensor = aten.gelu_backward(grad, x, approximate="tanh" if activation == "gelu_tanh" else "none")
        return found
    if activation == "silu" and transformed((grad, x)):  # PyTorch's has no forward mode
        y = torch.sigmoid(x.float())
        return (grad * (y * (1 + x * (1 - y)))).to(grad.dtype)
    if activation == "silu":
        found = aten.silu_backward(grad, x)
        return found  # noqa: RET504 - untyped until then
    y = torch.sigmoid(x) if activation == "sigmoid" else torch.tanh(x)
    return grad * (y * (1 - y) if activation == "sigmoid" else 1 - y * y)


def _register(name: str, run: Any, fake: Any) -> None:
    operation = torch.library.custom_op(f"tilewright::{name}", run, mutates_args=())
    operation.register_fake(fake)
    operation.register_autograd(_gradients, setup_context=_keep)


_register("matmul", _matmul, _fake)
_register("matmul_with_input", _matmul_with_input, lambda *given: (_fake(*given), _fake(*given)))
