// Boxes of 64 x 128 elements, 16 KB, through shared memory by TMA, as many in flight as there are stages: loaded (LOAD),
// stored (STORE) or both. One thread of a block does it all. With CLUSTER > 1 each block loads its part of each box and
// multicasts it.
//
// Unit u (a block or a cluster) takes boxes u first, u first + step, ... of `boxes`, counted along the rows of a matrix
// `across` boxes wide. After `warm` boxes it is timed until `budget` clocks or `most` boxes are over.
#include <tw/box_walk.cuh>
#include <tw/cluster.cuh>
#include <tw/mbarrier.cuh>
#include <tw/memory.cuh>
#include <tw/stopwatch.cuh>
#include <tw/tma.cuh>
#include <tw/types.cuh>
#include <tw/warpgroup.cuh>

using namespace plan;
using tw::u32;
using tw::u64;

constexpr int ROWS = 128, BYTES = ROWS * 128, PART = ROWS / CLUSTER;
constexpr int AHEAD = LOAD && STORE ? STAGES / 2 : STAGES;  // boxes in flight on their way in
constexpr int LATE = CLUSTER > 1 ? STAGES / 3 : 0;          // boxes by which a stage is filled again after it is read

struct Shared {
  unsigned char boxes[STAGES][BYTES];
  tw::Mbarrier full[STAGES], empty[STAGES];
};

struct Place {
  int stage;
  u32 parity;
  __device__ __forceinline__ void next() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
};
using Walk = tw::BoxWalk<64, ROWS>;

extern "C" __global__ void __launch_bounds__(32, 1)
tw_gemm(const __grid_constant__ tw::TensorMap from, const __grid_constant__ tw::TensorMap to, u32 from_boxes, u32 to_boxes,
        u32 across, u32 first, u32 step, int warm, int most, u64 budget, u64* laps) {
  Shared& s = tw::shared<Shared>();
  const int rank = CLUSTER > 1 ? int(tw::cluster_rank()) : 0;
  const u32 unit = blockIdx.x / CLUSTER;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      tw::mbarrier_init(s.full[i], 1);
      tw::mbarrier_init(s.empty[i], CLUSTER);
    }
    tw::fence_mbarrier_init();
  }
  if (CLUSTER > 1) tw::cluster_sync();
  __syncwarp();
  if (tw::elect_one()) {
    Walk in(unit * first, step, from_boxes, across), out(unit * first, step, to_boxes, across);
    const auto load = [&](int stage) {
      tw::mbarrier_expect_tx(s.full[stage], BYTES);
      unsigned char* const part = s.boxes[stage] + rank * PART * 128;
      const int y = in.y() + rank * PART;
      if constexpr (CLUSTER > 1) {
        tw::tma_load_2d_multicast(part, from, s.full[stage], in.x(), y, tw::u16((1 << CLUSTER) - 1));
      } else {
        tw::tma_load_2d(part, from, s.full[stage], in.x(), y);
      }
      in.next();
    };
#pragma unroll 1
    for (int i = 0; i < AHEAD; ++i) load(i);
    tw::Stopwatch watch;
    watch.start();
    int done = 0;
    Place read = {}, filled = {LATE > 0 ? 0 : AHEAD % STAGES, 0};
    for (int i = 0; i < warm + most; ++i) {
      if (i == warm) watch.start();
      if (LOAD || i < STAGES) tw::mbarrier_wait(s.full[read.stage], read.parity);
      if constexpr (STORE) {
        tw::tma_store_2d(to, s.boxes[read.stage], out.x(), out.y());
        tw::tma_store_commit();
        tw::tma_store_wait_read<LOAD ? STAGES - AHEAD : STAGES - 1>();
        out.next();
      }
      if constexpr (CLUSTER > 1)
        for (int peer = 0; peer < CLUSTER; ++peer) tw::mbarrier_arrive_remote(s.empty[read.stage], u32(peer));
      if (LOAD && i >= LATE) {
        if constexpr (CLUSTER > 1) tw::mbarrier_wait(s.empty[filled.stage], filled.parity);  // a peer may still wait for it
        load(filled.stage);
        filled.next();
      }
      read.next();
      if (i < warm) continue;
      ++done;
      if (CLUSTER == 1 && watch.spent() >= budget) break;
    }
    watch.stop(laps + blockIdx.x * tw::kLapWords, u64(done));
    if (STORE) tw::tma_store_wait<0>();
    const int late = warm + most < LATE ? warm + most : LATE;
    for (int i = late; LOAD && i < AHEAD; ++i) {  // shared memory lives until the last has come
      tw::mbarrier_wait(s.full[read.stage], read.parity);
      read.next();
    }
  }
  __syncwarp();
  if (CLUSTER > 1) tw::cluster_sync();
}
