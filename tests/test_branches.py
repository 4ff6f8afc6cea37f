"""The registry of branches, the plans of decode as values and rules, and the commands that take a branch."""

from __future__ import annotations

import json
from typing import Any

import pytest
import sass_lint
from cli_runner import run, squeezed

from tilewright import branches, ladder, nvrtc
from tilewright.backends.emulator import EmulatorBackend
from tilewright.climb import climb
from tilewright.count import count
from tilewright.derive import derived
from tilewright.dtypes import BF16, FP32, DType
from tilewright.errors import TilewrightError, UsageError
from tilewright.gpu import get_gpu
from tilewright.kernel_file import front_matter
from tilewright.operands import random_operands
from tilewright.plan_base import Plan
from tilewright.plan_decode import DecodePlan, GemvPlan, MmaPlan, choose
from tilewright.problem import Problem
from tilewright.run import make_operands, prepare

ALL = [kernel for found in branches.branches().values() for kernel in found.kernels]
GEMV, MMA = branches.branch("decode").kernels
each_kernel = pytest.mark.parametrize("kernel", ALL, ids=lambda kernel: kernel.path.stem)


def posed(m: int, n: int, k: int, dtype: DType = BF16) -> Problem:
    return Problem(m, n, k, dtype, None, "row", "column")


def posed_for(kernel: branches.BranchKernel, shape: tuple[int, int, int]) -> Problem:
    return posed(*shape, branches.branch(kernel.branch).dtype)


# ---- the registry ----------------------------------------------------------------------------------------------------


@each_kernel
def test_front_matter(kernel: branches.BranchKernel) -> None:
    head = front_matter(kernel.path)
    assert (head["branch"], head["name"]) == (kernel.branch, kernel.name)
    assert (kernel.title, kernel.idea) == (head["title"], head["idea"])
    assert kernel.path.stem.startswith(kernel.branch)
    assert (kernel.plan_kind.branch, kernel.plan_kind.kernel) == (kernel.branch, kernel.name)


