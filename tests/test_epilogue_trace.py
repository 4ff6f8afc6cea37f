"""Tracing: what graph a function becomes, what NumPy makes of it, and what it is told that cannot be traced."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tilewright.epilogue import functions
from tilewright.epilogue.symbol import Symbol
from tilewright.epilogue.trace import trace
from tilewright.errors import UsageError

Fn = Callable[..., Any]
SPECIAL = np.array([0, -0.0, 1, -1, 0.5, 3e38, -3e38, 1e-45, np.inf, -np.inf, np.nan], np.float32)
floats = st.lists(st.floats(width=32), min_size=1, max_size=8).map(lambda values: np.array(values, np.float32))


def same(a: Any, b: Any) -> None:
    """Equal in every bit, any NaN like any other."""
    a, b = (np.asarray(x, np.float32) for x in (a, b))
    np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
    np.testing.assert_array_equal(
        np.where(np.isnan(a), 0, a).view(np.uint32), np.where(np.isnan(b), 0, b).view(np.uint32)
    )


# ---- graphs ----------------------------------------------------------------------------------------------------------


def test_common_subexpressions_stand_once_and_what_is_unused_does_not() -> None:
    def fn(acc: Any, x: Any, unused: Any) -> Any:
        tw.exp(unused)
        return acc * x + tw.relu(acc * x), acc * x

    graph = trace(fn, ["x", "unused"])
    assert graph.text.splitlines() == [
        "v0 = input acc",
        "v1 = input x",
        "v2 = mul v0 v1",
        "v3 = constant 0",
        "v4 = maximum v2 v3",
        "v5 = add v2 v4",
        "return v5 v2",
    ]


def test_the_digest_is_that_of_the_function_not_of_the_order_of_its_arguments() -> None:
    def fn(acc: Any, **named: Any) -> Any:
        return acc * named["b"] + named["a"]

    digest = trace(fn, ["a", "b"]).digest
    assert digest == trace(fn, ["b", "a"]).digest == trace(lambda acc, a, b: acc * b + a, ["a", "b"]).digest
    assert digest == "74d5e107243db4c8"  # in another process, and in another version of Python, too
    assert digest != trace(lambda acc, a, b: acc * a + b, ["a", "b"]).digest


def test_a_long_sum_is_traced() -> None:
    def fn(acc: Any) -> Any:
        total = acc
        for i in range(5000):
            total = total + i
        return total

    assert len(trace(fn).nodes) == 1 + 2 * 5000


def test_zeros_of_both_signs_are_two_constants() -> None:
    graph = trace(lambda acc: (acc * 0.0, acc * -0.0))
    same(graph.evaluate({"acc": np.float32(1)}), [0.0, -0.0])


# ---- values ----------------------------------------------------------------------------------------------------------

BINARY = {
    operator.add: np.add, operator.sub: np.subtract, operator.mul: np.multiply, operator.truediv: np.divide,
}  # fmt: skip
COMPARED = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)


@settings(max_examples=40)
@given(floats, st.floats(width=32))
def test_operators_are_those_of_numpy_in_fp32(x: Any, y: float) -> None:
    with np.errstate(all="ignore"):
        for python, numpy in BINARY.items():
            same(
                trace(lambda acc, y, op=python: op(acc, y), ["y"]).evaluate({"acc": x, "y": y})[0],
                numpy(x, np.float32(y)),
            )
            same(trace(lambda acc, op=python: op(y, acc)).evaluate({"acc": x})[0], numpy(np.float32(y), x))
        for compare in COMPARED:
            same(trace(lambda acc, op=compare: op(acc, y)).evaluate({"acc": x})[0], compare(x, np.float32(y)))
        same(trace(lambda acc: abs(-acc)).evaluate({"acc": x})[0], np.abs(x))
        same(trace(lambda acc: +(acc**3) - acc**-2).evaluate({"acc": x})[0], x * (x * x) - 1 / (x * x))
        same(trace(lambda acc: acc**0 + acc**0.5).evaluate({"acc": x})[0], 1 + np.sqrt(x))


def test_conditions_join_and_count_as_numbers() -> None:
    graph = trace(
        lambda acc: (tw.where((acc > 0) & ~(acc > 2) | (acc < -2), acc, 7), (acc > 0) ^ (acc > 2), (acc > 0) * acc)
    )
    kept, exclusive, positive = graph.evaluate({"acc": np.array([-3.0, -1, 1, 3])})
    assert (kept.tolist(), exclusive.tolist()) == ([-3, 7, 1, 7], [0, 0, 1, 0])
    assert positive.tolist() == [0, 0, 1, 3]


def reference(name: str, x: float) -> float:
    """The named functions by their definitions, in double, with nothing of this project's."""
    phi = 0.5 * math.erfc(-x / math.sqrt(2))
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
    return {
        "abs": abs(x),
        "erf": math.erf(x),
        "exp": math.exp(x) if x < 709 else math.inf,
        "gelu": x * phi,
        "gelu tanh": x * 0.5 * (1 + math.tanh(inner)),
        "log": math.log(x) if x > 0 else -math.inf if x == 0 else math.nan,
        "relu": max(x, 0.0),
        "relu_squared": max(x, 0.0) ** 2,
        "sigmoid": 1 / (1 + math.exp(-x)) if x > -700 else 0.0,
        "silu": x / (1 + math.exp(-x)) if x > -700 else 0.0,
        "sqrt": math.sqrt(x) if x >= 0 else math.nan,
        "tanh": math.tanh(x),
    }[name]


