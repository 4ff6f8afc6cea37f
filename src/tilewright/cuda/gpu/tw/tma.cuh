// TMA: boxes of a tensor, copied between global and shared memory by a unit of their own. GPU side.
#pragma once
#include <tw/mbarrier.cuh>
#include <tw/memory.cuh>
#include <tw/types.cuh>
namespace tw {
// What cuTensorMapEncodeTiled writes; a kernel takes it as `const __grid_constant__ TensorMap`.
struct alignas(64) TensorMap { u64 words[16]; };
// How long L2 should keep what a copy brings.
enum class CacheHint { kNone, kEvictFirst, kEvictLast };

namespace detail {
// Cache policies as createpolicy.fractional.L2 makes them for all of an access.
template <CacheHint HINT> constexpr u64 kPolicy = HINT == CacheHint::kEvictFirst ? 0x12F0000000000000 : 0x14F0000000000000;
}  // namespace detail

// prefetch.tensormap (PTX ISA, "prefetch"): the map itself, before the first copy needs it.
__device__ __forceinline__ void tma_prefetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// cp.async.bulk.tensor.2d, global to shared (PTX ISA, "cp.async.bulk.tensor"): the box at (x, y), the contiguous
// dimension first, zeros where it lies outside the tensor. The bytes of the whole box are counted at `b`.
template <CacheHint HINT = CacheHint::kNone>
__device__ __forceinline__ void tma_load_2d(void* shared_dst, const TensorMap& map, Mbarrier& b, int x, int y) {
  if constexpr (HINT == CacheHint::kNone) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3,%4}], [%2];"
                 ::"r"(shared_address(shared_dst)), "l"(&map), "r"(shared_address(&b)), "r"(x), "r"(y) : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%0], [%1, {%3,%4}], [%2], %5;"
        ::"r"(shared_address(shared_dst)), "l"(&map), "r"(shared_address(&b)), "r"(x), "r"(y), "l"(detail::kPolicy<HINT>)
        : "memory");
  }
}
template <CacheHint HINT = CacheHint::kNone>
__device__ __forceinline__ void tma_load_3d(void* shared_dst, const TensorMap& map, Mbarrier& b, int x, int y, int z) {
  if constexpr (HINT == CacheHint::kNone) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3,%4,%5}], [%2];"
        ::"r"(shared_address(shared_dst)), "l"(&map), "r"(shared_address(&b)), "r"(x), "r"(y), "r"(z) : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%0], [%1, {%3,%4,%5}], [%2], %6;"
        ::"r"(shared_address(shared_dst)), "l"(&map), "r"(shared_address(&b)), "r"(x), "r"(y), "r"(z),
        "l"(detail::kPolicy<HINT>) : "memory");
  }
}
template <CacheHint HINT = CacheHint::kNone>
__device__ __forceinline__ void tma_load_5d(void* shared_dst, const TensorMap& map, Mbarrier& b, int x, int y, int z, int w,
                                            int v) {
  if constexpr (HINT == CacheHint::kNone) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3,%4,%5,%6,%7}], [%2];"
        ::"r"(shared_address(shared_dst)), "l"(&map), "r"(shared_address(&b)), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%0], [%1, {%3,%4,%5,%6,%7}], [%2], %8;"
        ::"r"(shared_address(shared_dst)), "l"(&map), "r"(shared_address(&b)), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v),
        "l"(detail::kPolicy<HINT>) : "memory");
  }
}
// .multicast::cluster: the box to the same place in each block of the cluster whose bit is set, counted at the same
// barrier of each.
template <CacheHint HINT = CacheHint::kNone>
__device__ __forceinline__ void tma_load_2d_multicast(void* shared_dst, const TensorMap& map, Mbarrier& b, int x, int y,
                                                      u16 blocks) {
  if constexpr (HINT == CacheHint::kNone) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%3,%4}], [%2], %5;"
        ::"r"(shared_address(shared_dst)), "l"(&map), "r"(shared_address(&b)), "r"(x), "r"(y), "h"(blocks) : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint"
        " [%0], [%1, {%3,%4}], [%2], %5, %6;"
        ::"r"(shared_address(shared_dst)), "l"(&map), "r"(shared_address(&b)), "r"(x), "r"(y), "h"(blocks),
        "l"(detail::kPolicy<HINT>) : "memory");
  }
}
template <CacheHint HINT = CacheHint::kNone>
__device__ __forceinline__ void tma_load_3d_multicast(void* shared_dst, const TensorMap& map, Mbarrier& b, int x, int y,
                                                      int z, u16 blocks) {
  if constexpr (HINT == CacheHint::kNone) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%3,%4,%5}], [%2], %6;"
        ::"r"(shared_address(shared_dst)), "l"(&map), "r"(shared_address(&b)), "r"(x), "r"(y), "r"(z), "h"(blocks)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint"
        " [%0], [%1, {%3,%4,%5}], [%2], %6, %7;"
        ::"r"(shared_address(shared_dst)), "l"(&map), "r"(shared_address(&b)), "r"(x), "r"(y), "r"(z), "h"(blocks),
        "l"(detail::kPolicy<HINT>) : "memory");
  }
}
template <CacheHint HINT = CacheHint::kNone>
__device__ __forceinline__ void tma_load_5d_multicast(void* shared_dst, const TensorMap& map, Mbarrier& b, int x, int y,
                                                      int z, int w, int v, u16 blocks) {
  if constexpr (HINT == CacheHint::kNone) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%3,%4,%5,%6,%7}], [%2], %8;"
        ::"r"(shared_address(shared_dst)), "l"(&map), "r"(shared_address(&b)), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v),
        "h"(blocks) : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint"
        " [%0], [%1, {%3,%4,%5,%6,%7}], [%2], %8, %9;"
        ::"r"(shared_address(shared_dst)), "l"(&map), "r"(shared_address(&b)), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v),
        "h"(blocks), "l"(detail::kPolicy<HINT>) : "memory");
  }
}

