"""One epilogue of all that follows a product: ``acc = alpha acc + beta C``, then the bias, then the caller's function.

All of it in fp32, each operation rounded by itself, and the results rounded once to what they are stored as.

- ``alpha`` and ``beta`` that are not 1 are arguments of the kernel, so that their values make no new binary. One that
  is 1 leaves nothing behind.
- ``beta = 0`` reads no C, which may then hold anything or be missing.
- ``alpha = 0`` multiplies like any other number: where the product is NaN or infinite, 0 times it is NaN. (BLAS does
  not read A and B then.)
"""

from __future__ import annotations

import keyword
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.dtypes import FP32, DType
from tilewright.epilogue.captured import key_of
from tilewright.epilogue.code import PLAIN, ArgSpec, EpilogueCode
from tilewright.epilogue.functions import INITIAL, is_sum, reduced
from tilewright.epilogue.graph import ACC, CONSTANT, INPUT, SECOND, Graph, GraphBuilder, Node
from tilewright.epilogue.operations import OPERATIONS
from tilewright.epilogue.placement import Along
from tilewright.epilogue.symbol import Symbol, apply
from tilewright.epilogue.trace import call
from tilewright.errors import UsageError

MAX_ARRAYS = (
    16  # each takes 48 bytes of a kernel's parameters, of which there are 4 KiB, and registers for its elements
)
_ALONG = {"full": "kFull", "strided": "kStrided", "row": "kRow", "column": "kColumn"}


@dataclass(frozen=True)
class Described:
    """What the code depends on of an argument: an array's dtype and how it lies under C; a number has neither."""

    dtype: DType | None = None
    along: Along | None = None


NUMBER = Described()


@dataclass(frozen=True)
class Composed:
    """An epilogue's code and the graph it was made of.

    ``code.args`` names what has to be bound: ``alpha``, ``beta``, ``c``, ``bias`` and, for ``args["name"]``,
    ``arg_name``, if they are used; then ``out1``, ``out2``, ... for the outputs after the first.
    """

    code: EpilogueCode
    graph: Graph

    def evaluate(self, acc: Any, values: Mapping[str, Any], second: Any = None) -> tuple[np.ndarray[Any, Any], ...]:
        """C and the other outputs in NumPy's fp32, not yet rounded to what they are stored as.

        ``second`` are the accumulators of a pair's second B.
        ``values`` has arrays and numbers by the names of ``code.args``; they are broadcast against ``acc``
        ``(..., m, n)`` as NumPy does, so that a value a row is ``(m, 1)``.
        """
        acc = np.asarray(acc, np.float32)
        inputs = {**values, ACC: acc} if second is None else {**values, ACC: acc, SECOND: second}
        found = [np.broadcast_to(y, acc.shape) for y in self.graph.evaluate(inputs)]
        marks = self.graph.marks or ("",) * len(found)
        return tuple(reduced(mark, y) if mark else y for mark, y in zip(marks, found, strict=True))


def name_of(argument: Any) -> str:
    """What ``args[argument]`` is called in a kernel's text and when it is bound. Raises ``UsageError`` for no name."""
    known = isinstance(argument, str) and argument.isascii() and argument.isidentifier()
    if not known or keyword.iskeyword(argument):
        raise UsageError(f"args has the name {argument!r}; ASCII names that Python can give an argument are possible")
    return f"arg_{argument}"


