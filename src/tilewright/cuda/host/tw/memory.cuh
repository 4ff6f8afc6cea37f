// Wide loads and stores, and the one struct that is a block's shared memory. Host side.
#pragma once
#include <tw/types.cuh>
#include <tw/vec.cuh>
namespace tw {
// Types of one memory access each; the compiler reports an instrumented access of just that width. They may alias the
// elements.
template <int BYTES> struct Raw;
template <> struct Raw<2> { typedef u16 __attribute__((may_alias)) type; };
template <> struct Raw<4> { typedef u32 __attribute__((may_alias)) type; };
template <> struct Raw<8> { typedef u64 __attribute__((may_alias)) type; };
template <> struct Raw<16> { typedef u32 __attribute__((vector_size(16), may_alias)) type; };

namespace host {
// Where accesses are reported, keeps one from being split: clang reads only the parts of a vector that it finds used.
template <class R> __forceinline__ void keep_whole(R& raw) {
#if !defined(TW_COUNT)
  (void)raw;
#elif defined(__x86_64__)
  if constexpr (sizeof(R) == 16) asm("" : "+x"(raw));
#else
  if constexpr (sizeof(R) == 16) asm("" : "+w"(raw));
#endif
}
}  // namespace host

// In the counted build clang must not split a wide load whose halves are used apart: the split would be counted.
#ifdef TW_COUNT
#define TW_ONE_ACCESS volatile
#else
#define TW_ONE_ACCESS
#endif

// N consecutive elements as one access of N * sizeof(T) bytes; p is aligned to that.
template <int N, class T> __device__ __forceinline__ Vec<T, N> load(const T* p) {
  typename Raw<N * sizeof(T)>::type raw = *reinterpret_cast<const TW_ONE_ACCESS typename Raw<N * sizeof(T)>::type*>(p);
  host::keep_whole(raw);
  Vec<T, N> v;
  __builtin_memcpy(&v, &raw, sizeof v);
  return v;
}
template <int N, class T> __device__ __forceinline__ void store(T* p, Vec<T, N> v) {
  typename Raw<N * sizeof(T)>::type raw;
  __builtin_memcpy(&raw, &v, sizeof v);
  host::keep_whole(raw);
  *reinterpret_cast<typename Raw<N * sizeof(T)>::type*>(p) = raw;
}
// Four accumulators as one access of 16 bytes.
__device__ __forceinline__ void store_accumulators(float* p, float a, float b, float c, float d) {
  store<4>(p, Vec<float, 4>{{a, b, c, d}});
}

// The elements of a vector as floats.
template <int N> __device__ __forceinline__ void widen(float* out, Vec<float, N> v) {
  for (int e = 0; e < N; ++e) out[e] = v[e];
}
template <int N> __device__ __forceinline__ void widen(float* out, Vec<bf16, N> v) {
  for (int e = 0; e < N; ++e) out[e] = to_float(v[e]);
}
template <int N> __device__ __forceinline__ void widen(float* out, Vec<fp16, N> v) {
  for (int e = 0; e < N; ++e) out[e] = to_float(v[e]);
}

// An address in shared memory as instructions and descriptors take it: here, the offset from its beginning.
__device__ __forceinline__ u32 shared_address(const void* p) { return tw_shared_address(p); }

// The block's dynamic shared memory as one struct. The planner's arithmetic is checked by the compiler.
template <class T> __device__ __forceinline__ T& shared() {
  static_assert(sizeof(T) == plan::SHARED_BYTES, "plan::SHARED_BYTES is not the size of the shared struct");
  return *reinterpret_cast<T*>(tw_current->shared);
}
}  // namespace tw