// cp.async.bulk.tensor.2d, shared to global: what lies outside the tensor is left out.
template <CacheHint HINT = CacheHint::kNone>
__device__ __forceinline__ void tma_store_2d(const TensorMap& map, const void* shared_src, int x, int y) {
  if constexpr (HINT == CacheHint::kNone) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2,%3}], [%1];"
                 ::"l"(&map), "r"(shared_address(shared_src)), "r"(x), "r"(y) : "memory");
  } else {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group.L2::cache_hint [%0, {%2,%3}], [%1], %4;"
                 ::"l"(&map), "r"(shared_address(shared_src)), "r"(x), "r"(y), "l"(detail::kPolicy<HINT>) : "memory");
  }
}
template <CacheHint HINT = CacheHint::kNone>
__device__ __forceinline__ void tma_store_3d(const TensorMap& map, const void* shared_src, int x, int y, int z) {
  if constexpr (HINT == CacheHint::kNone) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2,%3,%4}], [%1];"
                 ::"l"(&map), "r"(shared_address(shared_src)), "r"(x), "r"(y), "r"(z) : "memory");
  } else {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group.L2::cache_hint [%0, {%2,%3,%4}], [%1], %5;"
                 ::"l"(&map), "r"(shared_address(shared_src)), "r"(x), "r"(y), "r"(z), "l"(detail::kPolicy<HINT>)
                 : "memory");
  }
}
template <CacheHint HINT = CacheHint::kNone>
__device__ __forceinline__ void tma_store_5d(const TensorMap& map, const void* shared_src, int x, int y, int z, int w, int v) {
  if constexpr (HINT == CacheHint::kNone) {
    asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2,%3,%4,%5,%6}], [%1];"
                 ::"l"(&map), "r"(shared_address(shared_src)), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v) : "memory");
  } else {
    asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group.L2::cache_hint [%0, {%2,%3,%4,%5,%6}], [%1], %7;"
                 ::"l"(&map), "r"(shared_address(shared_src)), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v),
                 "l"(detail::kPolicy<HINT>) : "memory");
  }
}
// cp.async.bulk.commit_group: close the group of stores issued by this thread since the last commit.
__device__ __forceinline__ void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// cp.async.bulk.wait_group N: wait until at most N of this thread's newest groups are still in flight,
template <int N> __device__ __forceinline__ void tma_store_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory");
}
// or, with .read, until the others have read their shared memory.
template <int N> __device__ __forceinline__ void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}
}  // namespace tw
