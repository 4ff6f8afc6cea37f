"""The ladder: what stands at the head of each kernel file, the default plans, and how rungs are named."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import get_args

import pytest
from ladder_cases import SIMT_CASES, SIMT_IDS, TENSOR_RUNGS, simt_plan

from tilewright.dtypes import BF16, FP16, FP32, DType
from tilewright.errors import UsageError
from tilewright.gpu import get_gpu
from tilewright.kernel_file import front_matter
from tilewright.ladder import Rung, parse_rungs, rung, rungs, select
from tilewright.plan_tensor import TensorPlan
from tilewright.problem import Layout
from tilewright.source import CUDA_ROOT, ENTRY

NAMES = {0: "naive", 1: "shared tile", 2: "register block", 3: "vectorised", 4: "double-buffered"}


def test_the_rungs_in_their_order() -> None:
    found = {number: each.name for number, each in rungs().items() if number in NAMES}
    assert list(found.items()) == list(NAMES.items())
    assert list(rungs()) == list(range(len(rungs())))
    assert len(rungs()) == len(list((CUDA_ROOT / "rungs").glob("*.cu"))), "a kernel file that is no rung"


@pytest.mark.parametrize("number", rungs())
def test_front_matter(number: int) -> None:
    found = rungs()[number]
    head = front_matter(found.path)
    assert list(head) == ["rung", "name", "title", "idea"]
    assert head == {"rung": str(number), "name": found.name, "title": found.title, "idea": found.idea}
    assert found.path.name == f"{number:02}_{re.sub('[ -]', '_', found.name)}.cu"
    assert found.idea.endswith(".")
    assert not found.title.endswith(".")
    text = found.path.read_text("utf-8")
    assert text.splitlines()[4].startswith("#include"), "nothing between the front matter and the code"
    assert len(re.findall(rf'extern "C" __global__ .*\n{ENTRY}\(', text)) == 1


def test_front_matter_ends_at_the_first_other_line(tmp_path: Path) -> None:
    file = tmp_path / "x.cu"
    file.write_text("// rung: 7\n// name:  spaced  out \n// a: b: c\n//not: this\n// rung: 8\n")
    assert front_matter(file) == {"rung": "7", "name": "spaced  out", "a": "b: c"}
    file.write_text("int x;\n// rung: 7\n")
    assert front_matter(file) == {}


# ---- plans -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("each", "dtype"), SIMT_CASES, ids=SIMT_IDS)
@pytest.mark.parametrize("aligned", [True, False])
def test_default_plans_are_possible(each: Rung, dtype: DType, aligned: bool) -> None:
    plan = simt_plan(each.number, dtype, aligned=aligned)
    assert (plan.rung, plan.dtype, plan.aligned) == (each.number, dtype, aligned)
    assert plan.threads % 32 == 0
    assert plan.threads <= 1024
    assert plan.threads * plan.blocks_per_sm <= 2048
    assert plan.shared_bytes * plan.blocks_per_sm <= get_gpu("h200").shared_bytes_per_block
    outputs = plan.bm * plan.bn / plan.threads
    assert outputs == (plan.tm * plan.tn if plan.tm else 16 if plan.stages else 1)
    for example in each.counter_examples:
        wrong = plan.with_(**example.changes)
        assert wrong != plan
        assert wrong.bm * wrong.bn == plan.bm * plan.bn


@pytest.mark.parametrize("layout", get_args(Layout))
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
@pytest.mark.parametrize("each", TENSOR_RUNGS, ids=lambda each: str(each.number))
def test_default_plans_on_tensor_cores(each: Rung, dtype: DType, layout: Layout) -> None:
    plan = each.plan(dtype, a_layout=layout, b_layout="column")
    assert isinstance(plan, TensorPlan)
    assert (plan.rung, plan.dtype, plan.a_layout, plan.b_layout) == (each.number, dtype, layout, "column")
    assert (plan.bm * plan.bn, plan.accumulators) == (128 * 256, 128)
    assert each.dtypes == (BF16, FP16)


def test_the_layouts_that_rungs_read() -> None:
    for number, each in rungs().items():
        assert each.any_layout == (number >= 5)
    for layouts, name in (({"a_layout": "column"}, "A"), ({"b_layout": "column"}, "B")):
        with pytest.raises(UsageError, match=f"^rung 3 reads row-major operands and {name} is column-major; rungs 5"):
            rung(3).plan(FP32, **layouts)  # type: ignore[arg-type]


def test_plans_are_those_of_the_design() -> None:
    tile = rung(1).plan(FP32)
    assert (tile.bm, tile.bn, tile.bk, tile.threads) == (128, 128, 32, 1024)
    for number in (2, 3):
        block = simt_plan(number, BF16)
        assert (block.bm, block.bn, block.tm, block.tn, block.threads) == (128, 128, 8, 8, 256)
    assert rung(2).plan(FP32).to_dict() == {**rung(3).plan(FP32).to_dict(), "rung": 2}, "each shows its idea alone"
    assert simt_plan(4, FP32).stages == 2


def test_mistakes_are_shown_beside_the_rungs_that_avoid_them() -> None:
    found = {(n, e.name): (e.dtypes, dict(e.changes)) for n, each in rungs().items() for e in each.counter_examples}
    assert found[0, "swapped"] == ((FP32, BF16), {"swapped": True, "bm": 32, "bn": 8})
    assert found[2, "adjacent"] == ((FP32,), {"interleaved": False})


def test_a_dtype_that_a_rung_does_not_run() -> None:
    with pytest.raises(UsageError, match=r"^rung 2 \(register block\) runs fp32, bf16, not fp16$"):
        rung(2).plan(FP16)


# ---- naming rungs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0-4", [0, 1, 2, 3, 4]),
        ("2", [2]),
        ("0,2,4", [0, 2, 4]),
        ("4,0", [0, 4]),
        ("2,2,1-2", [1, 2]),
        ("0-1,3-4", [0, 1, 3, 4]),
        ("3-3", [3]),
        (" 1 , 0 - 1 ", [0, 1]),
        ("002", [2]),
    ],
)
def test_rungs_by_name(text: str, expected: list[int]) -> None:
    assert [each.number for each in parse_rungs(text)] == expected


@pytest.mark.parametrize(
    "text",
    ["", " ", "a", "4-2", "-1", "0-", "-", "0,,1", ",", "0,", "0 1", "0-1-2", "1.0", "0x1", "1e0", "²", "9" * 10],
)
def test_rungs_that_are_no_names(text: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"rungs {text!r} is not of the form 0-4, 2 or 0,2,4")):
        parse_rungs(text)


@pytest.mark.parametrize(("text", "missing"), [("99", 99), ("0-999999999", 999999999), ("98,1", 98), ("1,97-99", 99)])
def test_rungs_beyond_the_ladder(text: str, missing: int) -> None:
    start = time.perf_counter()
    with pytest.raises(UsageError, match=rf"^rung {missing} does not exist; the ladder has 0, 1, 2, 3, 4"):
        parse_rungs(text)
    assert time.perf_counter() - start < 5, "a range is not walked before it is checked"


def numbers(chosen: dict[DType, list[Rung]]) -> dict[str, list[int]]:
    return {dtype.name: [each.number for each in found] for dtype, found in chosen.items()}


def test_the_rungs_to_run() -> None:
    assert numbers(select(None, None)) == {"fp32": list(range(5)), "bf16": list(range(12))}
    assert numbers(select(None, FP16)) == {"fp16": list(range(5, 12))}
    assert numbers(select("3-6", None)) == {"fp32": [3, 4], "bf16": [3, 4, 5, 6]}
    assert numbers(select("7", None)) == {"bf16": [7]}
    assert numbers(select(None, None, "row", "column")) == {"bf16": list(range(5, 12))}
    with pytest.raises(UsageError, match=r"no rung of '5-6' runs fp32 .*; rung 5 runs bf16, fp16, rung 6"):
        select("5-6", FP32)


@pytest.mark.parametrize("number", [-1, 99])
def test_a_rung_that_does_not_exist(number: int) -> None:
    with pytest.raises(UsageError, match=rf"^rung {number} does not exist; the ladder has 0, 1"):
        rung(number)
