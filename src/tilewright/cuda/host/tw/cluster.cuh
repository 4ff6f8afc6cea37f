// Blocks that run together. Host side.
#pragma once
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
}  // namespace tw
