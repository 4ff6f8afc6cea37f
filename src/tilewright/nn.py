"""``tilewright.nn.Linear``: ``torch.nn.Linear`` on tilewright's kernels, with an activation in the same kernel."""

from __future__ import annotations

from typing import Any

import torch  # noqa: TID253 - this module is PyTorch's

from tilewright.errors import UsageError
from tilewright.torch_op import ACTIVATIONS, matmul

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
        weight, bias, kind = self.weight, self.bias, input.device.type
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
            input, weight, bias = (None if x is None else x.to(dtype) for x in (input, weight, bias))
        return matmul(input, weight.mT, bias=bias, activation=self.activation, backend=self.backend)

    def extra_repr(self) -> str:
        """As ``torch.nn.Linear``'s, with the activation."""
        return f"{super().extra_repr()}, activation={self.activation}"
