// Asynchronous copies from global to shared memory, Ampere style. Host side.
#pragma once
#include <tw/types.cuh>
namespace tw {
// Copy BYTES (4, 8 or 16) of which the first `valid` are read; the rest are zero. The runtime decides when.
template <int BYTES> __device__ __forceinline__ void cp_async(void* shared_dst, const void* global_src, int valid) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async copies 4, 8 or 16 bytes");
  tw_cp_async(shared_dst, global_src, BYTES, valid);
}
// The same with all bytes read.
template <int BYTES> __device__ __forceinline__ void cp_async(void* shared_dst, const void* global_src) {
  cp_async<BYTES>(shared_dst, global_src, BYTES);
}
// Close the group of copies issued by this thread since the last commit.
__device__ __forceinline__ void cp_async_commit() { tw_cp_async_commit(); }
// Wait until at most N of this thread's newest groups are still in flight.
template <int N> __device__ __forceinline__ void cp_async_wait() { tw_cp_async_wait(N); }
}  // namespace tw
