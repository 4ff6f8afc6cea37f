// Which SM this is, and its clocks: here the block, and a counter of the host's that only advances. Host side.
#pragma once
#include <tw/cuda.cuh>
#include <tw/types.cuh>
namespace tw {
__device__ __forceinline__ u64 sm_clock() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#else
  u64 ticks;
  asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
  return ticks;
#endif
}
__device__ __forceinline__ u64 global_nanoseconds() { return sm_clock(); }
__device__ __forceinline__ u32 sm_index() { return blockIdx.x; }
}  // namespace tw
