// rung: 11
// name: overlapped-epilogue
// title: C leaves while the next tile is computed
// idea: stmatrix and TMA stores that drain under the next main loop; two warpgroups on one tile, or on two in turn.
#include <tw/batch.cuh>
#include <tw/cluster_share.cuh>
#include <tw/consume.cuh>
#include <tw/epilogue.cuh>
#include <tw/grid_dependency.cuh>
#include <tw/memory.cuh>
#include <tw/ring.cuh>
#include <tw/slab_store.cuh>
#include <tw/sync.cuh>
#include <tw/tile_order.cuh>
#include <tw/tma.cuh>
#include <tw/types.cuh>
#include <tw/warpgroup.cuh>

using namespace plan;

constexpr int TEAMS = PINGPONG ? CONSUMERS : 1;      // tiles that are in work at the same time
constexpr int WM = BM * TEAMS / CONSUMERS, BLOCKS = WM / 64;  // a warpgroup's rows of its tile, 64 to a wgmma
static_assert((CONSUMERS + 1) * 128 == THREADS && BLOCKS * 64 * CONSUMERS == BM * TEAMS, "the warpgroups do not cover the tile");
static_assert(PINGPONG ? CONSUMERS == 2 && !HALF_TAIL : !HALF_TAIL || BLOCKS == 2, "two take turns; half a tile is a block of rows each");
constexpr int CLUSTER = CLUSTER_M * CLUSTER_N;

struct Shared {
  tw::SlabRing slabs[CONSUMERS];  // first, since it ends on a boundary of the ring's 1,024 bytes
  tw::Ring ring;
};

// C[m, n] = A[m, k] B[k, n]; the maps are A, B and C. Of a pair of Bs the epilogue makes one C.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
tw_gemm(const __grid_constant__ tw::TensorMap a_map, const __grid_constant__ tw::TensorMap b_map,
        const __grid_constant__ tw::TensorMap c_map, int m, int n, int k, Out* c, tw::i64 ldc,
        const __grid_constant__ tw::Batch<BATCHED> batch, const __grid_constant__ tw::SecondMap<PAIRED> second_b,
        const __grid_constant__ epilogue::Args epilogue_args) {
  Shared& s = tw::shared<Shared>();
  const int clusters = gridDim.x / CLUSTER, cluster = blockIdx.x / CLUSTER;
  const tw::TileOrder order(m, n, clusters);
  const tw::ClusterShare share;
  const int items = batch.items(order.items);
  const int warp = tw::warp_index(), consumer = warp / 4 - 1;
  const int k_blocks = tw::k_blocks_of(k);

  if (warp == 0 && tw::elect_one()) {
    tw::prefetch_maps(a_map, b_map, c_map, second_b);
    tw::make_ring(s.ring, CONSUMERS / TEAMS * 4 * share.kLoaders);  // read by every warp of all who share it
  }
  share.begin(warp == 0);
  if (DEPENDENT_LAUNCH) tw::grid_dependency_launch();

  if (consumer < 0) {
    tw::setmaxnreg_decrease<PRODUCER_REGISTERS>();
    if (warp == 0 && tw::elect_one()) {  // the same thread again
      if (DEPENDENT_LAUNCH) tw::grid_dependency_wait();  // whatever the consumers write comes after these loads
      tw::Cursor cursor = {0, 1};
      bool backwards = false;
      for (int item = cluster; item < items; item += clusters, backwards = ALTERNATE_K && !backwards) {
        const tw::BatchTile of = batch(item, order.items);
        const tw::Tile tile = order(of.tile, share.rank_m, share.rank_n);
#pragma unroll 1
        for (int block = 0; block < k_blocks; ++block, cursor.advance()) {
          const int k0 = tw::k_origin(k) + (backwards ? k_blocks - 1 - block : block) * BK;
          tw::mbarrier_wait(s.ring.empty[cursor.stage], cursor.parity);
          share.load(s.ring, cursor, a_map, b_map, tile.row, tile.col, tile.rows, k0, batch.a_at(of.at), batch.b_at(of.at),
                     second_b);
        }
      }
    }
    __syncwarp();
  } else {
    tw::setmaxnreg_increase<CONSUMER_REGISTERS>();
    const int team = PINGPONG ? consumer : 0, member = PINGPONG ? 0 : consumer;
    const int turn = 1 + CONSUMERS, store_barrier = 1 + consumer;  // named barriers; one for each team's turn
    float acc[BLOCKS][BN / 2];
    tw::Cursor cursor = {0, 0};
    int slab = 0;
    const auto release = [&](int stage) { share.release(s.ring, stage); };
    if (PINGPONG && team == 1) {
      cursor.skip(k_blocks);
      tw::barrier_arrive(turn, 256);  // the first team may begin
    }
    for (int item = cluster + team * clusters; item < items; item += TEAMS * clusters) {
      const tw::BatchTile of = batch(item, order.items);
      const tw::Tile tile = order(of.tile, share.rank_m, share.rank_n);
      const tw::Output<decltype(batch.c_at(of.at))> out{c_map, c + batch.c_offset(of.at), ldc, m, n, batch.c_at(of.at)};
      const tw::Epilogue finish{epilogue_args, of.at};
      const int row = tile.row + member * WM / (HALF_TAIL && tile.rows < BM ? 2 : 1);  // of what is staged
      const auto hand_over = [&] {  // the other team's wgmmas may follow, if it has any
        tw::stage_rest(out, s.slabs[consumer], slab, row, tile.col, store_barrier, finish);
        if (PINGPONG && item + clusters < items) tw::barrier_arrive(turn + (team ^ 1), 256);
      };
      tw::stage_first(out, s.slabs[consumer], slab, row, tile.col, store_barrier, finish);
      if (PINGPONG) tw::barrier_sync(turn + team, 256);
      if (HALF_TAIL && tile.rows < BM) {
        tw::consume<1>(acc, s.ring, cursor, member * WM / 2, k_blocks, release, hand_over);
        tw::store_tile<1>(out, s.slabs[consumer], slab, tile.row + member * WM / 2, tile.col, acc, store_barrier, finish);
      } else {
        tw::consume<BLOCKS>(acc, s.ring, cursor, member * WM, k_blocks, release, hand_over);
        if (PINGPONG) cursor.skip(k_blocks);  // the other team's
        tw::store_tile<BLOCKS>(out, s.slabs[consumer], slab, tile.row + member * WM, tile.col, acc, store_barrier, finish);
      }
    }
    if (threadIdx.x % 128 == 0) tw::tma_store_wait_read<0>();  // shared memory lives until it has been read
    __syncwarp();
  }
  if (CLUSTER > 1) share.sync();  // nobody leaves while a peer may still write to it or arrive at its barriers
}
