"""Every rung is right on both backends, in its dtypes, for any shape, stride and start of its operands.

The rungs that move operands by TMA, which is particular about these, are in test_tensor_rungs.py.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ladder_cases import SMALL, UNALIGNED_CASES, check_far_lines, named, padded, part, product, rung_4_plans, vast

from tilewright.backends.base import Backend, Kernel, Matrix
from tilewright.backends.emulator import EmulatorBackend
from tilewright.backends.emulator_checks import check_bounds, check_races
from tilewright.backends.emulator_runtime import Policy
from tilewright.dtypes import BF16, FP16, FP32, DType
from tilewright.errors import UsageError
from tilewright.ladder import Rung, rungs
from tilewright.operands import random_operands
from tilewright.plan_base import Plan
from tilewright.problem import SIZE_LIMIT, Problem
from tilewright.run import Operands, make_operands, prepare, run, source_for
from tilewright.source import KernelSource

every_rung = pytest.mark.parametrize(("rung", "dtype"), UNALIGNED_CASES, ids=named(UNALIGNED_CASES))
SHAPES = [
    (256, 512, 64),  # whole tiles of every plan
    (129, 257, 33),  # one more than a tile each way
    (127, 255, 31),  # one less
    (255, 513, 127),
    (300, 76, 52),
    (1, 1, 1),
    (1, 300, 70),
    (300, 1, 70),
    (70, 300, 1),
    (2, 3, 257),
]


# ---- shapes ----------------------------------------------------------------------------------------------------------


@every_rung
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
def test_any_shape(backend: Backend, rung: Rung, dtype: DType, shape: tuple[int, int, int]) -> None:
    tight = product(backend, rung, Problem(*shape, dtype))
    for aligned in (True, False):
        plan = rung.plan(dtype, aligned=aligned)
        np.testing.assert_array_equal(product(backend, rung, padded(*shape, dtype, aligned=aligned), plan), tight)
    # An unaligned plan is for any operands, also those that are aligned.
    loose = padded(*shape, dtype, aligned=True)
    np.testing.assert_array_equal(product(backend, rung, loose, rung.plan(dtype, aligned=False)), tight)


@pytest.mark.cuda
@every_rung
@pytest.mark.parametrize("shape", [(4095, 4097, 1023), (655361, 10, 10), (10, 655361, 10)])
def test_large_and_ragged(cuda: Backend, rung: Rung, dtype: DType, shape: tuple[int, int, int]) -> None:
    product(cuda, rung, Problem(*shape, dtype))


@every_rung
@pytest.mark.parametrize("aligned", [True, False])
def test_a_sum_of_nothing_is_zero(backend: Backend, rung: Rung, dtype: DType, aligned: bool) -> None:
    # A and B have no elements at all, so that reading any is a fault.
    for m, n in ((130, 260), (1, 1)):
        c = product(backend, rung, padded(m, n, 0, dtype, aligned=aligned), rung.plan(dtype, aligned=aligned))
        np.testing.assert_array_equal(c.view(np.uint8), 0)


@every_rung
def test_an_empty_c_launches_nothing(
    backend: Backend, rung: Rung, dtype: DType, monkeypatch: pytest.MonkeyPatch
) -> None:
    canvas = backend.empty(8, 16, dtype)

    def launch(*_: object, **__: object) -> None:
        raise AssertionError("launched")

    with monkeypatch.context() as patch:
        patch.setattr(backend, "launch", launch)
        for m, n, k in ((0, 12, 5), (7, 0, 5), (0, 0, 0), (0, 12, 0)):
            a, b = (
                backend.upload(np.ones((m, k), dtype.numpy), k + 8),
                backend.upload(np.ones((k, n), dtype.numpy), n + 8),
            )
            run(backend, rung, Operands(a, b, part(canvas, m, n)))
    assert np.isnan(backend.download(canvas).astype(np.float32)).all()
    product(backend, rung, Problem(5, 6, 7, dtype))  # and the next launch is a good one


def test_operands_without_elements_need_no_leading_dimension(backend: Backend) -> None:
    for m, n, k in ((3, 4, 0), (0, 4, 3), (3, 0, 4), (0, 0, 0)):
        a, b = (backend.upload(np.ones(shape, np.float32)) for shape in ((m, k), (k, n)))
        c = backend.empty(m, n, FP32)
        run(backend, rungs()[0], Operands(a, b, c))
        np.testing.assert_array_equal(backend.download(c), np.zeros((m, n), np.float32))


@every_rung
def test_a_row_does_not_depend_on_the_others(backend: Backend, rung: Rung, dtype: DType) -> None:
    a, b = random_operands(Problem(140, 270, 70, dtype))
    whole = product(backend, rung, Problem(140, 270, 70, dtype), pair=(a, b))
    again = product(backend, rung, Problem(140, 270, 70, dtype), pair=(a, b))
    np.testing.assert_array_equal(again, whole)
    for m, n in ((1, 1), (7, 129), (129, 64)):
        fewer = np.ascontiguousarray(a[-m:]), np.ascontiguousarray(b[:, :n])
        np.testing.assert_array_equal(
            product(backend, rung, Problem(m, n, 70, dtype), pair=fewer), whole[-m:, :n], err_msg=f"{m}x{n}"
        )


def check_any(backend: Backend, data: st.DataObject) -> None:
    rung, dtype = data.draw(st.sampled_from(UNALIGNED_CASES))
    size = st.one_of(st.integers(0, 140), st.sampled_from([0, 1, 31, 32, 33, 63, 64, 65, 127, 128, 129]))
    m, n, k = (data.draw(size, label=name) for name in "mnk")
    pads = [data.draw(st.integers(0, 9), label=f"padding of {name}") for name in "abc"]
    lda, ldb, ldc = (max(row, 1) + pad for row, pad in zip((k, n, n), pads, strict=True))
    problem = Problem(m, n, k, dtype, lda=lda, ldb=ldb, ldc=ldc)
    changes = SMALL[rung.number] if data.draw(st.booleans(), label="small tiles") else {}
    aligned = all(ld * dtype.itemsize % 16 == 0 for ld in (lda, ldb, ldc)) and data.draw(st.booleans(), label="aligned")
    product(
        backend, rung, problem, rung.plan(dtype, aligned=aligned).with_(**changes), seed=data.draw(st.integers(0, 9))
    )


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_anything_in_the_emulator(emulator: Backend, data: st.DataObject) -> None:
    check_any(emulator, data)


@pytest.mark.cuda
@settings(max_examples=500, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_anything_on_a_gpu(cuda: Backend, data: st.DataObject) -> None:
    check_any(cuda, data)


# ---- plans -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [*rung_4_plans(FP32), *rung_4_plans(BF16)], ids=lambda p: (
    f"{p.bm}x{p.bn}x{p.bk}-{p.tm}x{p.tn}-{p.warps_m}x{p.warps_n}-{p.dtype}"
))  # fmt: skip
def test_rung_4_with_other_tiles(backend: Backend, plan: Plan) -> None:
    m, n, k = 2 * plan.bm + 44, 2 * plan.bn + 36, 3 * plan.bk + 4  # whole tiles, then one that is not, each way
    product(backend, rungs()[4], padded(m, n, k, plan.dtype, aligned=True), plan)


@every_rung
@pytest.mark.parametrize("aligned", [True, False])
def test_small_tiles(backend: Backend, rung: Rung, dtype: DType, aligned: bool) -> None:
    plan = rung.plan(dtype, aligned=aligned).with_(**SMALL[rung.number])
    product(backend, rung, padded(139, 203, 41, dtype, aligned=aligned), plan)


@pytest.mark.parametrize(
    ("rung", "dtype", "changes"),
    [(rung, dtype, e.changes) for rung, dtype in UNALIGNED_CASES for e in rung.counter_examples if dtype in e.dtypes],
)
def test_counter_examples_are_slow_and_not_wrong(
    backend: Backend, rung: Rung, dtype: DType, changes: dict[str, object]
) -> None:
    product(backend, rung, padded(140, 150, 40, dtype, aligned=True), rung.plan(dtype).with_(**changes))


# ---- strides and alignment -------------------------------------------------------------------------------------------


@every_rung
@pytest.mark.parametrize("odd", ["a", "b", "c"])
@pytest.mark.parametrize("how", ["leading dimension", "base pointer"])
def test_one_misaligned_operand_takes_the_unaligned_plan(
    backend: Backend, rung: Rung, dtype: DType, odd: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    m, n, k = 131, 132, 40
    values = random_operands(Problem(m, n, k, dtype))
    shapes = {"a": (m, k), "b": (k, n), "c": (m, n)}
    wholes: dict[str, Matrix] = {}
    views: dict[str, Matrix] = {}
    for name, (rows, cols) in shapes.items():
        shift = int(name == odd and how == "base pointer")
        ld = -(-(cols + 1) // 8) * 8 + int(name == odd and how == "leading dimension")
        canvas = np.full((rows + 1, cols + shift), np.nan, dtype.numpy)  # a row more, and a column before
        if name != "c":
            canvas[:rows, shift:] = values["ab".index(name)]
        wholes[name] = backend.upload(canvas, ld)
        views[name] = part(wholes[name], rows, cols, col=shift)
    operands = Operands(views["a"], views["b"], views["c"])
    assert not operands.aligned
    with pytest.raises(UsageError, match=r"rows on 16-byte boundaries .* use aligned=False"):
        prepare(backend, rung, rung.plan(dtype, aligned=True), operands)

    compile_ = backend.compile
    compiled: list[KernelSource] = []

    def keep(source: KernelSource) -> Kernel:
        compiled.append(source)
        return compile_(source)

    monkeypatch.setattr(backend, "compile", keep)
    run(backend, rung, operands)
    assert ["constexpr bool ALIGNED = false;" in source.text for source in compiled] == [True]

    found = backend.download(wholes["c"])
    shift = found.shape[1] - n
    np.testing.assert_array_equal(found[:m, shift:], product(backend, rung, Problem(m, n, k, dtype), pair=values))
    assert np.isnan(found[m:].astype(np.float32)).all(), "the row after C"
    assert np.isnan(found[:, :shift].astype(np.float32)).all(), "the column before C"
    assert backend.padding_intact(wholes["c"])


@pytest.mark.parametrize("ld", [None, 6, 9])
@pytest.mark.parametrize("dtype", [FP32, BF16, FP16], ids=str)
def test_column_major_matrices(backend: Backend, dtype: DType, ld: int | None) -> None:
    values = np.arange(48).reshape(6, 8).astype(dtype.numpy)
    columns = backend.upload(values, ld, "column")
    assert (columns.rows, columns.cols, columns.ld, columns.layout) == (6, 8, ld or 6, "column")
    np.testing.assert_array_equal(backend.download(columns), values)
    # The same memory by rows is the transpose.
    rows = Matrix(columns.pointer, 8, 6, columns.ld, dtype, columns.owner)
    np.testing.assert_array_equal(backend.download(rows), values.T)
    assert backend.padding_intact(columns)
    assert backend.padding_intact(part(backend.empty(6, 8, dtype, ld, "column"), 5, 3, row=1, col=2))
    assert not backend.padding_intact(part(columns, 4, 8))
    np.testing.assert_array_equal(backend.download(part(columns, 3, 4, row=2, col=3)), values[2:5, 3:7])
    with pytest.raises(UsageError, match="ld"):
        backend.upload(values, 5, "column")


def test_a_view_is_read_back_from_where_it_points(backend: Backend) -> None:
    values = np.arange(48, dtype=np.float32).reshape(6, 8)
    view = part(backend.upload(values, 10), 3, 5, row=2, col=3)
    np.testing.assert_array_equal(backend.download(view), values[2:5, 3:8])
    inner = part(backend.empty(6, 8, FP32), 3, 5, row=2, col=3)
    assert backend.padding_intact(inner)


@every_rung
def test_the_stride_of_a_single_row_does_not_matter(backend: Backend, rung: Rung, dtype: DType) -> None:
    problem = Problem(1, 64, 40, dtype, lda=41, ldc=67)
    pair = random_operands(problem)
    assert make_operands(backend, problem, *pair).aligned
    product(backend, rung, problem, pair=pair)


def test_operands_that_do_not_fit_are_told_with_their_shapes(emulator: Backend) -> None:
    a, b, c = (emulator.empty(*shape, FP32) for shape in ((2, 3), (4, 5), (2, 5)))
    with pytest.raises(UsageError, match=r"A 2x3, B 4x5, C 2x5; C \(m, n\) = A \(m, k\) B \(k, n\)"):
        run(emulator, rungs()[0], Operands(a, b, c))


def test_c_has_memory_of_its_own(backend: Backend) -> None:
    rung, plan = rungs()[0], rungs()[0].plan(FP32, aligned=False)
    whole = backend.upload(np.ones((8, 24), np.float32))
    a, b, other = (part(whole, 8, 8, col=col) for col in (0, 8, 16))  # side by side, in each other's padding
    run(backend, rung, Operands(a, b, other), plan)
    np.testing.assert_array_equal(backend.download(other), np.full((8, 8), 8, np.float32))
    run(backend, rung, Operands(a, a, other), plan)  # A and B are only read
    for operands, name in ((Operands(a, b, a), "A"), (Operands(other, a, part(whole, 8, 8, col=1)), "B")):
        with pytest.raises(UsageError, match=f"C shares memory with {name}, which blocks still read"):
            prepare(backend, rung, plan, operands)


@pytest.mark.parametrize("odd", ["a", "b", "c"])
def test_operands_of_several_dtypes_are_told_with_them(emulator: Backend, odd: str) -> None:
    kinds = {name: BF16 if name == odd else FP32 for name in "abc"}
    a, b, c = (emulator.empty(8, 8, kind) for kind in kinds.values())
    told = {
        "a": "A bf16, B fp32; both must be the same",
        "b": "A fp32, B bf16; both must be the same",
        "c": "rung 0 writes C in fp32 by this plan, and C is bf16",
    }
    with pytest.raises(UsageError, match=f"dtypes do not fit: {told[odd]}"):
        run(emulator, rungs()[0], Operands(a, b, c), rungs()[0].plan(FP32))


def test_a_plan_is_of_the_rung_and_the_dtype_that_it_is_run_with(emulator: Backend) -> None:
    operands = Operands(*(emulator.empty(8, 8, FP32) for _ in "abc"))
    with pytest.raises(UsageError, match=r"plan is of rung 2; rung 0 \(naive\) needs one of its own"):
        prepare(emulator, rungs()[0], rungs()[2].plan(FP32), operands)
    with pytest.raises(UsageError, match="plan is for bf16 and the operands are fp32: both must be the same"):
        prepare(emulator, rungs()[0], rungs()[0].plan(BF16), operands)


# ---- values ----------------------------------------------------------------------------------------------------------


@every_rung
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_in_its_row_or_column(
    backend: Backend, rung: Rung, dtype: DType, value: float
) -> None:
    m, n, k = 130, 135, 50
    problem = padded(m, n, k, dtype, aligned=True)
    a, b = random_operands(problem, fill="positive")
    clean = product(backend, rung, problem, pair=(a, b))
    for i, kk in ((0, 0), (129, 49), (64, 31)):  # in a corner, in the ragged tile and the ragged K-step, in between
        poisoned = a.copy()
        poisoned[i, kk] = value
        found = product(backend, rung, problem, pair=(poisoned, b))
        np.testing.assert_array_equal(found[i].astype(np.float32), np.full(n, value, np.float32))
        np.testing.assert_array_equal(np.delete(found, i, 0), np.delete(clean, i, 0))
    for kk, j in ((0, 0), (49, 134), (15, 63)):
        poisoned = b.copy()
        poisoned[kk, j] = value
        found = product(backend, rung, problem, pair=(a, poisoned))
        np.testing.assert_array_equal(found[:, j].astype(np.float32), np.full(m, value, np.float32))
        np.testing.assert_array_equal(np.delete(found, j, 1), np.delete(clean, j, 1))


@every_rung
@pytest.mark.parametrize("k", [2, 33, 200])
def test_sums_are_kept_in_fp32(backend: Backend, rung: Rung, dtype: DType, k: int) -> None:
    # Data on which every accumulator and every rounding of fp32 inputs to 11 bits or fewer fails.
    product(backend, rung, Problem(40, 72, k, dtype), fill="probe")


@every_rung
def test_integers_are_summed_exactly(backend: Backend, rung: Rung, dtype: DType) -> None:
    problem = Problem(131, 70, 120, dtype)
    a, b = random_operands(problem, fill="integers")
    exact = (a.astype(np.int64) @ b.astype(np.int64)).astype(np.float32)
    np.testing.assert_array_equal(product(backend, rung, problem, pair=(a, b)), exact.astype(dtype.numpy))


@every_rung
def test_overflow_of_the_output_is_infinite(backend: Backend, rung: Rung, dtype: DType) -> None:
    big = 2.0**8 if dtype is FP16 else 2.0**100
    a, b = np.array([[big], [-big], [1.0]], dtype.numpy), np.array([[big, 3.0]], dtype.numpy)
    found = product(backend, rung, Problem(3, 2, 1, dtype), pair=(a, b)).astype(np.float64)
    np.testing.assert_array_equal(found, [[np.inf, 3 * big], [-np.inf, -3 * big], [big, 3]])


# ---- offsets beyond 32 bits ------------------------------------------------------------------------------------------


@every_rung
@pytest.mark.parametrize("aligned", [True, False])
def test_offsets_beyond_32_bits(backend: Backend, rung: Rung, dtype: DType, aligned: bool) -> None:
    plan = rung.plan(dtype, aligned=aligned)
    check_far_lines(backend, rung, plan)


@every_rung
def test_the_last_block_of_the_widest_c(emulator: EmulatorBackend, rung: Rung, dtype: DType) -> None:
    # n is as large as a problem may be, and there are two rows of tiles; only the last block runs.
    plan = rung.plan(dtype, aligned=False)
    m, n = plan.bm + 1, SIZE_LIMIT - 1
    a = emulator.upload(np.arange(1, m + 1).reshape(m, 1).astype(dtype.numpy))
    b, c = vast(emulator, 1, n, dtype, n), vast(emulator, m, n, dtype, n)
    rows = [np.frombuffer(x.owner, dtype.numpy, 2, ((x.rows - 1) * n + n - 2) * dtype.itemsize) for x in (b, c)]
    rows[0][:] = 2, 3
    launch = prepare(emulator, rung, plan, Operands(a, b, c))
    emulator.launch(
        launch.kernel, launch.grid, launch.block, launch.args, launch.shared_bytes, blocks=[launch.grid[0] - 1]
    )
    last = np.float32(dtype.numpy.type(m))
    np.testing.assert_array_equal(rows[1].astype(np.float32), (last * np.array([2, 3])).astype(dtype.numpy))


# ---- what only the emulator shows ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "seed"), [("eager", 0), ("lazy", 0), *(("random", seed) for seed in range(6))])
def test_rung_4_waits_for_its_copies(policy: Policy, seed: int) -> None:
    emulator = EmulatorBackend(policy, seed=seed)
    for dtype in (FP32, BF16):
        for plan in (rungs()[4].plan(dtype), rung_4_plans(dtype)[0]):
            product(emulator, rungs()[4], padded(130, plan.bn + 260, 5 * plan.bk + 3, dtype, aligned=True), plan)


@every_rung
@pytest.mark.parametrize("check", [check_bounds, check_races])
@pytest.mark.parametrize(("policy", "missing"), [("eager", "half a tile"), ("lazy", "one row and column")])
def test_interior_and_corner_blocks_are_clean(
    rung: Rung, dtype: DType, check: Callable[..., None], policy: Policy, missing: str
) -> None:
    emulator, plan = EmulatorBackend(policy), rung.plan(dtype)
    m, n = (3 * tile - (tile // 2 if missing == "half a tile" else 1) for tile in (plan.bm, plan.bn))
    k = 2 * max(plan.bk, 16) + 3
    problem = padded(m, n, k, dtype, aligned=True)
    operands = make_operands(emulator, problem, *random_operands(problem))
    launch = prepare(emulator, rung, plan, operands)
    down, across = plan.tiles(problem)
    blocks = [plan.interior_block(problem), across - 1, (down - 1) * across, down * across - 1]
    assert blocks == [4, 2, 6, 8], "an interior block, and the ragged ends of a row, a column and both"
    source = source_for(emulator, rung, plan)
    check(emulator, source, launch.grid, launch.block, launch.args, launch.shared_bytes, blocks)
