// Barriers, shuffles and atomics beyond __syncthreads and __syncwarp, which keep CUDA's spelling. Host side.
#pragma once
#include <tw/types.cuh>
namespace tw {
// What other threads see of this one's accesses around an atomic, and it of theirs (PTX ISA, ".sem"). With a release, what this
// thread wrote, and what it knows of by a barrier, comes before it; with an acquire, what was released before it is known after.
enum class Order { kRelaxed, kAcquire, kRelease, kAcquireRelease };
// Wait until `threads` threads have arrived at named barrier `id`.
__device__ __forceinline__ void barrier_sync(int id, int threads) { tw_barrier_sync(id, threads); }
// Count as arrived and go on.
__device__ __forceinline__ void barrier_arrive(int id, int threads) { tw_barrier_arrive(id, threads); }
// The value of another lane: that lane, the one whose number differs by `mask`, the one `delta` above (or one's own).
__device__ __forceinline__ float shfl(float v, int lane) { return tw_shuffle(v, lane); }
__device__ __forceinline__ float shfl_xor(float v, int mask) { return tw_shuffle_xor(v, mask); }
__device__ __forceinline__ float shfl_down(float v, int delta) { return tw_shuffle_down(v, delta); }
// Add and return the old value; no other thread comes between.
__device__ __forceinline__ float atomic_add(float* p, float v) { return tw_atomic_add_f32(p, v); }
__device__ __forceinline__ u32 atomic_add(u32* p, u32 v) { return tw_atomic_add_u32(p, v); }
// The same on global memory with an order between all threads of the GPU, whatever block they are of.
__device__ __forceinline__ void atomic_largest(float* p, float v) { tw_atomic_largest_f32(p, v); }
template <Order ORDER> __device__ __forceinline__ u32 atomic_add(u32* p, u32 v) {
  return tw_atomic_add_ordered(p, v, ORDER == Order::kAcquire || ORDER == Order::kAcquireRelease,
                               ORDER == Order::kRelease || ORDER == Order::kAcquireRelease);
}
}  // namespace tw
