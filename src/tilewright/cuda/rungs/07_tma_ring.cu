// rung: 7
// name: tma-ring
// title: A copy engine fills a ring of stages
// idea: One thread starts TMA loads of whole tiles; mbarriers say when a stage is full and when it has been read.
#include <tw/fragment.cuh>
#include <tw/load_stage.cuh>
#include <tw/memory.cuh>
#include <tw/multiply_stage.cuh>
#include <tw/ring.cuh>
#include <tw/tma.cuh>
#include <tw/types.cuh>
#include <tw/warpgroup.cuh>

using tw::i64;
using tw::u32;
using namespace plan;

constexpr int WM = BM / CONSUMERS, BLOCKS = WM / 64;  // a warpgroup's rows of the tile, 64 to a wgmma
static_assert(CONSUMERS * 128 == THREADS && BLOCKS * 64 * CONSUMERS == BM, "the warpgroups do not cover the tile");

struct Shared {
  tw::Ring ring;
};

// C[m, n] = A[m, k] B[k, n]; a_map and b_map are A and B.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
tw_gemm(const __grid_constant__ tw::TensorMap a_map, const __grid_constant__ tw::TensorMap b_map, int m, int n, int k, T* c,
        i64 ldc) {
  tw::Ring& ring = tw::shared<Shared>().ring;
  const int tiles_n = (n + BN - 1) / BN;
  const int row0 = blockIdx.x / tiles_n * BM, col0 = blockIdx.x % tiles_n * BN;
  const int warp = tw::warp_index(), wm = warp / 4 * WM;
  const bool signals = threadIdx.x % 32 == 0;
  const int k_blocks = (k + BK - 1) / BK;
  float acc[BLOCKS][BN / 2] = {};

  const auto fetch = [&](int block, int stage) {
    tw::mbarrier_expect_tx(ring.full[stage], sizeof(tw::Stage));
    tw::load_operand<1, BM>(ring.stages[stage].a, a_map, ring.full[stage], row0, BM, block * BK, 0, 0);
    tw::load_operand<1, BN>(ring.stages[stage].b, b_map, ring.full[stage], col0, BN, block * BK, 0, 0);
  };

  if (warp == 0 && tw::elect_one()) {
    tw::make_ring(ring, CONSUMERS * 4);  // a stage has been read when every warp says so
    for (int stage = 0; stage < STAGES && stage < k_blocks; ++stage) fetch(stage, stage);
  }
  __syncthreads();

  tw::Cursor now = {0, 0}, before = {0, 0};
  for (int block = 0; block < k_blocks; ++block) {
    tw::mbarrier_wait(ring.full[now.stage], now.parity);
    tw::multiply_stage<BLOCKS>(acc, ring.stages[now.stage], wm, true);
    tw::wgmma_wait<1>();  // of this warp: the block before is done
    if (block > 0) {
      if (signals) tw::mbarrier_arrive(ring.empty[before.stage]);
      if (block - 1 + STAGES < k_blocks && warp == 0 && tw::elect_one()) {
        tw::mbarrier_wait(ring.empty[before.stage], before.parity);
        fetch(block - 1 + STAGES, before.stage);
      }
      before.advance();
    }
    now.advance();
    __syncwarp();
  }
  tw::wgmma_wait<0>();

#pragma unroll
  for (int i = 0; i < BLOCKS; ++i) {
    tw::wgmma_pin(acc[i]);
    tw::store_fragment(c, ldc, row0 + wm + i * 64 + warp % 4 * 16, col0, m, n, acc[i], ALIGNED);
  }
}
