"""Pairs of Bs, ``b=(gate, up)``: one kernel, one reading of A, one result of both products, on every backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matmul_cases import Array, integers, same

import tilewright
from tilewright import BF16, FP16, FP32, DType, Matmul, Plan, UsageError, explain, matmul
from tilewright.backends.base import Backend
from tilewright.backends.emulator import EmulatorBackend
from tilewright.checked import check
from tilewright.epilogue.code import BoundEpilogue
from tilewright.epilogue.compose import compose
from tilewright.ladder import rung
from tilewright.problem import Layout
from tilewright.run import Operands, prepare, run

TILE: dict[str, Any] = {"bm": 128, "bn": 128, "stages": 3, "epilogue_columns": 32, "epilogue_slabs": 1, "paired": True}
KERNELS: dict[str, tuple[Layout, DType, dict[str, Any]]] = {
    "cooperative": ("row", FP16, {}),
    "ping-pong": ("column", FP16, {"bm": 64, "pingpong": True, "epilogue_columns": 64}),
    "a cluster along M": ("column", FP16, {"cluster_m": 2, "alternate_k": True}),
    "a cluster along N": ("row", FP16, {"cluster_n": 2, "cluster_m": 2, "blocks": 4}),
    "half tiles": ("row", FP16, {"bm": 256, "half_tail": True, "stages": 2}),
    "an fp32 C": ("column", FP32, {"epilogue_columns": 16}),
}


def products(a: Array, pair: tuple[Array, Array]) -> list[Array]:
    """Those of A with either B, in fp32."""
    return [np.matmul(a.astype(np.float32), b.astype(np.float32)) for b in pair]


def test_few_rows_have_a_kernel_too_whatever_is_faster_without_a_pair() -> None:
    for shape in ((1, 95, 1537), (2, 15, 512), (2, 176, 513)):
        a, b = np.zeros((shape[0], shape[2]), FP16.numpy), np.zeros((shape[2], shape[1]), FP16.numpy)
        told = explain(a, (b, b), epilogue=tilewright.swiglu, backend="emulator")
        assert told.plan is not None
        assert told.plan["paired"]


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_of_pairs(backend: Backend, kernel: str) -> None:
    layout, out, changes = KERNELS[kernel]
    m, n, k = 140, 203, 136
    plan = rung(11).plan(FP16).with_(**{**TILE, **changes}, b_layout=layout, out_dtype=out)
    a, pair = integers(1, (m, k), FP16), (integers(2, (k, n), FP16), integers(3, (k, n), FP16))
    first, second = (backend.upload(b, 208 if layout == "row" else k, layout) for b in pair)
    c = backend.empty(m, n, out, 208)
    code = compose(fn=lambda gate, up: tilewright.maximum(gate, 3) - up, out_dtypes=[out], pair=True).code
    run(backend, rung(11), Operands(backend.upload(a), first, c, second=second), plan, epilogue=BoundEpilogue(code))
    gate, up = products(a, pair)
    np.testing.assert_array_equal(backend.download(c), (np.maximum(gate, 3) - up).astype(out.numpy))


@pytest.mark.parametrize("kernel", ["a cluster along N"])
def test_nothing_races(emulator: EmulatorBackend, kernel: str) -> None:
    layout, out, changes = KERNELS[kernel]
    m, n, k = 140, 203, 136
    plan = rung(11).plan(FP16).with_(**{**TILE, **changes}, b_layout=layout, out_dtype=out)
    a, *pair = (
        emulator.upload(integers(s, (m if s == 0 else k, n if s else k), FP16), 208, layout if s else "row")
        for s in range(3)
    )
    code = compose(fn=difference, out_dtypes=[out], pair=True).code
    operands = Operands(a, pair[0], emulator.empty(m, n, out, 208), second=pair[1])
    assert check(emulator, rung(11), plan, operands, BoundEpilogue(code))


def test_swiglu_is_what_evaluate_says(where: str) -> None:
    rng = np.random.default_rng(0)
    a, gate, up = (
        rng.standard_normal(shape, np.float32).astype(BF16.numpy) for shape in ((33, 72), (72, 40), (72, 40))
    )
    found = matmul(a, (gate, up), epilogue=tilewright.swiglu, out_dtype="fp32", backend=where)
    composed = compose(fn=tilewright.swiglu, out_dtypes=[FP32], pair=True)
    first, second = products(a, (gate, up))
    (wanted,) = composed.evaluate(first, {}, second)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(wanted, first / (1 + np.exp(-first)) * second, rtol=1e-5, atol=1e-6)


def difference(gate: Any, up: Any) -> Any:
    return gate - 2 * up


def test_arrays_that_lie_anyhow(where: str) -> None:
    a, gate, up = integers(1, (33, 72), BF16), integers(2, (72, 40), BF16), integers(3, (72, 40), BF16)
    turned = np.asfortranarray(up)
    for x, pair in (
        (a, (gate, up)),
        (a, (np.asfortranarray(gate), turned)),
        (a, (gate, turned)),
        (a[::-1], (gate, up[:, ::-1])),
        (a[:, 1:], (gate[1:, 1:], up[:-1, :-1])),
        (a[:, :0], (gate[:0], up[:0])),
        (a[:0], (gate, up)),
    ):
        first, second = products(x, pair)
        same(matmul(x, pair, epilogue=difference, backend=where), (first - 2 * second).astype(BF16.numpy))
    told = explain(a, (gate, turned), epilogue=difference, backend=where)
    assert [each.what for each in told.copied if "packed" in each.what] == ["b[1], packed"]
    assert "b[0] and b[1] side by side in the tiles of B" in told.path


@pytest.mark.parametrize(("a_batch", "b_batch"), [((3,), ()), ((), (3,)), ((2, 1), (1, 3))])
def test_batches(where: str, a_batch: tuple[int, ...], b_batch: tuple[int, ...]) -> None:
    a = integers(1, (*a_batch, 9, 40), BF16)
    gate, up = integers(2, (*b_batch, 40, 24), BF16), integers(3, (*b_batch, 40, 24), BF16)
    first, second = products(a, (gate, up))
    same(matmul(a, (gate, up), epilogue=difference, backend=where), (first - 2 * second).astype(BF16.numpy))
    first, second = products(a, (gate, up[..., ::-1]))
    same(matmul(a, (gate, up[..., ::-1]), epilogue=difference, backend=where), (first - 2 * second).astype(BF16.numpy))


@pytest.mark.parametrize("how", ["shared", "permuted", "padded", "both shared", "of a row", "permuted in turns"])
def test_a_batch_of_bs_that_lie_in_two_ways(where: str, how: str) -> None:
    sizes = (3, 2) if "shared" not in how else (3,)
    a = integers(1, (*sizes, 1 if how == "of a row" else 9, 40), BF16)
    gate, up = integers(2, (*sizes, 40, 24), BF16), integers(3, (*sizes, 40, 24), BF16)
    packed = ["b[1], packed"]
    if how == "shared":
        up = np.broadcast_to(up[0], up.shape)
    elif how == "padded":
        up = integers(3, (3, 3, 40, 24), BF16)[:, :2]
    elif how in ("permuted", "of a row"):
        up = np.ascontiguousarray(up.swapaxes(0, 1)).swapaxes(0, 1)
    elif how == "both shared":  # each along another dimension
        a, gate = integers(1, (3, 2, 9, 40), BF16), np.broadcast_to(gate[:, None], (3, 2, 40, 24))
        up, packed = np.broadcast_to(up[:2][None], (3, 2, 40, 24)), ["b, packed", "b[1], packed"]
    else:
        a = integers(1, (2, 3, 2, 2, 9, 40), BF16)
        gate = np.broadcast_to(gate[:, :, None], (3, 2, 2, 40, 24))
        up = np.ascontiguousarray(np.broadcast_to(up[:, None], (3, 2, 2, 40, 24)).swapaxes(0, 2)).swapaxes(0, 2)
    if where == "emulator":
        told = explain(a, (gate, up), epilogue=difference, backend=where)
        assert sorted(each.what for each in told.copied) == packed
    for x, pair in ((a, (gate, up)), (a, (up, gate)), (a[..., :0], (gate[..., :0, :], up[..., :0, :]))):
        first, second = products(x, pair)
        same(matmul(x, pair, epilogue=difference, backend=where), (first - 2 * second).astype(BF16.numpy))


def test_one_element_a_matrix(where: str) -> None:
    a, gate, up = integers(1, (1, 16), BF16), integers(2, (3, 16, 1), BF16), integers(3, (3, 16, 1), BF16)
    first, second = products(a, (gate, up))
    same(matmul(a, (gate, up), epilogue=difference, backend=where), (first - 2 * second).astype(BF16.numpy))


def test_arguments_and_several_results(where: str) -> None:
    a, gate, up = integers(1, (33, 72), BF16), integers(2, (72, 40), BF16), integers(3, (72, 40), BF16)
    column = integers(4, (33, 1), FP32)
    first, second = products(a, (gate, up))

    def both(gate: Any, up: Any, v: Any, s: Any) -> Any:
        return gate * s + v, up

    found = matmul(a, [gate, up], epilogue=both, args={"v": column, "s": 0.5}, backend=where)
    same(found[0], (first * 0.5 + column).astype(BF16.numpy))
    same(found[1], second.astype(BF16.numpy))
    with Matmul(a, (gate, up), epilogue=difference, batch_invariant=True, backend=where) as prepared:
        same(prepared.execute(), (first - 2 * second).astype(BF16.numpy))
        same(prepared.execute(b=(up, gate)), (second - 2 * first).astype(BF16.numpy))
        for other in (gate, (gate, up[:, ::-1]), (gate[::-1], up)):
            with pytest.raises(UsageError, match=r"b asks for another kernel|b is bf16 \(72, 40\) with strides"):
                prepared.execute(b=other)
        plan = prepared.plan()
    assert plan is not None
    assert Plan.from_dict(plan.to_dict()) == plan
    found = matmul(a, (gate, up), epilogue=difference, plan=plan.with_(paired=False), backend=where)
    same(found, (first - 2 * second).astype(BF16.numpy))
    with pytest.raises(UsageError, match="plan is of a pair and b is one array"):
        matmul(a, gate, plan=plan, backend=where)


def test_what_no_pair_can_be() -> None:
    a, gate = integers(1, (16, 24), BF16), integers(2, (24, 40), BF16)
    calls: list[tuple[Any, dict[str, Any], str]] = [
        ((gate, gate), {"epilogue": None}, "b is a pair, of whose two products an epilogue makes one result"),
        ((gate, gate), {"alpha": 2}, "alpha, beta, c and bias are not possible beside it"),
        ((gate, gate), {"epilogue": tilewright.relu}, "epilogue does not take what it is called with, 2 accumulators"),
        ((gate,), {}, r"b has 1 arrays; one array, or a pair \(gate, up\), is possible"),
        ((gate, gate[:, 8:]), {}, r"b is a pair of bf16 \(24, 40\) and bf16 \(24, 32\)"),
        ((gate, gate.astype(np.float16)), {}, r"b is a pair of bf16 \(24, 40\) and fp16 \(24, 40\)"),
        ((gate, gate), {"out": np.zeros((40, 16), BF16.numpy).T}, "out is column-major and b is a pair"),
        (
            (gate, gate),
            {"out": np.zeros((16, 41), BF16.numpy)[:, :40]},
            "writes lines that start on 16-byte",
        ),
        ((gate, gate), {"plan": rung(5).plan(BF16)}, "plan is of rung 5, which computes no pair; rung 11 does"),
    ]
    for pair, options, message in calls:
        with pytest.raises(UsageError, match=message):
            matmul(a, pair, backend="emulator", **{"epilogue": tilewright.swiglu, **options})
    out = np.zeros((24, 40), BF16.numpy)
    with pytest.raises(UsageError, match=r"out shares memory with b\[1\]"):
        matmul(integers(1, (24, 24), BF16), (gate, out), out=out, epilogue=tilewright.swiglu, backend="emulator")
    wide = a.astype(np.float32)
    with pytest.raises(UsageError, match="b is a pair of fp32; pairs of bf16 and fp16 can be multiplied"):
        matmul(wide, (gate.astype(np.float32),) * 2, epilogue=tilewright.swiglu, backend="emulator")


def test_plans_of_pairs(emulator: Backend) -> None:
    plan = rung(11).plan(BF16).with_(**TILE)
    for changes, message in (
        ({"bn": 64}, "slabs of 64 columns, of which it must be a multiple, half of it"),
        ({"b_layout": "column", "bn": 160, "epilogue_columns": 32}, "where they divide half of bn, which is 80"),
    ):
        with pytest.raises(UsageError, match=message):
            plan.with_(**changes)
    with pytest.raises(UsageError, match="paired is True; rung 11 computes pairs"):
        rung(10).plan(BF16).with_(paired=True)
    a, b, c = (emulator.upload(integers(1, (128, 128), BF16)) for _ in range(3))
    with pytest.raises(UsageError, match="plan is of a pair of Bs and the operands are not"):
        prepare(emulator, rung(11), plan, Operands(a, b, c))
    with pytest.raises(UsageError, match="the plan has two accumulators and the epilogue takes one accumulator"):
        prepare(emulator, rung(11), plan, Operands(a, b, c, second=b))
