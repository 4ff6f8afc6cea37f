"""What a call asks for: its arrays looked at, its arguments checked, before anything is chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.dtypes import DType
from tilewright.errors import UsageError
from tilewright.library.arrays import Array, lies_as, overlap, require_alike, view
from tilewright.library.shapes import result_shape
from tilewright.library.support import out_dtype_of, sentence
from tilewright.plan_base import Plan


@dataclass(frozen=True, slots=True)
class Options:
    """What a call says beside its arrays."""

    plan: Plan | None = None
    sms: int | None = None
    deterministic: bool = True
    batch_invariant: bool = False
    backend: str = "auto"


@dataclass(frozen=True, slots=True)
class Request:
    """A call. ``shape`` and ``out_dtype`` are the result's; ``out`` is the caller's array for it, if any."""

    a: Array
    b: Array
    out: Array | None
    shape: tuple[int, ...]
    out_dtype: DType
    options: Options

    @property
    def arrays(self) -> tuple[Array, ...]:
        """All of them."""
        return (self.a, self.b) if self.out is None else (self.a, self.b, self.out)


def request_of(a: Any, b: Any, out: Any, out_dtype: Any, options: Options) -> Request:
    """Look at the arrays of a call. Raises ``UsageError`` for the first thing that does not fit."""
    seen_a, seen_b = view(a, "a"), view(b, "b")
    if seen_a.dtype is not seen_b.dtype:
        raise UsageError(f"a is {seen_a.dtype} and b is {seen_b.dtype}; {sentence()}")
    shape = result_shape(seen_a.shape, seen_b.shape)
    seen_out = None if out is None else view(out, "out")
    named = [("a", seen_a), ("b", seen_b)]
    if seen_out is not None:
        named.append(("out", seen_out))
        _require_out(seen_out, shape, out_dtype)
    require_alike(named)
    kind = seen_a.dtype if out_dtype is None else out_dtype_of(out_dtype)
    if seen_out is not None:
        kind = seen_out.dtype
    _require_options(options)
    return Request(seen_a, seen_b, seen_out, shape, kind, options)


def require_apart(out: Array, read: Array, name: str, *, may_be_same: bool = False) -> None:
    """Raise ``UsageError`` where the result would be written over what is still read.

    An array that is read at the place that is written, and only there, may be the result itself (``may_be_same``).
    """
    if overlap(out, read) and not (may_be_same and lies_as(out, read)):
        extra = ", or be exactly it" if may_be_same else ""
        raise UsageError(f"out shares memory with {name}, which is read while out is written: it needs its own{extra}")


def _require_out(out: Array, shape: tuple[int, ...], out_dtype: Any) -> None:
    if out.shape != shape:
        raise UsageError(f"out has shape {out.shape}; the result has shape {shape}")
    if out_dtype is not None and out_dtype_of(out_dtype) is not out.dtype:
        raise UsageError(
            f"out is {out.dtype} and out_dtype is {out_dtype_of(out_dtype)}: give one of them, or the same"
        )
    if not out.writable:
        raise UsageError("out is read-only; the result is written to it")
    steps = sorted((abs(s), n) for n, s in zip(out.shape, out.strides, strict=True) if n > 1)
    reach = 0  # beyond the element at hand, of all axes with smaller steps
    for step, length in steps:
        if step <= reach and out.size:
            raise UsageError(f"out of shape {out.shape} has strides {out.strides}, by which elements share memory")
        reach += step * (length - 1)


def _require_options(options: Options) -> None:
    for name in ("deterministic", "batch_invariant"):
        if not isinstance(getattr(options, name), bool):
            raise UsageError(f"{name} is {getattr(options, name)!r}; it must be True or False")
    if options.backend not in ("auto", "cuda", "emulator"):
        raise UsageError(f"backend {options.backend!r} is not one of auto, cuda, emulator")
    if options.batch_invariant:
        raise UsageError("batch_invariant is True, which there are no kernels for yet; it must be False")
