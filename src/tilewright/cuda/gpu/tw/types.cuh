// Element types and their conversions. GPU side.
#pragma once
namespace tw {
using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

struct bf16 { u16 bits; };
struct fp16 { u16 bits; };

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) { return __uint_as_float(u32(x.bits) << 16); }
// cvt.f32.f16 (PTX ISA, "cvt").
__device__ __forceinline__ float to_float(fp16 x) {
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x.bits));
  return r;
}

template <class T> __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x) { return x; }
// cvt.rn.bf16.f32 (PTX ISA, "cvt"): round to nearest even, NaN stays NaN.
template <> __device__ __forceinline__ bf16 from_float<bf16>(float x) {
  bf16 r;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(x));
  return r;
}
// cvt.rn.f16.f32: round to nearest even, too large becomes infinity.
template <> __device__ __forceinline__ fp16 from_float<fp16>(float x) {
  fp16 r;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(x));
  return r;
}

// cvt.rn.bf16x2.f32 and cvt.rn.f16x2.f32: two elements, `low` in the low half.
template <class T> __device__ __forceinline__ u32 pack(float low, float high);
template <> __device__ __forceinline__ u32 pack<bf16>(float low, float high) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
template <> __device__ __forceinline__ u32 pack<fp16>(float low, float high) {
  u32 r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

// The way back: `low` is a shift, `high` a mask of bf16; cvt.f32.f16 of fp16.
template <class T> __device__ __forceinline__ void unpack(u32 two, float& low, float& high);
template <> __device__ __forceinline__ void unpack<bf16>(u32 two, float& low, float& high) {
  low = __uint_as_float(two << 16), high = __uint_as_float(two & 0xffff0000u);
}
template <> __device__ __forceinline__ void unpack<fp16>(u32 two, float& low, float& high) {
  low = to_float(fp16{u16(two)}), high = to_float(fp16{u16(two >> 16)});
}
}  // namespace tw
