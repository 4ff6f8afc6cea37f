// rung: 9
// name: persistent
// title: A block for each SM, walking over tiles
// idea: The producer goes on to the next tile while the consumers store this one; tiles come in an order that L2 likes.
#include <tw/consume.cuh>
#include <tw/fragment.cuh>
#include <tw/load_stage.cuh>
#include <tw/memory.cuh>
#include <tw/ring.cuh>
#include <tw/tile_order.cuh>
#include <tw/tma.cuh>
#include <tw/types.cuh>
#include <tw/warpgroup.cuh>

using tw::i64;
using tw::u32;
using namespace plan;

constexpr int WM = BM / CONSUMERS, BLOCKS = WM / 64;  // a warpgroup's rows of the tile, 64 to a wgmma
static_assert((CONSUMERS + 1) * 128 == THREADS && BLOCKS * 64 * CONSUMERS == BM, "the warpgroups do not cover the tile");

struct Shared {
  tw::Ring ring;
};

// C[m, n] = A[m, k] B[k, n]; a_map and b_map are A and B.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
tw_gemm(const __grid_constant__ tw::TensorMap a_map, const __grid_constant__ tw::TensorMap b_map, int m, int n, int k, T* c,
        i64 ldc) {
  tw::Ring& ring = tw::shared<Shared>().ring;
  const tw::TileOrder order(m, n, gridDim.x);
  const int warp = tw::warp_index(), consumer = warp / 4 - 1, wm = consumer * WM;
  const int k_blocks = tw::k_blocks_of(k);

  if (threadIdx.x == 0) tw::make_ring(ring, CONSUMERS * 4);  // a stage has been read when every warp says so
  __syncthreads();

  if (consumer < 0) {
    tw::setmaxnreg_decrease<PRODUCER_REGISTERS>();
    if (warp == 0 && tw::elect_one()) {
      tw::Cursor cursor = {0, 1};
      for (int item = blockIdx.x; item < order.items; item += gridDim.x) {
        const tw::Tile tile = order(item, 0, 0);
        for (int block = 0; block < k_blocks; ++block, cursor.advance()) {
          const int k0 = tw::k_origin(k) + block * BK;
          tw::Stage& stage = ring.stages[cursor.stage];
          tw::Mbarrier& full = ring.full[cursor.stage];
          tw::mbarrier_wait(ring.empty[cursor.stage], cursor.parity);
          tw::mbarrier_expect_tx(full, sizeof stage);
          tw::load_operand<1, BM>(stage.a, a_map, full, tile.row, BM, k0, 0, 0);
          tw::load_operand<1, BN>(stage.b, b_map, full, tile.col, BN, k0, 0, 0);
        }
      }
    }
  } else {
    tw::setmaxnreg_increase<CONSUMER_REGISTERS>();
    float acc[BLOCKS][BN / 2];
    tw::Cursor cursor = {0, 0};
    const auto release = [&](int stage) {
      if (threadIdx.x % 32 == 0) tw::mbarrier_arrive(ring.empty[stage]);
    };
    for (int item = blockIdx.x; item < order.items; item += gridDim.x) {
      const tw::Tile tile = order(item, 0, 0);
      tw::consume<BLOCKS>(acc, ring, cursor, wm, k_blocks, release, [] {});
#pragma unroll
      for (int i = 0; i < BLOCKS; ++i)
        tw::store_fragment(c, ldc, tile.row + wm + i * 64 + warp % 4 * 16, tile.col, m, n, acc[i], ALIGNED);
    }
  }
}