def compose(
    *,
    alpha: float = 1,
    beta: float = 0,
    c: Described | None = None,
    bias: Described | None = None,
    fn: Callable[..., Any] | None = None,
    args: Mapping[str, Described] | None = None,
    out_dtypes: Sequence[DType],
    pair: bool = False,
    along: Mapping[str, Along] | None = None,
) -> Composed:
    """The epilogue of a call. ``out_dtypes`` has the dtype of C; then those of the other outputs, C's where it ends.

    ``along`` says how the other outputs (``out1``, ...) lie under C: ``full`` or, where their columns are apart,
    ``strided``; reductions ``row`` where a row of C is one place, else ``strided``, and sums ``row`` or ``column`` for
    one of each, ``strided`` where there is nothing to add to an element. One left out lies as it is named.

    ``fn(acc, **args)`` is traced, but for a function that was with such arguments and has captured the same
    (``captured.key_of``). Of a ``pair`` it is ``fn(first, second, **args)``, and all there is. Raises ``UsageError``
    for a ``beta`` without ``c``, ``args`` without ``fn``, anything but ``fn`` and ``args`` for a pair, and what
    ``trace.call`` refuses.
    """
    if pair and (fn is None or alpha != 1 or beta != 0 or c is not None or bias is not None):
        raise UsageError(
            "b is a pair, of whose two products an epilogue makes one result: a function such as tilewright.swiglu or "
            "lambda gate, up: ... is needed, and alpha, beta, c and bias are not possible beside it"
        )
    if beta != 0 and c is None:
        raise UsageError(f"beta is {beta} and c is None; beta = 0, or an array c that it multiplies, are possible")
    if args and fn is None:
        raise UsageError(f"args has {', '.join(sorted(args))} and epilogue is None; args are those of an epilogue")
    factors = (alpha == 1, 1 if beta == 1 else None if beta else 0)
    named = tuple(sorted((args or {}).items(), key=lambda item: str(item[0])))
    captured = key_of(fn)
    key = (
        factors,
        c if beta else None,
        bias,
        captured,
        named,
        tuple(out_dtypes),
        pair,
        tuple((along or {}).items()),
    )
    found = _known.get(key) if captured is not None else None
    if found is None:
        found = _composed(*factors, c, bias, fn, dict(named), out_dtypes, pair, along or {})
        if captured is not None:
            with _guard:
                while len(_known) >= _MOST_KNOWN:
                    _known.pop(next(iter(_known)))
                _known[key] = found
    return found


_known: dict[Any, Composed] = {}
_MOST_KNOWN = 256
_guard = threading.Lock()


def _composed(
    alpha_is_one: bool,
    beta: int | None,
    c: Described | None,
    bias: Described | None,
    fn: Callable[..., Any] | None,
    args: Mapping[str, Described],
    out_dtypes: Sequence[DType],
    pair: bool,
    along: Mapping[str, Along],
) -> Composed:
    """``compose`` anew. ``beta`` is 0, 1 or, for any other number, None."""
    builder = GraphBuilder()
    given: dict[str, Described] = {}

    def symbol(name: str, described: Described = NUMBER) -> Symbol:
        given[name] = described
        return Symbol(builder, builder.put(INPUT, value=name))

    acc = Symbol(builder, builder.put(INPUT, value=ACC))
    value: Any = acc if alpha_is_one else apply("mul", acc, symbol("alpha"))
    if beta != 0 and c is not None:
        addend: Any = symbol("c", c)
        value = apply("add", value, addend if beta == 1 else apply("mul", addend, symbol("beta")))
    if bias is not None:
        value = apply("add", value, symbol("bias", bias))
    places, marks = [value.place], [""]
    if fn is not None:
        accumulators = [value, Symbol(builder, builder.put(INPUT, value=SECOND))] if pair else [value]
        places, marks = call(
            fn, builder, accumulators, {name: symbol(name_of(name), seen) for name, seen in args.items()}
        )
    graph = builder.graph(places, marks)
    return Composed(_code(graph, given, _completed(out_dtypes, marks), pair, along), graph)


def _completed(dtypes: Sequence[DType], marks: Sequence[str]) -> tuple[DType, ...]:
    count = len(marks)
    if len(dtypes) > count:
        raise UsageError(
            f"out_dtype has {len(dtypes)} dtypes and the epilogue {count} outputs; at most that many are possible"
        )
    for dtype, mark in zip(dtypes, marks, strict=False):
        if mark and dtype != FP32:
            raise UsageError(f"out_dtype has {dtype} for {mark}, which is computed in fp32: fp32 is possible")
    return (*dtypes, *(FP32 if mark else dtypes[0] for mark in marks[len(dtypes) :]))


