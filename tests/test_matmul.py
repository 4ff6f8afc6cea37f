"""``tilewright.matmul`` with NumPy's arrays, on every backend; test_matmul_on_gpu.py has those of GPU libraries."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conftest import open_or_skip
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from matmul_cases import Array, exact, integers, same

import tilewright
from tilewright import BF16, FP16, FP32, DType, Matmul, UsageError, explain, matmul
from tilewright.library import answers, choose, ready
from tilewright.library.choose import Choice
from tilewright.planner.candidate import Candidate
from tilewright.planner.planning import Planning

TENSOR = [BF16, FP16]


@pytest.fixture(params=["emulator", pytest.param("cuda", marks=pytest.mark.cuda)])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where it runs. In the emulator one tile of rung 5, which is compiled for each layout, and what has no choice."""
    open_or_skip(request.param)
    if request.param == "emulator":
        whole = choose.candidates

        def few(planning: Planning, *given: Any) -> Iterator[Candidate]:
            found = [each for each in planning.ranked if each.family == "mma_sync" and each.tile == (64, 64, 64)]
            return iter(found[:1]) if found else whole(planning, *given)

        monkeypatch.setattr(choose, "candidates", few)
    yield request.param
    ready.forget()


Laid = tuple[str, int, int, int]
"""A layout, the padding between lines, the element that lines begin at, a seed."""
laid = st.tuples(st.sampled_from(["row", "column"]), st.integers(0, 9), st.integers(0, 3), st.integers(0, 99))


def laid_out(how: Laid, rows: int, cols: int, dtype: DType) -> Array:
    """A matrix inside of a larger one: padded lines that may begin anywhere."""
    layout, padding, first, seed = how
    lines, line = (rows, cols) if layout == "row" else (cols, rows)
    whole = integers(seed, (lines + 1, line + padding + first), dtype)
    part = whole[1:, first : first + line]
    return part if layout == "row" else part.T


def whole_of(part: Array) -> Array:
    """The array that a view looks into."""
    while isinstance(part.base, np.ndarray):
        part = part.base
    return part


def seen(way: str, matrix: Array) -> Array:
    """A matrix of the same shape that no kernel reads where it lies."""
    if way == "flipped":
        return matrix[::-1, ::-1]
    if way == "every other":
        whole = np.repeat(np.repeat(matrix, 2, axis=0), 3, axis=1)
        return whole[::2, ::3]
    return matrix if way == "plain" else np.broadcast_to(matrix[:1], matrix.shape)


ways = st.sampled_from(["plain", "plain", "flipped", "every other", "a row again and again"])
sizes = st.one_of(st.integers(0, 3), st.sampled_from([8, 16, 33, 64, 65]))