def test_every_file_is_in_the_registry() -> None:
    files = {path.stem for path in GEMV.path.parent.glob("*.cu")}
    assert {kernel.path.stem for kernel in ALL} == files
    assert {"decode_gemv", "decode_mma"} <= files
    assert branches.of_file("decode_gemv") is GEMV
    assert branches.kernel("decode", "mma") is MMA


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: branches.branch("encode"), "branch 'encode' is not one of decode"),
        (lambda: branches.kernel("decode", "wgmma"), "kernel 'wgmma' of branch decode is not one of gemv, mma"),
        (lambda: branches.of_file("decode"), "kernel 'decode' is neither the number of a rung nor one of decode_gemv"),
        (lambda: branches.select("decode", posed(17, 8, 8)), "decode gemv takes M of 1 to 4.*; decode mma takes M of"),
        (lambda: GEMV.plan_for(Problem(1, 8, 8, FP32, None, "row", "column"), aligned=True), "bf16, fp16, not fp32"),
        (lambda: climb(branch="decode", rungs="0-2", backend="emulator"), "rungs '0-2' are of the ladder, and branch "),
    ],
)  # fmt: skip
def test_what_is_no_branch(call: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        call()


def test_a_branch_runs_the_kernels_that_take_the_size() -> None:
    assert branches.select("decode", posed(2, 8, 8)) == [GEMV, MMA]
    assert branches.select("decode", posed(8, 8, 8)) == [MMA]


# ---- plans -----------------------------------------------------------------------------------------------------------


@each_kernel
def test_plans_come_back_from_json(kernel: branches.BranchKernel) -> None:
    for shape in branches.branch(kernel.branch).shapes.values():
        plan = kernel.plan_for(posed_for(kernel, shape), aligned=True)
        values = json.loads(json.dumps(plan.to_dict()))
        assert (values["branch"], values["kernel"]) == (kernel.branch, kernel.name)
        assert "rung" not in values
        back = Plan.from_dict(values)
        assert back == plan
        assert type(back) is kernel.plan_kind
        assert back.header() == plan.header()


def test_what_is_no_plan_of_a_branch() -> None:
    good = GemvPlan(dtype=BF16).to_dict()
    for changes, says in (
        ({"branch": "encode"}, "branch 'encode' is not one of"),
        ({"kernel": "wgmma"}, "kernel 'wgmma' of branch decode is not one of"),
        ({"nt": 1}, "plan value 'nt' is not one of dtype, bm, "),
        ({"bn": 2}, "plan value 'bn' is 2; the others make it 1"),
        ({"rw": True}, "plan value 'rw' is True; a whole number is possible"),
    ):
        with pytest.raises(UsageError, match=says):
            Plan.from_dict({**good, **changes})


def test_a_plan_is_of_one_kernel() -> None:
    emulator, problem = EmulatorBackend(), posed(1, 8, 64)
    operands = make_operands(emulator, problem, *random_operands(problem))
    with pytest.raises(UsageError, match=r"plan is of decode mma; decode gemv \(gemv\) needs one of its own"):
        prepare(emulator, GEMV, MmaPlan(dtype=BF16), operands)
    with pytest.raises(UsageError, match=r"plan is of decode gemv; rung 11 \(overlapped-epilogue\) needs one"):
        prepare(emulator, ladder.rung(11), GemvPlan(dtype=BF16), operands)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: GemvPlan(dtype=FP32), "decode gemv: dtype is fp32; bf16 and fp16 are possible"),
        (lambda: GemvPlan(dtype=BF16, b_layout="row"), "A is row-major and B row-major; it reads lines along K"),
        (lambda: MmaPlan(dtype=BF16, a_layout="column"), "A is column-major and B column-major; it reads lines along"),
        (lambda: GemvPlan(dtype=BF16, bm=5), "bm is 5; 1 to 4 tokens are possible"),
        (lambda: GemvPlan(dtype=BF16, rw=0), "rw is 0; at least 1 is possible"),
        (lambda: MmaPlan(dtype=BF16, batches=0), "batches is 0; at least 1 is possible"),
        (lambda: GemvPlan(dtype=BF16, wk=8, wr=8), "8 x 8 warps are 2048 threads; a block has at most 1024"),
        (lambda: GemvPlan(dtype=BF16, rw=8, un=8), "elements and sums take 268 registers and the rest about 44"),
        (lambda: MmaPlan(dtype=BF16, un=4, wk=16, blocks_per_sm=2), "a thread of 2 x 512 on an SM has 64"),
        (lambda: GemvPlan(dtype=BF16, un=2.0), "un is 2.0; it must be an int of 32 bits"),  # type: ignore[arg-type]
        (lambda: GemvPlan(dtype=BF16, dependent_launch=1), "True and False are possible"),  # type: ignore[arg-type]
    ],
)
def test_plans_that_no_kernel_has(make: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make()


def test_shared_memory_holds_a_float_a_part() -> None:
    assert GemvPlan(dtype=BF16, bm=2, rw=4, wk=4, wr=2).shared_bytes == 4 * 4 * 2 * 8
    assert MmaPlan(dtype=BF16, nt=1, rb=1, wk=8, wr=1).shared_bytes == 4 * 8 * 8 * (16 + 4)


# ---- the rules -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "values"),
    [
        ((1, 4096, 4096), {"bm": 1, "rw": 4, "wk": 2, "wr": 2, "un": 2}),
        ((1, 28672, 4096), {"bm": 1, "rw": 4, "wk": 4, "wr": 1, "un": 2}),
        ((1, 4096, 14336), {"bm": 1, "rw": 4, "wk": 4, "wr": 1, "un": 2}),
        ((2, 2112, 7168), {"bm": 2, "rw": 4, "wk": 4, "wr": 1, "un": 2}),
        ((1, 256, 7168), {"bm": 1, "rw": 1, "wk": 8, "wr": 1, "un": 4}),
    ],
)
def test_the_rule_of_the_gemv(size: tuple[int, int, int], values: dict[str, int]) -> None:
    plan = GEMV.plan_for(posed(*size), aligned=True)
    assert {name: getattr(plan, name) for name in values} == values
    assert choose(*size).kernel == "gemv"


