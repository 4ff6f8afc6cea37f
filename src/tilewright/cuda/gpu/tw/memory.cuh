// Wide loads and stores, and the one struct that is a block's shared memory. GPU side.
#pragma once
#include <tw/types.cuh>
#include <tw/vec.cuh>
namespace tw {
template <int BYTES> struct Raw;
template <> struct Raw<2> { using type = u16; };
template <> struct Raw<4> { using type = u32; };
template <> struct Raw<8> { using type = uint2; };
template <> struct Raw<16> { using type = uint4; };

// N consecutive elements as one access of N * sizeof(T) bytes (ld.v4.b32 for 16); p is aligned to that.
template <int N, class T> __device__ __forceinline__ Vec<T, N> load(const T* p) {
  auto raw = *reinterpret_cast<const typename Raw<N * sizeof(T)>::type*>(p);
  Vec<T, N> v;
  memcpy(&v, &raw, sizeof v);
  return v;
}
template <int N, class T> __device__ __forceinline__ void store(T* p, Vec<T, N> v) {
  typename Raw<N * sizeof(T)>::type raw;
  memcpy(&raw, &v, sizeof v);
  *reinterpret_cast<typename Raw<N * sizeof(T)>::type*>(p) = raw;
}
// st.v4.f32: four accumulators, which no copy into integers may come between: for that, ptxas serialises the wgmmas before.
__device__ __forceinline__ void store_accumulators(float* p, float a, float b, float c, float d) {
  *reinterpret_cast<float4*>(p) = make_float4(a, b, c, d);
}

// The elements of a vector as floats. A pair of bf16 takes one shift and one AND.
template <int N> __device__ __forceinline__ void widen(float* out, Vec<float, N> v) {
#pragma unroll
  for (int e = 0; e < N; ++e) out[e] = v[e];
}
template <int N> __device__ __forceinline__ void widen(float* out, Vec<bf16, N> v) {
  static_assert(N % 2 == 0, "bf16 is widened in pairs");
  u32 pairs[N / 2];
  memcpy(pairs, &v, sizeof v);
#pragma unroll
  for (int p = 0; p < N / 2; ++p) {
    out[2 * p] = __uint_as_float(pairs[p] << 16);
    out[2 * p + 1] = __uint_as_float(pairs[p] & 0xffff0000u);
  }
}
template <int N> __device__ __forceinline__ void widen(float* out, Vec<fp16, N> v) {
#pragma unroll
  for (int e = 0; e < N; ++e) out[e] = to_float(v[e]);
}

// An address in shared memory as instructions and descriptors take it: 32 bits, in the shared window.
__device__ __forceinline__ u32 shared_address(const void* p) { return u32(__cvta_generic_to_shared(p)); }

// The block's dynamic shared memory as one struct. The planner's arithmetic is checked by the compiler.
template <class T> __device__ __forceinline__ T& shared() {
  static_assert(sizeof(T) == plan::SHARED_BYTES, "plan::SHARED_BYTES is not the size of the shared struct");
  extern __shared__ __align__(1024) unsigned char tw_dynamic_shared[];
  return *reinterpret_cast<T*>(tw_dynamic_shared);
}
}  // namespace tw
