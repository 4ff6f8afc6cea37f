// rung: 10
// name: cluster
// title: Two SMs share what both need
// idea: The blocks of a cluster each load a slice of their common operand and multicast it: L2 is read once for all of them.
#include <tw/cluster_share.cuh>
#include <tw/consume.cuh>
#include <tw/fragment.cuh>
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
constexpr int CLUSTER = CLUSTER_M * CLUSTER_N;

struct Shared {
  tw::Ring ring;
};

// C[m, n] = A[m, k] B[k, n]; a_map and b_map are A and B.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
tw_gemm(const __grid_constant__ tw::TensorMap a_map, const __grid_constant__ tw::TensorMap b_map, int m, int n, int k, T* c,
        i64 ldc) {
  tw::Ring& ring = tw::shared<Shared>().ring;
  const tw::TileOrder order(m, n, gridDim.x / CLUSTER);
  const tw::ClusterShare share;
  const int warp = tw::warp_index(), consumer = warp / 4 - 1, wm = consumer * WM;
  const int k_blocks = tw::k_blocks_of(k);

  if (threadIdx.x == 0) tw::make_ring(ring, CONSUMERS * 4 * share.kLoaders);  // read by every warp of all who share it
  share.sync();

  if (consumer < 0) {
    tw::setmaxnreg_decrease<PRODUCER_REGISTERS>();
    if (warp == 0 && tw::elect_one()) {
      tw::Cursor cursor = {0, 1};
      for (int item = blockIdx.x / CLUSTER; item < order.items; item += gridDim.x / CLUSTER) {
        const tw::Tile tile = order(item, share.rank_m, share.rank_n);
#pragma unroll 1
        for (int block = 0; block < k_blocks; ++block, cursor.advance()) {
          tw::mbarrier_wait(ring.empty[cursor.stage], cursor.parity);
          share.load(ring, cursor, a_map, b_map, tile.row, tile.col, BM, tw::k_origin(k) + block * BK);
        }
      }
    }
    __syncwarp();
  } else {
    tw::setmaxnreg_increase<CONSUMER_REGISTERS>();
    float acc[BLOCKS][BN / 2];
    tw::Cursor cursor = {0, 0};
    const auto release = [&](int stage) { share.release(ring, stage); };
    for (int item = blockIdx.x / CLUSTER; item < order.items; item += gridDim.x / CLUSTER) {
      const tw::Tile tile = order(item, share.rank_m, share.rank_n);
      tw::consume<BLOCKS>(acc, ring, cursor, wm, k_blocks, release, [] {});
#pragma unroll
      for (int i = 0; i < BLOCKS; ++i)
        tw::store_fragment(c, ldc, tile.row + wm + i * 64 + warp % 4 * 16, tile.col, m, n, acc[i], ALIGNED);
    }
    __syncwarp();
  }
  share.sync();  // nobody leaves while a peer may still write to it or arrive at its barriers
}