@settings(max_examples=14, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(m=sizes, n=sizes, k=sizes, data=st.data())
def test_any_shape_layout_and_padding(backend: str, m: int, n: int, k: int, data: st.DataObject) -> None:
    a = seen(data.draw(ways), laid_out(data.draw(laid), m, k, BF16))
    b = seen(data.draw(ways), laid_out(data.draw(laid), k, n, BF16))
    out = laid_out(data.draw(laid), m, n, BF16)
    same(matmul(a, b, backend=backend), exact(a, b, BF16))
    before, around = out.copy(), whole_of(out)
    everything = around.copy()
    assert matmul(a, b, out=out, backend=backend) is out
    same(out, exact(a, b, BF16))
    out[...] = before
    np.testing.assert_array_equal(around, everything, err_msg="beside out something was written")


@pytest.mark.parametrize("dtype", TENSOR, ids=str)
def test_vectors(backend: str, dtype: DType) -> None:
    a, b = integers(1, (17, 40), dtype), integers(2, (40, 24), dtype)
    same(matmul(a[3], b, backend=backend), exact(a[3], b, dtype))
    same(matmul(a, b[:, 5], backend=backend), exact(a, b[:, 5], dtype))
    dot = matmul(a[3], b[:, 5], backend=backend)
    assert dot.shape == ()
    assert dot == exact(a[3], b[:, 5], dtype)


def test_a_batch_with_one_weight(backend: str) -> None:
    a, b = integers(1, (2, 3, 9, 40), BF16), integers(2, (40, 24), BF16)
    same(matmul(a, b, backend=backend), exact(a, b, BF16))
    assert explain(a, b, backend=backend).m == 54
    same(matmul(a, b[:, 0], backend=backend), exact(a, b[:, 0], BF16))


BATCHES = [((3,), (3,)), ((2, 3), (3,)), ((), (3,)), ((2, 1), (1, 3)), ((1, 3), (2, 1))]


@pytest.mark.parametrize(("a_batch", "b_batch"), BATCHES)
def test_batches_broadcast(backend: str, a_batch: tuple[int, ...], b_batch: tuple[int, ...]) -> None:
    a, b = integers(1, (*a_batch, 9, 40), BF16), integers(2, (*b_batch, 40, 24), BF16)
    same(matmul(a, b, backend=backend), exact(a, b, BF16))
    turned = np.swapaxes(np.swapaxes(a, -1, -2).copy(), -1, -2)[..., ::-1, :]
    out = np.swapaxes(np.zeros((*np.broadcast_shapes(a_batch, b_batch), 24, 9), BF16.numpy), -1, -2)
    assert matmul(turned, b, out=out, backend=backend) is out
    same(out, exact(turned, b, BF16))


def test_what_follows_each_product_of_a_batch(backend: str) -> None:
    a, b = integers(1, (2, 3, 9, 40), BF16), integers(2, (3, 40, 24), BF16)
    c, bias, v = integers(3, (3, 9, 24), BF16), integers(4, (2, 1, 1, 24), BF16), integers(5, (2, 3, 9, 1), BF16)
    found = matmul(
        a, b, alpha=0.5, beta=1, c=c, bias=bias, epilogue=lambda acc, v: (acc + v, acc), args={"v": v}, backend=backend
    )
    before = (
        np.matmul(a.astype(np.float32), b.astype(np.float32)) * 0.5 + c.astype(np.float32) + bias.astype(np.float32)
    )
    same(found[0], (before + v.astype(np.float32)).astype(BF16.numpy))
    same(found[1], before.astype(BF16.numpy))


def test_a_plan_that_computes_no_batch() -> None:
    a, b = integers(1, (3, 9, 40), BF16), integers(2, (3, 40, 24), BF16)
    plan = next(each.plan for each in tilewright.plan(9, 24, 40).ranked if each.family == "swapab")
    with pytest.raises(UsageError, match=r"which computes no batch; a and b have one of \(3,\)"):
        matmul(a, b, plan=plan, backend="emulator")


def test_nothing_to_add_up_is_zero_whatever_was_in_memory(backend: str) -> None:
    out = np.full((5, 9), np.nan, BF16.numpy)
    matmul(np.zeros((5, 0), BF16.numpy), np.zeros((0, 9), BF16.numpy), out=out, backend=backend)
    same(out, np.zeros((5, 9), BF16.numpy))


@pytest.mark.parametrize(
    ("a", "b", "shape"),
    [((0, 8), (8, 4), (0, 4)), ((4, 8), (8, 0), (4, 0)), ((0, 4, 8), (8, 4), (0, 4, 4)), ((0, 0), (0, 0), (0, 0))],
)
def test_a_result_without_elements_launches_nothing(
    backend: str, a: tuple[int, ...], b: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    found = matmul(np.zeros(a, FP16.numpy), np.zeros(b, FP16.numpy), backend=backend)
    assert (found.shape, found.dtype) == (shape, FP16.numpy)
    told = explain(np.zeros(a, FP16.numpy), np.zeros(b, FP16.numpy), backend=backend)
    assert told.kernel is None
    assert "none: the result has no elements" in str(told)


def test_nan_and_infinity_go_where_arithmetic_takes_them(backend: str) -> None:
    a, b = integers(1, (4, 16), BF16), integers(2, (16, 8), BF16)
    a[1, 3], a[2, 5] = np.nan, np.inf
    b[5, 2] = 0
    with np.errstate(invalid="ignore"):
        wanted = np.matmul(a.astype(np.float32), b.astype(np.float32)).astype(BF16.numpy)
    np.testing.assert_array_equal(matmul(a, b, backend=backend).astype(np.float32), wanted.astype(np.float32))


def test_steps_of_axes_of_length_1_mean_nothing(backend: str) -> None:
    held = integers(1, (8, 64), BF16)
    row = np.lib.stride_tricks.as_strided(held, (1, 64), (1 << 15, 2))
    column = np.lib.stride_tricks.as_strided(held, (64, 1), (2, 6))
    same(matmul(row, held.T, backend=backend), exact(row, held.T, BF16))
    same(matmul(held, column, backend=backend), exact(held, column, BF16))


def test_out_is_what_is_written_or_refused(backend: str) -> None:
    a, b = integers(1, (16, 16), BF16), integers(2, (16, 16), BF16)
    wanted = exact(a, b, BF16)
    for out, message in (
        (np.zeros((16, 8), BF16.numpy), r"out has shape \(16, 8\); the result has shape \(16, 16\)"),
        (np.zeros((16, 16), np.int32), "out has dtype int32"),
        (a, "out shares memory with a"),
        (b.T, "out shares memory with b"),
        (np.zeros((16, 32), BF16.numpy)[:, ::2], "out cannot be written: out has no axis"),
        (np.zeros((32, 16), BF16.numpy)[::-2], "out cannot be written: the rows of out run backwards"),
        (np.broadcast_to(np.zeros(16, BF16.numpy), (16, 16)), "out is read-only"),
        (
            np.lib.stride_tricks.as_strided(np.zeros(64, BF16.numpy), (16, 16), (2, 2)),
            "by which elements share memory",
        ),
    ):
        if backend == "cuda" and message.startswith("out cannot"):  # what a GPU computed is copied to any strides
            same(matmul(a, b, out=out, backend=backend), wanted)
            continue
        with pytest.raises(UsageError, match=message):
            matmul(a, b, out=out, backend=backend)
    held = np.zeros((16, 32), BF16.numpy)
    matmul(a, b, out=held[:, 16:], backend=backend)
    same(held[:, 16:], exact(a, b, BF16))
    assert not held[:, :16].any(), "out's neighbours in memory are not written"


def test_a_plan_that_the_caller_names(backend: str) -> None:
    a, b = integers(1, (40, 64), BF16), integers(2, (64, 24), BF16)
    plan = tilewright.plan(40, 24, 64).ranked[-1].plan
    assert plan is not None
    same(matmul(a, b, plan=plan, backend=backend), exact(a, b, BF16))
    told = explain(a, b, plan=plan, backend=backend)
    assert told.source == "given"
    assert told.plan == plan.to_dict()
    assert "the caller named it" in str(told)


def test_a_prepared_matmul_goes_to_other_arrays(backend: str) -> None:
    first, second = integers(1, (24, 40), BF16), integers(3, (24, 40), BF16)
    b, out = integers(2, (40, 16), BF16), np.zeros((24, 16), BF16.numpy)
    with Matmul(first, b, backend=backend) as prepared:
        assert prepared.plan() is not None
        same(prepared.execute(), exact(first, b, BF16))
        same(prepared.execute(second), exact(second, b, BF16))
        assert prepared.execute(out=out) is out
        same(out, exact(first, b, BF16))
        with pytest.raises(UsageError, match=r"b is bf16 \(40, 8\) with strides"):
            prepared.execute(b=b[:, :8])
        with pytest.raises(UsageError, match=r"a is fp16 \(24, 40\)"):
            prepared.execute(first.astype(np.float16))
    with pytest.raises(UsageError, match="this Matmul was closed"):
        prepared.execute()


def test_one_compile_whoever_asks(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = integers(1, (24, 40), BF16), integers(2, (40, 16), BF16)
    chosen: list[Choice] = []
    whole = answers.answer

    def counted(*given: Any) -> Choice:
        chosen.append(whole(*given))
        return chosen[-1]

    monkeypatch.setattr(ready, "answer", counted)
    results: list[Array] = []
    threads = [threading.Thread(target=lambda: results.append(matmul(a, b, backend=backend))) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(chosen) == 1
    assert len(results) == 4
    for result in results:
        same(result, exact(a, b, BF16))


def test_fp32_is_fp32(backend: str) -> None:
    a = np.array([[1024.5]], np.float32)
    assert matmul(a, np.ones((1, 1), np.float32), backend=backend) == 1024.5
    assert FP32.numpy == a.dtype


def test_what_follows_the_product(backend: str) -> None:
    a, b, c = integers(1, (24, 40), BF16), integers(2, (40, 16), BF16), integers(3, (24, 16), BF16)
    acc, addend = np.matmul(a.astype(np.float32), b.astype(np.float32)), c.astype(np.float32)
    bias, column = integers(4, (16,), BF16), integers(5, (24, 1), BF16)
    calls: list[tuple[dict[str, Any], Array]] = [
        ({"beta": 2, "c": c}, acc + 2 * addend),
        ({"c": np.full((24, 16), np.nan, BF16.numpy)}, acc),
        ({"bias": bias, "alpha": 0.25, "beta": -1, "c": c}, acc * 0.25 - addend + bias.astype(np.float32)),
        ({"bias": column}, acc + column.astype(np.float32)),
        ({"out_dtype": "fp32", "bias": bias}, acc + bias.astype(np.float32)),
        (
            {"epilogue": lambda acc, r, s: acc * s + r, "args": {"r": c[::-1], "s": 3}},
            acc * 3 + addend[::-1],
        ),
    ]
    for number, (options, wanted) in enumerate(calls):
        found = matmul(a, b, backend=backend, **options)
        same(found, wanted.astype(found.dtype))
        if backend == "emulator" and number < len(calls) - 1:
            continue  # each is another kernel to build
        out = np.zeros((16, 24), found.dtype).T
        matmul(a, b, backend=backend, out=out, **{**options, "out_dtype": None})
        same(out, wanted.astype(found.dtype))
    held = c.copy()
    matmul(a, b, beta=1, c=held, out=held, backend=backend)
    same(held, (acc + addend).astype(BF16.numpy))
    k0 = matmul(a[:, :0], b[:0], beta=3, c=c, backend=backend)
    same(k0, (3 * addend).astype(BF16.numpy))


def test_several_results(backend: str) -> None:
    a, b = integers(1, (24, 40), BF16), integers(2, (40, 16), BF16)
    acc = np.matmul(a.astype(np.float32), b.astype(np.float32))
    found = matmul(a, b, epilogue=lambda acc: (tilewright.relu(acc), acc), backend=backend)
    same(found[0], np.maximum(acc, 0).astype(BF16.numpy))
    same(found[1], acc.astype(BF16.numpy))
    outs = np.zeros((24, 16), BF16.numpy), np.zeros((24, 16), np.float32)
    assert matmul(a, b, epilogue=lambda acc: (tilewright.relu(acc), acc), out=outs, backend=backend) is outs
    same(outs[1], acc)
    for out, message in (
        (outs[0], "out has 1 arrays and the call 2 results"),
        ((outs[0], outs[0]), r"out\[1\] shares memory with out\[0\]"),
        ((outs[0], outs[1][:12]), r"out\[1\] has shape \(12, 16\)"),
    ):
        with pytest.raises(UsageError, match=message):
            matmul(a, b, epilogue=lambda acc: (acc, acc + 1), out=out, backend=backend)


def test_a_prepared_matmul_takes_other_numbers_and_arrays(backend: str) -> None:
    a, b, bias = integers(1, (24, 40), BF16), integers(2, (40, 16), BF16), integers(3, (16,), BF16)
    acc = np.matmul(a.astype(np.float32), b.astype(np.float32))
    with Matmul(a, b, alpha=0.5, bias=bias, backend=backend) as prepared:
        same(prepared.execute(), (acc * 0.5 + bias.astype(np.float32)).astype(BF16.numpy))
        found = prepared.execute(alpha=0.25, bias=bias[::-1].copy())
        same(found, (acc * 0.25 + bias[::-1].astype(np.float32)).astype(BF16.numpy))
        with pytest.raises(UsageError, match="alpha asks for another kernel"):
            prepared.execute(alpha=1)
        with pytest.raises(UsageError, match="epilogue cannot be changed"):
            prepared.execute(epilogue=tilewright.relu)


def test_a_row_has_the_same_bits_for_every_number_of_rows(backend: str) -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((70, 200), np.float32).astype(BF16.numpy)
    b = rng.standard_normal((200, 40), np.float32).astype(BF16.numpy)
    labels = {explain(a[:m], b, batch_invariant=True, backend=backend).label for m in (1, 2, 7, 64, 65, 70)}
    assert len(labels) == 1
    wanted = matmul(a, b, out_dtype="fp32", batch_invariant=True, backend=backend)
    for m in (1, 7, 65):
        found = matmul(a[70 - m :], b, out_dtype="fp32", batch_invariant=True, backend=backend)
        np.testing.assert_array_equal(found, wanted[70 - m :])
