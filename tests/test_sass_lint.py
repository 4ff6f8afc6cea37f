"""The lint over the disassembly, on a bad kernel for each of its rules; and what NVRTC's log makes of a kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import sass_lint
from sass_lint import Instruction, Loop, disassemble, loops, main_loops, problems

from tilewright import ladder, nvrtc
from tilewright.dtypes import BF16
from tilewright.errors import CompileError, TilewrightError, UsageError
from tilewright.plan_tensor import TensorPlan
from tilewright.source import KernelSource


def _missing() -> str | None:
    try:
        sass_lint.disassembler()
    except TilewrightError as error:
        return str(error)
    return nvrtc.unavailable_reason()


pytestmark = pytest.mark.skipif(_missing() is not None, reason=str(_missing()))

HEAD = """\
using u64 = unsigned long long;
__device__ __forceinline__ void fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wait() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }
__device__ __forceinline__ void wgmma(float (&d)[4], u64 a, u64 b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(b));
}
__device__ __forceinline__ void tma(u64 map) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
               "[%0], [%1, {%2, %2}], [%2];" :: "r"(0), "l"(map), "r"(0) : "memory");
}
#define WAIT_PARITY(SEMANTICS) asm volatile("{\\n.reg .pred p;\\nagain:\\n" \\
  "mbarrier.try_wait.parity" SEMANTICS ".shared::cta.b64 p, [%0], %1;\\n@!p bra again;\\n}" \\
  :: "r"(8), "r"(k & 1) : "memory")
"""
STEP = "fence(); wgmma(d, a + 4 * k, b); commit(); wait();"


def wgmma_kernel(step: str, before: str = "", after: str = "", bounds: str = "__launch_bounds__(128, 1)") -> str:
    return f"""{HEAD}
extern "C" __global__ void {bounds} tw_gemm(int n, u64 a, u64 b, float* c, float* e) {{
  float d[4] = {{}};
  {before}
#pragma unroll 1
  for (int k = 0; k < n; ++k) {{ {step} }}
  {after}
  for (int i = 0; i < 4; ++i) c[threadIdx.x * 4 + i] = d[i];
}}
"""


def compiled(text: str) -> tuple[Instruction, ...]:
    return disassemble([nvrtc.compile_kernel(KernelSource("case", text, "gpu", "sm_90a")).cubin])[0]


def test_a_good_loop_has_no_problem() -> None:
    code = compiled(wgmma_kernel(STEP, before="e[threadIdx.x] = 1; __threadfence();", after="__threadfence();"))
    assert any(instruction.name == "MEMBAR" for instruction in code), "outside the loop a fence is no matter"
    assert [loop.has("HGMMA") for loop in main_loops(code)] == [True]
    assert problems(code) == []


BAD = {
    "a memory barrier wider than the block": f"{STEP} e[k] = 1; __threadfence();",
    "an invalidation of the L1 cache": 'WAIT_PARITY(".acquire.cluster"); ' + STEP,
    "a wait for memory errors": 'asm volatile("fence.acq_rel.gpu;" ::: "memory");' + STEP,
    "local memory": f"{STEP} x[(7 * k + (int)a) & 31] += e[k];",
}


@pytest.mark.parametrize("rule", BAD)
def test_a_bad_kernel_for_each_rule(rule: str) -> None:
    found = problems(compiled(wgmma_kernel(BAD[rule], before="float x[32] = {};", after="d[0] += x[n & 31];")))
    assert any(rule in problem for problem in found), found


def test_barriers_of_a_block_are_for_kernels_without_tma() -> None:
    step = f"{STEP} e[k] = 1; __threadfence_block();"
    assert problems(compiled(wgmma_kernel(step))) == []
    found = problems(compiled(wgmma_kernel(step, before="if (threadIdx.x == 0) tma(a);")))
    assert [problem.partition(": ")[2] for problem in found if "memory barrier" in problem], found


def test_the_loop_that_loads_is_a_main_loop_too() -> None:
    loading = 'for (int k = 0; k < n; ++k) {{ WAIT_PARITY("{}"); tma(a); }} return;'
    clean, bad = (
        problems(compiled(wgmma_kernel(STEP, before=f"if (threadIdx.x == 0) {{ {loading.format(scope)} }}")))
        for scope in ("", ".acquire.cluster")
    )
    assert clean == []
    assert "invalidation" in bad[0]
    assert "UTMALDG" in bad[0]


def test_fma_and_mma_loops_may_not_touch_local_memory_and_may_fence() -> None:
    text = """
