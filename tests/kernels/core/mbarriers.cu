// mbarriers and the cluster's barrier, used rightly.
#include <tw/cluster.cuh>
#include <tw/grid_dependency.cuh>
#include <tw/mbarrier.cuh>
#include <tw/memory.cuh>
#include <tw/sync.cuh>

using tw::u32;

struct Shared {
  tw::Mbarrier ping, pong;
  u32 value, unused[3];
};

extern "C" __global__ void tw_gemm(int rounds, u32* out) {
  Shared& s = tw::shared<Shared>();
  const int t = threadIdx.x, rank = int(tw::cluster_rank());
  out += rank * int(blockDim.x);
  u32 result = 0;
  if (t == 0) {
    tw::mbarrier_init(s.ping, plan::CASE == 0 ? 3 : 32);
    tw::mbarrier_init(s.pong, plan::CASE == 2 ? plan::CLUSTER : 32);
    tw::fence_mbarrier_init();
  }
  tw::cluster_sync();
  switch (plan::CASE) {
    case 0:  // one thread: what a poll says, before, between and after the arrivals of each phase
      for (int i = 0; t == 0 && i < rounds; ++i) {
        const u32 parity = i % 2;
        result += tw::mbarrier_try_wait(s.ping, parity ^ 1) && !tw::mbarrier_try_wait(s.ping, parity);
        tw::mbarrier_arrive(s.ping);
        tw::mbarrier_expect_tx(s.ping, 0);
        result += tw::mbarrier_try_wait(s.ping, parity ^ 1) && !tw::mbarrier_try_wait(s.ping, parity);
        tw::mbarrier_arrive(s.ping);
        result += tw::mbarrier_try_wait(s.ping, parity) && !tw::mbarrier_try_wait(s.ping, parity ^ 1);
      }
      break;
    case 1:  // two warps take turns in changing a value
      if (t == 0) s.value = 1;
      for (int i = 0; i < rounds; ++i) {
        if (t < 32) {
          if (t == 5) s.value += u32(i);
          __syncwarp();
          tw::mbarrier_arrive(s.ping);
          tw::mbarrier_wait(s.pong, i % 2);
        } else {
          tw::mbarrier_wait(s.ping, i % 2);
          if (t == 40) s.value = s.value * 3u;
          __syncwarp();
          tw::mbarrier_arrive(s.pong);
        }
      }
      result = t < 32 ? s.value : 0;
      break;
    case 2:  // every block hears of every other's value, again and again
      for (int i = 0; i < rounds; ++i) {
        if (t == 0) {
          out[0] = u32(rank + i);
          for (u32 to = 0; to < plan::CLUSTER; ++to) tw::mbarrier_arrive_remote(s.pong, to);
        }
        tw::mbarrier_wait(s.pong, i % 2);
        const int peer = (rank + 1) % plan::CLUSTER;
        result = result * 3 + *(out + (peer - rank) * int(blockDim.x));
        tw::cluster_sync();  // read before it is written again
      }
      break;
    case 3:  // the two halves of the cluster's barrier; some threads leave instead
      tw::grid_dependency_wait();
      if (t >= 48) return;
      out[t] = u32(rank);
      for (int i = 1; i <= rounds; ++i) {
        tw::cluster_arrive();
        result += tw::shfl_xor(1.0f, 1) == 1.0f;  // something else meanwhile
        tw::cluster_wait();
        const int peer = (rank + 1) % plan::CLUSTER;
        result += *(out + (peer - rank) * int(blockDim.x) + t) == u32(peer + 10 * (i - 1));
        tw::cluster_sync();
        out[t] = u32(rank + 10 * i);
      }
      tw::cluster_arrive();  // and leaves, without a wait
      tw::grid_dependency_launch();
      break;
  }
  out[t] = result;
}
