"""The short way for PyTorch's tensors: one look-up by what decides the launches, then the addresses and the stream.

What costs time here is every attribute of a tensor, and every object that is made; so nothing is made but a key. All
that is unusual (autograd, negated views, sparse tensors, several results, a geometry seen for the first time, arrays
whose memory meets) goes the long way.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from dataclasses import replace
from typing import Any

from tilewright.backends.cuda_arguments import stream_handle
from tilewright.epilogue.captured import key_of
from tilewright.epilogue.compose import name_of
from tilewright.library.arrays import HOST, lies_as, tight, view
from tilewright.library.fused import bits
from tilewright.library.pair import SECOND
from tilewright.library.ready import Ready
from tilewright.library.request import Request
from tilewright.library.results import torch_stream, used_on

MOST_KNOWN = 4096
MISSED: Any = object()
"""What ``Known.run`` returns where it does not."""

Found = tuple[Any, int, int, int]
"""A key, and the addresses of a, b and out, 0 without an ``out``."""
Values = dict[str, int]
"""What an epilogue is handed in, by the names of its members."""


class _Torch:
    """What is needed of PyTorch, once it is there: its types of tensors, and what asks for its state."""

    types: tuple[Any, ...] = ()
    grad_enabled: Any = None
    raw_stream: Any = None
    empty: Any = None
    empty_here: Any = None
    """Makes a tensor of sizes, strides and an element type on the current device, past the dispatcher."""
    device: Any = None
    """The number of the current device."""
    modes: Any = None
    """The number of active dispatch modes: ``FakeTensorMode``, what records a graph, what counts."""
    transforms: Any = None
    """The innermost transform of ``torch.func``, None outside of them."""
    forward: Any = None
    """The module of forward-mode differentiation, whose ``_current_level`` is -1 where that is off."""
    autocast: Any = None
    """Whether autocast is on for any device."""
    written: Any = None
    """Tells autograd that the tensors of a tuple have changed, which it may have kept for a backward pass."""


class _Inside(threading.local):
    call: bool = False


_inside = _Inside()


def watched() -> bool:
    """Whether PyTorch may have to see a call: for a mode, a transform, a tangent or autocast. It costs 0.3 us."""
    if not (_Torch.types or _found_torch()):
        return False
    found: bool = (
        _Torch.modes() or _Torch.forward._current_level >= 0 or _Torch.transforms() is not None or _Torch.autocast()
    ) and not _inside.call
    return found


def recorded() -> bool:
    """Whether a dispatch mode is active, which what is launched here would go past."""
    if not (_Torch.types or _found_torch()):
        return False
    return _Torch.modes() > 0 and not _inside.call


def has_tangent(arrays: Any) -> bool:
    """Whether one of them is a tensor with a tangent, which forward-mode differentiation asks about here."""
    if not (_Torch.types or _found_torch()) or _Torch.forward._current_level < 0:
        return False
    from tilewright.torch_library import has_tangent as found

    return found(arrays)


def unwatched(function: Any, *args: Any, **named: Any) -> Any:
    """A call within which ``watched`` is False in this thread: PyTorch has seen it."""
    before, _inside.call = _inside.call, True
    try:
        return function(*args, **named)
    finally:
        _inside.call = before


def elsewhere(*arrays: Any) -> bool:
    """Whether only PyTorch can look into a tensor: a subclass that dispatches by itself, or one of the device meta.

    While ``torch.jit`` traces that is so of all tensors: their sizes are tensors too.
    """
    torch = sys.modules.get("torch")
    if torch is None or _inside.call:
        return False
    plain = torch.Tensor.__torch_dispatch__
    held = [each for x in arrays for each in (x if isinstance(x, tuple | list) else (x,))]
    tensors = [each for each in held if isinstance(each, torch.Tensor)]
    special = any(each.is_meta or type(each).__torch_dispatch__ is not plain for each in tensors)
    return special or (bool(tensors) and torch._C._get_tracing_state() is not None)


class Known:
    """A geometry that was seen before: its launches, what its result is made of, and how far its arrays reach."""

    __slots__ = (
        "as_out", "device", "dtype", "index", "members", "more_near", "near", "ready", "shape", "start", "strides",
        "swapped",
    )  # fmt: skip

    def __init__(self, ready: Ready, result: Any, request: Request) -> None:
        self.ready, self.members = ready, ready.members
        self.start, self.swapped = ready.start, ready.swapped
        self.shape, self.dtype, self.device = tuple(result.shape), result.dtype, result.device
        self.strides = tight(self.shape)
        self.index: int = result.device.index
        self.near = tuple(end for ends in ready.near for end in ends)
        arrays = () if request.after is None else request.after.arrays
        self.more_near = {
            name: (each.extent[0] - each.pointer, each.extent[1] - each.pointer)
            for name, each in arrays
            if name in ready.members
        }
        second = None if request.after is None else request.after.second
        if second is not None:
            self.more_near[SECOND] = (second.extent[0] - second.pointer, second.extent[1] - second.pointer)
        self.as_out = {
            name
            for name, each in arrays
            if request.outs and lies_as(replace(each, pointer=request.outs[0].pointer), request.outs[0])
        }

    def run(self, a: Any, out: Any, found: Found, stream: Any, values: Values | None) -> Any:
        """Queue the call whose key this was found by, and return the result; ``MISSED`` where memory may overlap."""
        _, at_a, at_b, at_out = found
        made = out is None
        if made:
            if _Torch.empty_here is not None and _Torch.device() == self.index:
                out = _Torch.empty_here(self.shape, self.strides, self.dtype)
            else:
                out = _Torch.empty(self.shape, dtype=self.dtype, device=self.device)
            at_out = out.data_ptr()
        else:
            a_low, a_high, b_low, b_high, low, high = self.near
            low, high = at_out + low, at_out + high
            if (low < at_a + a_high and at_a + a_low < high) or (low < at_b + b_high and at_b + b_low < high):
                return MISSED
            if self.more_near:
                for name, (first, last) in self.more_near.items():
                    at = values[name]  # type: ignore[index]
                    if low < at + last and at + first < high and (at != at_out or name not in self.as_out):
                        return MISSED
        if stream is None:
            on = _Torch.raw_stream(self.index)
        else:
            on = stream if type(stream) is int else stream_handle(stream)
            if made:
                used_on(out, view(a, "a"), on)
        if self.start is not None:
            pointers: tuple[int, ...] = (at_b, at_a, at_out, 0) if self.swapped else (at_a, at_b, at_out, 0)
            if values is not None:
                pointers += tuple([values[name] for name in self.members])
            self.start(pointers, on)
        if not made:
            _Torch.written((out,))
        return out


def again(known: Known, a: Any, b: Any, out: Any, found: Found) -> tuple[Any, ...]:
    """A plain call with ``out``, to be repeated on the same tensors, which lay well apart when it was first made.

    For each of a, b and out what tells where and how it lies, and how it did: its address, and whether it is
    contiguous, or its strides where it is not. So what ``t_``, ``set_``, a longer ``resize_`` or an assignment to
    ``data`` did is seen; what ``resize_`` made shorter still has its memory and counts as it was. Each look costs a per
    cent of the call. Before them what counts dispatch modes, which would not see it; after them what starts the launch,
    and its pointers; what tells autograd, and the tensors it is told of. A tuple for ``Matmul.execute`` to take apart:
    an object with a method would cost a few per cent.
    """
    _, at_a, at_b, at_out = found
    pointers = (at_b, at_a, at_out, 0) if known.swapped else (at_a, at_b, at_out, 0)
    each = (a, b, out)
    where = [value for x in each for value in (x.data_ptr, x.data_ptr())]
    # Making a tuple of strides takes twice as long as saying that there is nothing between the elements.
    how = [value for x in each for value in ((x.is_contiguous, True) if x.is_contiguous() else (x.stride, x.stride()))]
    return (_Torch.modes, *where, *how, known.start, pointers, _Torch.written, (out,))


_known: OrderedDict[Any, Known] = OrderedDict()


def found_by(a: Any, b: Any, out: Any, more: Any) -> Found | None:
    """The key of a call with plain tensors, and where they are; None for all else."""
    if type(a) not in _Torch.types and (_Torch.types or not _found_torch() or type(a) not in _Torch.types):
        return None
    if type(b) not in _Torch.types or (out is not None and type(out) not in _Torch.types):
        return None
    if (a.requires_grad or b.requires_grad or (out is not None and out.requires_grad)) and _Torch.grad_enabled():
        return None
    if _Torch.forward._current_level >= 0:
        return None
    try:
        at_a, at_b, at_out = a.data_ptr(), b.data_ptr(), 0
        key: Any = (
            a.shape, a.stride(), a.dtype, a.get_device(), at_a & 15, a.is_neg(),
            b.shape, b.stride(), b.dtype, b.get_device(), at_b & 15, b.is_neg(), more,
        )  # fmt: skip
        if not at_a or not at_b:  # without elements, or without memory
            return None
        if out is not None:
            at_out = out.data_ptr()
            if not at_out:
                return None
            key = (key, out.shape, out.stride(), out.dtype, out.get_device(), at_out & 15, out.is_neg())
    except RuntimeError:  # a sparse tensor has no strides, one of another device no address
        return None
    return key, at_a, at_b, at_out


def found_after(c: Any, alpha: Any, beta: Any, bias: Any, epilogue: Any, args: Any) -> tuple[Any, Values] | None:
    """The part of a key that says what follows the product, and the values of that; None goes the long way."""
    if not (_Torch.types or _found_torch()) or type(alpha) not in _NUMBERS or type(beta) not in _NUMBERS:
        return None
    function = key_of(epilogue)
    if function is None:  # what it captured may have changed unseen
        return None
    key: list[Any] = [function, alpha == 1, beta == 0, beta == 1]
    values = {"alpha": bits(alpha), "beta": bits(beta)}
    arrays = [("c", c), ("bias", bias)]
    if args is not None:
        if type(args) is not dict:
            return None
        arrays += [(name_of(name), args[name]) for name in sorted(args, key=str)]
    for name, value in arrays:
        if type(value) in _Torch.types:
            if value.requires_grad and _Torch.grad_enabled():
                return None
            at = values[name] = value.data_ptr()
            if not at:
                return None
            key.append((name, value.shape, value.stride(), value.dtype, value.get_device(), at & 15, value.is_neg()))
        elif type(value) in _NUMBERS:
            key.append(name)
            values[name] = bits(value)
        elif value is not None or name.startswith("arg_"):
            return None
    return tuple(key), values


def found_fused(
    a: Any, b: Any, out: Any, more: Any, c: Any, alpha: Any, beta: Any, bias: Any, epilogue: Any, args: Any
) -> tuple[Found | None, Values | None]:
    """``found_by`` of a call with something after the product, and the values of that."""
    said, first = found_after(c, alpha, beta, bias, epilogue, args), b
    if said is not None and type(b) is tuple:
        first, said = of_pair(b, said)
    return (None, None) if said is None else (found_by(a, first, out, (more, said[0])), said[1])


def of_pair(b: Any, said: tuple[Any, Values]) -> tuple[Any, tuple[Any, Values] | None]:
    """The first B of a pair, and what ``found_after`` said with the second; None goes the long way."""
    second: Any = b[1] if len(b) == 2 else None
    if type(second) not in _Torch.types or (second.requires_grad and _Torch.grad_enabled()):
        return b, None
    try:
        at = second.data_ptr()
        geometry = (
            SECOND, second.shape, second.stride(), second.dtype, second.get_device(), at & 15, second.is_neg(),
        )  # fmt: skip
    except RuntimeError:
        return b, None
    if not at:
        return b, None
    key, values = said
    return b[0], ((key, geometry), {**values, SECOND: at})


_NUMBERS = (int, float)


def look_up(key: Any) -> Known | None:
    """What is known of a key."""
    try:
        return _known.get(key)
    except TypeError:  # of what cannot be hashed, and is refused on the long way
        return None


def remember(found: Found, request: Request, result: Any, ready: Ready) -> Known | None:
    """Keep what the long way made of a key, for one result on a GPU."""
    if request.a.device == HOST or type(result) not in _Torch.types:
        return None
    if ready.members[:1] == (SECOND,) and not found[3] and result.stride()[-2] != result.shape[-1]:
        return None  # its rows are longer than what would be made here
    known = _known[found[0]] = Known(ready, result, request)
    while len(_known) > MOST_KNOWN:
        _known.popitem(last=False)
    return known


def forget() -> None:
    """Forget every key."""
    _known.clear()


def _found_torch() -> bool:
    """Whether PyTorch is imported by now: then its types are known from here on."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "nn"):  # the latter while it is being imported
        return False
    _Torch.grad_enabled = torch.is_grad_enabled
    _Torch.raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", torch_stream)
    _Torch.empty = torch.empty
    _Torch.device = getattr(torch._C, "_cuda_getDevice", None)
    if _Torch.device is not None:  # what PyTorch's own compiler makes its results by
        guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
        _Torch.empty_here = getattr(guards, "_empty_strided_cuda", None)
    _Torch.modes = torch._C._len_torch_dispatch_stack
    _Torch.forward = torch.autograd.forward_ad
    _Torch.transforms = torch._C._functorch.peek_interpreter_stack
    _Torch.autocast = torch._C._is_any_autocast_enabled
    _Torch.written = _counter(torch)
    _Torch.types = (torch.Tensor, torch.nn.Parameter)
    return True


def _counter(torch: Any) -> Any:
    """What ``torch.autograd.graph.increment_version`` calls, where that takes a tuple."""
    direct: Any = getattr(torch._C, "_increment_version", None)
    try:
        direct(())
    except TypeError:  # an older version: a tensor each
        one = torch.autograd.graph.increment_version
        return lambda tensors: [one(each) for each in tensors]
    return direct
