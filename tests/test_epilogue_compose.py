"""Composed epilogues in kernels: what NumPy makes of the same graph, on both backends."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from epilogue_cases import CASES
from hypothesis import given, settings
from hypothesis import strategies as st
from traced_cases import EXACT, FUNCTIONS, SPECIAL, TINY, ULPS, apply, assert_within, bind, described, floats32, source

import tilewright as tw
from tilewright import nvrtc
from tilewright.backends.base import Backend
from tilewright.dtypes import BF16, DTYPES, FP16, FP32
from tilewright.epilogue.code import PLAIN, ArrayValue, BoundEpilogue
from tilewright.epilogue.compose import MAX_ARRAYS, NUMBER, Described, compose, name_of
from tilewright.epilogue.functions import NAMES
from tilewright.epilogue.placement import Along
from tilewright.errors import UsageError
from tilewright.run import run
from tilewright.source import CUDA_ROOT

RUNG5 = next(replace(case, plan=case.plan.storing(BF16)) for case in CASES if case.name.startswith("rung5"))
FULL = Described(BF16, "full")


def units(backend: Backend, exact: bool) -> tuple[int, float]:
    """By how much fp32 results may differ: not at all where the arithmetic is exact, or done by the host's library."""
    return (0, 0.0) if exact or backend.name == "emulator" else (ULPS, float(TINY))


# ---- the text --------------------------------------------------------------------------------------------------------


def test_what_changes_nothing_is_the_plain_epilogue() -> None:
    assert compose(out_dtypes=[BF16]).code is PLAIN
    assert compose(alpha=1.0, beta=0.0, c=FULL, fn=lambda acc: acc, out_dtypes=[BF16]).code is PLAIN


def test_values_of_alpha_and_beta_do_not_make_a_new_text_and_what_is_one_or_zero_leaves_none() -> None:
    def made(alpha: float, beta: float) -> Any:
        return compose(alpha=alpha, beta=beta, c=FULL, out_dtypes=[BF16]).code

    assert made(2, 3) == made(0.1, -7) == made(0, 2)
    assert [spec.name for spec in made(2, 3).args] == ["alpha", "c", "beta"]
    assert [spec.name for spec in made(2, 1).args] == ["alpha", "c"]
    assert [spec.name for spec in made(1, 2).args] == ["c", "beta"]
    assert [spec.name for spec in made(2, 0).args] == ["alpha"]
    assert "mul" not in made(1, 1).text


def test_the_text_is_that_of_the_function_whatever_the_order_of_args() -> None:
    def fn(acc: Any, scale: Any, residual: Any, unused: Any) -> Any:
        return tw.gelu(acc * scale) + residual, acc * scale

    args = {"residual": FULL, "unused": FULL, "scale": NUMBER}
    code = compose(fn=fn, args=args, out_dtypes=[BF16]).code
    again = compose(fn=fn, args=dict(reversed(args.items())), out_dtypes=[BF16]).code
    assert (code, code.digest) == (again, again.digest)
    assert [(spec.name, spec.kind) for spec in code.args] == [("arg_scale", "scalar"), ("arg_residual", "array")]
    assert [(spec.name, spec.dtype) for spec in code.outputs] == [("out1", BF16)]
    assert code.text.count("tw::mul(v0, v1)") == 1
    assert compose(fn=fn, args=args, out_dtypes=[BF16, FP32]).code.outputs[0].dtype is FP32


def test_an_array_without_fn_beta_without_c_and_too_many_of_anything_are_refused() -> None:
    with pytest.raises(UsageError, match=r"beta is 2 and c is None; beta = 0, or an array c"):
        compose(beta=2, out_dtypes=[BF16])
    with pytest.raises(UsageError, match="args has r and epilogue is None"):
        compose(args={"r": FULL}, out_dtypes=[BF16])
    with pytest.raises(UsageError, match="out_dtype has 2 dtypes and the epilogue 1 outputs"):
        compose(fn=tw.relu, out_dtypes=[BF16, BF16])
    with pytest.raises(UsageError, match=f"17 arrays beside C; at most {MAX_ARRAYS}"):
        compose(fn=lambda acc: (acc,) * 18, out_dtypes=[BF16])
    for name in ("a b", "é", "for", ""):
        with pytest.raises(UsageError, match="args has the name"):
            name_of(name)


