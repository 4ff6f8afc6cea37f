// Barriers, shuffles and atomics beyond __syncthreads and __syncwarp, which keep CUDA's spelling. GPU side.
#pragma once
#include <tw/types.cuh>
namespace tw {
// What other threads see of this one's accesses around an atomic, and it of theirs (PTX ISA, ".sem"). With a release, what this
// thread wrote, and what it knows of by a barrier, comes before it; with an acquire, what was released before it is known after.
enum class Order { kRelaxed, kAcquire, kRelease, kAcquireRelease };
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
// *p becomes the larger of it and v, NaN being larger than all numbers, in whatever order they come (PTX ISA, "red"): bits of
// floats without a sign are ordered as integers are, and those with one the other way round. What was there at any time is no
// larger than what is there, so that a plain load, however old, spares those who are not larger the way.
__device__ __forceinline__ void atomic_largest(float* p, float v) {
  const int bits = v == v ? __float_as_int(v) : 0x7fc00000, seen = *reinterpret_cast<const int*>(p);
  if (bits >= 0) {
    if (bits > seen) atomicMax(reinterpret_cast<int*>(p), bits);
  } else if (u32(bits) < u32(seen)) {
    atomicMin(reinterpret_cast<u32*>(p), u32(bits));
  }
}
// atom.SEM.gpu.global.add.u32: a sum with an order between all threads of the GPU, whatever block they are of.
template <Order ORDER> __device__ __forceinline__ u32 atomic_add(u32* p, u32 v) {
  u32 old;
  if constexpr (ORDER == Order::kAcquireRelease)
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(__cvta_generic_to_global(p)), "r"(v) : "memory");
  else if constexpr (ORDER == Order::kRelease)
    asm volatile("atom.release.gpu.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(__cvta_generic_to_global(p)), "r"(v) : "memory");
  else if constexpr (ORDER == Order::kAcquire)
    asm volatile("atom.acquire.gpu.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(__cvta_generic_to_global(p)), "r"(v) : "memory");
  else
    old = atomicAdd(p, v);
  return old;
}
}  // namespace tw
