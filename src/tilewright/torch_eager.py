"""What runs beside the graphs that ``torch.compile`` makes.

Imported only while one is made: ``torch.compiler.disable`` loads Dynamo, which takes a second or more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch  # noqa: TID253 - this module is PyTorch's


def _eagerly(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """A call that breaks the graph, and into which Dynamo does not look: of the planner nothing is compiled."""
    return function(*args, **named)


_REASON = (
    "torch.ops.tilewright takes a, b, c, alpha, beta, bias, out_dtype and the named functions as epilogue. Every other "
    "call of tilewright (out, stream, plan, sms, batch_invariant, args, a pair, another epilogue, a Matmul) runs "
    "beside the graph, which fullgraph=True forbids"
)
try:
    eagerly: Callable[..., Any] = torch.compiler.disable(_eagerly, reason=_REASON)
except TypeError:  # an older version, which does not say why
    eagerly = torch.compiler.disable(_eagerly)
