// Copies of boxes of a tensor between global and shared memory, by a unit of its own. Host side.
//
// Coordinates count elements, x along the contiguous dimension; they may lie outside the tensor, where loads bring
// zeros and stores write nothing. A load counts the bytes of the whole box on an mbarrier. Addresses in shared memory
// are multiples of 128, and of 8 times the swizzle's span.
#pragma once
#include <tw/mbarrier.cuh>
#include <tw/memory.cuh>
#include <tw/types.cuh>
namespace tw {
// How a kernel is given a tensor: `const __grid_constant__ tw::TensorMap map`.
struct alignas(64) TensorMap { u64 words[16]; };
// What the copied bytes are to L2. It changes no result, and nothing here.
enum class CacheHint { kNone, kEvictFirst, kEvictLast };

__device__ __forceinline__ void tma_prefetch_map(const TensorMap& map) { tw_tma_prefetch(&map); }

template <CacheHint HINT = CacheHint::kNone>
__device__ __forceinline__ void tma_load_2d(void* shared_dst, const TensorMap& map, Mbarrier& b, int x, int y) {
  const int at[] = {x, y};
  tw_tma_load(shared_dst, &map, &b, 2, at, false, 0);
}
template <CacheHint HINT = CacheHint::kNone>
__device__ __forceinline__ void tma_load_3d(void* shared_dst, const TensorMap& map, Mbarrier& b, int x, int y, int z) {
  const int at[] = {x, y, z};
  tw_tma_load(shared_dst, &map, &b, 3, at, false, 0);
}
template <CacheHint HINT = CacheHint::kNone>
__device__ __forceinline__ void tma_load_5d(void* shared_dst, const TensorMap& map, Mbarrier& b, int x, int y, int z, int w,
                                            int v) {
  const int at[] = {x, y, z, w, v};
  tw_tma_load(shared_dst, &map, &b, 5, at, false, 0);
}
// Into each block of the cluster whose rank's bit is set, at the same place; counted on the barrier at the same place.
template <CacheHint HINT = CacheHint::kNone>
__device__ __forceinline__ void tma_load_2d_multicast(void* shared_dst, const TensorMap& map, Mbarrier& b, int x, int y,
                                                      u16 blocks) {
  const int at[] = {x, y};
  tw_tma_load(shared_dst, &map, &b, 2, at, true, blocks);
}
template <CacheHint HINT = CacheHint::kNone>
__device__ __forceinline__ void tma_load_3d_multicast(void* shared_dst, const TensorMap& map, Mbarrier& b, int x, int y,
                                                      int z, u16 blocks) {
  const int at[] = {x, y, z};
  tw_tma_load(shared_dst, &map, &b, 3, at, true, blocks);
}
template <CacheHint HINT = CacheHint::kNone>
__device__ __forceinline__ void tma_load_5d_multicast(void* shared_dst, const TensorMap& map, Mbarrier& b, int x, int y,
                                                      int z, int w, int v, u16 blocks) {
  const int at[] = {x, y, z, w, v};
  tw_tma_load(shared_dst, &map, &b, 5, at, true, blocks);
}

// Stores read shared memory that was written before a proxy fence, and are waited for in groups by who issued them.
template <CacheHint HINT = CacheHint::kNone>
__device__ __forceinline__ void tma_store_2d(const TensorMap& map, const void* shared_src, int x, int y) {
  const int at[] = {x, y};
  tw_tma_store(&map, shared_src, 2, at);
}
template <CacheHint HINT = CacheHint::kNone>
__device__ __forceinline__ void tma_store_3d(const TensorMap& map, const void* shared_src, int x, int y, int z) {
  const int at[] = {x, y, z};
  tw_tma_store(&map, shared_src, 3, at);
}
template <CacheHint HINT = CacheHint::kNone>
__device__ __forceinline__ void tma_store_5d(const TensorMap& map, const void* shared_src, int x, int y, int z, int w, int v) {
  const int at[] = {x, y, z, w, v};
  tw_tma_store(&map, shared_src, 5, at);
}
// Close the group of stores issued by this thread since the last commit.
__device__ __forceinline__ void tma_store_commit() { tw_tma_store_commit(); }
// Wait until at most N of this thread's newest groups are in flight; _read: until the others have read shared memory.
template <int N> __device__ __forceinline__ void tma_store_wait() { tw_tma_store_wait(N, false); }
template <int N> __device__ __forceinline__ void tma_store_wait_read() { tw_tma_store_wait(N, true); }
}  // namespace tw