def test_names_of_arguments_do_not_meet_those_of_the_text(emulator: Backend) -> None:
    names = ["alpha", "c", "out1", "acc", "at", "N", "v0", "i", "threadIdx", "float", "tw", "args"]
    values = {name: float(number) for number, name in enumerate(names)}

    def fn(accumulator: Any, /, **named: Any) -> Any:
        return accumulator + sum(named[name] * values[name] for name in names), accumulator

    composed = compose(alpha=2, fn=fn, args=dict.fromkeys(names, NUMBER), out_dtypes=[FP32])
    given = {**{name_of(name): value for name, value in values.items()}, "alpha": 2.0}
    c, out1 = apply(emulator, composed, np.ones((1, 1), np.float32), given)
    assert (c[0, 0], out1[0, 0]) == (2 + sum(x * x for x in values.values()), 2)


# ---- what kernels compute --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [0, 1])
def test_every_function_is_that_of_numpy_in_fp32(backend: Backend, part: int) -> None:
    names = list(FUNCTIONS)[part::2]
    composed = compose(fn=lambda acc: tuple(FUNCTIONS[name](acc) for name in names), out_dtypes=[FP32])

    @settings(max_examples=15)
    @given(st.lists(floats32, max_size=40))
    def check(values: list[float]) -> None:
        acc = np.array([*SPECIAL, *values], np.float32).reshape(1, -1)
        for name, actual, expected in zip(
            names, apply(backend, composed, acc, {}), composed.evaluate(acc, {}), strict=True
        ):
            assert_within(actual, expected, *units(backend, name in EXACT))

    check()


def test_the_functions_above_are_all_there_are() -> None:
    assert set(NAMES) <= {word.strip(",") for name in FUNCTIONS for word in name.split()}


def test_every_function_compiles_for_the_gpu_without_spills() -> None:
    reason = nvrtc.unavailable_reason()
    if reason is not None:
        pytest.skip(reason)
    for part in (0, 1):
        names = list(FUNCTIONS)[part::2]
        composed = compose(fn=lambda acc, names=names: tuple(FUNCTIONS[name](acc) for name in names), out_dtypes=[FP32])
        report = nvrtc.compile_kernel(source(composed, "gpu", "sm_90a", width=1)).report
        assert report.spill_store_bytes == 0


def test_the_polynomial_of_the_gpus_normal_cdf_is_as_close_as_its_header_says() -> None:
    text = (CUDA_ROOT / "gpu" / "tw" / "arithmetic.cuh").read_text("utf-8")
    r = [float(each) for each in re.findall(r"-?[\d.]+(?=f)", text[text.index("R[] = {") : text.index("};")])]
    assert len(r) == 9
    z = np.linspace(0, 15, 3001)
    s = (z - 3) / (z + 3)
    beyond = np.exp(-z * z / 2) * np.polynomial.polynomial.polyval(s, np.array(r, np.float32)) / (z + 3)
    wanted = np.array([0.5 * math.erfc(each / math.sqrt(2)) for each in z])
    assert np.abs(beyond / wanted - 1).max() < 2.0**-23.5


def test_the_brief_functions_of_results_of_16_bits_are_as_close_as_they_say(backend: Backend) -> None:
    def fn(acc: Any) -> Any:
        return tw.exp(acc), tw.sigmoid(acc), tw.gelu(acc)

    named = [f"tw::brief::{name}(" for name in ("exp", "sigmoid", "normal_cdf")]
    assert all(each in compose(fn=fn, out_dtypes=[BF16]).code.text for each in named)
    composed = compose(fn=fn, out_dtypes=[BF16, FP16, FP32])
    assert "brief" not in composed.code.text
    composed, text = compose(fn=fn, out_dtypes=[FP32]), composed.code.text
    for each in named:
        text = text.replace(each.replace("brief::", ""), each)
    text = text.replace("tw::bf16", "float").replace("tw::fp16", "float")
    composed = replace(composed, code=replace(composed.code, text=text))
    z = np.linspace(2**-9, 13, 4000, dtype=np.float32).reshape(1, -1)
    for acc in (z, -z):
        x = acc.astype(np.float64)
        wanted = np.exp(x), 1 / (1 + np.exp(-x)), x * np.vectorize(math.erfc)(x * -math.sqrt(0.5)) / 2
        for found, exact in zip(apply(backend, composed, acc, {}), wanted, strict=True):
            off = np.abs(found / exact - 1)
            assert off[z <= 4].max() < 2.0**-19
            assert off.max() < 2.0**-16
    (_, edges, _) = apply(backend, composed, np.array([[-np.inf, -120, -97, -90, 90, np.inf, np.nan]], np.float32), {})
    np.testing.assert_allclose(
        edges, [[0, 0, np.exp(-97.0), np.exp(-90.0), 1, 1, np.nan]], rtol=2.0**-16, atol=2.0**-140
    )


