"""What functions of NumPy, SciPy and torch are when given a symbol: the function of that name here, or an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.epilogue import functions
from tilewright.epilogue.operations import OPERATIONS
from tilewright.epilogue.symbol import apply, power, untraceable

# Names of theirs for operations that have another name here.
_OPERATIONS = {
    "subtract": "sub", "multiply": "mul", "divide": "div", "true_divide": "div", "neg": "negative", "absolute": "abs",
    "fabs": "abs", "greater_than": "greater", "gt": "greater", "ge": "greater_equal", "lt": "less", "le": "less_equal",
    "eq": "equal", "ne": "not_equal", "logical_and": "and", "bitwise_and": "and", "logical_or": "or",
    "bitwise_or": "or", "logical_xor": "xor", "bitwise_xor": "xor", "logical_not": "not", "bitwise_not": "not",
    "invert": "not", "expit": "sigmoid", "ndtr": "normal_cdf",
}  # fmt: skip
_FUNCTIONS = {name: getattr(functions, name) for name in functions.NAMES} | {
    "clip": functions.clamp,
    "square": lambda x: power(x, 2),
    "pow": power,
    "power": power,
    "rsqrt": lambda x: power(x, -0.5),
    "reciprocal": lambda x: power(x, -1),
}
_SAID = {
    "clip": "tilewright.clamp(x, low, high)",
    "square": "x * x",
    "pow": "x ** n",
    "power": "x ** n",
    "rsqrt": "x ** -0.5",
    "reciprocal": "1 / x",
}
METHODS = frozenset(
    (
        "abs", "add", "clamp", "clip", "div", "erf", "exp", "log", "maximum", "minimum", "mul", "neg", "pow",
        "reciprocal", "relu", "rsqrt", "sigmoid", "sqrt", "square", "sub", "tanh",
    )
)  # fmt: skip
"""Those of tensors that are the functions of these names."""
_NO_CHANGE = {"inplace": False}  # what torch adds to a call that did not say it


def numpy_ufunc(ufunc: Any, method: str, inputs: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """``__array_ufunc__`` of a symbol."""
    if method != "__call__":
        untraceable(f"numpy.{ufunc.__name__}.{method}")
    return foreign("numpy", ufunc.__name__, inputs, options)


def foreign(library: str, name: str, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """A call of a library's function with a symbol among its arguments.

    Raises ``UsageError`` naming the function when it has no twin here, or is called with what its twin does not take.
    """
    name = name.removeprefix("special_")  # as torch calls torch.special's
    options = {key: value for key, value in options.items() if key not in _NO_CHANGE or value != _NO_CHANGE[key]}
    operation = _OPERATIONS.get(name, name)
    if name in _FUNCTIONS:
        try:
            return _FUNCTIONS[name](*args, **options)
        except TypeError as error:
            untraceable(
                f"{library}.{name} called in this way ({error})", f"{_SAID.get(name, f'tilewright.{name}')} is possible"
            )
    if operation not in OPERATIONS:
        untraceable(f"{library}.{name}")
    if options or len(args) != len(OPERATIONS[operation].takes):
        given = ", ".join(options) or f"{len(args)} arguments"
        untraceable(f"{library}.{name} with {given}", "its operands alone are possible")
    return apply(operation, *args)