extern "C" __global__ void tw_gemm(int n, const float* a, float* c) {
  float x[32] = {};
  #pragma unroll 1
  for (int k = 0; k < n; ++k) { BODY }
  c[0] = x[n & 31];
}
"""
    fence = "x[0] += a[k] * a[k + n]; c[k] = 1; __threadfence();"
    assert problems(compiled(text.replace("BODY", fence))) == []
    (found,) = problems(compiled(text.replace("BODY", "x[(5 * k) & 31] += a[k] * a[k + n];")))
    assert "local memory" in found
    mma = """
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %4, %4, %4}, {%4, %4}, {%0, %1, %2, %3};"
      : "+f"(x[0]), "+f"(x[1]), "+f"(x[2]), "+f"(x[3]) : "r"(k));
    """
    code = compiled(text.replace("BODY", mma))
    assert any(loop.has("HMMA") for loop in main_loops(code))
    found_mma = problems(compiled(text.replace("BODY", mma + "x[8 + (5 * k & 15)] += a[k];")))
    assert any("HMMA" in problem and "local memory" in problem for problem in found_mma), found_mma


DEFEATED = {
    "runs wgmma one after another": wgmma_kernel(f"{STEP} d[k & 3] += 1;").replace("unroll 1", "unroll 4"),
    "adds a wgmma wait": wgmma_kernel("fence(); wgmma(d, a + k, b); commit();"),
    "ignores setmaxnreg": wgmma_kernel(STEP, 'asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");', bounds=""),
}  # fmt: skip


@pytest.mark.parametrize("what", DEFEATED)
def test_what_ptxas_gives_up_is_no_success(what: str) -> None:
    with pytest.raises(CompileError, match=what) as refused:
        compiled(DEFEATED[what])
    assert "C75" in str(refused.value)
    with pytest.raises(CompileError, match=what):
        compiled(DEFEATED[what])  # and it is not in the cache as one


def test_several_cubins_at_once() -> None:
    texts = [wgmma_kernel(STEP), wgmma_kernel(BAD["local memory"], "float x[32] = {};", "d[0] += x[n & 31];")]
    cubins = [nvrtc.compile_kernel(KernelSource("case", text, "gpu", "sm_90a")).cubin for text in texts]
    together = disassemble([cubins[0], cubins[1], cubins[0]])
    assert together[0] == together[2] == disassemble([cubins[0]])[0]
    assert together[1] == disassemble([cubins[1]])[0]


def test_a_cubin_without_the_kernel() -> None:
    cubin = nvrtc.compile_kernel(KernelSource("case", wgmma_kernel(STEP), "gpu", "sm_90a")).cubin
    with pytest.raises(UsageError, match=r"no section \.text\.other"):
        disassemble([cubin], "other")


# Control flow, on code made up for it: an instruction a line, its address its number.


def listing(*lines: str) -> list[Instruction]:
    made = []
    for number, line in enumerate(lines):
        predicate, _, rest = line.rpartition("? ")
        opcode, _, operands = rest.partition(" ")
        if opcode == "BRA":
            operands = f"{int(operands) * sass_lint.INSTRUCTION_BYTES:#x}"
        made.append(Instruction(number * sass_lint.INSTRUCTION_BYTES, opcode, operands, predicate))
    return made


def shape(nest: Sequence[Loop]) -> list[object]:
    return [([i.address // sass_lint.INSTRUCTION_BYTES for i in loop.code], shape(loop.inner)) for loop in nest]


def test_straight_code_has_no_loops_and_padding_is_none() -> None:
    assert loops(listing("MOV", "@P0? BRA 3", "MOV", "EXIT", "BRA 4", "NOP")) == ()


def test_loops_nest() -> None:
    code = listing("MOV", "MOV", "HGMMA", "@P0? BRA 2", "@P1? BRA 1", "EXIT")
    assert shape(loops(code)) == [([1, 2, 3, 4], [([2, 3], [])])]
    assert [loop.code[0].name for loop in main_loops(code)] == ["HGMMA"]


def test_code_out_of_line_belongs_to_its_loop_and_what_lies_between_does_not() -> None:
    main = ("MOV", "SYNCS", "@!P0? BRA 7", "HGMMA", "@P1? BRA 1")
    code = listing(*main, "MEMBAR.SC.GPU", "EXIT", "SYNCS", "@!P0? BRA 7", "BRA 3")
    assert shape(loops(code)) == [([1, 2, 3, 4, 7, 8, 9], [([7, 8], [])])]
    assert problems(code) == []


def test_a_jump_through_a_register_is_refused() -> None:
    with pytest.raises(UsageError, match="BRX"):
        loops(listing("MOV", "BRX", "EXIT"))


@pytest.mark.parametrize("lines", [("HGMMA", "EXIT"), ("MOV", "HGMMA", "MOV", "@P0? BRA 2", "EXIT")])
def test_a_kernel_without_a_main_loop_was_not_checked(lines: tuple[str, ...]) -> None:
    assert problems(listing(*lines)) == ["no loop that multiplies with HGMMA was found, so that none was checked"]


def test_loads_are_no_stand_in_for_the_loop_that_multiplies() -> None:
    code = listing("HGMMA", "UTMALDG.2D", "SYNCS.PHASECHK.TRANS64.TRYWAIT", "@P0? BRA 1", "EXIT")
    assert [loop.has("UTMALDG") for loop in main_loops(code)] == [True]
    assert problems(code) == ["no loop that multiplies with HGMMA was found, so that none was checked"]


# ---- the last rung ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"bn": 192, "pingpong": True, "epilogue_columns": 32}], ids=["one", "turns"])
def test_the_last_columns_are_stored_in_one_place(changes: Mapping[str, Any]) -> None:
    # Two rows of two columns a block of 64 rows, however many slabs the tile has: what each has lies in its way.
    rung = ladder.rung(11)
    plan = rung.plan(BF16, b_layout="column").with_(**changes)
    code = compiled(rung.source(plan, "gpu", "sm_90a").text)
    assert isinstance(plan, TensorPlan)
    assert sum(each.name == "STG" for each in code) == 4 * plan.accumulators // (plan.bn // 2)
