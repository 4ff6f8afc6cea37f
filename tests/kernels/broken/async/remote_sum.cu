// Two blocks of a cluster send each other numbers, round by round into two sets of slots, and add up what comes.
#include <tw/cluster.cuh>
#include <tw/mbarrier.cuh>
#include <tw/memory.cuh>

enum Fault { NONE, PEER_NOT_READY, ONE_SET, ARRIVES_TOO_EARLY, NO_SYNCWARP, READS_TOO_EARLY, LEAVES_EARLY, SENDS_ON, PAST_THE_END };
__device__ constexpr bool is(Fault fault) { return plan::FAULT == fault; }

constexpr int ROUNDS = 4;
struct Shared {
  tw::Vec<float, 4> slots[2][32];
  tw::Mbarrier full[2];
};

extern "C" __global__ void __launch_bounds__(32) tw_gemm(float* out) {
  Shared& s = tw::shared<Shared>();
  const int t = threadIdx.x, rank = int(tw::cluster_rank());
  const tw::u32 peer = tw::u32(1 - rank);
  if (t == 0) {
    tw::mbarrier_init(s.full[0], 1);
    tw::mbarrier_init(s.full[1], 1);
    tw::fence_mbarrier_init();
  }
  if (is(PEER_NOT_READY)) __syncthreads();
  else tw::cluster_sync();

  float sum = 0;
  for (int round = 0; round < ROUNDS; ++round) {
    const int set = is(ONE_SET) ? 0 : round % 2;
    tw::Mbarrier& full = s.full[round % 2];
    const float value = round + 1 < ROUNDS ? float(round * 64 + rank * 32 + t) : 0.0f;  // the last adds nothing
    if (is(ARRIVES_TOO_EARLY) && t == 0) tw::mbarrier_arrive_remote_release(full, peer);
    const int slot = is(PAST_THE_END) ? 96 + t : t;
    tw::store_remote(s.slots[set][slot].data, peer, {{value, value, value, value}});
    if (!is(NO_SYNCWARP)) __syncwarp();
    if (!is(ARRIVES_TOO_EARLY) && t == 0) tw::mbarrier_arrive_remote_release(full, peer);
    if (is(LEAVES_EARLY) && rank == 0 && round + 1 == ROUNDS) break;
    if (is(READS_TOO_EARLY)) sum += tw::load<4>(s.slots[set][t].data)[3];
    tw::mbarrier_wait_cluster(full, round / 2 % 2);
    if (!is(READS_TOO_EARLY)) sum += tw::load<4>(s.slots[set][t].data)[3];
  }
  if (is(SENDS_ON) && rank == 1) tw::store_remote(s.slots[0][t].data, peer, {});  // and the peer knows nothing of it
  out[rank * 32 + t] = sum;
}
