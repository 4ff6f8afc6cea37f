"""From the arrays of a call to the product that a kernel computes, and to the epilogue that follows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.dtypes import DType
from tilewright.epilogue.code import PLAIN
from tilewright.epilogue.compose import Described
from tilewright.errors import UsageError
from tilewright.library.arrays import Array
from tilewright.library.choose import Question, operand_lines
from tilewright.library.fused import Fused, described, fused
from tilewright.library.prepared import MORE, stand_in
from tilewright.library.request import Request
from tilewright.library.shapes import as_matrices, product


@dataclass(frozen=True)
class Arranged:
    """A question for ``choose``; ``after`` is the epilogue, None where the product is stored as it is.

    ``empty``: the result has no elements, and there is nothing to choose.
    """

    question: Question
    after: Fused | None

    @property
    def empty(self) -> bool:
        """Whether nothing is launched."""
        p = self.question.product
        return not (p.m and p.n) or 0 in p.batch


def arranged(request: Request, a: Array, b: Array, outs: Sequence[Array]) -> Arranged:
    """The product of arrays that lie as these do; of a column-major result the transposed one.

    Raises ``UsageError`` where an array of the epilogue does not fit, or the epilogue cannot be traced.
    """
    out, after = outs[0], request.after
    axes, dtypes, starts = {}, {}, {}
    if after is not None:
        batched = (*as_matrices((request.shape, (0,) * len(request.shape)), len(a.shape), len(b.shape))[0],)
        for name, placed in after.placed(a.shape, b.shape, request.shape).items():
            axes[name] = (batched, (*placed.batch, placed.row, placed.col))
            array = dict(after.arrays)[name]
            dtypes[name], starts[name] = array.dtype, array.pointer % 16
        for number, each in enumerate(outs[1:], 1):
            axes[f"out{number}"] = as_matrices((each.shape, each.strides), len(a.shape), len(b.shape))
            starts[f"out{number}"] = each.pointer % 16
    p = product((a.shape, a.strides), (b.shape, b.strides), (out.shape, out.strides), list(axes.values()))
    offsets = (a.pointer % 16, b.pointer % 16, out.pointer % 16)
    options = request.options
    question = Question(p, a.dtype, out.dtype, offsets, options.sms, options.batch_invariant)
    if not (p.m and p.n) or 0 in p.batch:
        return Arranged(question, None)
    # A column is column-major, and one element has to be computed as one of a longer column is.
    lonely = options.batch_invariant and p.m == p.n == 1
    if lonely or operand_lines(question)["c"].layout == "column":
        p, offsets = p.transposed, (offsets[1], offsets[0], offsets[2])
        question = replace(question, product=p, offsets=offsets)
    if after is None:
        return Arranged(question, None)
    views = dict(zip(axes, p.more, strict=True))
    apart = {name for name, seen in views.items() if name not in dtypes and seen.cols > 1 and seen.col != 1}
    composed = after.composed(described(dtypes, views), [each.dtype for each in outs], apart)
    if composed.code == PLAIN:
        return Arranged(question, None)
    return Arranged(replace(question, epilogue=composed.code.digest), fused(composed, views, starts, MORE, stand_in))


@dataclass(frozen=True, slots=True)
class Results:
    """The element types of the results, of which an epilogue may have several, and the digest of what computes them."""

    dtypes: tuple[DType, ...]
    digest: str | None = None


def results_of(request: Request) -> Results:
    """What a request gives. A function is traced again where it may have changed. Raises ``UsageError``."""
    after = request.after
    if after is None:
        if len(request.out_dtypes) > 1 and not request.outs:
            raise UsageError(f"out_dtype has {len(request.out_dtypes)} dtypes and the product is the only result")
        return Results(request.out_dtypes[:1])
    placed = after.placed(request.a.shape, request.b.shape, request.shape)
    arrays = dict(after.arrays)
    seen = {name: Described(arrays[name].dtype, each.along) for name, each in placed.items()}
    composed = after.composed(seen, request.out_dtypes)
    return Results((request.out_dtypes[0], *(each.dtype for each in composed.code.outputs)), composed.graph.digest)
