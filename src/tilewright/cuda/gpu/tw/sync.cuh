// Barriers, shuffles and atomics beyond __syncthreads and __syncwarp, which keep CUDA's spelling. GPU side.
#pragma once
#include <tw/types.cuh>
namespace tw {
// barrier.cta.sync (PTX ISA, "barrier"): wait until `threads` threads have arrived at named barrier `id`.
__device__ __forceinline__ void barrier_sync(int id, int threads) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// barrier.cta.arrive: count as arrived and go on.
__device__ __forceinline__ void barrier_arrive(int id, int threads) {
  asm volatile("barrier.cta.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// shfl.sync (PTX ISA, "shfl.sync"), all 32 lanes.
__device__ __forceinline__ float shfl(float v, int lane) { return __shfl_sync(0xffffffffu, v, lane); }
__device__ __forceinline__ float shfl_xor(float v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
__device__ __forceinline__ float shfl_down(float v, int delta) { return __shfl_down_sync(0xffffffffu, v, delta); }
// atom.add (PTX ISA, "atom"), relaxed, returning the old value.
__device__ __forceinline__ float atomic_add(float* p, float v) { return atomicAdd(p, v); }
__device__ __forceinline__ u32 atomic_add(u32* p, u32 v) { return atomicAdd(p, v); }
}  // namespace tw
