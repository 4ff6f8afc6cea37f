"""``tilewright.nn.Linear``: ``torch.nn.Linear`` on tilewright's kernels, with an activation in the same kernel."""

from typing import Any

import torch  # noqa: TID253 - this module is PyTorch's

from tilewright.errors import UsageError
from tilewright.torch_op import ACTIVATIONS, at_autocast, matmul

__all__ = ["Linear"]


class Linear(torch.nn.Linear):  # type: ignore[misc]
    """``activation(x @ weight.T + bias)``, ``x`` of shape ``(..., in_features)``; a drop-in for ``torch.nn.Linear``.

    ``activation`` is one of ``tilewright.torch_op.ACTIVATIONS``. The parameters are those of ``torch.nn.Linear``, so
    that a state dict fits both. Raises ``UsageError`` for another activation.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        activation: str = "none",
        backend: str = "auto",
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        if activation not in ACTIVATIONS:
            raise UsageError(f"activation {activation!r} is not one of {', '.join(ACTIVATIONS)}")
        self.activation, self.backend = activation, backend

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The result, of shape ``(..., out_features)``; under autocast in its type, as ``torch.nn.Linear``'s."""
        return _linear(input, self.weight, self.bias, self.activation, self.backend)

    def extra_repr(self) -> str:
        """As ``torch.nn.Linear``'s, with the activation."""
        return f"{super().extra_repr()}, activation={self.activation}"


def _linear(x: Any, weight: Any, bias: Any, activation: str, backend: str) -> Any:
    """What a layer computes: one call in what ``torch.fx`` traces, as that of a layer of PyTorch's is."""
    x, weight, bias = at_autocast(x, weight, bias)
    return matmul(x, weight.mT, bias=bias, activation=activation, backend=backend)


torch.fx.wrap("_linear")
