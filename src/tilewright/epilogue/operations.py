"""The operations an epilogue consists of: what each is called in a kernel, and what it is in NumPy.

Both say the same of fp32 values, each operation rounded by itself (``cuda/*/tw/arithmetic.cuh``). Exponentials and
their like are computed in float64 and rounded once here, and by the emulator; a GPU's are a few units in the last place
of fp32 off that. Where all results are rounded to 16 bits, those that have a ``brief`` form are up to 2^-16 of
themselves off (``cuda/tw/functions.cuh``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

Array = np.ndarray[Any, Any]
Kind: TypeAlias = Literal["float", "bool"]
ONE = np.float32(1)


@dataclass(frozen=True)
class Operation:
    """One operation. ``cuda`` is a C++ expression with ``{0}``, ``{1}``, ... for its operands.

    ``brief`` takes its place where all that comes of it is rounded to 16 bits.
    """

    takes: tuple[Kind, ...]
    gives: Kind
    cuda: str
    numpy: Callable[..., Any]
    brief: str | None = None


def _called(name: str, count: int, numpy: Callable[..., Any], *, brief: bool = False) -> Operation:
    called = f"{name}({', '.join(f'{{{i}}}' for i in range(count))})"
    floats: list[Kind] = ["float"] * count
    return Operation(tuple(floats), "float", f"tw::{called}", numpy, f"tw::brief::{called}" if brief else None)


def _compared(symbol: str, numpy: Callable[..., Any]) -> Operation:
    return Operation(("float", "float"), "bool", f"{{0}} {symbol} {{1}}", numpy)


def _in_double(function: Callable[[Array], Any]) -> Callable[[Array], Array]:
    """A function of fp32 values that is computed in float64 and rounded to fp32."""
    return lambda x: np.asarray(function(np.asarray(x, np.float64)), np.float64).astype(np.float32)


_ERF = np.vectorize(math.erf, otypes=[np.float64])
_ERFC = np.vectorize(math.erfc, otypes=[np.float64])


def _sigmoid(x: Array) -> Array:
    """As ``functions.cuh`` has it, step by step."""
    e = _EXP(-np.abs(x))
    r = ONE / (ONE + e)
    return np.where(x >= 0, r, e * r)


def _larger(a: Array, b: Array) -> Array:
    """NumPy's maximum, but for zeros, of which it takes any: -0 is less than +0."""
    return np.where(a == b, np.where(np.signbit(a), b, a), np.maximum(a, b))


def _smaller(a: Array, b: Array) -> Array:
    return np.where(a == b, np.where(np.signbit(a), a, b), np.minimum(a, b))


_EXP = _in_double(np.exp)

OPERATIONS: dict[str, Operation] = {
    "add": _called("add", 2, np.add),
    "sub": _called("sub", 2, np.subtract),
    "mul": _called("mul", 2, np.multiply),
    "div": _called("div", 2, np.divide),
    "negative": _called("negative", 1, np.negative),
    "abs": _called("abs", 1, np.abs),
    "maximum": _called("maximum", 2, _larger),
    "minimum": _called("minimum", 2, _smaller),
    "sqrt": _called("sqrt", 1, np.sqrt),
    "exp": _called("exp", 1, _EXP, brief=True),
    "log": _called("log", 1, _in_double(np.log)),
    "tanh": _called("tanh", 1, _in_double(np.tanh)),
    "erf": _called("erf", 1, _in_double(_ERF)),
    "normal_cdf": _called("normal_cdf", 1, _in_double(lambda x: 0.5 * _ERFC(x * -math.sqrt(0.5))), brief=True),
    "sigmoid": _called("sigmoid", 1, _sigmoid, brief=True),
    "less": _compared("<", np.less),
    "less_equal": _compared("<=", np.less_equal),
    "greater": _compared(">", np.greater),
    "greater_equal": _compared(">=", np.greater_equal),
    "equal": _compared("==", np.equal),
    "not_equal": _compared("!=", np.not_equal),
    "and": Operation(("bool", "bool"), "bool", "{0} && {1}", np.logical_and),
    "or": Operation(("bool", "bool"), "bool", "{0} || {1}", np.logical_or),
    "xor": Operation(("bool", "bool"), "bool", "{0} != {1}", np.logical_xor),
    "not": Operation(("bool",), "bool", "!{0}", np.logical_not),
    "number": Operation(("bool",), "float", "tw::number({0})", lambda x: np.asarray(x, np.float32)),
    "where": Operation(("bool", "float", "float"), "float", "tw::select({0}, {1}, {2})", np.where),
}
