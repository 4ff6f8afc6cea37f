// The multiply-add that is counted, and arithmetic that is rounded operation by operation. Host side.
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

// A product that no addition can be fused with: to the compiler, what leaves the assembly is just any number.
__forceinline__ float rounded(float product) {
#if defined(__x86_64__)
  asm("" : "+x"(product));
#else
  asm("" : "+w"(product));
#endif
  return product;
}
}  // namespace host

// a * b + c. The compiler may fuse it (one rounding, as on the GPU) where the host has the instruction.
__device__ __forceinline__ float ffma(float a, float b, float c) {
  host::count_fma();
  return a * b + c;
}

// One rounding each, never two of them made one as of C++'s operators.
__device__ __forceinline__ float add(float a, float b) { return a + b; }
__device__ __forceinline__ float sub(float a, float b) { return a - b; }
__device__ __forceinline__ float mul(float a, float b) { return host::rounded(a * b); }
__device__ __forceinline__ float div(float a, float b) { return a / b; }
}  // namespace tw
