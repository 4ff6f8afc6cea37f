"""Traced epilogues in a kernel of their own, and how far results may lie from what NumPy makes of the same graph."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

import tilewright as tw
from tilewright.backends.base import Backend, Matrix
from tilewright.dtypes import DTYPES, FP32, DType
from tilewright.epilogue.code import ArrayValue, BoundEpilogue, Value
from tilewright.epilogue.compose import NUMBER, Composed, Described
from tilewright.epilogue.placement import place
from tilewright.run import target_of
from tilewright.source import KernelSource, Target, flatten

ELEMENTWISE = Path(__file__).parent / "kernels" / "epilogue" / "elementwise.cu"
Array = np.ndarray[Any, Any]

# Every public function, and those of operators that are not rounded at once.
FUNCTIONS: dict[str, Any] = {
    "relu": tw.relu,
    "relu_squared": tw.relu_squared,
    "silu": tw.silu,
    "sigmoid": tw.sigmoid,
    "gelu": tw.gelu,
    "gelu tanh": lambda x: tw.gelu(x, approximate="tanh"),
    "tanh": tw.tanh,
    "erf": tw.erf,
    "exp": tw.exp,
    "log": tw.log,
    "sqrt": tw.sqrt,
    "abs": tw.abs,
    "clamp": lambda x: tw.clamp(x, -0.75, 1e30),
    "minimum, maximum": lambda x: tw.minimum(tw.maximum(x, -x), 1 / x),
    "where": lambda x: tw.where((x > 1) | ~(x == x), x**3, x**-1),
}
# Those that the arithmetic gives exactly, so that every machine agrees on each bit.
EXACT = {"relu", "relu_squared", "sqrt", "abs", "clamp", "minimum, maximum", "where"}
# fp32's units in the last place by which a GPU may be off elsewhere, each function by a few and a product of them by
# more; where an exponential is subnormal, the size of its last place times what it multiplies.
ULPS, TINY = 10, np.float32(2.0**-140)

SPECIAL = [
    0.0,
    -0.0,
    1e-45,
    -1e-40,
    1e-30,
    0.5,
    -1.0,
    3.0,
    -5.5,
    -14.0,
    88.7,
    89.0,
    -88.0,
    -104.0,
    1e4,
    -1e30,
    3e38,
    -3e38,
]
SPECIAL += [np.inf, -np.inf, np.nan]
floats32 = st.sampled_from(SPECIAL) | st.floats(-20, 20, width=32) | st.floats(width=32)


def source(composed: Composed, target: Target, arch: str | None = None, width: int = 4) -> KernelSource:
    """The text of ``ELEMENTWISE`` with an epilogue, ``width`` elements a thread."""
    header = f"namespace plan {{\nconstexpr int SHARED_BYTES = 0, N = {width};\n}}\n" + composed.code.header()
    return KernelSource("elementwise", flatten(ELEMENTWISE, target, header, composed.code.text), target, arch)


def described(array: Any, m: int, n: int) -> Described:
    """What the code depends on of an argument under a C of ``m x n``."""
    if not isinstance(array, np.ndarray):
        return NUMBER
    strides = [each // array.itemsize for each in array.strides]
    return Described(dtype_of(array), place("x", array.shape, strides, m, n).along)


def dtype_of(array: Array) -> DType:
    """Its dtype, as the project names it."""
    return next(each for each in DTYPES.values() if each.numpy == array.dtype)


def upload(backend: Backend, array: Array) -> Matrix:
    """A 2-D array, in the memory order that it has."""
    rows, cols = array.strides
    return backend.upload(array, layout="column" if cols > rows and 1 not in array.shape else "row")


def bind(
    backend: Backend, composed: Composed, values: Mapping[str, Any], m: int, n: int
) -> tuple[BoundEpilogue, list[Matrix]]:
    """An epilogue with arrays copied to a backend, and the matrices of its outputs."""
    bound: dict[str, Value] = {}
    for spec in composed.code.args:
        value = values[spec.name]
        if spec.kind == "array":
            matrix = upload(backend, value)
            strides = (matrix.ld, 1) if matrix.layout == "row" else (1, matrix.ld)
            at = place(spec.name, value.shape, strides, m, n)
            bound[spec.name] = ArrayValue(matrix.pointer, at.row, at.col, owner=matrix.owner)
        else:
            bound[spec.name] = float(value)
    outputs = [backend.empty(m, n, spec.dtype) for spec in composed.code.outputs]
    for spec, matrix in zip(composed.code.outputs, outputs, strict=True):
        bound[spec.name] = ArrayValue(matrix.pointer, matrix.ld, 1, owner=matrix.owner)
    return BoundEpilogue(composed.code, bound), outputs


def apply(backend: Backend, composed: Composed, acc: Array, values: Mapping[str, Any], width: int = 4) -> list[Array]:
    """What the kernel makes of a matrix of accumulators: C in fp32, and the other outputs."""
    m, n = acc.shape
    epilogue, outputs = bind(backend, composed, values, m, n)
    given, c = backend.upload(acc), backend.empty(m, n, FP32)
    kernel = backend.compile(source(composed, *target_of(backend), width))
    blocks = -(-m * -(-n // width) // 64)
    args = [np.int32(m), np.int32(n), given, c, epilogue.argument(m, n)]
    backend.launch(kernel, (blocks, 1, 1), (64, 1, 1), args, 0)
    return [backend.download(each) for each in (c, *outputs)]


def ordered(array: Array) -> Array:
    """Floats as integers of the same order, neighbours one apart, zeros of both signs 0."""
    bits = array.view({2: np.int16, 4: np.int32}[array.itemsize]).astype(np.int64)
    return np.where(bits < 0, -(bits & (2 ** (8 * array.itemsize - 1) - 1)), bits)


def assert_within(actual: Array, expected: Array, ulps: int, tiny: float = 0.0) -> None:
    """Within so many units in the last place of ``actual``'s dtype, or ``tiny``; NaN and infinities where expected."""
    with np.errstate(over="ignore"):
        rounded = np.asarray(expected).astype(actual.dtype)
    apart = np.abs(ordered(actual) - ordered(rounded))
    a, b = actual.astype(np.float32), rounded.astype(np.float32)
    both_nan = np.isnan(a) & np.isnan(b)
    with np.errstate(invalid="ignore"):
        wrong = (np.isnan(a) != np.isnan(b)) | ((apart > ulps) & ~(np.abs(a - b) <= tiny) & ~both_nan)
    where = np.argwhere(wrong)
    assert not len(where), (
        f"{len(where)} differ, first at {where[0]}: {a[tuple(where[0])]!r} is not {b[tuple(where[0])]!r}"
    )
