// Runs programs of a few operations on shared memory, one a warp: its first thread does them, the others come along to
// barriers. An operation is a code and what it is about: a line of shared memory and an mbarrier, by number.
#include <tw/cluster.cuh>
#include <tw/cp_async.cuh>
#include <tw/fence.cuh>
#include <tw/mbarrier.cuh>
#include <tw/memory.cuh>
#include <tw/tma.cuh>

enum Code { END, READ, WRITE, FENCE, SYNC, CLUSTER_SYNC, ARRIVE, ARRIVE_REMOTE, EXPECT, WAIT, LOAD, LOAD_BOTH, STORE,
            STORE_WAIT, COPY, COPY_WAIT };
struct Operation {
  int code, line, barrier;
};
struct alignas(128) Line {
  tw::u32 words[32];
};
struct Shared {
  Line lines[plan::LINES];
  tw::Mbarrier barriers[plan::BARRIERS];
};
constexpr int BOX_BYTES = 16;

extern "C" __global__ void tw_gemm(const __grid_constant__ tw::TensorMap map, const Operation* programs,
                                   const int* arrivals, tw::u32* out) {
  Shared& s = tw::shared<Shared>();
  const int warps = blockDim.x / 32, rank = int(tw::cluster_rank()), actor = rank * warps + int(threadIdx.x) / 32;
  if (threadIdx.x == 0)
    for (int i = 0; i < plan::BARRIERS; ++i) tw::mbarrier_init(s.barriers[i], arrivals[rank * plan::BARRIERS + i]);
  tw::cluster_sync();
  for (const Operation* o = programs + actor * plan::LENGTH; o->code != END; ++o) {
    Line& line = s.lines[o->line];
    tw::Mbarrier& barrier = s.barriers[o->barrier];
    if (o->code == SYNC) __syncthreads();
    if (o->code == CLUSTER_SYNC) tw::cluster_sync();
    if (threadIdx.x % 32 != 0) continue;
    switch (o->code) {
      case READ: out[actor] = line.words[0]; break;
      case WRITE: tw::store<4>(line.words, tw::Vec<tw::u32, 4>{}); break;
      case FENCE: tw::fence_proxy_async(); break;
      case ARRIVE: tw::mbarrier_arrive(barrier); break;
      case ARRIVE_REMOTE: tw::mbarrier_arrive_remote(barrier, rank ^ 1); break;
      case EXPECT: tw::mbarrier_expect_tx(barrier, BOX_BYTES); break;
      case WAIT: tw::mbarrier_wait(barrier, 0); break;
      case LOAD: tw::tma_load_2d(&line, map, barrier, 0, 0); break;
      case LOAD_BOTH: tw::tma_load_2d_multicast(&line, map, barrier, 0, 0, 0b11); break;
      case STORE:
        tw::tma_store_2d(map, &line, 8, actor);
        tw::tma_store_commit();
        break;
      case STORE_WAIT: tw::tma_store_wait_read<0>(); break;
      case COPY:
        tw::cp_async<16>(&line, programs, 16);
        tw::cp_async_commit();
        break;
      case COPY_WAIT: tw::cp_async_wait<0>(); break;
    }
  }
}
