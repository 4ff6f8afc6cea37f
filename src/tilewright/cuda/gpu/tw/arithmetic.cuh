// What epilogues compute beside sums and products (math.cuh): each operation rounded by itself, to fp32. GPU side.
#pragma once
#include <tw/math.cuh>
#include <tw/types.cuh>
namespace tw {
// sqrt.rn.f32 (PTX ISA, "sqrt").
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
// 2^x to 2^-22, and 1 / x to 2^-23 of itself: ex2.approx.ftz.f32 and rcp.approx.ftz.f32 (PTX ISA, "ex2", "rcp"), for which what
// lies below 2^-126 is 0.
__device__ __forceinline__ float exp2_approx(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
__device__ __forceinline__ float reciprocal_approx(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
// 1 / x for x from 2^-100 to 2^100, or NaN: the approximation and a step of Newton's, without the branches of div.
__device__ __forceinline__ float reciprocal(float x) {
  const float r = reciprocal_approx(x);
  return __fmaf_rn(r, __fmaf_rn(-x, r, 1.0f), r);
}

// The normal distribution's, (1 + erf(x / sqrt 2)) / 2, to a few units in the last place also where x is negative and that sum
// would cancel: with z = |x|, what lies beyond z is exp(-z^2 / 2) R(s) / (z + 3), s = (z - 3) / (z + 3), in which R is smooth.
// Its polynomial has the least relative error for z up to 15 (2^-23.5), where the exponential is 0 in fp32. No branch, and a
// sixth of the instructions of normcdff: an epilogue has it once for each accumulator of a thread.
__device__ __forceinline__ float normal_cdf(float x) {
  constexpr float R[] = {0.729083657f,    -0.509332359f,   0.230019435f,    -0.0472544618f,   -0.0104801441f,
                         0.00691616721f,  0.00107323623f,  -0.000892527984f, -0.000259306835f};
  const float z = minimum(fabsf(x), 15.0f), inverse = reciprocal(z + 3.0f), s = __fmaf_rn(-6.0f, inverse, 1.0f);
  float r = R[8];
#pragma unroll
  for (int i = 7; i >= 0; --i) r = __fmaf_rn(r, s, R[i]);
  const float square = z * z, rest = __fmaf_rn(z, z, -square);  // rounded off z^2, whose exponential would show it
  const float e = expf(-0.5f * square), beyond = __fmaf_rn(e, -0.5f * rest, e) * (r * inverse);
  return x > 0.0f ? 1.0f - beyond : beyond;
}

// What no literal says: infinities and NaN.
__device__ __forceinline__ float float_of_bits(u32 bits) { return __uint_as_float(bits); }
}  // namespace tw
