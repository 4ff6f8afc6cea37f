"""``tilewright.matmul`` as an operation of PyTorch: for autograd, ``torch.compile`` and ``torch.export``.

``tilewright.matmul`` comes here by itself when PyTorch has to see a call: for a gradient, a tangent, a compiler, a
dispatch mode, a transform of ``torch.func``, or a tensor that only PyTorch can look into.
"""

from __future__ import annotations

from typing import Any

import torch  # noqa: TID253 - this module is PyTorch's; only who has tensors imports it

from tilewright.errors import UsageError
from tilewright.library import hot
from tilewright.torch_library import ACTIVATIONS, functions_of, plain, transformed, with_input

__all__ = ["ACTIVATIONS", "at_autocast", "matmul", "of_call"]


_NAMES = {function: name for name, function in functions_of().items()}


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
    if activation not in ACTIVATIONS:
        raise UsageError(f"activation {activation!r} is not one of {', '.join(ACTIVATIONS)}")
    one_row, one_col = a.dim() == 1, b.dim() == 1
    a, b = a.unsqueeze(0) if one_row else a, b.unsqueeze(1) if one_col else b
    if one_row or one_col:
        dimensions = max(a.dim(), b.dim()) - one_row - one_col
        bias, c = (_as_matrices(each, dimensions, one_row, one_col) for each in (bias, c))
    given = (a, b, bias, c, float(alpha), float(beta), activation, out_dtype, backend)
    learns = torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in given[:4])
    keeps = activation != "none" and (learns or transformed(given))
    out = with_input(*given)[0] if keeps else plain(*given)
    out = out.squeeze(-1) if one_col else out
    return out.squeeze(-1 if one_col else -2) if one_row else out


def _as_matrices(x: torch.Tensor | None, dimensions: int, one_row: bool, one_col: bool) -> torch.Tensor | None:
    """What is broadcast to a result of so many dimensions, with the axes that vector operands leave out."""
    if x is None or x.dim() > dimensions:
        return x
    x = x.unsqueeze(-1) if one_col and x.dim() else x
    return x.unsqueeze(-2) if one_row and x.dim() > 1 else x


def of_call(a: Any, b: Any, **given: Any) -> Any:
    """A call of ``tilewright.matmul``, with all its arguments, that PyTorch may have to see.

    What the operation does not take breaks the graph of ``torch.compile`` and runs beside it. Elsewhere it raises
    ``UsageError``: an ``out``, an epilogue that is none of the named functions.
    """
    from tilewright.library.api import matmul as call

    if given["out"] is None:  # PyTorch's operations with an out have no autocast either
        a, b = at_autocast(a, b)
    if torch.compiler.is_dynamo_compiling():
        if _misfit(a, b, **given) is not None:
            from tilewright.torch_eager import eagerly

            return eagerly(call, a, b, **given)
    elif not torch.compiler.is_compiling() and hot.watched():
        args = given["args"]
        more = tuple(args.values()) if isinstance(args, dict) else ()
        held = (a, *(b if isinstance(b, tuple | list) else (b,)), given["c"], given["bias"], *more)
        tensors = [each for each in held if isinstance(each, torch.Tensor)]
        if not tensors or not (hot.recorded() or transformed(tensors) or hot.elsewhere(*tensors)):
            return hot.unwatched(call, a, b, **given)
    said = _misfit(a, b, **given)
    if said is not None:
        raise UsageError(said)
    out_dtype = given["out_dtype"]
    return matmul(
        a, b, bias=given["bias"], c=given["c"], alpha=given["alpha"], beta=given["beta"],
        activation=_NAMES[given["epilogue"]], out_dtype=None if out_dtype is None else _torch_dtype(out_dtype),
        backend=given["backend"],
    )  # fmt: skip


def at_autocast(*arrays: Any) -> tuple[Any, ...]:
    """Arrays as PyTorch's ``@`` takes them where autocast is on: tensors of its device in its element type.

    Those of another device, of fp64 or of whole numbers stay as they are, and so does what is no tensor.
    """
    return tuple([_at_autocast(each) for each in arrays])


def _at_autocast(x: Any) -> Any:
    if isinstance(x, tuple | list):
        return tuple([_at_autocast(each) for each in x])
    if not isinstance(x, torch.Tensor) or x.device.type not in ("cuda", "cpu"):
        return x
    if not torch.is_autocast_enabled(x.device.type) or not x.is_floating_point() or x.dtype == torch.float64:
        return x
    return x.to(torch.get_autocast_dtype(x.device.type))


def _misfit(
    a: Any, b: Any, *, c: Any, alpha: Any, beta: Any, bias: Any, epilogue: Any, args: Any, out_dtype: Any,
    backend: str, deterministic: Any, batch_invariant: Any, **others: Any,
) -> str | None:  # fmt: skip
    """Why the operation cannot be this call; None where it can."""
    where = "tensors that need a gradient, or where PyTorch has to see the call (a compiler, mode or transform)"
    takes = "(torch.no_grad(), and outside of these, takes {})"
    for name, value in (*others.items(), ("batch_invariant", batch_invariant or None)):
        if value is not None:
            return (
                f"{name} is given for {where}; only a, b, c, alpha, beta, bias, epilogue, out_dtype and backend can be "
                f"{takes.format('all')}"
            )
    if isinstance(b, tuple | list):
        return f"b is a pair for {where}; one b can be {takes.format('a pair')}"
    for name, array in (("a", a), ("b", b), ("c", c), ("bias", bias)):
        if array is not None and not isinstance(array, torch.Tensor):
            return f"{name} is a {type(array).__name__} and another array a tensor that PyTorch has to see"
    for name, number in (("alpha", alpha), ("beta", beta)):
        if isinstance(number, torch.Tensor | str | bool):
            return f"{name} is a {type(number).__name__}; it must be a number"
    if args or not any(epilogue is each for each in _NAMES):
        return (
            f"epilogue is {getattr(epilogue, '__name__', epilogue)!r}, which has no gradient here; "
            f"{', '.join(each for each in ACTIVATIONS if each not in ('none', 'gelu_tanh'))} have one "
            f"{takes.format('any')}"
        )
    return None


def _torch_dtype(value: Any) -> torch.dtype:
    from tilewright.library.results import torch_dtype
    from tilewright.library.support import out_dtype_of

    return value if isinstance(value, torch.dtype) else torch_dtype(out_dtype_of(value))
