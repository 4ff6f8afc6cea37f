// mbarriers: barriers in shared memory that count arrivals and the bytes of asynchronous copies. GPU side.
#pragma once
#include <tw/memory.cuh>
#include <tw/types.cuh>
namespace tw {
struct alignas(8) Mbarrier { u64 state; };

// mbarrier.init (PTX ISA, "mbarrier"): phase 0, which completes after `arrivals` arrivals and all expected bytes.
__device__ __forceinline__ void mbarrier_init(Mbarrier& b, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&b)), "r"(arrivals) : "memory");
}
// mbarrier.arrive.
__device__ __forceinline__ void mbarrier_arrive(Mbarrier& b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&b)) : "memory");
}
// mapa and mbarrier.arrive.shared::cluster: arrive at the same barrier of another block of the cluster. Without
// .release.cluster, which costs a fence of GPU scope: what the blocks hand over travels through the async proxy.
__device__ __forceinline__ void mbarrier_arrive_remote(Mbarrier& b, u32 block_rank) {
  asm volatile(
      "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, [remote];\n}"
      ::"r"(shared_address(&b)), "r"(block_rank) : "memory");
}
// The same with .release.cluster: what this thread (and those it has met at a barrier) wrote to the other block by ordinary
// stores comes before. It waits for those stores: once a tile, not in a loop over K.
__device__ __forceinline__ void mbarrier_arrive_remote_release(Mbarrier& b, u32 block_rank) {
  asm volatile(
      "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];\n}"
      ::"r"(shared_address(&b)), "r"(block_rank) : "memory");
}
// mbarrier.arrive.expect_tx: arrive, and let the phase wait for this many bytes more.
__device__ __forceinline__ void mbarrier_expect_tx(Mbarrier& b, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               ::"r"(shared_address(&b)), "r"(bytes) : "memory");
}
// mbarrier.try_wait.parity: whether the phase of this parity has completed; may wait a while for it.
__device__ __forceinline__ bool mbarrier_try_wait(Mbarrier& b, u32 parity) {
  u32 done;
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
      : "=r"(done) : "r"(shared_address(&b)), "r"(parity) : "memory");
  return done != 0;
}
// mbarrier.try_wait.parity until it says yes. A fresh barrier lets parity 1 pass.
__device__ __forceinline__ void mbarrier_wait(Mbarrier& b, u32 parity) {
  asm volatile(
      "{\n.reg .pred p;\nWAIT%=:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@!p bra WAIT%=;\n}"
      ::"r"(shared_address(&b)), "r"(parity) : "memory");
}
// The same with .acquire.cluster: for what other blocks wrote by ordinary stores before they arrived.
__device__ __forceinline__ void mbarrier_wait_cluster(Mbarrier& b, u32 parity) {
  asm volatile(
      "{\n.reg .pred p;\nWAIT%=:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n@!p bra WAIT%=;\n}"
      ::"r"(shared_address(&b)), "r"(parity) : "memory");
}
// fence.mbarrier_init.release.cluster: initialised barriers are seen by the async proxy and by the cluster's blocks, once
// a barrier has ordered them.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
}  // namespace tw
