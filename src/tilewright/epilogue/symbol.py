"""Symbols: what a traced function is called with in place of arrays, and what notes in a graph what is done to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from tilewright.epilogue.graph import GraphBuilder
from tilewright.epilogue.operations import OPERATIONS, Kind
from tilewright.errors import UsageError

POSSIBLE = (
    "possible are + - * /, ** by a small whole number, abs, comparisons, & | ^ ~ of these, and tilewright's functions "
    "(relu, gelu, where, maximum, ...)"
)
_MARKED = "a reduction is a result, returned as it is and not as the first value, and no operand"
_COMPARISON = "a comparison such as acc > 0 is possible"
_POWERS = range(-8, 9)
_FP32_MAX = float(np.finfo(np.float32).max)


def untraceable(what: str, instead: str = POSSIBLE) -> NoReturn:
    """Raise the ``UsageError`` of an operation that an epilogue cannot have."""
    raise UsageError(f"an epilogue cannot be traced through {what}: {instead}")


def is_number(value: Any) -> bool:
    """Whether a value is one real number: Python's, NumPy's, or a NumPy array without dimensions."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return value.dtype.kind in "biuf"
    return isinstance(value, bool | int | float | np.integer | np.floating | np.bool_)


def fp32(value: Any, what: str) -> np.float32:
    """A number as fp32. Raises ``UsageError`` naming ``what`` when it is no number or lies beyond fp32."""
    if not is_number(value):
        raise UsageError(f"{what} is {described(value)}; a real number is possible")
    try:
        number = float(value)
    except OverflowError:  # an int of more than 1024 bits
        number = np.inf
        beyond = True
    else:
        beyond = np.isfinite(number) and abs(number) > _FP32_MAX
    if beyond:
        raise UsageError(f"{what} is {value}, which fp32 cannot hold: numbers up to {_FP32_MAX:.8g} are possible")
    return np.float32(number)


def apply(operation: str, *values: Any) -> Any:
    """An operation on symbols and numbers as a symbol, or on arrays and numbers in NumPy's fp32.

    Raises ``UsageError`` for symbols together with an array, of two traces, or for operands of the wrong kind.
    """
    takes = OPERATIONS[operation].takes
    symbols = [value for value in values if isinstance(value, Symbol)]
    if not symbols:
        with np.errstate(all="ignore"):  # infinities and NaN are values here
            operands = [_array(value, kind, operation) for value, kind in zip(values, takes, strict=True)]
            return OPERATIONS[operation].numpy(*operands)
    builder = symbols[0].builder
    places = [place_of(builder, value, kind, operation) for value, kind in zip(values, takes, strict=True)]
    return Symbol(builder, builder.put(operation, tuple(places)))


def place_of(builder: GraphBuilder, value: Any, kind: Kind, operation: str) -> int:
    """Where an operand stands in the graph, as what the operation takes."""
    if not isinstance(value, Symbol):
        if kind == "bool":
            untraceable(f"{operation!r} with {described(value)} as a condition", _COMPARISON)
        if isinstance(value, Marked):
            untraceable(f"{operation!r} of {value.mark}", _MARKED)
        if not is_number(value):
            untraceable(
                f"{operation!r} of a symbol and {described(value)}",
                "hand an array over by name (args={'name': array}); acc, named arguments and numbers are possible",
            )
        return builder.constant(float(fp32(value, f"a constant in {operation!r}")))
    if value.builder is not builder:
        untraceable(f"{operation!r} of symbols from two traces", "a symbol lives while its function is traced")
    if value.kind == kind:
        return value.place
    if kind == "bool":
        untraceable(f"{operation!r} with a number as a condition", _COMPARISON)
    return builder.put("number", (value.place,))


def _array(value: Any, kind: Kind, operation: str) -> Any:
    """An operand of NumPy's: arrays as they are if they are what is taken, everything else as fp32."""
    if not (isinstance(value, np.ndarray | np.generic) or is_number(value)):
        raise UsageError(
            f"{operation!r} is given {described(value)}: symbols (inside an epilogue), NumPy arrays and numbers are "
            "possible"
        )
    array = np.asarray(value)
    if kind == "bool":
        if array.dtype != np.bool_:
            raise UsageError(f"{operation!r} is given {array.dtype} as a condition: bool is possible")
        return array
    if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
        raise UsageError(f"{operation!r} is given {array.dtype}: real numbers are possible")
    return array.astype(np.float32)


def described(value: Any) -> str:
    """A value in the words of an error: what type it is, and its shape where it has one."""
    kind = type(value)
    if isinstance(value, Symbol):
        return "a symbol"
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
    shape = getattr(value, "shape", None)
    return name if shape is None else f"{name} of shape {tuple(shape)}"


