"""The functions an epilogue may call, public as ``tilewright.relu`` and so on.

Each takes symbols while an epilogue is traced, and NumPy arrays and numbers otherwise, which it rounds to fp32 first
and of which it gives what the epilogue computes, in fp32: a reference to compare with. NaN stays NaN in all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from tilewright.epilogue.symbol import Marked, Symbol, apply, described
from tilewright.errors import UsageError

# What is public here beside `swiglu`, which takes a pair; and the marks of reductions.
NAMES = (
    "abs", "clamp", "erf", "exp", "gelu", "log", "maximum", "minimum", "relu", "relu_squared", "sigmoid", "silu",
    "sqrt", "tanh", "where",
)  # fmt: skip
MARKS = ("col_absmax", "col_max", "col_sum", "row_absmax", "row_max", "row_sum")


def relu(x: Any) -> Any:
    """``max(x, 0)``."""
    return apply("maximum", x, 0.0)


def relu_squared(x: Any) -> Any:
    """``max(x, 0) ** 2``."""
    positive = relu(x)
    return apply("mul", positive, positive)


def gelu(x: Any, approximate: Literal["none", "tanh"] = "none") -> Any:
    """Gaussian error linear unit (Hendrycks and Gimpel, 2016): ``x Phi(x)``, ``Phi(x) = (1 + erf(x / sqrt 2)) / 2``.

    ``approximate="tanh"`` is theirs by ``Phi(x) ~ (1 + tanh u) / 2 = sigmoid(2 u)``, ``u = sqrt(2 / pi) (x + 0.044715
    x^3)``. Neither loses digits where x is negative, as ``1 + erf`` and ``1 + tanh`` do. At minus infinity the product
    is NaN. Raises ``UsageError`` for another approximation.
    """
    if approximate == "none":
        return apply("mul", x, apply("normal_cdf", x))
    if approximate != "tanh":
        raise UsageError(f"approximate is {approximate!r}; 'none' and 'tanh' are possible")
    cubic = apply("mul", apply("mul", x, x), 0.044715)
    twice_u = apply("mul", apply("mul", x, apply("add", cubic, 1.0)), 2 * math.sqrt(2 / math.pi))
    return apply("mul", x, sigmoid(twice_u))


def sigmoid(x: Any) -> Any:
    """``1 / (1 + exp(-x))``, without overflow."""
    return apply("sigmoid", x)


def silu(x: Any) -> Any:
    """Sigmoid linear unit (swish): ``x sigmoid(x)``. At minus infinity the product is NaN."""
    return apply("mul", x, sigmoid(x))


def swiglu(gate: Any, up: Any) -> Any:
    """``silu(gate) * up`` (Shazeer, 2020): the epilogue of a pair ``b=(gate, up)``."""
    return apply("mul", silu(gate), up)


def tanh(x: Any) -> Any:
    """Hyperbolic tangent."""
    return apply("tanh", x)


def exp(x: Any) -> Any:
    """The exponential function."""
    return apply("exp", x)


def log(x: Any) -> Any:
    """Natural logarithm: minus infinity of 0, NaN below."""
    return apply("log", x)


def sqrt(x: Any) -> Any:
    """Square root: NaN below 0."""
    return apply("sqrt", x)


def erf(x: Any) -> Any:
    """The error function."""
    return apply("erf", x)


def abs(x: Any) -> Any:
    """Absolute value."""
    return apply("abs", x)


def maximum(a: Any, b: Any) -> Any:
    """The larger of two, NaN when either is (NumPy's ``maximum``)."""
    return apply("maximum", a, b)


def minimum(a: Any, b: Any) -> Any:
    """The smaller of two, NaN when either is (NumPy's ``minimum``)."""
    return apply("minimum", a, b)


def clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    """``minimum(maximum(x, min), max)``, a limit that is None left out; ``max`` where both hold (torch's ``clamp``).

    Raises ``UsageError`` when both are None.
    """
    if min is None and max is None:
        raise UsageError("clamp has neither min nor max; one of them, or both, are possible")
    lifted = x if min is None else maximum(x, min)
    return lifted if max is None else minimum(lifted, max)


def where(condition: Any, yes: Any, no: Any) -> Any:
    """``yes`` where ``condition`` holds, else ``no``; ``condition`` is a comparison, or ``& | ^ ~`` of comparisons."""
    return apply("where", condition, yes, no)


def _marked(name: str, what: str, of_an_array: str = "that") -> Callable[[Any], Any]:
    def mark(x: Any) -> Any:
        value = apply("abs", x) if name.endswith("absmax") else x
        if isinstance(value, Symbol):
            return Marked(value, name)
        array = np.asarray(value, np.float32)
        if array.ndim < (1 if name.startswith("row") else 2):
            raise UsageError(f"{name} is given {described(x)}, which has no {name[:3]}s: what was made of acc has")
        return reduced(name, array)

    mark.__name__ = mark.__qualname__ = name
    mark.__doc__ = (
        f"Marks {what} of the values as an output of the epilogue, in fp32; NaN where one is. Of an array it is "
        f"{of_an_array}."
    )
    return mark


def reduced(mark: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Rows or columns of an array as a mark reduces them; sums in float64, rounded once."""
    axis = -1 if mark.startswith("row") else -2
    if is_sum(mark):
        with np.errstate(all="ignore"):  # infinities and NaN are values here
            return np.asarray(array.sum(axis=axis, dtype=np.float64).astype(np.float32))
    return np.asarray(array.max(axis=axis, initial=INITIAL[mark]))


def is_sum(mark: str) -> bool:
    """Whether a mark is that of sums."""
    return mark.endswith("_sum")


# What the marks make of no elements.
INITIAL = {
    "row_max": -math.inf, "row_absmax": 0.0, "col_max": -math.inf, "col_absmax": 0.0, "row_sum": 0.0, "col_sum": 0.0,
}  # fmt: skip

row_sum = _marked("row_sum", "the sum of each row", "the sum in float64, rounded")
col_sum = _marked("col_sum", "the sum of each column", "the sum in float64, rounded")
row_max = _marked("row_max", "the largest of each row")
row_absmax = _marked("row_absmax", "the largest magnitude of each row")
col_max = _marked("col_max", "the largest of each column")
col_absmax = _marked("col_absmax", "the largest magnitude of each column")