@pytest.mark.parametrize(
    "name", ["abs", "erf", "exp", "gelu", "log", "relu", "relu_squared", "sigmoid", "silu", "sqrt", "tanh"]
)
@settings(max_examples=40)
@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_named_functions_are_what_they_are_called(name: str, x: float) -> None:
    with np.errstate(over="ignore"):
        expected = np.float32(reference(name, x))
    np.testing.assert_allclose(getattr(tw, name)(x), expected, rtol=2e-6 if "elu" in name else 4e-7, atol=2e-44)


@given(st.floats(-3, 3, width=32))
def test_gelu_by_tanh(x: float) -> None:
    np.testing.assert_allclose(tw.gelu(x, approximate="tanh"), reference("gelu tanh", x), rtol=2e-6, atol=1e-12)


def test_large_values_infinities_and_nan_go_through() -> None:
    same(tw.sigmoid(SPECIAL[5:]), [1, 0, 0.5, 1, 0, np.nan])
    for unit in (tw.silu, tw.gelu, lambda x: tw.gelu(x, approximate="tanh")):
        same(unit(np.array([3e38, -3e38, np.inf, -np.inf, np.nan])), [3e38, -0.0, np.inf, np.nan, np.nan])
    same(tw.relu(SPECIAL), [0, 0, 1, 0, 0.5, 3e38, 0, 1e-45, np.inf, 0, np.nan])
    same(tw.clamp(SPECIAL, -2, 2), [0, -0.0, 1, -1, 0.5, 2, -2, 1e-45, 2, -2, np.nan])
    same(tw.clamp(np.array([-3, 3]), max=1), [-3, 1])
    same(tw.maximum(np.array([1, np.nan, -0.0, 0.0]), np.array([np.nan, 1, 0.0, -0.0])), [np.nan, np.nan, 0.0, 0.0])
    same(tw.minimum(np.array([1, np.nan, -0.0, 0.0]), np.array([np.nan, 1, 0.0, -0.0])), [np.nan, np.nan, -0.0, -0.0])


@pytest.mark.parametrize("name", functions.NAMES)
def test_a_function_gives_arrays_what_it_gives_when_traced(name: str) -> None:
    function = getattr(tw, name)
    fn = {
        "clamp": lambda x: function(x, -0.75, 1e30),
        "maximum": lambda x: function(x, 0.5),
        "minimum": lambda x: function(0.5, x),
        "where": lambda x: function(x > 0, x, -1),
    }.get(name, function)
    same(trace(fn).evaluate({"acc": SPECIAL})[0], fn(SPECIAL))
    halves = SPECIAL.astype(ml_dtypes.bfloat16)
    assert fn(halves).dtype == np.float32 if name != "where" else True


def test_functions_of_numpy_are_taken_for_those_of_the_same_name() -> None:
    def fn(acc: Any, s: Any) -> Any:
        return np.where(np.exp(acc) > np.float64(2), np.clip(acc, 0, 1), np.maximum(acc, s)) - np.square(
            np.float32(2) * acc
        )

    def twin(acc: Any, s: Any) -> Any:
        return tw.where(tw.exp(acc) > 2, tw.clamp(acc, 0, 1), tw.maximum(acc, s)) - (2 * acc) ** 2

    assert trace(fn, ["s"]).text == trace(twin, ["s"]).text