class Symbol:
    """The accumulator, an argument or what was made of them, while an epilogue is traced.

    It has no value: what would need one (``if``, ``float``, indexing, a NumPy or torch function without a name here)
    raises ``UsageError`` saying so.
    """

    __slots__ = ("builder", "place")
    builder: GraphBuilder
    place: int

    def __init__(self, builder: GraphBuilder, place: int) -> None:
        object.__setattr__(self, "builder", builder)
        object.__setattr__(self, "place", place)

    @property
    def kind(self) -> Kind:
        """Whether it is a number or a condition."""
        return self.builder.nodes[self.place].kind

    def __repr__(self) -> str:
        return f"<symbol v{self.place}: {self.builder.nodes[self.place].operation}>"

    __hash__ = object.__hash__  # == is one of its operations

    def __getattr__(self, name: str) -> Any:
        """A method that torch's tensors have, such as ``relu``: torch's own functions call some of them."""
        if name.startswith("__"):  # what Python and libraries ask of every object
            raise AttributeError(name)
        from tilewright.epilogue.foreign import METHODS, foreign

        if name not in METHODS:
            untraceable(f"the attribute .{name}")
        return lambda *args, **options: foreign("symbol", name, (self, *args), options)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        untraceable(f"an assignment to .{name}")

    def __pos__(self) -> Symbol:
        return self

    def __pow__(self, exponent: Any) -> Any:
        return power(self, exponent)

    def __rpow__(self, base: Any) -> NoReturn:
        untraceable(f"{base!r} ** a symbol", "tilewright.exp is possible")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        from tilewright.epilogue.foreign import numpy_ufunc

        return numpy_ufunc(ufunc, method, inputs, kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        from tilewright.epilogue.foreign import foreign

        return foreign("numpy", function.__name__, args, kwargs)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from tilewright.epilogue.foreign import foreign

        return foreign("torch", getattr(function, "__name__", str(function)), args, kwargs or {})


@dataclass(frozen=True)
class Marked:
    """A value of which rows or columns are reduced to one, as ``mark`` says: an output, and no operand."""

    value: Symbol
    mark: str


def _method(operation: str, *, reflected: bool = False) -> Callable[..., Any]:
    def method(self: Symbol, *other: Any) -> Any:
        return apply(operation, *other, self) if reflected else apply(operation, self, *other)

    return method


def _refusal(what: str, instead: str) -> Callable[..., NoReturn]:
    def method(self: Symbol, *args: Any, **kwargs: Any) -> NoReturn:
        untraceable(what, instead)

    return method


_REFLECTED = {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "and": "and", "or": "or", "xor": "xor",
}  # fmt: skip
_OTHERS = {
    "neg": "negative", "abs": "abs", "invert": "not", "lt": "less", "le": "less_equal", "gt": "greater",
    "ge": "greater_equal", "eq": "equal", "ne": "not_equal",
}  # fmt: skip
_VALUELESS = "a symbol has no value while the function is traced; "
_IF = (
    "a truth value (if, and, or, not, max, min, or a comparison in a chain)",
    _VALUELESS + "tilewright.where, maximum and minimum choose element by element, & | ~ join comparisons",
)
_NUMBER = "tilewright's functions (exp, tanh, sqrt, ...) are possible in place of math's"
_ELEMENTWISE = "an epilogue sees one element at a time"
_REFUSED = {
    "bool": _IF,
    **{
        name: (f"{name}() or a function of the math module", _VALUELESS + _NUMBER)
        for name in ("float", "int", "complex", "index")
    },
    "array": (
        "a conversion to a NumPy array",
        _VALUELESS + "tilewright's functions are possible, and np.exp, np.maximum and their like",
    ),
    "round": ("round()", POSSIBLE),
    "trunc": ("math.trunc", POSSIBLE),
    "floor": ("math.floor", POSSIBLE),
    "ceil": ("math.ceil", POSSIBLE),
    "getitem": ("indexing", _ELEMENTWISE),
    "setitem": ("an assignment to an index", _ELEMENTWISE),
    "iter": ("iteration or unpacking", _ELEMENTWISE),
    "len": ("len()", _ELEMENTWISE),
    "contains": ("the operator in", _ELEMENTWISE),
    "call": ("a call of a symbol", POSSIBLE),
    **{
        f"{side}{name}": (f"the operator {sign}", POSSIBLE)
        for name, sign in {
            "floordiv": "//",
            "mod": "%",
            "divmod": "divmod",
            "matmul": "@",
            "lshift": "<<",
            "rshift": ">>",
        }.items()
        for side in ("", "r")
    },
}

for _name, _operation in _REFLECTED.items():
    setattr(Symbol, f"__{_name}__", _method(_operation))
    setattr(Symbol, f"__r{_name}__", _method(_operation, reflected=True))
for _name, _operation in _OTHERS.items():
    setattr(Symbol, f"__{_name}__", _method(_operation))
for _name, (_what, _instead) in _REFUSED.items():
    setattr(Symbol, f"__{_name}__", _refusal(_what, _instead))
_OPERATORS = {*_REFLECTED, *(f"r{name}" for name in _REFLECTED), *_OTHERS, *_REFUSED, "pow", "rpow", "pos"}
for _name in _OPERATORS:
    setattr(Marked, f"__{_name}__", _refusal("an operation on a reduction", _MARKED))


def power(base: Symbol, exponent: Any) -> Any:
    """``base ** exponent`` by repeated multiplication, for whole numbers from -8 to 8; also 0.5 and -0.5.

    Raises ``UsageError`` for any other exponent.
    """
    if is_number(exponent) and abs(exponent) == 0.5:
        root = apply("sqrt", base)
        return root if exponent > 0 else apply("div", 1.0, root)
    if not is_number(exponent) or exponent not in _POWERS:
        shown = exponent if is_number(exponent) else described(exponent)
        untraceable(f"** {shown}", "whole numbers from -8 to 8, 0.5 and -0.5 are possible")
    if exponent == 0:  # of NaN as well
        return Symbol(base.builder, base.builder.constant(1.0))
    result: Any = None
    square, left = base, abs(int(exponent))
    while left:
        if left % 2:
            result = square if result is None else apply("mul", result, square)
        left //= 2
        if left:
            square = apply("mul", square, square)
    return result if exponent > 0 else apply("div", 1.0, result)
