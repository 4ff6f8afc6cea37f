// Blocks that run together. Host side.
#pragma once
#include <tw/memory.cuh>
#include <tw/types.cuh>
namespace tw {
// Of this block in its cluster.
__device__ __forceinline__ u32 cluster_rank() { return tw_current->cluster_rank; }
// A barrier of all threads of the cluster, in two halves: each thread arrives once, then waits.
__device__ __forceinline__ void cluster_arrive() { tw_cluster_arrive(); }
__device__ __forceinline__ void cluster_wait() { tw_cluster_wait(); }
__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}
// 16 bytes to where p lies in the shared memory of another block of the cluster, which has started, and does not return
// before somebody in it knows that they are there.
__device__ __forceinline__ void store_remote(float* p, u32 block_rank, Vec<float, 4> v) {
  store<4>(static_cast<float*>(tw_in_block(p, block_rank)), v);
}
}  // namespace tw
