// Thread block clusters: blocks that run together and reach each other's shared memory. GPU side.
#pragma once
#include <tw/memory.cuh>
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
// mapa and st.shared::cluster.v4.f32: 16 bytes to where `p` lies in the shared memory of another block of the cluster, which
// has started, and does not return before they are there. (As an ordinary store to a generic address, from accumulators, it
// made ptxas serialise the wgmmas before.)
__device__ __forceinline__ void store_remote(float* p, u32 block_rank, Vec<float, 4> v) {
  asm volatile(
      "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
      "st.shared::cluster.v4.f32 [remote], {%2,%3,%4,%5};\n}"
      ::"r"(shared_address(p)), "r"(block_rank), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]) : "memory");
}
}  // namespace tw
