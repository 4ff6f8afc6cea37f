"""Sums of rows and columns among an epilogue's outputs: exact, in the documented order, and the same again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from epilogue_cases import CASES, Case
from matmul_cases import Array, integers, same
from sass_cases import instructions

import tilewright as tw
from tilewright import BF16, FP32, DType, Matmul, UsageError, explain, matmul
from tilewright.backends.emulator import EmulatorBackend
from tilewright.backends.emulator_checks import check_bounds, check_races
from tilewright.checked import check as checked
from tilewright.epilogue.code import BoundEpilogue
from tilewright.epilogue.compose import compose
from tilewright.library import answers, ready, sums, warm
from tilewright.library.calls import laid_out
from tilewright.library.sums import Partials, Sum, predicted_us
from tilewright.plan_base import ALONE, FRAGMENT, Lanes
from tilewright.planner.plan import machine_of

KERNELS = [case for case in CASES if case.name not in ("rung11-fp32", "simt-bf16", "swapab-fp32")]
ALL_KINDS = [case for case in KERNELS if case.name.startswith(("rung11", "simt", "swapab"))]


def summed(acc: Any) -> Any:
    """C, a sum of each kind, and a reduction that is none."""
    return acc, tw.row_sum(acc), tw.col_sum(acc * 2 + 1), tw.row_absmax(acc)


def in_numpy(acc: Array) -> tuple[Array, ...]:
    return acc, acc.sum(-1), (acc * 2 + 1).sum(-2), np.abs(acc).max(-1, initial=0)


def check(where: str, a: Array, b: Array, **options: Any) -> None:
    found = matmul(a, b, epilogue=summed, backend=where, **options)
    wanted = in_numpy(np.matmul(a.astype(np.float64), b.astype(np.float64)))
    same(found[0], wanted[0].astype(np.float32).astype(found[0].dtype))
    for one, other in zip(found[1:], wanted[1:], strict=True):
        same(one, other.astype(np.float32))


def padded(array: Array) -> Array:
    """The same with rows that start on 16-byte boundaries."""
    rows, cols = array.shape
    wide = np.zeros((rows, (cols + 7) // 8 * 8), array.dtype)
    wide[:, :cols] = array
    return wide[:, :cols]


@pytest.mark.parametrize("case", KERNELS, ids=lambda case: case.name)
def test_every_kernel_sums(where: str, case: Case) -> None:
    (m, n, k), plan = case.shape, case.plan
    a, b = integers(1, (m, k), plan.dtype), integers(2, (k, n), plan.dtype)
    b = padded(b) if plan.b_layout == "row" else padded(b.T.copy()).T
    c = padded(np.zeros((m, n), plan.c_dtype.numpy))
    outs = (c, *(np.full(length, np.nan, np.float32) for length in (m, n, m)))
    options: dict[str, Any] = {"plan": plan, "out": outs}
    assert explain(a, b, epilogue=summed, backend=where, **options).kernel == plan.of
    check(where, a, b, **options)


def bound(emulator: EmulatorBackend, case: Case) -> BoundEpilogue:
    """A sum of rows and one of columns, with memory for the partial sums of a case's kernel."""
    (m, n, _), lanes = case.shape, case.plan.lanes
    composed = compose(fn=lambda acc: (acc, tw.row_sum(acc), tw.col_sum(acc)), out_dtypes=[case.plan.c_dtype])
    values = {}
    for name, partials in {
        "out1": Partials("row", m, lanes.column_blocks(n)), "out2": Partials("column", n, lanes.row_blocks(m))
    }.items():  # fmt: skip
        memory = emulator.empty(1, partials.elements, FP32)
        values[name] = replace(partials.array(memory.pointer), owner=memory.owner)
    return BoundEpilogue(composed.code, values)


@pytest.mark.parametrize("case", ALL_KINDS, ids=lambda case: case.name)
def test_nothing_races_in_the_epilogue(emulator: EmulatorBackend, case: Case) -> None:
    assert checked(emulator, case.kernel, case.plan, case.operands(emulator), bound(emulator, case))


