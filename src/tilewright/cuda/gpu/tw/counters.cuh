// Which SM this is, and its clocks. GPU side.
#pragma once
#include <tw/types.cuh>
namespace tw {
// %clock64 (PTX ISA, "Special Registers"): this SM's clocks. In order with accesses of memory before and after it.
__device__ __forceinline__ u64 sm_clock() {
  u64 clocks;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(clocks)::"memory");
  return clocks;
}
// %globaltimer: nanoseconds, the same on all SMs; it may advance in steps of a microsecond.
__device__ __forceinline__ u64 global_nanoseconds() {
  u64 nanoseconds;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds)::"memory");
  return nanoseconds;
}
// %smid.
__device__ __forceinline__ u32 sm_index() {
  u32 index;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(index));
  return index;
}
}  // namespace tw