def test_an_error_names_a_function_that_there_is() -> None:
    for function, said in (
        (lambda acc: np.clip(acc, a_min=0, a_max=1), r"tilewright\.clamp\(x, low, high\) is possible"),
        (lambda acc: np.square(acc, where=True), r"x \* x is possible"),
        (lambda acc: np.power(acc, 2, where=True), r"x \*\* n is possible"),
        (lambda acc: np.maximum(acc, 0, where=True), r"tilewright\.maximum is possible"),
    ):
        with pytest.raises(UsageError, match=said):
            trace(function)
    assert hasattr(tw, "clamp")
    assert not any(hasattr(tw, name) for name in ("clip", "square", "pow", "power"))


def torch_function(name: str) -> Any:
    """A function of torch as its ``__torch_function__`` protocol hands it on."""

    def function(*args: Any, **kwargs: Any) -> Any:
        symbol = next(arg for arg in args if isinstance(arg, Symbol))
        return type(symbol).__torch_function__(function, (Symbol,), args, kwargs)

    function.__name__ = name
    return function


def test_functions_of_torch_are_taken_for_those_of_the_same_name() -> None:
    relu, gelu, softmax = (torch_function(name) for name in ("relu", "gelu", "softmax"))
    traced = trace(lambda acc: relu(acc, inplace=False) + gelu(acc, approximate="tanh"))
    assert traced.text == trace(lambda acc: tw.relu(acc) + tw.gelu(acc, "tanh")).text
    with pytest.raises(UsageError, match=r"through torch\.softmax: possible are"):
        trace(lambda acc: softmax(acc, -1))
    methods = trace(lambda acc: acc.relu().mul(2).clamp(max=6).pow(2) - acc.square().reciprocal())
    assert methods.text == trace(lambda acc: tw.clamp(tw.relu(acc) * 2, max=6) ** 2 - 1 / acc**2).text
    with pytest.raises(UsageError, match=r"through torch\.relu called in this way .*inplace"):
        trace(lambda acc: relu(acc, inplace=True))


def test_real_torch_functions() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    fn = lambda acc: torch.relu(acc) * torch.sigmoid(acc) + torch.nn.functional.gelu(acc)  # noqa: E731
    assert trace(fn).text == trace(lambda acc: tw.relu(acc) * tw.sigmoid(acc) + tw.gelu(acc)).text
    for ours, theirs in (
        (tw.tanh, torch.nn.functional.tanh),
        (tw.sigmoid, torch.nn.functional.sigmoid),
        (tw.sigmoid, torch.special.expit),
        (lambda acc: acc**-0.5, torch.rsqrt),
        (tw.silu, torch.nn.SiLU()),
    ):
        assert trace(theirs).text == trace(ours).text
    with pytest.raises(
        UsageError, match=r"does not take what it is called with, the accumulator and args \(x\): .*gelu"
    ):
        trace(torch.nn.functional.gelu, ["x"])
    with pytest.raises(UsageError, match="hand an array over by name"):
        trace(lambda acc: acc + torch.ones(3))
    with pytest.raises(UsageError, match="hand an array over by name"):
        trace(lambda acc: torch.ones(3) * acc)


# ---- what cannot be traced -------------------------------------------------------------------------------------------


class Foreign:
    shape = (2, 3)


