// The multiply-add that is counted, and arithmetic that is rounded operation by operation. GPU side.
#pragma once
namespace tw {
// fma.rn.f32 (PTX ISA, "fma"): a * b + c with one rounding.
__device__ __forceinline__ float ffma(float a, float b, float c) { return __fmaf_rn(a, b, c); }

// add.rn.f32, sub.rn.f32, mul.rn.f32, div.rn.f32: one rounding each, never two of them made one as of C++'s operators.
__device__ __forceinline__ float add(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ float sub(float a, float b) { return __fsub_rn(a, b); }
__device__ __forceinline__ float mul(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ float div(float a, float b) { return __fdiv_rn(a, b); }
}  // namespace tw
