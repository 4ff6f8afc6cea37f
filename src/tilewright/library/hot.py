"""The short way for PyTorch's tensors: one look-up by what decides the launches, then the addresses and the stream.

What costs time here is every attribute of a tensor, and every object that is made; so nothing is made but a key. All
that is unusual (autograd, negated views, sparse tensors, a geometry seen for the first time) goes the long way.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from typing import Any

from tilewright.backends.cuda_arguments import stream_handle
from tilewright.library.arrays import HOST, view
from tilewright.library.ready import Ready
from tilewright.library.request import require_apart
from tilewright.library.results import used_on

MOST_KNOWN = 4096

Found = tuple[Any, int, int, int]
"""A key, and the addresses of a, b and out, 0 without an ``out``."""


class _Torch:
    """What is needed of PyTorch, once it is there: its types of tensors, and what asks for its state."""

    types: tuple[Any, ...] = ()
    grad_enabled: Any = None
    raw_stream: Any = None


class Known:
    """A geometry that was seen before: its launches, and what its result is made of."""

    __slots__ = ("device", "dtype", "index", "near", "ready", "shape")

    def __init__(self, ready: Ready, shape: tuple[int, ...], dtype: Any, device: Any) -> None:
        self.ready, self.shape, self.dtype, self.device = ready, shape, dtype, device
        self.index: int = device.index
        (a, b, out) = ready.near
        self.near = (*a, *b, *out)

    def run(self, a: Any, b: Any, out: Any, found: Found, stream: Any) -> Any:
        """Queue the product of tensors whose key this was found by, and return the result."""
        _, at_a, at_b, at_out = found
        made = out is None
        if made:
            out = _empty(self.shape, dtype=self.dtype, device=self.device)
            at_out = out.data_ptr()
        else:
            a_low, a_high, b_low, b_high, low, high = self.near
            low, high = at_out + low, at_out + high
            if (low < at_a + a_high and at_a + a_low < high) or (low < at_b + b_high and at_b + b_low < high):
                seen = view(out, "out")
                require_apart(seen, view(a, "a"), "a")
                require_apart(seen, view(b, "b"), "b")
        if stream is None:
            on = _Torch.raw_stream(self.index)
        else:
            on = stream if type(stream) is int else stream_handle(stream)
            if made:
                used_on(out, view(a, "a"), on)
        self.ready(at_a, at_b, at_out, on)
        return out


_known: OrderedDict[Any, Known] = OrderedDict()
_empty: Any = None


def found_by(a: Any, b: Any, out: Any, more: Any) -> Found | None:
    """The key of a call with plain tensors, and where they are; None for all else."""
    if type(a) not in _Torch.types and not _is_torch(a):
        return None
    if type(b) not in _Torch.types or (out is not None and type(out) not in _Torch.types):
        return None
    if (a.requires_grad or b.requires_grad) and _Torch.grad_enabled():
        return None
    try:
        at_a, at_b, at_out = a.data_ptr(), b.data_ptr(), 0
        key: Any = (
            a.shape, a.stride(), a.dtype, a.get_device(), at_a & 15, a.is_neg(),
            b.shape, b.stride(), b.dtype, b.get_device(), at_b & 15, b.is_neg(), more,
        )  # fmt: skip
        if out is not None:
            at_out = out.data_ptr()
            key = (key, out.shape, out.stride(), out.dtype, out.get_device(), at_out & 15, out.is_neg())
    except RuntimeError:  # a sparse tensor has no strides, one of another device no address
        return None
    return key, at_a, at_b, at_out


def look_up(key: Any) -> Known | None:
    """What is known of a key."""
    return _known.get(key)


def remember(found: Found, a: Any, result: Any, ready: Ready) -> Known | None:
    """Keep what the long way made of a key, for tensors on a GPU."""
    if view(a).device == HOST:
        return None
    known = _known[found[0]] = Known(ready, tuple(result.shape), result.dtype, result.device)
    while len(_known) > MOST_KNOWN:
        _known.popitem(last=False)
    return known


def forget() -> None:
    """Forget every key."""
    _known.clear()


def _is_torch(array: Any) -> bool:
    """Whether it is a plain tensor, once PyTorch is imported: then its types are known from here on."""
    torch = sys.modules.get("torch")
    if _Torch.types or torch is None or not hasattr(torch, "Tensor"):
        return False
    global _empty
    from tilewright.library.results import torch_stream

    _Torch.grad_enabled = torch.is_grad_enabled
    _Torch.raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", torch_stream)
    _empty = torch.empty
    _Torch.types = (torch.Tensor, torch.nn.Parameter)
    return type(array) in _Torch.types