PIECES: dict[Callable[..., Any], int] = {
    operator.add: 2, operator.sub: 2, operator.mul: 2, operator.truediv: 2, tw.maximum: 2, tw.minimum: 2, abs: 1,
    operator.neg: 1, tw.relu: 1, tw.sqrt: 1, (lambda x: x**3): 1, (lambda a, b: tw.where(a < b, b, a)): 2,
    (lambda a, b: (a >= b) * a): 2,
}  # fmt: skip
ARGUMENTS: dict[str, tuple[int, int, int]] = {
    "full": (1, 1, 1),
    "strided": (1, 1, -1),
    "row": (1, 0, 1),
    "column": (0, 1, 1),
}


def test_graphs_of_exact_operations_are_those_of_numpy_in_every_bit(backend: Backend) -> None:
    settings(max_examples=3)(given(st.data())(lambda data: check_graph(backend, data)))()


def check_graph(backend: Backend, data: st.DataObject) -> None:
    """One graph at random, over arguments of every kind and dtype."""
    m, n, width = data.draw(st.sampled_from([(5, 7, 2), (4, 16, 8), (1, 9, 4), (6, 1, 1)]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    values: dict[str, Any] = {"s": data.draw(floats32)}
    for name, (rows, cols, order) in ARGUMENTS.items():
        dtype = data.draw(st.sampled_from(list(DTYPES.values())))
        array = (rng.standard_normal((m if rows else 1, n if cols else 1)) * 4).astype(dtype.numpy)
        values[name] = array if order > 0 else np.asfortranarray(array)
    steps = data.draw(
        st.lists(
            st.tuples(st.sampled_from(list(PIECES)), st.lists(st.integers(0, 99), min_size=2, max_size=2)),
            min_size=3,
            max_size=10,
        )
    )

    def fn(acc: Any, **named: Any) -> Any:
        pool = [acc, *named.values(), 0.1, -3.0]
        for piece, chosen in steps:
            operands = [pool[-1], *(pool[at % len(pool)] for at in chosen)][: PIECES[piece]]
            symbols = any(not isinstance(each, float) for each in operands)
            pool.append(piece(*operands) if symbols else acc)
        return pool[-1], pool[-2]

    args = {name: described(value, m, n) for name, value in values.items()}
    composed = compose(fn=fn, args=args, out_dtypes=[FP32])
    given = {name_of(name): value for name, value in values.items()}
    acc = np.array(data.draw(st.lists(floats32, min_size=m * n, max_size=m * n)), np.float32).reshape(m, n)
    for actual, expected in zip(
        apply(backend, composed, acc, given, width), composed.evaluate(acc, given), strict=True
    ):
        assert_within(actual, expected, 0)


# ---- through rung 5 --------------------------------------------------------------------------------------------------


def through_rung5(backend: Backend, composed: Any, values: dict[str, Any]) -> tuple[Any, list[Any], Any]:
    """C, the other outputs and the exact sums of a product with an epilogue."""
    operands = RUNG5.operands(backend)
    a, b = (backend.download(each).astype(np.float32) for each in (operands.a, operands.b))
    epilogue, outputs = bind(backend, composed, values, *RUNG5.shape[:2])
    run(backend, RUNG5.kernel, operands, RUNG5.plan, epilogue=epilogue)
    assert backend.padding_intact(operands.c)
    return backend.download(operands.c), [backend.download(each) for each in outputs], a @ b


def test_alpha_beta_bias_and_a_function_with_two_outputs_within_a_unit_of_the_output(backend: Backend) -> None:
    m, n, _ = RUNG5.shape
    rng = np.random.default_rng(5)
    values: dict[str, Any] = {
        "alpha": 0.01, "beta": -1.5, "c": rng.standard_normal((m, n)).astype(np.float32),
        "bias": rng.standard_normal((1, n)).astype(FP16.numpy),
        "arg_residual": np.asfortranarray(rng.standard_normal((m, n)).astype(BF16.numpy)),
        "arg_gain": rng.standard_normal((m, 1)).astype(np.float32),
    }  # fmt: skip
    values["c"][0, :3] = np.nan, np.inf, -np.inf

    def fn(acc: Any, residual: Any, gain: Any) -> Any:
        return tw.gelu(acc * gain) + residual, acc, tw.silu(acc), tw.tanh(acc)

    composed = compose(
        alpha=0.01,
        beta=-1.5,
        c=Described(FP32, "full"),
        bias=Described(FP16, "column"),
        fn=fn,
        args={"residual": Described(BF16, "strided"), "gain": Described(FP32, "row")},
        out_dtypes=[BF16, FP32, FP16],
    )
    c, outputs, acc = through_rung5(backend, composed, values)
    expected = composed.evaluate(acc, values)
    assert [each.dtype for each in outputs] == [FP32.numpy, FP16.numpy, BF16.numpy]
    by_hand = np.float32(0.01) * acc + np.float32(-1.5) * values["c"] + values["bias"].astype(np.float32)
    assert_within(outputs[0], by_hand, 0)
    for actual, wanted in zip((c, outputs[1], outputs[2]), (expected[0], *expected[2:]), strict=True):
        assert_within(actual, wanted, 0 if backend.name == "emulator" else 1)


def test_every_function_within_a_unit_of_a_bf16_output(backend: Backend) -> None:
    m, n, _ = RUNG5.shape
    x = np.random.default_rng(6).standard_normal((m, n)).astype(np.float32) * 4
    x.flat[: len(SPECIAL)] = SPECIAL

    def fn(acc: Any, x: Any) -> Any:
        return acc, *(function(x) for function in FUNCTIONS.values())

    composed = compose(fn=fn, args={"x": Described(FP32, "full")}, out_dtypes=[BF16])
    c, outputs, acc = through_rung5(backend, composed, {"arg_x": x})
    assert_within(c, acc, 0)
    for actual, expected in zip(outputs, composed.evaluate(acc, {"arg_x": x})[1:], strict=True):
        assert_within(actual, expected, 0 if backend.name == "emulator" else 1)


def test_c_is_read_where_it_is_written(backend: Backend) -> None:
    operands = RUNG5.operands(backend)
    m, n, _ = RUNG5.shape
    before = np.arange(m * n).reshape(m, n).astype(operands.c.dtype.numpy)
    operands = replace(operands, c=backend.upload(before, operands.c.ld))
    composed = compose(beta=0.5, c=FULL, out_dtypes=[BF16])
    value = ArrayValue(operands.c.pointer, operands.c.ld, 1)
    run(backend, RUNG5.kernel, operands, RUNG5.plan, epilogue=BoundEpilogue(composed.code, {"c": value, "beta": 0.5}))
    a, b = (backend.download(each).astype(np.float32) for each in (operands.a, operands.b))
    (expected,) = composed.evaluate(a @ b, {"c": before, "beta": 0.5})
    assert_within(backend.download(operands.c), expected, 0)


def test_beta_zero_reads_no_c_and_alpha_zero_is_a_product_with_zero(backend: Backend) -> None:
    composed = compose(alpha=0, beta=0, c=FULL, out_dtypes=[BF16])
    c, _, acc = through_rung5(backend, composed, {"alpha": 0.0})
    assert not c.astype(np.float32).any()
    acc[0, 0] = np.inf
    assert np.isnan(composed.evaluate(acc, {"alpha": 0.0})[0][0, 0])


@pytest.mark.parametrize("along", ["full", "strided", "row", "column"])
def test_c_itself_and_arrays_of_every_kind_are_read(backend: Backend, along: Along) -> None:
    m, n, _ = RUNG5.shape
    shape = {"row": (m, 1), "column": (1, n)}.get(along, (m, n))
    value = np.arange(np.prod(shape)).reshape(shape).astype(BF16.numpy)
    value = np.asfortranarray(value) if along == "strided" else value
    composed = compose(fn=lambda acc, x: x - 0 * acc, args={"x": Described(BF16, along)}, out_dtypes=[BF16])
    c, _, _ = through_rung5(backend, composed, {"arg_x": value})
    np.testing.assert_array_equal(c, np.broadcast_to(value, (m, n)))
