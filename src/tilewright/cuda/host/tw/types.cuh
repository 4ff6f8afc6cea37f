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
struct fp16 { u16 bits; };

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) { return host::bf16_to_float(x.bits); }
__device__ __forceinline__ float to_float(fp16 x) { return host::fp16_to_float(x.bits); }

template <class T> __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x) { return x; }
// Round to nearest even: add just under half of the last kept bit, plus that bit. A NaN becomes 0x7fff, as cvt makes
// it.
template <> __device__ __forceinline__ bf16 from_float<bf16>(float x) {
  const u32 bits = host::bits_of(x);
  const u32 rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
  return {u16((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : rounded)};
}
// The same, but that what is too large becomes infinity, and that below 2^-14 the last bit is 2^-24 throughout: that of
// a float from 0.5 to 1, whose own rounding does the work.
template <> __device__ __forceinline__ fp16 from_float<fp16>(float x) {
  const u32 bits = host::bits_of(x), magnitude = bits & 0x7fffffffu, sign = bits >> 16 & 0x8000u;
  if (magnitude > 0x7f800000u) return {0x7fff};
  if (magnitude >= 0x477ff000u) return {u16(sign | 0x7c00u)};  // 65520: halfway between the largest and what follows
  if (magnitude < 0x38800000u)
    return {u16(sign | (host::bits_of(host::float_of(magnitude) + 0.5f) - host::bits_of(0.5f)))};
  return {u16(sign | ((magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1)) >> 13))};
}

// Two elements, `low` in the low half.
template <class T> __device__ __forceinline__ u32 pack(float low, float high);
template <> __device__ __forceinline__ u32 pack<bf16>(float low, float high) {
  return from_float<bf16>(low).bits | u32(from_float<bf16>(high).bits) << 16;
}
template <> __device__ __forceinline__ u32 pack<fp16>(float low, float high) {
  return from_float<fp16>(low).bits | u32(from_float<fp16>(high).bits) << 16;
}

// The way back.
template <class T> __device__ __forceinline__ void unpack(u32 two, float& low, float& high);
template <> __device__ __forceinline__ void unpack<bf16>(u32 two, float& low, float& high) {
  low = to_float(bf16{u16(two)}), high = to_float(bf16{u16(two >> 16)});
}
template <> __device__ __forceinline__ void unpack<fp16>(u32 two, float& low, float& high) {
  low = to_float(fp16{u16(two)}), high = to_float(fp16{u16(two >> 16)});
}

namespace host {
constexpr int element_type(bf16) { return kBf16; }
constexpr int element_type(fp16) { return kFp16; }
}  // namespace host
}  // namespace tw
