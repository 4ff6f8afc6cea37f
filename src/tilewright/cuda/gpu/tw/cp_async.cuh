// Asynchronous copies from global to shared memory, Ampere style. GPU side.
#pragma once
#include <tw/types.cuh>
namespace tw {
// cp.async (PTX ISA, "cp.async"): copy BYTES (4, 8 or 16) of which the first `valid` are read; the rest are zero.
// 16-byte copies bypass L1 (.cg).
template <int BYTES> __device__ __forceinline__ void cp_async(void* shared_dst, const void* global_src, int valid) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async copies 4, 8 or 16 bytes");
  const u32 dst = u32(__cvta_generic_to_shared(shared_dst));
  if constexpr (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(global_src), "r"(valid) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(dst), "l"(global_src), "n"(BYTES), "r"(valid)
                 : "memory");
  }
}
// The same with all bytes read. (A run-time `valid` costs address arithmetic for the copies that are not whole.)
template <int BYTES> __device__ __forceinline__ void cp_async(void* shared_dst, const void* global_src) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async copies 4, 8 or 16 bytes");
  const u32 dst = u32(__cvta_generic_to_shared(shared_dst));
  if constexpr (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(dst), "l"(global_src) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(dst), "l"(global_src), "n"(BYTES) : "memory");
  }
}
// cp.async.commit_group: close the group of copies issued by this thread since the last commit.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// cp.async.wait_group N: wait until at most N of this thread's newest groups are still in flight.
template <int N> __device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
}  // namespace tw