UNTRACEABLE: dict[str, Fn] = {
    r"a truth value \(if, and, or": lambda acc: acc if acc > 0 else 0,
    r"a truth value.*tilewright\.where": lambda acc: 0 < acc < 1,
    r"a truth value.*maximum": lambda acc: max(acc, 0),
    "indexing": lambda acc: acc[0],
    "an assignment to an index": lambda acc: operator.setitem(acc, 0, 1),
    "iteration or unpacking": lambda acc: sum(acc),
    r"len\(\)": len,
    "the operator in": lambda acc: 1 in acc,
    r"the attribute \.T": lambda acc: acc.T,
    r"the attribute \.float": lambda acc: acc.float(),
    r"symbol\.clamp called in this way .*tilewright\.clamp": lambda acc: acc.clamp(low=0),
    r"an assignment to \.scale": lambda acc: setattr(acc, "scale", 1),
    r"float\(\) or a function of the math module": math.exp,
    r"int\(\) or a function": int,
    r"index\(\) or a function": lambda acc: [1, 2][acc],
    r"round\(\)": round,
    "the operator %": lambda acc: acc % 2,
    "the operator //": lambda acc: 2 // acc,
    "the operator @": lambda acc: acc @ acc,
    r"\*\* 1\.5: whole numbers from -8 to 8": lambda acc: acc**1.5,
    r"\*\* 9": lambda acc: acc**9,
    r"\*\* a symbol": lambda acc: acc**acc,
    r"2 \*\* a symbol: tilewright\.exp": lambda acc: 2**acc,
    "a call of a symbol": lambda acc: acc(1),
    r"numpy\.sin: possible are": np.sin,
    r"numpy\.sum": np.sum,
    r"numpy\.add\.reduce": np.add.reduce,
    r"numpy\.exp called in this way": lambda acc: np.exp(acc, out=np.ones(1)),
    r"numpy\.add with out": lambda acc: np.add(acc, 1, out=np.ones(1)),
    "a conversion to a NumPy array": np.asarray,
    r"'add' of a symbol and numpy\.ndarray of shape \(3,\): hand an array over by name": lambda acc: acc + np.ones(3),
    r"'mul' of a symbol and numpy\.ndarray of shape \(2, 2\)": lambda acc: np.ones((2, 2)) * acc,
    r"'sub' of a symbol and \w+\.Foreign of shape \(2, 3\)": lambda acc: acc - Foreign(),
    "'add' of a symbol and NoneType": lambda acc: acc + None,
    "'mul' of a symbol and complex": lambda acc: acc * 1j,
    "'where' with a number as a condition: a comparison": lambda acc: tw.where(acc, 1, 2),
    "'and' with int as a condition": lambda acc: (acc > 0) & 1,
}
REFUSED: dict[str, Fn | int] = {
    r"a constant in 'mul' is 1e\+300, which fp32 cannot hold": lambda acc: acc * 1e300,
    "a constant in 'add' is 10000.*which fp32 cannot hold": lambda acc: acc + 10**400,
    "epilogue returns NoneType; what was made": lambda acc: None,
    "epilogue returns list": lambda acc: [acc],
    r"epilogue returns numpy\.ndarray of shape \(3,\)": lambda acc: np.ones(3),
    "epilogue returns tuple": lambda acc: (acc, (acc, acc)),
    "epilogue returns an empty tuple": lambda acc: (),
    r"does not take what it is called with.*\(none\): missing a required argument: 'b'": lambda acc, b: acc,
    r"does not take what it is called with": lambda: 1,
    "epilogue is int; a function": 3,
    "clamp has neither min nor max": tw.clamp,
    "approximate is 'erf'; 'none' and 'tanh'": lambda acc: tw.gelu(acc, approximate="erf"),  # type: ignore[arg-type]
    "epilogue returns row_sum as its first value": tw.row_sum,
}


@pytest.mark.parametrize(("message", "fn"), UNTRACEABLE.items(), ids=list(UNTRACEABLE))
def test_what_cannot_be_traced_is_named(message: str, fn: Fn) -> None:
    with pytest.raises(UsageError, match=f"an epilogue cannot be traced through {message}"):
        trace(fn)


@pytest.mark.parametrize(("message", "fn"), REFUSED.items(), ids=list(REFUSED))
def test_what_is_no_epilogue_is_refused(message: str, fn: Any) -> None:
    with pytest.raises(UsageError, match=message):
        trace(fn)


def test_symbols_of_another_trace_are_refused() -> None:
    kept: list[Any] = []

    def keep(acc: Any) -> Any:
        kept.append(acc)
        return acc

    trace(keep)
    with pytest.raises(UsageError, match="symbols from two traces"):
        trace(lambda acc: acc + kept[0])
    with pytest.raises(UsageError, match="symbols from two traces"):
        trace(lambda acc: kept[0])


def test_errors_of_the_function_are_its_own() -> None:
    with pytest.raises(ZeroDivisionError):
        trace(lambda acc: acc * (1 // 0))


def test_arrays_that_have_no_numbers_are_refused() -> None:
    with pytest.raises(UsageError, match="'maximum' is given list"):
        tw.relu([1.0])
    with pytest.raises(UsageError, match="'exp' is given complex64"):
        tw.exp(np.zeros(2, np.complex64))
    with pytest.raises(UsageError, match="'where' is given float32 as a condition"):
        tw.where(np.zeros(2, np.float32), 1, 2)


@pytest.mark.parametrize("name", ["col_sum", "row_sum"])
def test_sums_are_marked(name: str) -> None:
    graph = trace(lambda acc: (acc, getattr(tw, name)(acc)))
    assert graph.marks == ("", name)
    array = np.full((3, 5), 1e8, np.float32)
    array[0, 0], array[2, 4] = 1.0, np.nan
    wanted = array.astype(np.float64).sum(-1 if name == "row_sum" else -2).astype(np.float32)
    np.testing.assert_array_equal(getattr(tw, name)(array), wanted)


def test_all_functions_are_public() -> None:
    for name in (*functions.NAMES, *functions.MARKS):
        assert name in tw.__all__
        assert getattr(tw, name) is getattr(functions, name)