def test_nothing_races_where_partial_sums_are_added_up(emulator: EmulatorBackend) -> None:
    partials = Partials("row", 11, 70, (1, 2, 1))
    memory = emulator.upload(integers(1, (1, partials.elements), FP32))
    results = emulator.empty(2, 11, FP32, 13)
    to = Sum("out1", "row_sum", "row", 0, 0, 1, (0, 13, 0)).result(results.pointer)
    launch = sums.prepare(emulator, partials, memory, replace(to, owner=results.owner))
    checks = (emulator, sums.source(emulator), launch.grid, launch.block, launch.args, launch.shared_bytes)
    check_bounds(*checks)
    check_races(*checks)
    wanted = emulator.download(memory).reshape(2, 70, 16)[:, :, :11].sum(1)
    np.testing.assert_array_equal(emulator.download(results), wanted)
    short = replace(memory, cols=partials.elements - 1, ld=partials.elements - 1)
    with pytest.raises(UsageError, match=f"memory for partial sums is a row of {partials.elements - 1} fp32"):
        sums.prepare(emulator, partials, short, to)


def tree(parts: Array) -> Array:
    """The sum along the first axis, of a length that is a power of two: halves are added, and halves of these."""
    while len(parts) > 1:
        parts = parts[: len(parts) // 2] + parts[len(parts) // 2 :]
    found: Array = parts[0]
    return found


def in_order(values: Array, lanes: Lanes, along: str) -> Array:
    """The sums of rows, or columns, as docs/epilogues.md says they are made."""
    down, across = lanes.down * lanes.apart, lanes.across * lanes.neighbours
    m, n = (-(-size // step) * step for size, step in zip(values.shape, (down, across), strict=True))
    there = np.full((m, n), -0.0, np.float32)
    there[: len(values), : values.shape[1]] = values
    if along == "row":
        blocks = there.reshape(m, n // across, lanes.across, lanes.neighbours)
        first = blocks[..., 0]
        for e in range(1, lanes.neighbours):
            first = first + blocks[..., e]
        while first.shape[-1] > 1:  # neighbouring lanes first
            first = first[..., 0::2] + first[..., 1::2]
        partials = first[..., 0].T
    else:
        blocks = there.reshape(m // down, lanes.down, lanes.apart, n)
        partials = tree(np.moveaxis(blocks, 1, 0)).reshape(-1, n)
    count = -(-len(partials) // 64) * 64
    all_of_them = np.full((count, partials.shape[1]), -0.0, np.float32)
    all_of_them[: len(partials)] = partials
    parts = all_of_them.reshape(-1, 64, partials.shape[1])
    total = parts[0]
    for each in parts[1:]:
        total = total + each
    return tree(total)[: len(values) if along == "row" else values.shape[1]]


@pytest.mark.parametrize("shape", [(70, 77), (9, 600)], ids=str)
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_the_order_is_the_documented_one(where: str, dtype: DType, shape: tuple[int, int]) -> None:
    n = shape[1]
    rng = np.random.default_rng(3)
    values = (rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4, shape)).astype(dtype.numpy)
    plan = next(each.plan for each in CASES if each.name == ("rung5-fp32" if dtype == BF16 else "simt-fp32"))
    a, b = padded(values), padded(np.eye(n, dtype=dtype.numpy))  # each element of the product is exact
    acc = values.astype(np.float32)
    for _ in range(2):
        outs = (padded(np.zeros(shape, np.float32)), *(np.zeros(length, np.float32) for length in (*shape, shape[0])))
        _, rows, columns, _ = matmul(a, b, epilogue=summed, plan=plan, out=outs, backend=where)
        np.testing.assert_array_equal(rows.view(np.uint32), in_order(acc, plan.lanes, "row").view(np.uint32))
        np.testing.assert_array_equal(columns, in_order(acc * np.float32(2) + np.float32(1), plan.lanes, "column"))
        magnitude = np.abs(acc).astype(np.float64).sum(-1)
        assert (np.abs(rows - acc.astype(np.float64).sum(-1)) <= 16 * 2.0**-24 * magnitude).all()


def test_batches_and_column_major_results(where: str) -> None:
    for one, other in [((2, 3, 9, 40), (3, 40, 24)), ((5, 9, 40), (40, 24)), ((1, 40), (5, 40, 1)), ((1, 40), (40, 9))]:
        check(where, integers(1, one, BF16), integers(2, other, BF16))
    a, b = integers(1, (33, 72), BF16), integers(2, (72, 40), BF16)
    check(
        where, a, b, out=(np.zeros((40, 33), BF16.numpy).T, *(np.zeros(length, np.float32) for length in (33, 40, 33)))
    )


def test_what_is_not_finite_and_what_is_nothing(where: str) -> None:
    a, b = integers(1, (33, 72), BF16), integers(2, (72, 40), BF16)
    a[3, 5], a[4, 6], b[5, 7], b[6] = np.inf, np.nan, 1, 1
    with np.errstate(invalid="ignore"):
        wanted = in_numpy(np.matmul(a.astype(np.float32), b.astype(np.float32)))
    for one, other in zip(matmul(a, b, epilogue=summed, backend=where)[1:3], wanted[1:3], strict=True):
        np.testing.assert_array_equal(one, other)
    check(where, a[:, :0], b[:0])  # K = 0
    for found, length in ((matmul(a, b[:, :0], epilogue=summed, backend=where)[1], 33),
                          (matmul(a[:0], b, epilogue=summed, backend=where)[2], 40)):  # fmt: skip
        np.testing.assert_array_equal(found, np.zeros(length))
    minus = matmul(a[:3, :8], np.zeros((8, 40), BF16.numpy), epilogue=lambda acc: (acc, tw.row_sum(-1 * (acc + 0.0))),
                   backend=where)[1]  # fmt: skip
    np.testing.assert_array_equal(np.signbit(minus), [True] * 3)


def test_a_pair_and_a_prepared_call(where: str) -> None:
    a, gate, up = integers(1, (33, 72), BF16), integers(2, (72, 40), BF16), integers(3, (72, 40), BF16)
    first, second = (np.matmul(a.astype(np.float32), b.astype(np.float32)) for b in (gate, up))
    found = matmul(a, (gate, up), epilogue=lambda g, u: (g * u, tw.row_sum(g), tw.col_sum(u)), backend=where)
    np.testing.assert_array_equal(found[1], first.sum(-1))
    np.testing.assert_array_equal(found[2], second.sum(-2))
    with Matmul(a, gate, epilogue=summed, backend=where) as prepared:
        for other in (gate, up):
            wanted = in_numpy(np.matmul(a.astype(np.float32), other.astype(np.float32)))
            for one, expected in zip(prepared.execute(b=other)[1:], wanted[1:], strict=True):
                np.testing.assert_array_equal(one, expected)


def test_a_row_has_the_same_sum_for_every_number_of_rows(where: str) -> None:
    rng = np.random.default_rng(4)
    a, b = (rng.standard_normal(shape, np.float32).astype(BF16.numpy) for shape in ((70, 64), (64, 200)))
    called: dict[str, Any] = {"epilogue": lambda acc: (acc, tw.row_sum(acc)), "batch_invariant": True, "backend": where}
    every = matmul(a, b, **called)[1]
    for rows in (1, 9):
        np.testing.assert_array_equal(matmul(a[:rows], b, **called)[1].view(np.uint32), every[:rows].view(np.uint32))


def question_of(a: Any, b: Any, fn: Any) -> Any:
    (laid,) = laid_out(Matmul(a, b, epilogue=fn, backend="emulator").request)
    return laid.question


def test_explain_says_what_runs_after_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = integers(1, (128, 64), BF16), integers(2, (64, 256), BF16)
    plain, told = (explain(a, b, epilogue=fn, backend="emulator") for fn in (tw.relu, summed))
    lanes = next(each.plan.lanes for each in CASES if each.plan.of == told.kernel)
    for mark, count, kept in (
        ("row_sum", lanes.column_blocks(256), "128 row"), ("col_sum", lanes.row_blocks(128), "256 column")
    ):  # fmt: skip
        assert f"{mark} by a second kernel, which adds up {count} partial sums of each of {kept}s from" in str(told)
    assert plain.workspace_bytes == 0
    assert told.workspace_bytes >= 4 * (lanes.column_blocks(256) * 128 + lanes.row_blocks(128) * 256)
    machine, _ = machine_of(None, None, None)
    assert told.predicted_us is not None
    more = told.predicted_us - answers.answer(question_of(a, b, summed)).us
    launches = 2 * machine.calibration.launch_us
    assert launches < more < launches + 1, "two kernels and a few kilobytes"
    large = Partials("row", 2**16, 2**13)  # 2 GiB, which L2 does not hold
    seconds = large.nbytes / machine.calibration.hbm_read_bytes_per_s
    assert predicted_us(large, machine) == pytest.approx(machine.calibration.launch_us + seconds * 1e6, rel=0.01)
    assert predicted_us(Partials("row", 0, 4), machine) == 0
    monkeypatch.setattr(warm, "cuda_unavailable_reason", lambda: "none is asked for")
    (made,) = tw.warmup("128x256x64", epilogue=summed)
    assert made.kernels[-2:] == ("sum", "sum")


@pytest.mark.parametrize("lanes", [ALONE, FRAGMENT, Lanes(4, 4, 8, 4)], ids=str)
def test_blocks_of_lanes(lanes: Lanes) -> None:
    for size in (1, 7, 8, 9, 33, 64):
        rows = {(i // (lanes.down * lanes.apart), i % lanes.apart) for i in range(size)}
        assert len(rows) <= lanes.row_blocks(size) <= len({row for row, _ in rows}) * lanes.apart
        assert lanes.column_blocks(size) == len({j // (lanes.across * lanes.neighbours) for j in range(size)})


def test_too_many_partial_sums_are_refused() -> None:
    with pytest.raises(UsageError, match="sums 65536 rows of 65536 partial sums each; the kernels count fewer than"):
        Partials("row", 2**16, 2**16)
    assert Partials("row", 2**16, 2**16 - 1).nbytes == 2**34 - 2**18


@pytest.mark.cuda
def test_a_graph_sums_again(cuda: Any) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch was built without CUDA")
    ready.close_all()  # the first call ever is captured
    a, b = (torch.randint(-4, 5, shape, device="cuda").to(torch.bfloat16) for shape in ((300, 256), (256, 520)))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = matmul(a, b, epilogue=summed)
    for _ in range(3):
        a.copy_(torch.randint(-4, 5, a.shape, device="cuda"))
        for each in found:
            each.fill_(float("nan"))
        graph.replay()
        acc = a.double() @ b.double()
        assert torch.equal(found[1], acc.sum(-1).float())
        assert torch.equal(found[2], (2 * acc + 1).sum(-2).float())
        assert torch.equal(matmul(a, b, epilogue=summed)[1], found[1])


@pytest.mark.cuda
@pytest.mark.parametrize("shape", [(4096, 4096, 512), (16, 8192, 4096), (256, 264, 16384)], ids=str)
def test_a_thousand_runs_have_the_same_bits(cuda: Any, shape: tuple[int, int, int]) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch was built without CUDA")
    m, n, k = shape
    torch.manual_seed(0)
    a, b = (torch.randn(size, device="cuda", dtype=torch.bfloat16) for size in ((m, k), (k, n)))
    first = matmul(a, b, epilogue=summed)
    for _ in range(1000):
        again = matmul(a, b, epilogue=summed)
        assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    acc = a.double() @ b.double()
    size = acc.abs().sum(-1)
    assert ((first[1] - acc.sum(-1)).abs() <= 1e-5 * size).all()


def test_the_loads_of_a_thread_are_in_flight_together() -> None:
    (names,) = instructions([sums.source])
    assert names[: names.index("FADD")].count("LDG") >= sums.AT_ONCE - 1
