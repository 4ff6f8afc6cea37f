// Barriers in shared memory that count arrivals and bytes, phase by phase. Host side.
#pragma once
#include <tw/memory.cuh>
#include <tw/types.cuh>
namespace tw {
struct alignas(8) Mbarrier { u64 state; };

// One thread does it, once; others may use the barrier after a fence and a barrier of another kind.
__device__ __forceinline__ void mbarrier_init(Mbarrier& b, u32 arrivals) { tw_mbarrier_init(&b, arrivals); }
__device__ __forceinline__ void mbarrier_arrive(Mbarrier& b) { tw_mbarrier_arrive(&b); }
// Arrive at the barrier that lies where b does in the shared memory of another block of the cluster.
__device__ __forceinline__ void mbarrier_arrive_remote(Mbarrier& b, u32 block_rank) {
  tw_mbarrier_arrive_remote(&b, block_rank);
}
// The same where ordinary stores to that block come before it. Scopes are not looked at here: each order holds for the
// whole cluster.
__device__ __forceinline__ void mbarrier_arrive_remote_release(Mbarrier& b, u32 block_rank) {
  tw_mbarrier_arrive_remote(&b, block_rank);
}
// Expect bytes of TMA copies in this phase, and arrive.
__device__ __forceinline__ void mbarrier_expect_tx(Mbarrier& b, u32 bytes) { tw_mbarrier_arrive_expect_tx(&b, bytes); }
// Whether the phase of that parity has completed. A barrier's first phase has parity 0; before it, parity 1 counts as
// completed.
__device__ __forceinline__ bool mbarrier_try_wait(Mbarrier& b, u32 parity) { return tw_mbarrier_try_wait(&b, parity); }
__device__ __forceinline__ void mbarrier_wait(Mbarrier& b, u32 parity) { tw_mbarrier_wait(&b, parity); }
// The same where other blocks' stores came before their arrivals.
__device__ __forceinline__ void mbarrier_wait_cluster(Mbarrier& b, u32 parity) { tw_mbarrier_wait(&b, parity); }
// Makes initialised barriers known to the cluster and to the async proxy.
__device__ __forceinline__ void fence_mbarrier_init() { tw_fence_mbarrier_init(); }
}  // namespace tw
