// What epilogues compute beside sums and products (math.cuh): each operation rounded by itself, to fp32. Host side.
#pragma once
#include <tw/math.cuh>
#include <tw/types.cuh>
namespace tw {
__device__ __forceinline__ float sqrt(float x) { return __builtin_sqrtf(x); }
__device__ __forceinline__ float abs(float x) { return __builtin_fabsf(x); }

// NaN when either is. Of equals, which differ in their sign at most, the bits decide: -0 is less than +0.
__device__ __forceinline__ float maximum(float a, float b) {
  if (a == b) return host::float_of(host::bits_of(a) & host::bits_of(b));
  return a > b || a != a ? a : b;
}
__device__ __forceinline__ float minimum(float a, float b) {
  if (a == b) return host::float_of(host::bits_of(a) | host::bits_of(b));
  return a < b || a != a ? a : b;
}

// In double, by the C library that the process has anyway, and then rounded once.
__device__ __forceinline__ float exp(float x) { return float(__builtin_exp(double(x))); }
__device__ __forceinline__ float log(float x) { return float(__builtin_log(double(x))); }
__device__ __forceinline__ float tanh(float x) { return float(__builtin_tanh(double(x))); }
__device__ __forceinline__ float erf(float x) { return float(__builtin_erf(double(x))); }
namespace host {
__forceinline__ float flushed(float x) { return __builtin_fabsf(x) < 0x1p-126f ? 0 * x : x; }
}  // namespace host
__device__ __forceinline__ float exp2_approx(float x) { return host::flushed(float(__builtin_exp2(double(host::flushed(x))))); }
__device__ __forceinline__ float reciprocal_approx(float x) { return host::flushed(1.0f / host::flushed(x)); }
__device__ __forceinline__ float reciprocal(float x) { return 1.0f / x; }
__device__ __forceinline__ float normal_cdf(float x) { return float(0.5 * __builtin_erfc(double(x) * -0.70710678118654752)); }

__device__ __forceinline__ float float_of_bits(u32 bits) { return host::float_of(bits); }
}  // namespace tw
