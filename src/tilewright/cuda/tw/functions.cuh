// What epilogues call beside the arithmetic: functions of it that need no side of the seam.
#pragma once
#include <tw/arithmetic.cuh>
namespace tw {
// 1 / (1 + exp(-x)), of an exponential that cannot overflow: for negative x, exp(x) / (1 + exp(x)).
__device__ __forceinline__ float sigmoid(float x) {
  const float e = exp(-abs(x)), r = reciprocal(add(1.0f, e));
  return x >= 0.0f ? r : mul(e, r);
}
__device__ __forceinline__ float negative(float x) { return -x; }
__device__ __forceinline__ float select(bool condition, float yes, float no) { return condition ? yes : no; }
__device__ __forceinline__ float number(bool condition) { return condition ? 1.0f : 0.0f; }

// For results that are rounded to 16 bits: exp(x), sigmoid(x) and the normal distribution's function, to 2^-19 of themselves for
// |x| up to 4 and to 2^-16 beyond, subnormal results too, in a third to half of the instructions.
namespace brief {
__device__ __forceinline__ float exp(float x) {
  const float half = exp2_approx(x * 0.721347520f);  // of x / 2, which is no subnormal where exp(x) is one
  return half * half;
}
// With h = exp(-x / 2) 2^-8 it is 2^-16 / (2^-16 + h^2): of numbers that overflow, and whose reciprocal is subnormal, only where
// the result is 0 in bf16 too (x below -98).
__device__ __forceinline__ float sigmoid(float x) {
  const float h = exp2_approx(x * -0.721347520f - 8.0f);
  return reciprocal_approx(h * h + 0x1p-16f) * 0x1p-16f;
}
// With z = |x| and u = 1 / (z + 3.75), what lies beyond z is exp(-z^2 / 2) u P(u), to 2^-20 for z up to 15.
__device__ __forceinline__ float normal_cdf(float x) {
  constexpr float P[] = {0.398627728f, 1.51836801f, 4.56559944f, 26.3760147f, -38.0402336f, 507.503967f, -682.313232f};
  const float z = minimum(abs(x), 15.0f), u = reciprocal_approx(z + 3.75f);
  float p = P[6];
#pragma unroll
  for (int i = 5; i >= 0; --i) p = p * u + P[i];
  const float half = exp2_approx(z * z * -0.360673760f), beyond = half * (p * u) * half;
  return x > 0.0f ? 1.0f - beyond : beyond;
}
}  // namespace brief
}  // namespace tw