@pytest.mark.parametrize(
    ("size", "values"),
    [
        ((3, 4096, 4096), {"nt": 1, "rb": 1, "wk": 8, "wr": 1, "un": 2, "batches": 2}),
        ((4, 2112, 7168), {"nt": 1, "rb": 1, "wk": 16, "wr": 1, "un": 2, "batches": 2}),
        ((8, 8192, 8192), {"nt": 1, "rb": 1, "wk": 8, "wr": 1, "un": 2, "batches": 2}),
    ],
)
def test_the_rule_of_the_fragments(size: tuple[int, int, int], values: dict[str, int]) -> None:
    plan = MMA.plan_for(posed(*size), aligned=True)
    assert {name: getattr(plan, name) for name in values} == values
    assert choose(*size).kernel == "mma"


@pytest.mark.parametrize(
    ("size", "dependent", "why"),
    [
        ((3, 28672, 4096), False, "N = 28672: fragments in registers read the tokens again"),
        ((8, 4096, 4096), True, "under a dependent launch its ring fills while"),
        ((9, 4096, 4096), False, "M = 9 fills more of a wgmma than of an mma.sync"),
    ],
)
def test_what_is_for_another_branch(size: tuple[int, int, int], dependent: bool, why: str) -> None:
    choice = choose(*size, dependent=dependent)
    assert (choice.branch, choice.kernel) == ("swapab", None)
    assert why in choice.reason


def test_every_choice_has_its_reason_in_words() -> None:
    for m in (1, 2, 3, 8, 9):
        for n, k in ((256, 7168), (2112, 7168), (4096, 4096), (28672, 4096)):
            assert len(choose(m, n, k).reason) > 40


# ---- what is derived, counted and compiled ---------------------------------------------------------------------------


@each_kernel
def test_counted_is_derived(kernel: branches.BranchKernel) -> None:
    problem = posed_for(kernel, branches.branch(kernel.branch).shapes["emulated"])
    plan = kernel.plan_for(problem, aligned=True)
    counted, said = count(EmulatorBackend(), kernel, plan, problem), derived(plan, get_gpu("h200"), problem)
    assert counted is not None
    assert counted.flop_per_byte == pytest.approx(said["flop_per_byte"], rel=0.02)
    assert counted.shared_load_bytes_per_mac == pytest.approx(said["shared_load_bytes_per_mac"], rel=0.02)


def test_weights_are_read_once_and_16_bytes_a_lane() -> None:
    emulator = EmulatorBackend()
    for m in (1, 2, 3, 4):
        problem = posed(m, 4096, 4096)
        for kernel in (GEMV, MMA):
            plan = kernel.plan_for(problem, aligned=True)
            counted = count(emulator, kernel, plan, problem)
            assert counted is not None
            weights = counted.operands["b"]
            assert weights.loaded_bytes == plan.bn * 4096 * 2
            assert weights.loads.cost == weights.loads.ideal == weights.loaded_bytes // 32
            assert weights.loads.bytes == 16 * weights.loads.lanes


@pytest.mark.parametrize("name", list(branches.branches()))
@pytest.mark.parametrize("shape", [(3, 37, 129), (1, 1, 1), (2, 64, 0)])
def test_a_branch_takes_any_size_in_padded_lines(name: str, shape: tuple[int, int, int]) -> None:
    sizes = [each for pair in zip(("--m", "--n", "--k"), map(str, shape), strict=True) for each in pair]
    result = run("verify", "--branch", name, *sizes, "--backend", "emulator", "--json")
    assert result.exit_code == 0, result.stderr
    assert all(row["ok"] for row in json.loads(result.stdout)["results"])


def test_the_arithmetic_of_decode() -> None:
    problem = posed(1, 4096, 4096)
    said = derived(GEMV.plan_for(problem, aligned=True), get_gpu("h200"), problem)
    assert said["least_us"] == pytest.approx((4096 * 4096 + 2 * 4096) * 2 / 4.8e6)
    assert said["bytes_in_flight"] == 4 * 128 * 8 * 16  # 512 blocks on 132 SMs: 4 where there are most, 5 would fit
    assert said["bottleneck"].endswith("64 KB in flight an SM; then a fixed cost")
    few = derived(GEMV.plan_for(posed(1, 64, 4096), aligned=True), get_gpu("h200"), posed(1, 64, 4096))
    assert few["bottleneck"] == "64 blocks for 132 SMs: the rest read nothing"


