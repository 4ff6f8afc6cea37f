"""Batches: the same product of many matrices in one launch, operands shared along any dimension, on both backends."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import pytest
from epilogue_cases import value_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ladder_cases import LAYOUTS, SMALL

from tilewright.backends.base import Backend, Matrix
from tilewright.backends.emulator import EmulatorBackend
from tilewright.backends.emulator_checks import check_bounds, check_races
from tilewright.batch import Batch, Three
from tilewright.branches import kernel
from tilewright.dtypes import BF16, FP16, FP32, DType
from tilewright.epilogue.code import ArgSpec, ArrayValue, BoundEpilogue, EpilogueCode
from tilewright.errors import EmulatorFault, UsageError
from tilewright.kernel_file import KernelFile
from tilewright.ladder import rung
from tilewright.plan_base import LARGEST_GRID, Plan
from tilewright.plan_simt32 import TILES, Simt32Plan
from tilewright.plan_tensor import TensorPlan
from tilewright.problem import Layout, Problem
from tilewright.run import Operands, default_plan, launch_arguments, prepare, run, source_for

Array = np.ndarray[Any, Any]
Layouts = tuple[Layout, Layout]


@dataclass(frozen=True)
class Case:
    """A kernel with a small plan for a batch."""

    name: str
    kernel: KernelFile
    dtype: DType
    changes: dict[str, Any]

    def plan(self, layouts: Layouts, *, aligned: bool = True) -> Plan:
        """Its plan for these layouts."""
        problem = Problem(8, 8, 8, self.dtype, None, *layouts)
        return self.kernel.plan_for(problem, aligned=aligned).with_(**self.changes, batched=True)


PINGPONG = {"bm": 64, "bn": 64, "stages": 2, "consumers": 2, "pingpong": True, "consumer_registers": 232}
CASES = [
    Case("rung5", rung(5), BF16, SMALL[5]),
    Case("rung11", rung(11), BF16, SMALL[11]),
    Case("rung11-cluster", rung(11), FP16, {**SMALL[11], "cluster_n": 2, "cluster_m": 1, "alternate_k": True}),
    Case("rung11-pingpong", rung(11), BF16, {**SMALL[11], **PINGPONG}),
    Case("simt", kernel("simt", "fp32"), FP32, dict(TILES[-1])),
]
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@dataclass(frozen=True)
class Placed:
    """Matrices of a batch in a backend's memory: the first, the elements between them, and all as NumPy has them."""

    first: Matrix
    whole: Matrix
    steps: Three
    values: Array


def placed(
    backend: Backend, values: Array, sizes: Three, dtype: DType, layout: Layout, ld: int, gap: int = 0
) -> Placed:
    """Matrices ``values`` (p, q, r, rows, cols), 1 of a dimension that all of ``sizes`` share, ``gap`` lines apart."""
    rows, cols = values.shape[3:]
    lines, line = (rows, cols) if layout == "row" else (cols, rows)
    memory = np.full((*values.shape[:3], lines + gap, ld), np.nan, np.float32)
    memory[..., :lines, :line] = values if layout == "row" else values.swapaxes(-1, -2)
    whole = backend.upload(memory.reshape(-1, ld).astype(dtype.numpy))
    apart = (lines + gap) * ld
    p, q, r = values.shape[:3]
    full = (apart * r * q, apart * r, apart)
    steps = tuple(step if size > 1 else 0 for size, step in zip((p, q, r), full, strict=True))
    first = Matrix(whole.pointer, rows, cols, ld, dtype, whole.owner, layout)
    return Placed(first, whole, steps, np.broadcast_to(values, (*sizes, rows, cols)))  # type: ignore[arg-type]