def _code(
    graph: Graph,
    given: Mapping[str, Described],
    out_dtypes: Sequence[DType],
    pair: bool,
    along: Mapping[str, Along],
) -> EpilogueCode:
    """The text, and what a launch has to hand in for it."""
    if graph.plain and not pair:
        return PLAIN
    inputs = {name: given[name] for name in graph.inputs if name not in (ACC, SECOND)}
    reads = [ArgSpec(name, "array" if seen.along else "scalar", seen.dtype or FP32) for name, seen in inputs.items()]
    marks = graph.marks or ("",) * len(out_dtypes)
    writes = [
        ArgSpec(
            f"out{n}",
            "array",
            dtype,
            INITIAL[mark] if mark and not is_sum(mark) else None,
            is_sum(mark) and along.get(f"out{n}") != "strided",
        )
        for n, (dtype, mark) in enumerate(zip(out_dtypes, marks, strict=True))
        if n
    ]
    rows: dict[str, Along] = {f"out{number}": "row" for number, mark in enumerate(marks) if mark.startswith("row")}
    columns: dict[str, Along] = {
        f"out{n}": "column" if is_sum(mark) else "strided" for n, mark in enumerate(marks) if mark.startswith("col")
    }
    wide = (spec for spec in reads if inputs[spec.name].along == "full" and spec.dtype.itemsize == 2)
    staged = next(wide, None)
    arrays = sum(spec.kind == "array" for spec in (*reads, *writes))
    if arrays > MAX_ARRAYS:
        raise UsageError(f"the epilogue reads and writes {arrays} arrays beside C; at most {MAX_ARRAYS} are possible")
    return EpilogueCode(
        _text(
            graph,
            inputs,
            reads,
            writes,
            pair,
            {**rows, **columns, **along},
            brief=all(each.itemsize == 2 for each in out_dtypes),
            staged=None if staged is None else staged.name,
        ),
        tuple(reads),
        tuple(writes),
        paired=pair,
        staged=staged is not None,
    )


def _text(
    graph: Graph,
    inputs: Mapping[str, Described],
    members: Sequence[ArgSpec],
    written: Sequence[ArgSpec],
    pair: bool,
    along: Mapping[str, Along],
    *,
    brief: bool,
    staged: str | None,
) -> str:
    """``brief`` where all results have 16 bits; ``staged`` is the array to bring through shared memory."""
    second = f"const float (&{SECOND})[N], " if pair else ""
    outputs = [spec.name for spec in written]
    reads = {name: _ALONG[seen.along] for name, seen in inputs.items() if seen.along}
    lines = [
        "namespace epilogue {",
        "constexpr bool NONE = false;",
        "struct Args {",
        *(f"  {_type(spec)} {spec.name};" for spec in (*members, *written)),
        "};",
        *(
            [f"__device__ __forceinline__ const auto& staged(const Args& args) {{ return args.{staged}; }}"]
            * bool(staged)
        ),
        "template <int N, class Place>",
        f"__device__ __forceinline__ void apply(float (&acc)[N], {second}const Args& args, const Place& at) {{",
        *(f"  float {name}[N];" for name in (*reads, *outputs)),
        *(
            f"  tw::epilogue_read{'_staged' if name == staged else f'<tw::Along::{how}>'}({name}, args.{name}, at);"
            for name, how in reads.items()
        ),
        "#pragma unroll",
        "  for (int i = 0; i < N; ++i) {",
        *(
            f"    const {node.kind} v{place} = {_expression(node, reads, brief)};"
            for place, node in enumerate(graph.nodes)
        ),
        *(f"    {name}[i] = v{place};" for name, place in zip((ACC, *outputs), graph.outputs, strict=True)),
        "  }",
        *(_stored(spec, along.get(spec.name, "full")) for spec in written),
        "}",
        "}  // namespace epilogue",
    ]
    return "\n".join(lines) + "\n"


def _stored(spec: ArgSpec, along: Along) -> str:
    how = f"<tw::Along::{_ALONG[along]}>" if along != "full" else ""
    what = "sum" if spec.summed else "write" if spec.initial is None else "largest"
    return f"  tw::epilogue_{what}{how}(args.{spec.name}, {spec.name}, at);"


def _type(spec: ArgSpec) -> str:
    return f"tw::EpilogueArray<{spec.dtype.c_name}>" if spec.kind == "array" else "tw::EpilogueScalar"


def _expression(node: Node, arrays: Mapping[str, str], brief: bool) -> str:
    """A node as C++; ``brief`` where all results have 16 bits."""
    if node.operation == CONSTANT:
        return _literal(node.number)
    if node.operation == INPUT:
        return f"{node.value}[i]" if node.value in (ACC, SECOND) or node.value in arrays else f"args.{node.value}.value"
    operation = OPERATIONS[node.operation]
    text = operation.brief if brief and operation.brief else operation.cuda
    return text.format(*(f"v{operand}" for operand in node.operands))


def _literal(number: np.float32) -> str:
    """A constant with the digits that name it alone; infinities and NaN have no literal."""
    if not np.isfinite(number):
        return f"tw::float_of_bits({int(number.view(np.uint32)):#x}u)"
    digits = f"{float(number):.9g}"
    return digits + ("f" if "." in digits or "e" in digits else ".0f")
