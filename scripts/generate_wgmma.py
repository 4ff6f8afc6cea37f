#!/usr/bin/env python3
"""Write ``cuda/gpu/tw/wgmma.cuh``: one wrapper for each width N of wgmma, whose operand lists are too long to type.

``--check`` writes nothing and fails when the committed header differs. A wrapper takes its accumulators as an array
of N / 2 registers, which is what ``wgmma.mma_async.m64nNk16`` gives each thread of a warpgroup (PTX ISA, "wgmma").
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HEADER = Path(__file__).resolve().parent.parent / "src/tilewright/cuda/gpu/tw/wgmma.cuh"
WIDTHS = range(8, 257, 8)

HEAD = """\
// wgmma: matrix multiply-accumulate of a warpgroup, operands in shared memory. GPU side.
// Written by scripts/generate_wgmma.py.
#pragma once
#include <tw/types.cuh>
namespace tw {
// wgmma.fence (PTX ISA, "wgmma.fence"): before the first wgmma, and when registers were touched that the next one uses.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// wgmma.commit_group: close the group of wgmmas issued since the last commit.
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// wgmma.wait_group N: wait until at most N of the newest groups are still in flight.
template <int N> __device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
// The accumulators are read or written here and not before: the compiler knows nothing of wgmma_wait.
template <int N> __device__ __forceinline__ void wgmma_pin(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

namespace detail {
// d = a b + (accumulate ? d : 0). TA and TB: the operand is MN-major.
template <class T, int N> struct Wgmma;
}  // namespace detail

// wgmma.mma_async m64nNk16 in fp32, A and B in shared memory by descriptor (tw/operand_tile.cuh). Thread t of the
// warpgroup holds d[4 j], d[4 j + 1] = row 16 (t / 32) + t % 32 / 4, columns 8 j + 2 (t % 4) and the next;
// d[4 j + 2], d[4 j + 3] = the same 8 rows below.
template <class T, int N, bool TRANSPOSE_A, bool TRANSPOSE_B>
__device__ __forceinline__ void wgmma(float (&d)[N / 2], u64 a, u64 b, bool accumulate) {
  detail::Wgmma<T, N>::template shared<TRANSPOSE_A, TRANSPOSE_B>(d, a, b, accumulate);
}
// The same with A in registers: the fragment of mma_m16n8k16, each warp its 16 rows.
template <class T, int N, bool TRANSPOSE_B>
__device__ __forceinline__ void wgmma(float (&d)[N / 2], const u32 (&a)[4], u64 b, bool accumulate) {
  detail::Wgmma<T, N>::template registers<TRANSPOSE_B>(d, a, b, accumulate);
}

namespace detail {
// TW_R<i>: the registers %0 to %i - 1. TW_D<i>: the accumulators as operands.
"""

WRAPPER = r"""
// P0, P1, ...: the numbers of the operands behind the accumulators.
#define TW_WGMMA(T, KIND, N, HALF, P0, P1, P2, P3, P4, P5, P6)                                                      \
  template <> struct Wgmma<T, N> {                                                                                  \
    template <bool TA, bool TB>                                                                                     \
    static __device__ __forceinline__ void shared(float (&d)[HALF], u64 a, u64 b, int accumulate) {                 \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P2 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16.f32."  \
                   #KIND "." #KIND " {" TW_R##HALF "}, %" #P0 ", %" #P1 ", p, 1, 1, %" #P3 ", %" #P4 ";\n}"         \
                   : TW_D##HALF : "l"(a), "l"(b), "r"(accumulate), "n"(int(TA)), "n"(int(TB)));                     \
    }                                                                                                               \
    template <bool TB>                                                                                              \
    static __device__ __forceinline__ void registers(float (&d)[HALF], const u32 (&a)[4], u64 b, int accumulate) {  \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P5 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16.f32."  \
                   #KIND "." #KIND " {" TW_R##HALF "}, {%" #P0 ", %" #P1 ", %" #P2 ", %" #P3 "}, %" #P4             \
                   ", p, 1, 1, %" #P6 ";\n}"                                                                        \
                   : TW_D##HALF                                                                                     \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(int(TB)));            \
    }                                                                                                               \
  };
"""

TAIL = """\
#undef TW_WGMMA
}  // namespace detail
}  // namespace tw
"""


def lists(half: int) -> str:
    """The operand lists of ``half`` accumulators, on top of those of four fewer."""
    first = range(half - 4, half)
    registers = ",".join(f"%{i}" for i in first)
    accumulators = ", ".join(f'"+f"(d[{i}])' for i in first)
    if half == 4:
        return f'#define TW_R4 "{registers}"\n#define TW_D4 {accumulators}\n'
    below = half - 4
    return f'#define TW_R{half} TW_R{below} ",{registers}"\n#define TW_D{half} TW_D{below}, {accumulators}\n'


def header() -> str:
    """The whole file."""
    halves = [n // 2 for n in WIDTHS]
    types = (("bf16", "bf16"), ("fp16", "f16"))
    # The operands after the accumulators are numbered from there on, in the text of the instruction.
    wrappers = (
        f"TW_WGMMA({c_name}, {kind}, {n}, {n // 2}, {', '.join(str(n // 2 + i) for i in range(7))})\n"
        for n in WIDTHS
        for c_name, kind in types
    )
    undefined = "".join(f"#undef TW_R{half}\n#undef TW_D{half}\n" for half in halves)
    return HEAD + "".join(map(lists, halves)) + WRAPPER + "".join(wrappers) + undefined + TAIL


def main() -> int:
    """Write the header, or compare with it; 1 when it differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail when the committed header differs")
    arguments = parser.parse_args()
    text = header()
    if not arguments.check:
        HEADER.write_text(text, encoding="utf-8")
        return 0
    if HEADER.read_text(encoding="utf-8") != text:
        print(f"{HEADER.name} is not what scripts/generate_wgmma.py writes: run it", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
