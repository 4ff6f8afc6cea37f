"""From the arrays of a call to the product that a kernel computes, and to the epilogue that follows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.dtypes import DType
from tilewright.epilogue.code import PLAIN
from tilewright.epilogue.compose import Described
from tilewright.epilogue.functions import is_sum
from tilewright.epilogue.placement import Along
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
    marks: tuple[str, ...] = ()
    if after is not None:
        batched = (*as_matrices((request.shape, (0,) * len(request.shape)), len(a.shape), len(b.shape))[0],)
        for name, placed in after.placed(a.shape, b.shape, request.shape).items():
            axes[name] = (batched, (*placed.batch, placed.row, placed.col))
            array = dict(after.arrays)[name]
            dtypes[name], starts[name] = array.dtype, array.pointer % 16
        marks = results_of(request).marks if len(outs) > 1 else ()
        for number, each in enumerate(outs[1:], 1):
            if marks[number]:
                axes[f"out{number}"] = (batched, _reduced(marks[number], each.strides))
            else:
                axes[f"out{number}"] = as_matrices((each.shape, each.strides), len(a.shape), len(b.shape))
            starts[f"out{number}"] = each.pointer % 16
    second = None if after is None else after.second
    p = product(
        (a.shape, a.strides), (b.shape, b.strides), (out.shape, out.strides), list(axes.values()),
        None if second is None else (second.shape, second.strides),
    )  # fmt: skip
    offsets: tuple[int, ...] = (a.pointer % 16, b.pointer % 16, out.pointer % 16)
    options = request.options
    question = Question(p, a.dtype, out.dtype, offsets, options.sms, options.batch_invariant)
    if not (p.m and p.n) or 0 in p.batch:
        return Arranged(question, None)
    # A column is column-major, and one element has to be computed as one of a longer column is.
    lonely = options.batch_invariant and p.m == p.n == 1
    if second is not None:
        question = _of_pair(question, second)
    elif lonely or operand_lines(question)["c"].layout == "column":
        p, offsets = p.transposed, (offsets[1], offsets[0], offsets[2])
        question = replace(question, product=p, offsets=offsets)
    if after is None:
        return Arranged(question, None)
    views = dict(zip(axes, p.more, strict=True))
    along: dict[str, Along] = {}
    for number, mark in enumerate(marks):
        seen_out = views.get(f"out{number}")
        if seen_out is not None and is_sum(mark):
            along[f"out{number}"] = _summed(mark, request.shape, question.product.swapped)
        elif seen_out is not None and mark:
            along[f"out{number}"] = "strided" if seen_out.col else "row"
        elif seen_out is not None and seen_out.cols > 1 and seen_out.col != 1:
            along[f"out{number}"] = "strided"
    composed = after.composed(described(dtypes, views), [each.dtype for each in outs], along)
    if composed.code == PLAIN:
        return Arranged(question, None)
    first, sizes = MORE + (second is not None), (*p.batch, p.m, p.n)
    bound = fused(composed, views, starts, first, stand_in, sizes, along)
    return Arranged(replace(question, epilogue=composed.code.digest), bound)


def _of_pair(question: Question, second: Array) -> Question:
    """With where the second B of a pair starts. Raises ``UsageError`` for a result that no pair has."""
    if operand_lines(question)["c"].layout == "column":
        raise UsageError("out is column-major and b is a pair, whose kernel writes rows: a row-major out is possible")
    return replace(question, offsets=(*question.offsets, 0, second.pointer % 16))


@dataclass(frozen=True, slots=True)
class Results:
    """The element types of the results, of which an epilogue may have several, and the digest of what computes them.

    ``marks`` says which are reductions, "" of others.
    """

    dtypes: tuple[DType, ...]
    shapes: tuple[tuple[int, ...], ...]
    marks: tuple[str, ...] = ("",)
    digest: str | None = None


def _reduced(mark: str, strides: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of what a mark reduces to under the result: 0 along the axis that is gone."""
    return (*strides[:-1], 0, strides[-1]) if mark.startswith("col") else (*strides, 0)


def _summed(mark: str, shape: Sequence[int], swapped: bool) -> Along:
    """How sums lie under the kernel's C. Those of one element each are that, of which a batch may have become a row."""
    of_rows = mark.startswith("row")
    if shape[-1 if of_rows else -2] == 1:
        return "strided"
    return "row" if of_rows != swapped else "column"


def results_of(request: Request) -> Results:
    """What a request gives. A function is traced again where it may have changed. Raises ``UsageError``."""
    after = request.after
    if after is None:
        if len(request.out_dtypes) > 1 and not request.outs:
            raise UsageError(f"out_dtype has {len(request.out_dtypes)} dtypes and the product is the only result")
        return Results(request.out_dtypes[:1], (request.shape,))
    placed = after.placed(request.a.shape, request.b.shape, request.shape)
    arrays = dict(after.arrays)
    seen = {name: Described(arrays[name].dtype, each.along) for name, each in placed.items()}
    composed = after.composed(seen, request.out_dtypes)
    dtypes = (request.out_dtypes[0], *(each.dtype for each in composed.code.outputs))
    marks = composed.graph.marks or ("",) * len(dtypes)
    if any(marks) and min(len(request.a.shape), len(request.b.shape)) < 2:
        raise UsageError(
            f"epilogue returns {next(filter(None, marks))}, and a has shape {request.a.shape} and b {request.b.shape}: "
            "matrices, or batches of them, have rows and columns"
        )
    *batch, m, n = request.shape if any(marks) else (0, 0)
    left = {"row": (*batch, m), "col": (*batch, n)}
    shapes = tuple(left[mark[:3]] if mark else request.shape for mark in marks)
    return Results(dtypes, shapes, marks, composed.graph.digest)
