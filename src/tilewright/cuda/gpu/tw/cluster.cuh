// Thread block clusters: blocks that run together and reach each other's shared memory. GPU side.
#pragma once
#include <tw/types.cuh>
namespace tw {
// %cluster_ctarank (PTX ISA, "Special Registers"): this block's rank in its cluster.
__device__ __forceinline__ u32 cluster_rank() {
  u32 rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// barrier.cluster.arrive.release (PTX ISA, "barrier.cluster"), by all threads of a warp.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
// barrier.cluster.wait.acquire: until all live threads of the cluster have arrived.
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}
}  // namespace tw
