// How many clocks a TMA load takes from its issue to its mbarrier's answer: one thread, one load at a time, of a box of
// `bytes`, each at another row out of `rows`.
#include <tw/counters.cuh>
#include <tw/mbarrier.cuh>
#include <tw/memory.cuh>
#include <tw/tma.cuh>
#include <tw/types.cuh>
#include <tw/warpgroup.cuh>

using tw::u32;
using tw::u64;

struct Shared {
  unsigned char box[16384];
  tw::Mbarrier full, unused;
};

extern "C" __global__ void __launch_bounds__(32, 1)
tw_gemm(const __grid_constant__ tw::TensorMap from, int rows, int bytes, int loads, u32* clocks) {
  Shared& s = tw::shared<Shared>();
  if (threadIdx.x == 0) {
    tw::mbarrier_init(s.full, 1);
    tw::fence_mbarrier_init();
  }
  __syncwarp();
  if (tw::elect_one()) {
    u32 place = 1;
#pragma unroll 1
    for (int i = 0; i < loads; ++i) {
      place = place * 1664525u + 1013904223u;  // a linear congruence: its high bits look random
      const int row = int(u64(place) * u32(rows) >> 32);
      const u64 start = tw::sm_clock();
      tw::mbarrier_expect_tx(s.full, u32(bytes));
      tw::tma_load_2d(s.box, from, s.full, 0, row);
      tw::mbarrier_wait(s.full, u32(i) % 2);
      clocks[i] = u32(tw::sm_clock() - start);
    }
  }
  __syncwarp();
}
