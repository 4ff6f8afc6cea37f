"""What a call asks for: its arrays looked at, its arguments checked, before anything is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.dtypes import DType
from tilewright.errors import UsageError
from tilewright.library.arrays import Array, lies_as, overlap, require_alike, tight, view
from tilewright.library.fused import After
from tilewright.library.pair import pair_of
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

    def __post_init__(self) -> None:
        """Raise ``UsageError`` for what no key of a geometry could hold."""
        if self.plan is not None and not isinstance(self.plan, Plan):
            raise UsageError(
                f"plan is a {type(self.plan).__name__}; it must be a Plan, such as tilewright.plan(...).pick.plan"
            )
        if self.sms is not None and not isinstance(self.sms, int):
            raise UsageError(f"sms is {self.sms!r}; it must be a number of SMs")


@dataclass(frozen=True, slots=True)
class Request:
    """A call. ``shape`` is the result's; ``outs`` are the caller's arrays for the results, if any.

    ``out_dtypes`` has the type of the first result, and of those after it as far as the caller says.
    """

    a: Array
    b: Array
    outs: tuple[Array, ...]
    shape: tuple[int, ...]
    out_dtypes: tuple[DType, ...]
    options: Options
    after: After | None = None

    @property
    def arrays(self) -> tuple[Array, ...]:
        """All of them."""
        more = () if self.after is None else tuple(array for _, array in self.after.named)
        return (self.a, self.b, *self.outs, *more)


def request_of(a: Any, b: Any, out: Any, out_dtype: Any, options: Options, after: After | None = None) -> Request:
    """Look at the arrays of a call. Raises ``UsageError`` for the first thing that does not fit."""
    pair = pair_of(b)
    seen_a, seen_b = view(a, "a"), view(b, "b") if pair is None else view(pair[0], "b[0]")
    if after is not None and after.second is not None:
        _require_pair(seen_b, after.second)
    if seen_a.dtype is not seen_b.dtype:
        raise UsageError(f"a is {seen_a.dtype} and b is {seen_b.dtype}; {sentence()}")
    shape = result_shape(seen_a.shape, seen_b.shape)
    given = () if out is None else tuple(out) if isinstance(out, tuple | list) else (out,)
    outs = tuple(view(each, name) for name, each in zip(names_of_outs(len(given)), given, strict=True))
    said = tuple(out_dtype) if isinstance(out_dtype, tuple | list) else () if out_dtype is None else (out_dtype,)
    dtypes = tuple(out_dtype_of(each) for each in said)
    if outs and len(dtypes) > len(outs):
        raise UsageError(f"out_dtype has {len(dtypes)} dtypes and out {len(outs)} arrays: no more of them are possible")
    for number, each in enumerate(outs):
        _require_out(
            each,
            names_of_outs(len(outs))[number],
            each.shape if number else shape,
            dtypes[number] if number < len(dtypes) else None,
        )
    named = [("a", seen_a), ("b", seen_b), *zip(names_of_outs(len(outs)), outs, strict=True)]
    require_alike([*named, *(() if after is None else after.named)])
    _require_options(options)
    return Request(
        seen_a, seen_b, outs, shape, tuple(each.dtype for each in outs) or dtypes or (seen_a.dtype,), options, after
    )


def names_of_outs(count: int) -> list[str]:
    """What errors call the arrays for so many results."""
    return ["out"] if count == 1 else [f"out[{number}]" for number in range(count)]


def _require_pair(first: Array, second: Array) -> None:
    if len(first.shape) < 2 or (first.shape, first.dtype) != (second.shape, second.dtype):
        raise UsageError(
            f"b is a pair of {first.dtype} {first.shape} and {second.dtype} {second.shape}; two matrices, or batches "
            "of them, of one shape and type are possible"
        )


def require_apart(outs: Sequence[Array], request: Request) -> None:
    """Raise ``UsageError`` where a result would be written over what is still read, or over another result.

    An array of the epilogue is read where the results are written, and just before: it may be one of them. Where a
    reduction lies in one, it is read from a copy (``aliases``).
    """
    for number, out in enumerate(outs):
        name = names_of_outs(len(outs))[number]
        others = [("a", request.a, False), ("b", request.b, False)]
        if request.after is not None:
            others += [(said, array, array is not request.after.second) for said, array in request.after.named]
        others += [(f"out[{other}]", outs[other], False) for other in range(number)]
        for other, array, may_be_same in others:
            reduced = len(out.shape) < len(request.shape)
            if overlap(out, array) and not (may_be_same and (reduced or lies_as(out, array))):
                extra = ", or be exactly it" if may_be_same else ""
                raise UsageError(
                    f"{name} shares memory with {other}, which is used while {name} is written: it needs its own{extra}"
                )


def require_outs(request: Request, shapes: Sequence[tuple[int, ...]]) -> None:
    """Raise ``UsageError`` unless there are as many arrays for the results as results, each of its shape.

    One that rows or columns are reduced to is contiguous and row-major: so many words from its first on are set before
    a kernel, and with many batch dimensions before each of several (``turns``).
    """
    outs = request.outs
    if outs and len(outs) != len(shapes):
        raise UsageError(f"out has {len(outs)} arrays and the call {len(shapes)} results: as many of both are needed")
    for name, each, shape in zip(names_of_outs(len(outs)), outs, shapes, strict=False):
        if each.shape != shape:
            raise UsageError(f"{name} has shape {each.shape}; the result has shape {shape}")
        steps = zip(shape, each.strides, tight(shape), strict=True)
        if len(shape) < len(request.shape) and each.size and any(n > 1 and step != own for n, step, own in steps):
            raise UsageError(
                f"{name} of shape {shape} has strides {each.strides}; that of a reduction is contiguous and row-major"
            )


def _require_out(out: Array, name: str, shape: tuple[int, ...], dtype: DType | None) -> None:
    if out.shape != shape:
        raise UsageError(f"{name} has shape {out.shape}; the result has shape {shape}")
    if dtype is not None and dtype is not out.dtype:
        raise UsageError(f"{name} is {out.dtype} and out_dtype is {dtype}: both must be the same")
    if not out.writable:
        raise UsageError(f"{name} is read-only; the result is written to it")
    steps = sorted((abs(s), n) for n, s in zip(out.shape, out.strides, strict=True) if n > 1)
    reach = 0  # beyond the element at hand, of all axes with smaller steps
    for step, length in steps:
        if step <= reach and out.size:
            raise UsageError(f"{name} of shape {out.shape} has strides {out.strides}, by which elements share memory")
        reach += step * (length - 1)


def _require_options(options: Options) -> None:
    for name in ("deterministic", "batch_invariant"):
        if not isinstance(getattr(options, name), bool):
            raise UsageError(f"{name} is {getattr(options, name)!r}; it must be True or False")
    if options.backend not in ("auto", "cuda", "emulator"):
        raise UsageError(f"backend {options.backend!r} is not one of auto, cuda, emulator")
