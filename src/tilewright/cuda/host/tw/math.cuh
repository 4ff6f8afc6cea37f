// The multiply-add that is counted. Host side.
#pragma once
#include <tw/cuda.cuh>
namespace tw {
namespace host {
// In assembly, so that a compiler that reports a kernel's accesses does not report the counter's.
__forceinline__ void count_fma() {
#if !defined(TW_COUNT)
#elif defined(__x86_64__)
  asm("incq %0" : "+m"(tw_fma_count) : : "cc");
#else
  unsigned long long count;
  asm("ldr %0, %1\n add %0, %0, #1\n str %0, %1" : "=&r"(count), "+Q"(tw_fma_count));
#endif
}
}  // namespace host

// a * b + c. The compiler may fuse it (one rounding, as on the GPU) where the host has the instruction.
__device__ __forceinline__ float ffma(float a, float b, float c) {
  host::count_fma();
  return a * b + c;
}
}  // namespace tw
