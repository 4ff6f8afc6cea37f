// A ring of stages between one thread that loads and warps that read, in a cluster whose blocks share what they load.
#include <tw/cluster.cuh>
#include <tw/fence.cuh>
#include <tw/memory.cuh>
#include <tw/sync.cuh>
#include <tw/tma.cuh>

using tw::u32;
constexpr int WORDS = plan::THREADS - 32;  // of a stage; one for each thread that reads

struct Shared {
  alignas(1024) u32 stages[plan::STAGES][WORDS];
  tw::Mbarrier full[plan::STAGES], empty[plan::STAGES];
};

__device__ void wait(tw::Mbarrier& b, u32 parity, u32& refusals) {
  if (plan::POLL)
    while (!tw::mbarrier_try_wait(b, parity)) ++refusals;
  else
    tw::mbarrier_wait(b, parity);
}

// out: a block's rows of WORDS sums, each of word * (number of its load, from 1); then how often a poll said no.
extern "C" __global__ void tw_gemm(const __grid_constant__ tw::TensorMap map, int loads, u32* out, u32* polls) {
  Shared& s = tw::shared<Shared>();
  const int t = threadIdx.x, rank = int(tw::cluster_rank());
  const bool reads = t < WORDS;
  constexpr int kSlice = WORDS / plan::CLUSTER;
  u32 sum = 0, refusals = 0;
  if (t == 0) {
    for (int i = 0; i < plan::STAGES; ++i) {
      tw::mbarrier_init(s.full[i], 1);
      tw::mbarrier_init(s.empty[i], WORDS / 32 * plan::CLUSTER);
    }
    tw::fence_mbarrier_init();
  }
  tw::cluster_sync();
  for (int i = 0; i < loads; ++i) {
    const int stage = i % plan::STAGES;
    const u32 parity = i / plan::STAGES % 2;
    if (reads) {
      wait(s.full[stage], parity, refusals);
      sum += s.stages[stage][t] * u32(i + 1);
      tw::fence_proxy_async();  // read before TMA writes it again
      __syncwarp();
      if (t % 32 == 0)
        for (u32 to = 0; to < plan::CLUSTER; ++to) tw::mbarrier_arrive_remote(s.empty[stage], to);
    } else if (t == WORDS) {
      wait(s.empty[stage], parity ^ 1, refusals);
      tw::mbarrier_expect_tx(s.full[stage], sizeof s.stages[stage]);
      tw::tma_load_2d_multicast(&s.stages[stage][rank * kSlice], map, s.full[stage], 0,
                                (i * plan::CLUSTER + rank) * (kSlice / 8), (1 << plan::CLUSTER) - 1);
    }
  }
  if (reads) out[rank * WORDS + t] = sum;
  if (refusals) tw::atomic_add(polls, refusals);
  tw::cluster_sync();
}