@pytest.mark.skipif(nvrtc.unavailable_reason() is not None, reason=str(nvrtc.unavailable_reason()))
@pytest.mark.parametrize("kernel", [GEMV, MMA], ids=lambda kernel: kernel.name)
def test_weights_come_before_the_wait_and_tokens_after(kernel: branches.BranchKernel) -> None:
    try:
        sass_lint.disassembler()
    except TilewrightError as error:
        pytest.skip(str(error))
    plan = kernel.plan_for(posed(2, 4096, 4096), aligned=True)
    assert isinstance(plan, DecodePlan)
    sources = [kernel.source(each, "gpu", "sm_90a") for each in (plan, plan.with_(dependent_launch=True))]
    without, within = sass_lint.disassemble([nvrtc.compile_kernel(source).cubin for source in sources])
    assert not any(each.name in ("ACQBULK", "PREEXIT") for each in without)
    names = [each.name for each in within]
    first = names.index("ACQBULK")
    assert names.index("PREEXIT") < first
    assert names[:first].count("LDG") >= plan.un * plan.lines
    assert "LDG" in names[first:]
    assert "STG" not in names[:first]


# ---- the commands ----------------------------------------------------------------------------------------------------


def test_climb_a_branch() -> None:
    result = run("climb", "--branch", "decode", "--backend", "emulator", "--json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    shape = branches.branch("decode").shapes["emulated"]
    assert tuple(document["problem"][name] for name in "mnk") == shape
    assert (document["problem"]["a_layout"], document["problem"]["b_layout"]) == ("row", "column")
    assert [(row["branch"], row["name"], row["verified"]) for row in document["rungs"]] == [
        ("decode", "gemv", True),
        ("decode", "mma", True),
    ]
    assert all(row["time_us"] is None and "rung" not in row for row in document["rungs"])


def test_climb_a_branch_as_a_table() -> None:
    result = run("climb", "--branch", "decode", "--backend", "emulator", "--m", "3", "--n", "48", "--k", "520")
    assert result.exit_code == 0
    assert "decode gemv" in result.stdout
    assert "not measured" in result.stdout or "the rest read nothing" in result.stdout


def test_verify_a_branch() -> None:
    checked = run("verify", "--branch", "decode", "--backend", "emulator", "--checked", "--dtype", "fp16", "--json")
    assert checked.exit_code == 0
    rows = json.loads(checked.stdout)["results"]
    assert [(row["branch"], row["name"], row["ok"]) for row in rows] == [
        ("decode", "gemv", True),
        ("decode", "mma", True),
    ]
    assert "decode mma" in run("verify", "--branch", "decode", "--backend", "emulator").stdout


def test_source_of_a_branch() -> None:
    text = run("source", "decode_gemv", "--dtype", "fp16", "--target", "host").stdout
    assert "constexpr int RW = 4;" in text
    assert "TW_EXPORT(tw_gemm)" in text
    assert run("source", "decode_mma", "--unaligned").stdout != run("source", "decode_mma").stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("climb", "--branch", "encode"), "branch 'encode' is not one of decode"),
        (("climb", "--branch", "decode", "--layout", "rr"), "it reads lines along K"),
        (("climb", "--branch", "decode", "--rungs", "5"), "lies off it: name one of the two"),
        (("verify", "--branch", "decode", "--size", "64"), "decode gemv takes M of 1 to 4, and M is 64"),
        (("verify", "--branch", "decode", "--dtype", "fp32"), "runs bf16, fp16, not fp32"),
        (("source", "decode"), "kernel 'decode' is neither the number of a rung nor one of"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], says: str) -> None:
    result = run(*arguments, *(("--backend", "emulator") if arguments[0] != "source" else ()))
    assert result.exit_code == 2
    assert squeezed(says) in squeezed(result.stderr)
