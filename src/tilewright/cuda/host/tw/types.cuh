// Element types and their conversions. Host side.
#pragma once
#include <tw/cuda.cuh>
namespace tw {
using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

struct bf16 { u16 bits; };

__device__ __forceinline__ float to_float(float x) { return x; }
// A bf16 is the upper half of a float.
__device__ __forceinline__ float to_float(bf16 x) {
  const u32 bits = u32(x.bits) << 16;
  float f;
  __builtin_memcpy(&f, &bits, sizeof f);
  return f;
}

template <class T> __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x) { return x; }
// Round to nearest even: add just under half of the last kept bit, plus that bit. A NaN becomes 0x7fff, as cvt makes
// it.
template <> __device__ __forceinline__ bf16 from_float<bf16>(float x) {
  u32 bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  const u32 rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
  return {u16((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : rounded)};
}
}  // namespace tw
