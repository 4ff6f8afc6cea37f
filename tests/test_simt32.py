"""The fp32 kernel of the SIMT branch: any layout, size, stride and start of its operands, in each of its tiles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ladder_cases import LAYOUTS, check_far_lines, padded, part, product

import tilewright
from tilewright import branches
from tilewright.backends.base import Backend
from tilewright.backends.emulator import EmulatorBackend
from tilewright.backends.emulator_checks import check_bounds, check_races
from tilewright.checked import check
from tilewright.dtypes import BF16, FP32
from tilewright.errors import EmulatorFault, UsageError
from tilewright.operands import random_operands
from tilewright.plan_simt32 import TILES, Simt32Plan
from tilewright.problem import Layout, Problem
from tilewright.run import Operands, default_plan, launch_arguments, make_operands, prepare, run, source_for

KERNEL = branches.kernel("simt", "fp32")
Layouts = tuple[Layout, Layout]
each_layout = pytest.mark.parametrize("layouts", LAYOUTS, ids=lambda pair: f"{pair[0][0]}{pair[1][0]}")
each_tile = pytest.mark.parametrize("tile", TILES, ids=lambda t: f"{t['bm']}x{t['bn']}-{t['tm']}x{t['tn']}")


def plan_of(tile: Any, layouts: Layouts, *, aligned: bool = True) -> Simt32Plan:
    return Simt32Plan(a_layout=layouts[0], b_layout=layouts[1], aligned=aligned, **tile)


def problem_of(m: int, n: int, k: int, layouts: Layouts, *, aligned: bool = True) -> Problem:
    return padded(m, n, k, FP32, aligned=aligned, layouts=layouts)


# ---- sizes, layouts, tiles -------------------------------------------------------------------------------------------


# Every tile in some layout, every layout in some tile, aligned and not: all of them on a GPU alone.
SOME = [(tile, LAYOUTS[i % 4], i % 3 > 0) for i, tile in enumerate(TILES[:-1])]
SOME += [(TILES[-1], layouts, aligned) for layouts in LAYOUTS for aligned in (True, False)]


@pytest.mark.parametrize(("tile", "layouts", "aligned"), SOME)
def test_tiles_and_layouts(backend: Backend, tile: Any, layouts: Layouts, aligned: bool) -> None:
    check_exact(backend, tile, layouts, aligned)


@pytest.mark.cuda
@each_layout
@each_tile
@pytest.mark.parametrize("aligned", [True, False])
def test_every_tile_in_every_layout(cuda: Backend, tile: Any, layouts: Layouts, aligned: bool) -> None:
    check_exact(cuda, tile, layouts, aligned)


def check_exact(backend: Backend, tile: Any, layouts: Layouts, aligned: bool) -> None:
    plan = plan_of(tile, layouts, aligned=aligned)
    m, n, k = plan.bm + 13, plan.bn + 7, 2 * plan.bk + 5  # a whole tile, then one that is not, each way
    problem = problem_of(m, n, k, layouts, aligned=aligned)
    a, b = random_operands(problem, fill="integers")
    np.testing.assert_array_equal(product(backend, KERNEL, problem, plan, pair=(a, b)), a.astype(FP32.numpy) @ b)


@each_layout
def test_the_bits_depend_on_no_stride(backend: Backend, layouts: Layouts) -> None:
    m, n, k = 37, 75, 70
    tight = Problem(m, n, k, FP32, None, *layouts)
    found = product(backend, KERNEL, tight, plan_of(TILES[-1], layouts, aligned=tight.aligned))
    for aligned in (True, False):
        problem = problem_of(m, n, k, layouts, aligned=aligned)
        plan = plan_of(TILES[-1], layouts, aligned=aligned)
        np.testing.assert_array_equal(product(backend, KERNEL, problem, plan), found)


def check_any(backend: Backend, data: st.DataObject, tiles: Any) -> None:
    layouts = data.draw(st.sampled_from(LAYOUTS))
    size = st.one_of(st.integers(0, 140), st.sampled_from([0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129]))
    m, n, k = (data.draw(size, label=name) for name in "mnk")
    pads = [data.draw(st.integers(0, 9), label=f"padding of {name}") for name in "abc"]
    lines = (k if layouts[0] == "row" else m, n if layouts[1] == "row" else k, n)
    lda, ldb, ldc = (max(line, 1) + pad for line, pad in zip(lines, pads, strict=True))
    problem = Problem(m, n, k, FP32, None, *layouts, lda=lda, ldb=ldb, ldc=ldc)
    aligned = problem.aligned and data.draw(st.booleans(), label="aligned")
    plan = plan_of(data.draw(st.sampled_from(tiles)), layouts, aligned=aligned)
    product(backend, KERNEL, problem, plan, seed=data.draw(st.integers(0, 9)))


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_anything_in_the_emulator(emulator: Backend, data: st.DataObject) -> None:
    check_any(emulator, data, TILES[-1:])


@pytest.mark.cuda
@settings(max_examples=500, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_anything_on_a_gpu(cuda: Backend, data: st.DataObject) -> None:
    check_any(cuda, data, TILES)


@pytest.mark.cuda
@each_layout
@pytest.mark.parametrize("shape", [(4095, 4097, 1023), (655361, 10, 10), (10, 655361, 10), (1, 4096, 4096)])
def test_large_and_ragged(cuda: Backend, layouts: Layouts, shape: tuple[int, int, int]) -> None:
    product(cuda, KERNEL, Problem(*shape, FP32, None, *layouts))


@each_layout
def test_a_sum_of_nothing_is_zero(backend: Backend, layouts: Layouts) -> None:
    for aligned in (True, False):
        plan = plan_of(TILES[-1], layouts, aligned=aligned)
        c = product(backend, KERNEL, problem_of(70, 40, 0, layouts, aligned=aligned), plan)
        np.testing.assert_array_equal(c.view(np.uint8), 0)


@pytest.mark.parametrize("layouts", LAYOUTS[1:3], ids=lambda pair: f"{pair[0][0]}{pair[1][0]}")
def test_offsets_have_64_bits(backend: Backend, layouts: Layouts) -> None:
    check_far_lines(backend, KERNEL, plan_of(TILES[-1], layouts))


@each_layout
def test_what_is_not_finite_stays_in_its_row_or_column(backend: Backend, layouts: Layouts) -> None:
    m, n, k = 33, 35, 21
    a, b = random_operands(Problem(m, n, k), fill="positive")
    plan, problem = plan_of(TILES[-1], layouts), problem_of(m, n, k, layouts)
    clean = product(backend, KERNEL, problem, plan, pair=(a, b))
    for value in (np.nan, np.inf):
        poisoned = a.copy()
        poisoned[m - 1, k - 1] = value
        found = product(backend, KERNEL, problem, plan, pair=(poisoned, b))
        np.testing.assert_array_equal(found[m - 1], np.full(n, value, np.float32))
        np.testing.assert_array_equal(found[: m - 1], clean[: m - 1])


@pytest.mark.parametrize("odd", ["a", "b", "c"])
def test_one_misaligned_operand_takes_the_unaligned_plan(backend: Backend, odd: str) -> None:
    m, n, k = 21, 36, 40
    problem = Problem(m, n, k, FP32, None, "column", "row")
    a, b = random_operands(problem)
    wide = make_operands(
        backend, Problem(m + 4, n + 4, k, FP32, None, "column", "row"), np.pad(a, ((1, 3), (0, 0))),
        np.pad(b, ((0, 0), (1, 3))),
    )  # fmt: skip
    shifted: dict[str, Any] = {
        "a": part(wide.a, m, k, row=1),
        "b": part(wide.b, k, n, col=1),
        "c": part(wide.c, m, n, col=1),
    }
    operands = replace(make_operands(backend, problem.changed(lda=24), a, b), **{odd: shifted[odd]})
    plan = default_plan(KERNEL, operands)
    assert not plan.aligned
    with pytest.raises(UsageError, match="rows on 16-byte boundaries and an operand's rows are not"):
        prepare(backend, KERNEL, plan.with_(aligned=True), operands)
    run(backend, KERNEL, operands, plan)
    np.testing.assert_array_equal(backend.download(operands.c), product(backend, KERNEL, problem, pair=(a, b)))


# ---- what no result shows --------------------------------------------------------------------------------------------


@each_layout
@pytest.mark.parametrize("tile", [TILES[-1]], ids=["32x32"])
def test_no_races_and_no_access_out_of_bounds(layouts: Layouts, tile: Any) -> None:
    emulator, plan = EmulatorBackend("lazy"), plan_of(tile, layouts)
    for aligned in (True, False):
        problem = problem_of(plan.bm + 3, plan.bn + 5, 2 * plan.bk + 3, layouts, aligned=aligned)
        operands = make_operands(emulator, problem, *random_operands(problem))
        check(emulator, KERNEL, plan.with_(aligned=aligned), operands)


BREAKS = {
    "no barrier after a step": ("    __syncthreads();\n", "", "race"),
    "past the last row": ("(r < rows ? r : rows - 1)", "r", "out-of-bounds"),
    "past the last column": ("? length : 0, ALIGNED", "? length + 1 : 0, ALIGNED", "out-of-bounds"),
    "one buffer": ("fetch(k0 + BK, buffer ^ 1)", "fetch(k0 + BK, buffer)", "race"),
}


@pytest.mark.parametrize("what", BREAKS)
def test_a_broken_kernel_is_caught(what: str) -> None:
    right, wrong, kind = BREAKS[what]
    layouts: Layouts = ("row", "row")
    emulator, plan = EmulatorBackend("lazy"), plan_of(TILES[-1], layouts)
    problem = problem_of(30, 34, 48, layouts)
    operands = make_operands(emulator, problem, *random_operands(problem))
    good = source_for(emulator, KERNEL, plan)
    assert right in good.text
    grid, args = plan.grid(problem), launch_arguments(emulator, plan, operands)
    for source, expected in ((good, ""), (replace(good, text=good.text.replace(right, wrong)), kind)):
        found = ""
        try:
            check_bounds(emulator, source, grid, plan.block, args, plan.shared_bytes, [0, 1])
            check_races(emulator, source, grid, plan.block, args, plan.shared_bytes, [0, 1])
        except EmulatorFault as fault:
            found = fault.kind
        assert found == expected


# ---- plans -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"dtype": BF16}, "simt fp32: dtype is bf16; fp32 are possible"),
        ({"tm": 6}, "tm is 6; multiples of 4 are possible"),
        ({"warps_m": 0}, "warps_m is 0; at least 1 is possible"),
        ({"tn": 4}, r"2x4 warps of 32 threads with 8x4 outputs each do not make a tile of 128x128"),
        ({"bk": 4}, "a K-step of A is 128 x 4 elements, which 256 threads cannot share in pieces of 16 bytes of 8 k"),
        ({"blocks_per_sm": 9}, "9 blocks of 256 threads; an SM has 2048"),
        ({"bk": 256}, "two buffers take 532480 bytes; a block has"),
    ],
)
def test_plans_that_no_kernel_has(changes: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Simt32Plan(**changes)


@pytest.mark.parametrize(
    ("shape", "tile"),
    [((4096, 4096, 4096), (128, 256)), ((1, 4096, 4096), (16, 128)), ((4096, 1, 4096), (128, 16)),
     ((256, 256, 1024), (16, 128))],
)  # fmt: skip
def test_the_rule_fills_the_sms(shape: tuple[int, int, int], tile: tuple[int, int]) -> None:
    plan = Simt32Plan.default(Problem(*shape), aligned=True)
    assert (plan.bm, plan.bn) == tile


@each_layout
def test_the_planner_has_it_for_every_fp32_problem(layouts: Layouts) -> None:
    for shape in ((4096, 4096, 4096), (3, 4096, 4096), (65, 33, 7)):
        problem = Problem(*shape, FP32, None, *layouts)
        planning = tilewright.plan(problem=problem, gpu="h200")
        assert {type(each.plan) for each in planning.ranked} == {Simt32Plan}
        assert len({each.label for each in planning.ranked}) == len(planning.ranked) == len(TILES)
        for each in planning.ranked:
            assert each.plan is not None
            assert each.plan.aligned is problem.aligned
            assert each.predicted_us is not None
            assert each.predicted_us.sustained > 0


def test_the_planner_has_a_tile_for_few_of_them() -> None:
    large, small, early = (
        tilewright.plan(m, n, 4096, dtype="fp32", gpu="h200", pdl=pdl).ranked[0]
        for m, n, pdl in ((4096, 4096, False), (96, 96, False), (96, 96, True))
    )
    assert large.tile[:2] == (128, 256)
    assert small.tile[0] * small.tile[1] <= 64 * 64
    assert early.plan is not None
    assert early.plan.dependent
    assert early.terms_us["launch"] == 0 < small.terms_us["launch"]


def test_c_may_not_lie_where_an_operand_does(backend: Backend) -> None:
    problem = Problem(32, 32, 32)
    operands = make_operands(backend, problem, *random_operands(problem))
    with pytest.raises(UsageError, match="C shares memory with B"):
        prepare(backend, KERNEL, plan_of(TILES[-1], ("row", "row")), Operands(operands.a, operands.b, operands.b))
