"""A plan: its header, its shared memory as the compilers see it, and which block computes what."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ladder_cases import CASES, IDS, SIMT_CASES, SMALL, rung_4_plans, simt_plan

from tilewright import nvrtc
from tilewright.backends.base import Backend
from tilewright.backends.emulator import EmulatorBackend
from tilewright.backends.host_compiler import available_compilers
from tilewright.dtypes import BF16, FP32, DType
from tilewright.errors import CompileError, UsageError
from tilewright.gpu import get_gpu
from tilewright.ladder import Rung, rungs
from tilewright.plan_base import LARGEST_GRID, Plan
from tilewright.plan_simt import SimtPlan
from tilewright.problem import Problem
from tilewright.source import KernelSource

PLAN = SimtPlan(4, FP32, 128, 256, 16, 256, tm=16, tn=8, warps_m=2, warps_n=4, blocks_per_sm=1, stages=2, pad=4)
HEADER = """\
namespace plan {
using T = float;
using Out = float;
constexpr int BM = 128;
constexpr int BN = 256;
constexpr int BK = 16;
constexpr int TM = 16;
constexpr int TN = 8;
constexpr int WARPS_M = 2;
constexpr int WARPS_N = 4;
constexpr int THREADS = 256;
constexpr int BLOCKS_PER_SM = 1;
constexpr int PAD = 4;
constexpr int SHARED_BYTES = 49664;
constexpr bool ALIGNED = true;
constexpr bool SWAPPED = false;
constexpr bool INTERLEAVED = true;
}  // namespace plan
"""


def test_the_header_is_the_plan() -> None:
    assert PLAN.header() == HEADER
    changed = PLAN.with_(dtype=BF16, aligned=False, swapped=True, interleaved=False)
    expected = HEADER.replace("float", "tw::bf16").replace("49664", "24832")
    expected = expected.replace("ALIGNED = true", "ALIGNED = false").replace("SWAPPED = false", "SWAPPED = true")
    expected = expected.replace("INTERLEAVED = true", "INTERLEAVED = false")
    # The type is declared before the header that defines it is included.
    assert changed.header() == "namespace tw { struct bf16; }\n" + expected
    assert PLAN.header() == HEADER


def test_every_value_that_matters_is_in_the_header() -> None:
    # A kernel is cached by its text: two plans that differ must differ there, unless no kernel reads the difference.
    changes: list[dict[str, Any]] = [
        {"dtype": BF16}, {"bm": 64}, {"bn": 64}, {"bk": 8}, {"threads": 128}, {"tm": 8}, {"tn": 4}, {"warps_m": 4},
        {"warps_n": 8}, {"blocks_per_sm": 2}, {"stages": 1}, {"pad": 0}, {"aligned": False}, {"swapped": True},
        {"interleaved": False},
    ]  # fmt: skip
    headers = {PLAN.with_(**change).header() for change in changes}
    assert len(headers | {PLAN.header()}) == len(changes) + 1


def test_json_values() -> None:
    values = PLAN.to_dict()
    assert json.loads(json.dumps(values)) == values
    assert (values["dtype"], values["shared_bytes"], values["bm"], values["aligned"]) == ("fp32", 49664, 128, True)


# ---- shared memory ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (rungs()[0].plan(FP32), 0),
        (rungs()[1].plan(FP32), 4 * (128 * 32 + 32 * 128)),
        (rungs()[1].plan(BF16), 2 * (128 * 32 + 32 * 128)),
        (rungs()[2].plan(FP32), 4 * 32 * (132 + 128)),
        (rungs()[3].plan(BF16), 2 * 32 * (132 + 128)),
        (PLAN, 2 * 4 * 16 * (132 + 256)),
        (PLAN.with_(dtype=BF16, bk=32), 2 * 2 * 32 * (132 + 256)),
    ],
)
def test_shared_bytes_by_hand(plan: Plan, expected: int) -> None:
    assert plan.shared_bytes == expected <= get_gpu("h200").shared_bytes_per_block
    assert f"SHARED_BYTES = {expected};" in plan.header()


def with_shared_bytes(rung: Rung, plan: Plan, target: str, difference: int) -> KernelSource:
    source = rung.source(plan, target, "sm_90a" if target == "gpu" else None)  # type: ignore[arg-type]
    old, new = (f"SHARED_BYTES = {plan.shared_bytes + by};" for by in (0, difference))
    assert source.text.count(old) == 1
    return replace(source, text=source.text.replace(old, new))


SHARING = [(rung, dtype) for rung, dtype in SIMT_CASES if simt_plan(rung.number, dtype).stages]


@pytest.mark.parametrize("compiler", available_compilers(), ids=lambda compiler: compiler.kind)
@pytest.mark.parametrize("number", sorted({rung.number for rung, _ in SHARING}))
def test_host_compilers_hold_shared_bytes_against_the_struct(number: int, compiler: object) -> None:
    check_shared_bytes(rungs()[number], EmulatorBackend(compiler=compiler).compile, "host")  # type: ignore[arg-type]


@pytest.mark.skipif(not nvrtc.available(), reason="cuda-core or NVRTC is not installed")
@pytest.mark.parametrize("number", sorted({rung.number for rung, _ in SHARING}))
def test_nvrtc_holds_shared_bytes_against_the_struct(number: int) -> None:
    check_shared_bytes(rungs()[number], nvrtc.compile_kernel, "gpu")


def check_shared_bytes(rung: Rung, compile_: Callable[[KernelSource], object], target: str) -> None:
    plan = rung.plan(BF16, aligned=False).with_(**SMALL[rung.number])
    compile_(with_shared_bytes(rung, plan, target, 0))
    for difference in (-2, 16):
        with pytest.raises(CompileError, match="SHARED_BYTES is not the size of the shared struct"):
            compile_(with_shared_bytes(rung, plan, target, difference))


@pytest.mark.parametrize("plan", [rung_4_plans(FP32)[-1], PLAN.with_(bm=64, warps_m=1, threads=128)])
def test_a_plan_whose_warps_cover_the_tile_compiles_and_no_other(emulator: Backend, plan: SimtPlan) -> None:
    emulator.compile(rungs()[4].source(plan, "host"))
    for wrong in ({"warps_m": 2 * plan.warps_m}, {"threads": 2 * plan.threads}, {"bn": 2 * plan.bn}):
        with pytest.raises(CompileError, match="the warps do not cover the tile"):
            emulator.compile(rungs()[4].source(plan.with_(**wrong), "host"))


# ---- blocks ----------------------------------------------------------------------------------------------------------

tiled = st.builds(
    lambda bm, bn, m, n: (SimtPlan(0, FP32, bm, bn, 1, 32), Problem(m, n, 1)),
    st.integers(1, 5), st.integers(1, 5), st.integers(1, 20), st.integers(1, 20),
)  # fmt: skip


def blocks_of(plan: Plan, problem: Problem) -> dict[int, tuple[set[int], set[int]]]:
    """For each block the rows and columns of C that it computes, found element by element as the kernels do it."""
    across = len({j // plan.bn for j in range(problem.n)})
    found: dict[int, tuple[set[int], set[int]]] = {}
    for i in range(problem.m):
        for j in range(problem.n):
            rows, cols = found.setdefault(i // plan.bm * across + j // plan.bn, (set(), set()))
            rows.add(i)
            cols.add(j)
    return found


@given(tiled)
def test_the_grid_has_a_block_for_each_tile(drawn: tuple[SimtPlan, Problem]) -> None:
    plan, problem = drawn
    assert sorted(blocks_of(plan, problem)) == list(range(plan.grid(problem)[0]))
    assert plan.grid(problem)[1:] == (1, 1)
    assert plan.block == (32, 1, 1)


@given(tiled)
def test_edge_blocks_are_those_on_a_side_of_c(drawn: tuple[SimtPlan, Problem]) -> None:
    plan, problem = drawn
    last_row, last_col = problem.m - 1, problem.n - 1
    on_a_side = [
        block
        for block, (rows, cols) in sorted(blocks_of(plan, problem).items())
        if {0, last_row} & rows or {0, last_col} & cols
    ]
    assert plan.edge_blocks(problem) == on_a_side


@given(tiled)
def test_the_interior_block_is_whole_and_in_the_middle(drawn: tuple[SimtPlan, Problem]) -> None:
    plan, problem = drawn
    blocks = blocks_of(plan, problem)
    rows, cols = blocks[plan.interior_block(problem)]
    for inside, size, tile, sides in ((rows, problem.m, plan.bm, 0), (cols, problem.n, plan.bn, 1)):
        assert len(inside) == min(tile, size)  # whole wherever there is a whole one
        assert abs((min(inside) + max(inside) + 1) / 2 - size / 2) <= tile
        if len({min(block[sides]) for block in blocks.values()}) >= 3:
            assert not {0, size - 1} & inside


def test_an_empty_c_has_an_empty_grid() -> None:
    assert PLAN.grid(Problem(0, 5, 5)) == (0, 1, 1)
    assert PLAN.grid(Problem(5, 0, 5)) == (0, 1, 1)
    assert PLAN.grid(Problem(5, 5, 0)) == (1, 1, 1)


def test_a_grid_has_a_largest_size() -> None:
    single = PLAN.with_(bm=1, bn=1)
    half = 2**30
    assert single.grid(Problem(2, half - 1, 1)) == (LARGEST_GRID - 1, 1, 1)
    with pytest.raises(UsageError, match=r"^2x1073741824x1 fp32 needs 2147483648 blocks of 1x1; a grid has at most"):
        single.grid(Problem(2, half, 1))


@pytest.mark.parametrize(("rung", "dtype"), CASES, ids=IDS)
def test_a_default_plan_says_when_a_problem_is_too_large(rung: Rung, dtype: DType) -> None:
    plan = rung.plan(dtype)
    side = 2**17
    tiles = side // plan.bm * (side // plan.bn)
    assert plan.grid(Problem(side, side, 1))[0] == (132 if rung.number >= 9 else tiles)
    with pytest.raises(UsageError, match=f"blocks of {plan.bm}x{plan.bn}; a grid has at most 2147483647"):
        plan.grid(Problem(2**30, 2**30, 1, dtype))