def posed(
    backend: Backend,
    plan: Plan,
    sizes: Three,
    mnk: tuple[int, int, int],
    *,
    shared: tuple[Three, Three] = ((0, 0, 0), (0, 0, 0)),
    aligned: bool = True,
    seed: int = 0,
) -> tuple[Operands, Placed, Array]:
    """Operands of small integers, along the marked dimensions of A and B one matrix; C; and the products."""
    m, n, k = mnk
    rng, chunk = np.random.default_rng(seed), 16 // plan.dtype.itemsize

    def lead(line: int) -> int:
        return -(-(line + 1) // chunk) * chunk if aligned else (line + 3) // 2 * 2 + 1

    found = []
    for operand, (rows, cols), layout in ((0, (m, k), plan.a_layout), (1, (k, n), plan.b_layout)):
        of = tuple(1 if one else size for size, one in zip(sizes, shared[operand], strict=True))
        values = rng.integers(-4, 5, (*of, rows, cols)).astype(np.float32)
        line = cols if layout == "row" else rows
        found.append(placed(backend, values, sizes, plan.dtype, layout, lead(line)))
    nothing = np.full((*sizes, m, n), np.nan, np.float32)
    c = placed(backend, nothing, sizes, plan.c_dtype, "row", lead(n), gap=1)
    a, b = found
    batch = Batch(sizes, a.steps, b.steps, c.steps)
    product = np.matmul(a.values, b.values)
    return Operands(a.first, b.first, c.first, batch=batch), c, product


def written(backend: Backend, c: Placed, sizes: Three) -> Array:
    """What lies in C, and that nothing else does where it has padding."""
    m, n = c.first.rows, c.first.cols
    lines = backend.download(c.whole).astype(np.float32).reshape(*sizes, m + 1, c.first.ld)
    assert np.isnan(lines[..., m, :]).all()
    assert np.isnan(lines[..., n:]).all()
    return lines[..., :m, :n]


SHARED: list[tuple[Three, Three, Three]] = [
    ((2, 3, 2), (0, 0, 0), (0, 0, 0)),
    ((2, 3, 2), (0, 1, 0), (1, 0, 1)),
    ((1, 1, 5), (0, 0, 1), (0, 0, 0)),
    ((3, 1, 1), (0, 0, 0), (1, 1, 1)),
]


@each_case
@pytest.mark.parametrize(("sizes", "a_shared", "b_shared"), SHARED)
def test_broadcast_batches_are_those_of_numpy(
    backend: Backend, case: Case, sizes: Three, a_shared: Three, b_shared: Three
) -> None:
    plan = case.plan(("row", "column"))
    operands, c, product = posed(backend, plan, sizes, (70, 77, 40), shared=(a_shared, b_shared))
    run(backend, case.kernel, operands, plan)
    np.testing.assert_array_equal(written(backend, c, sizes), product.astype(plan.c_dtype.numpy).astype(np.float32))


@pytest.mark.parametrize(("case", "layouts"), [(CASES[0], LAYOUTS[3]), (CASES[1], LAYOUTS[2]), (CASES[4], LAYOUTS[0])])
def test_layouts_and_strides(backend: Backend, case: Case, layouts: Layouts) -> None:
    check_strides(backend, case, layouts)


@pytest.mark.cuda
@pytest.mark.parametrize("layouts", LAYOUTS, ids=lambda pair: f"{pair[0][0]}{pair[1][0]}")
@each_case
def test_every_layout(cuda: Backend, case: Case, layouts: Layouts) -> None:
    check_strides(cuda, case, layouts)


def check_strides(backend: Backend, case: Case, layouts: Layouts) -> None:
    for aligned in (True,) if case.kernel.uses_tma else (True, False):
        plan, sizes = case.plan(layouts, aligned=aligned), (2, 1, 2)
        operands, c, product = posed(backend, plan, sizes, (65, 9, 24), shared=((1, 0, 0), (0, 0, 0)), aligned=aligned)
        assert operands.aligned is aligned
        run(backend, case.kernel, operands, plan)
        np.testing.assert_array_equal(written(backend, c, sizes), product.astype(plan.c_dtype.numpy).astype(np.float32))


def check_any(backend: Backend, data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(CASES))
    plan = case.plan(("row", "column"))
    sizes = tuple(data.draw(st.integers(1, 3)) for _ in range(3))
    m, n, k = (data.draw(st.integers(low, 80)) for low in (1, 1, 0))
    shared: Any = tuple(tuple(data.draw(st.booleans()) for _ in range(3)) for _ in range(2))
    operands, c, product = posed(backend, plan, sizes, (m, n, k), shared=shared)  # type: ignore[arg-type]
    run(backend, case.kernel, operands, plan)
    expected = product.astype(plan.c_dtype.numpy).astype(np.float32)
    np.testing.assert_array_equal(written(backend, c, sizes), expected)  # type: ignore[arg-type]


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_anything_in_the_emulator(emulator: Backend, data: st.DataObject) -> None:
    check_any(emulator, data)


@pytest.mark.cuda
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_anything_on_a_gpu(cuda: Backend, data: st.DataObject) -> None:
    check_any(cuda, data)


@pytest.mark.cuda
@each_case
def test_more_matrices_than_a_grid_has_rows(cuda: Backend, case: Case) -> None:
    plan, sizes = case.plan(("row", "column")), (70_001, 1, 2)
    operands, c, product = posed(cuda, plan, sizes, (5, 9, 8), shared=((0, 0, 1), (0, 0, 0)))
    run(cuda, case.kernel, operands, plan)
    np.testing.assert_array_equal(written(cuda, c, sizes), product.astype(plan.c_dtype.numpy).astype(np.float32))


@pytest.mark.cuda
@each_case
def test_strides_past_32_bits(cuda: Backend, case: Case) -> None:
    """Matrices of C, then of A, so far apart that 32 bits do not reach them."""
    plan, far = case.plan(("row", "column")), 2**31 + 64
    whole = cuda.empty(1, far + 8 * 8, case.dtype)
    c = Matrix(whole.pointer, 8, 8, 8, case.dtype, whole.owner)
    operands, _, product = posed(cuda, plan, (1, 1, 2), (8, 8, 16))
    assert operands.batch is not None
    spread = replace(operands, c=c, batch=replace(operands.batch, c=(0, 0, far)))
    run(cuda, case.kernel, spread, plan)
    second = replace(c, pointer=c.pointer + far * case.dtype.itemsize)
    for number, matrix in enumerate((c, second)):
        np.testing.assert_array_equal(cuda.download(matrix).astype(np.float32), product[0, 0, number])
    eye = cuda.upload(np.eye(8, dtype=case.dtype.numpy), layout="column")
    out = cuda.empty(2, 64, case.dtype)
    back = Operands(
        c, eye, replace(out, rows=8, cols=8, ld=8), batch=Batch((1, 1, 2), (0, 0, far), (0, 0, 0), (0, 0, 64))
    )
    run(cuda, case.kernel, back, plan)
    np.testing.assert_array_equal(cuda.download(out).astype(np.float32).reshape(2, 8, 8), product[0, 0])


# ---- epilogues -------------------------------------------------------------------------------------------------------

RESIDUAL = EpilogueCode(
    """namespace epilogue {
constexpr bool NONE = false;
struct Args { tw::EpilogueArray<float> bias; tw::EpilogueArray<float> residual; tw::EpilogueArray<float> before; };
template <int N> __device__ __forceinline__ void apply(float (&acc)[N], const Args& args, const tw::Place& at) {
  float x0[N], x1[N];
  tw::epilogue_read<tw::Along::kColumn>(x0, args.bias, at);
  tw::epilogue_read<tw::Along::kFull>(x1, args.residual, at);
  tw::epilogue_write(args.before, acc, at);
#pragma unroll
  for (int i = 0; i < N; ++i) acc[i] = tw::add(tw::add(acc[i], x0[i]), x1[i]);
}
}  // namespace epilogue
""",
    (ArgSpec("bias", "array", FP32), ArgSpec("residual", "array", FP32)),
    (ArgSpec("before", "array", FP32),),
)


@pytest.mark.parametrize("case", [CASES[0], CASES[1], CASES[4]], ids=lambda case: case.name)
def test_arrays_of_an_epilogue_have_batches_of_their_own(backend: Backend, case: Case) -> None:
    plan, sizes, (m, n, k) = case.plan(("row", "column")), (2, 1, 3), (33, 70, 24)
    operands, c, product = posed(backend, plan, sizes, (m, n, k))
    rng = np.random.default_rng(1)
    bias, residual = (rng.integers(-9, 9, shape).astype(np.float32) for shape in ((2, 1, n), (3, m, n)))
    there = [backend.upload(x.reshape(-1, n), n + 3) for x in (bias, residual)]
    before = backend.empty(6 * m, n, FP32, n + 1)
    values: dict[str, Any] = {
        "bias": replace(value_of(there[0]), row=0, batch=(n + 3, 0, 0)),
        "residual": replace(value_of(there[1]), batch=(0, 0, m * (n + 3))),
        "before": ArrayValue(before.pointer, n + 1, 1, (3 * m * (n + 1), 0, m * (n + 1)), before.owner),
    }
    run(backend, case.kernel, operands, plan, epilogue=BoundEpilogue(RESIDUAL, values))
    expected = product + bias[:, None, None] + residual[None, None]
    np.testing.assert_array_equal(written(backend, c, sizes), expected.astype(plan.c_dtype.numpy).astype(np.float32))
    np.testing.assert_array_equal(backend.download(before).reshape(2, 1, 3, m, n), product)


# ---- what no result shows --------------------------------------------------------------------------------------------


def checked(
    emulator: EmulatorBackend, case: Case, plan: Plan, operands: Operands, right: str = "", wrong: str = ""
) -> str:
    """The kind of what is wrong with a kernel, its text changed; nothing where all is well."""
    source = source_for(emulator, case.kernel, plan)
    assert right in source.text
    source = replace(source, text=source.text.replace(right, wrong)) if right else source
    grid, args = plan.grid(operands.problem, prod(operands.sizes)), launch_arguments(emulator, plan, operands)
    blocks = list(range(grid[0]))
    first = [0, 1] if plan.cluster == 1 else [0]
    try:
        check_bounds(emulator, source, grid, plan.block, args, plan.shared_bytes, blocks, cluster=plan.cluster)
        check_races(emulator, source, grid, plan.block, args, plan.shared_bytes, first, cluster=plan.cluster)
    except EmulatorFault as fault:
        return fault.kind
    return ""


@each_case
def test_no_races_and_no_access_out_of_bounds(case: Case) -> None:
    emulator, plan = EmulatorBackend("lazy"), case.plan(("row", "column"))
    operands, _, _ = posed(emulator, plan, (2, 1, 2), (66, 70, 72), shared=((0, 0, 1), (1, 0, 0)))
    assert checked(emulator, case, plan, operands) == ""


@pytest.mark.parametrize("case", [CASES[0], CASES[-1]], ids=lambda case: case.name)
def test_a_matrix_too_many_is_caught(case: Case) -> None:
    emulator, plan = EmulatorBackend("lazy"), case.plan(("row", "column"))
    operands, _, _ = posed(emulator, plan, (1, 1, 2), (8, 8, 8))
    assert checked(emulator, case, plan, operands, "a_first += a(at)", "a_first += 2 * a(at)") == "out-of-bounds"


# ---- plans and mistakes ----------------------------------------------------------------------------------------------


def test_plans_of_a_batch() -> None:
    plan = rung(11).plan(BF16).with_(batched=True)
    assert isinstance(plan, TensorPlan)
    assert plan.grid(Problem(128, 256, 64, BF16), 3) == (6, 1, 1)
    assert Plan.from_dict(plan.to_dict()) == plan
    assert "batched" not in rung(11).plan(BF16).to_dict()
    with pytest.raises(UsageError, match="half_tail is True; of a batch no tile is cut in two"):
        plan.with_(half_tail=True, bm=256, bn=128)
    with pytest.raises(UsageError, match="batched is True; rungs 5 and 11 compute batches"):
        rung(9).plan(BF16).with_(batched=True)
    with pytest.raises(UsageError, match=rf"2147483648 x 8x8x8 fp32 needs 2147483648 blocks.*at most {LARGEST_GRID}"):
        Simt32Plan(batched=True).grid(Problem(8, 8, 8), 2**31)


def test_a_batch_without_products_launches_nothing(backend: Backend) -> None:
    case, plan = CASES[-1], CASES[-1].plan(("row", "row"))
    operands, _, _ = posed(backend, plan, (1, 1, 2), (8, 8, 8))
    assert operands.batch is not None
    launch = prepare(backend, case.kernel, plan, replace(operands, batch=replace(operands.batch, sizes=(1, 0, 2))))
    assert launch.grid[0] == 0


def test_the_default_plan_is_for_what_the_operands_are(backend: Backend) -> None:
    case = CASES[1]
    operands, _, _ = posed(backend, case.plan(("row", "row")), (1, 1, 2), (64, 64, 64))
    assert default_plan(case.kernel, operands).batched
    assert not default_plan(case.kernel, replace(operands, batch=None)).batched


def test_what_is_refused(backend: Backend) -> None:
    simt, main = CASES[-1], CASES[1]
    plan = simt.plan(("row", "row"))
    operands, _, _ = posed(backend, plan, (1, 1, 2), (8, 8, 8))
    batch = operands.batch
    assert batch is not None
    with pytest.raises(UsageError, match="plan is of a batch and the operands are not"):
        prepare(backend, simt.kernel, plan, replace(operands, batch=None))
    with pytest.raises(UsageError, match="plan is of one product and the operands are not"):
        prepare(backend, simt.kernel, plan.with_(batched=False), operands)
    with pytest.raises(UsageError, match="rows on 16-byte boundaries and an operand's rows are not"):
        prepare(backend, simt.kernel, plan, replace(operands, batch=replace(batch, b=(0, 0, 97))))
    with pytest.raises(UsageError, match="C shares memory with A"):
        prepare(backend, simt.kernel, plan, replace(operands, c=replace(operands.a, layout="row")))
    with pytest.raises(
        UsageError, match=r"batch strides of C are \(0, 0, 0\) for sizes \(1, 1, 2\): all would write one"
    ):
        replace(batch, c=(0, 0, 0))
    with pytest.raises(UsageError, match=r"batch sizes are \(-1, 1, 2\); each must be at least 0"):
        replace(batch, sizes=(-1, 1, 2))
    tiled, _, _ = posed(backend, main.plan(("row", "row")), (1, 1, 2), (8, 8, 8))
    assert tiled.batch is not None
    for steps, says in (
        ((0, 0, 4), "moves A by TMA, whose lines start on 16-byte"),
        ((0, 0, -64), "TMA, which steps forwards"),
    ):
        with pytest.raises(UsageError, match=says):
            prepare(
                backend, main.kernel, main.plan(("row", "row")), replace(tiled, batch=replace(tiled.batch, a=steps))
            )
