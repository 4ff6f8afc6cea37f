// The multiply-add that is counted. GPU side.
#pragma once
namespace tw {
// fma.rn.f32 (PTX ISA, "fma"): a * b + c with one rounding.
__device__ __forceinline__ float ffma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
}  // namespace tw
