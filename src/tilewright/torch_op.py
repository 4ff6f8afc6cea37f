"""``tilewright.matmul`` as an operation of PyTorch: for autograd, ``torch.compile`` and ``torch.export``.

``matmul`` comes here by itself when a gradient is asked for or the call is being compiled. ``torch.ops.tilewright`` has
``matmul`` and ``matmul_with_input``, which also gives what the activation was applied to, for the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch  # noqa: TID253 - this module is PyTorch's; only who has tensors imports it

from tilewright.epilogue import functions
from tilewright.errors import UsageError


def _gelu_tanh(x: Any) -> Any:
    return functions.gelu(x, approximate="tanh")


_ACTIVATIONS: dict[str, Any] = {
    "none": None,
    "relu": functions.relu,
    "relu_squared": functions.relu_squared,
    "gelu": functions.gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": functions.silu,
    "sigmoid": functions.sigmoid,
    "tanh": functions.tanh,
}
ACTIVATIONS = tuple(_ACTIVATIONS)
"""The names of functions that have a gradient here."""
_NAMES = {function: name for name, function in _ACTIVATIONS.items()}
_WITH_INPUT = {name: (lambda acc, of=function: (of(acc), acc)) for name, function in _ACTIVATIONS.items() if function}


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    c: torch.Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    activation: str = "none",
    out_dtype: torch.dtype | None = None,
    backend: str = "auto",
) -> torch.Tensor:
    """``activation(alpha * (a @ b) + beta * c + bias)`` with gradients; ``tilewright.matmul`` says what each is.

    ``activation`` is one of ``ACTIVATIONS``. Raises ``UsageError``.
    """
    if activation not in _ACTIVATIONS:
        raise UsageError(f"activation {activation!r} is not one of {', '.join(ACTIVATIONS)}")
    one_row, one_col = a.dim() == 1, b.dim() == 1
    a, b = a.unsqueeze(0) if one_row else a, b.unsqueeze(1) if one_col else b
    if one_row or one_col:
        dimensions = max(a.dim(), b.dim()) - one_row - one_col
        bias, c = (_as_matrices(each, dimensions, one_row, one_col) for each in (bias, c))
    given = (a, b, bias, c, float(alpha), float(beta), activation, out_dtype, backend)
    learns = torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in given[:4])
    out = _with_input(*given)[0] if learns and activation != "none" else _plain(*given)
    out = out.squeeze(-1) if one_col else out
    return out.squeeze(-1 if one_col else -2) if one_row else out


def _as_matrices(x: torch.Tensor | None, dimensions: int, one_row: bool, one_col: bool) -> torch.Tensor | None:
    """What is broadcast to a result of so many dimensions, with the axes that vector operands leave out."""
    if x is None or x.dim() > dimensions:
        return x
    x = x.unsqueeze(-1) if one_col and x.dim() else x
    return x.unsqueeze(-2) if one_row and x.dim() > 1 else x


def of_call(
    a: torch.Tensor, b: torch.Tensor, *, c: Any, alpha: Any, beta: Any, bias: Any, epilogue: Any, args: Any,
    out_dtype: Any, backend: str, **others: Any,
) -> torch.Tensor:  # fmt: skip
    """A call of ``tilewright.matmul`` that autograd or a compiler is to see.

    Raises ``UsageError`` for what has no gradient here: an ``out``, an epilogue that is none of the named functions.
    """
    for name, value in others.items():
        if value is not None:
            raise UsageError(
                f"{name} is given for tensors that need a gradient, or inside of torch.compile; only a, b, c, alpha, "
                "beta, bias, epilogue, out_dtype and backend can be (torch.no_grad() takes all)"
            )
    if isinstance(b, tuple | list):
        raise UsageError(
            "b is a pair for tensors that need a gradient, or inside of torch.compile; one b can be (torch.no_grad() "
            "takes a pair)"
        )
    for name, array in (("a", a), ("b", b), ("c", c), ("bias", bias)):
        if array is not None and not isinstance(array, torch.Tensor):
            raise UsageError(f"{name} is a {type(array).__name__} and another array a tensor that needs a gradient")
    for name, number in (("alpha", alpha), ("beta", beta)):
        if isinstance(number, torch.Tensor | str | bool):
            raise UsageError(f"{name} is a {type(number).__name__}; it must be a number")
    if (epilogue is not None and (not callable(epilogue) or epilogue not in _NAMES)) or args:
        raise UsageError(
            f"epilogue is {getattr(epilogue, '__name__', epilogue)!r}, which has no gradient here; "
            f"{', '.join(each for each in ACTIVATIONS if each not in ('none', 'gelu_tanh'))} have one "
            "(torch.no_grad() takes any)"
        )
    dtype = None if out_dtype is None else _torch_dtype(out_dtype)
    name = _NAMES[epilogue]
    return matmul(
        a, b, bias=bias, c=c, alpha=alpha, beta=beta, activation=name, out_dtype=dtype, backend=backend
    )  # fmt: skip


def _torch_dtype(value: Any) -> torch.dtype:
    from tilewright.library.results import torch_dtype
    from tilewright.library.support import out_dtype_of

    return value if isinstance(value, torch.dtype) else torch_dtype(out_dtype_of(value))


def _run(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, c: torch.Tensor | None, alpha: float, beta: float,
    epilogue: Any, out_dtype: torch.dtype | None, backend: str,
) -> Any:  # fmt: skip
    from tilewright.library.api import matmul as call

    with torch.no_grad():
        return call(
            a, b, bias=bias, c=c, alpha=alpha, beta=beta, epilogue=epilogue, out_dtype=out_dtype, backend=backend
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
    found: torch.Tensor = _run(a, b, bias, c, alpha, beta, _ACTIVATIONS[activation], out_dtype, backend)
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
        a, b, bias, c, alpha, beta, _WITH_INPUT[activation], out_dtype, backend
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


def _product(a: torch.Tensor, b: torch.Tensor, alpha: float, backend: str) -> torch.Tensor:
    found: torch.Tensor = _plain(a, b, None, None, alpha, 0.0, "none", None, backend)
    return found


def _plain(*given: Any) -> Any:
    """The operation, or under a transform of ``torch.func`` what it can take a gradient of."""
    return _Plain.apply(*given) if _transformed(given) else torch.ops.tilewright.matmul(*given)


def _with_input(*given: Any) -> Any:
    return _WithInput.apply(*given) if _transformed(given) else torch.ops.tilewright.matmul_with_input(*given)


def _transformed(given: tuple[Any, ...]) -> bool:
    """Whether ``torch.func`` asks for a gradient, which it knows of no operation that Python registers."""
    active = getattr(torch._C, "_are_functorch_transforms_active", None)
    return bool(active and active() and any(each is not None and each.requires_grad for each in given[:4]))


class _Plain(torch.autograd.Function):  # type: ignore[misc]
    """``torch.ops.tilewright.matmul`` for ``torch.func``."""

    generate_vmap_rule = True  # in turns, as operations without a rule of their own are batched
    setup_context, backward = staticmethod(_keep), staticmethod(_gradients)

    @staticmethod
    def forward(*given: Any) -> Any:
        return torch.ops.tilewright.matmul(*given)


class _WithInput(_Plain):
    """``torch.ops.tilewright.matmul_with_input`` for ``torch.func``."""

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
