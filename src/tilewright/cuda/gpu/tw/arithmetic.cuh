// The arithmetic of epilogues: each operation rounded by itself, to fp32. GPU side.
#pragma once
#include <tw/types.cuh>
namespace tw {
// add.rn.f32, sub.rn.f32, mul.rn.f32, div.rn.f32, sqrt.rn.f32 (PTX ISA, "Floating Point Instructions"): with the rounding named,
// the compiler joins none with another, so that the result is that of the same expression on a CPU.
__device__ __forceinline__ float add(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ float sub(float a, float b) { return __fsub_rn(a, b); }
__device__ __forceinline__ float mul(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ float div(float a, float b) { return __fdiv_rn(a, b); }
__device__ __forceinline__ float sqrt(float x) { return __fsqrt_rn(x); }
__device__ __forceinline__ float abs(float x) { return fabsf(x); }

// max.NaN.f32, min.NaN.f32 (PTX ISA, "max"): NaN when either is, and -0 is less than +0.
__device__ __forceinline__ float maximum(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
__device__ __forceinline__ float minimum(float a, float b) {
  float r;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}

// To a few units in the last place (CUDA Programming Guide, "Mathematical Functions"): the precise ones, not the intrinsics.
__device__ __forceinline__ float exp(float x) { return expf(x); }
__device__ __forceinline__ float log(float x) { return logf(x); }
__device__ __forceinline__ float tanh(float x) { return tanhf(x); }
__device__ __forceinline__ float erf(float x) { return erff(x); }
// The normal distribution's: (1 + erf(x / sqrt 2)) / 2, without its cancellation where x is negative.
__device__ __forceinline__ float normal_cdf(float x) { return normcdff(x); }

// What no literal says: infinities and NaN.
__device__ __forceinline__ float float_of_bits(u32 bits) { return __uint_as_float(bits); }
}  // namespace tw
