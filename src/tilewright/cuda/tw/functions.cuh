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
}  // namespace tw
