// A persistent kernel as rung 11, whose work is parts of K of tiles. A branch brings the list of them.
#pragma once
#include <tw/cluster_share.cuh>
#include <tw/column_sum.cuh>
#include <tw/consume.cuh>
#include <tw/fragment.cuh>
#include <tw/grid_dependency.cuh>
#include <tw/partial_sum.cuh>
#include <tw/ring.cuh>
#include <tw/slab_store.cuh>
#include <tw/tile_order.cuh>
#include <tw/warpgroup.cuh>
namespace tw {
// The ring and the way out; and where a cluster along K adds up, what its blocks exchange. sum() is by a warp that multiplies.
struct WholeShared {
  SlabRing slabs[plan::CONSUMERS];  // first, since it ends on a boundary of the ring's 1,024 bytes
  Ring ring;
  u32 seen[4];  // by each warpgroup, of its tile's counter

  __device__ __forceinline__ void make() {}
  template <int BLOCKS> __device__ __forceinline__ void sum(float (&)[BLOCKS][plan::BN / 2], int, int, int, int, bool) {}
};
template <int K> struct KShared : WholeShared {
  static constexpr int BLOCKS = plan::BM / plan::CONSUMERS / 64;
  ColumnSum<K, plan::CLUSTER_M * plan::CLUSTER_N, 4 * plan::CONSUMERS, BLOCKS, plan::BN / 2> columns;

  __device__ __forceinline__ void make() { columns.make(); }
  __device__ __forceinline__ void sum(float (&acc)[BLOCKS][plan::BN / 2], int mate, int rank, int warp, int round, bool more) {
    if (round == 0 && plan::CLUSTER_M * plan::CLUSTER_N == 1) cluster_wait();  // the others have made their barriers
    columns(acc, mate, rank, warp, round, more);
  }
};
template <> struct KShared<1> : WholeShared {};
using PartShared = KShared<plan::CLUSTER_K>;

// What the `rank`-th block of a cluster along K does of a unit: an even share. A share of nothing is a block past the end of K,
// which TMA fills with zeros.
__device__ __forceinline__ Unit share_of(Unit unit, int rank, int k_blocks) {
  if (plan::CLUSTER_K == 1) return unit;
  const int even = unit.count / plan::CLUSTER_K, more = unit.count % plan::CLUSTER_K;
  unit.first += unit.step * (rank * even + (rank < more ? rank : more));
  unit.count = even + (rank < more);
  if (unit.count == 0) unit.first = k_blocks, unit.count = 1;
  return unit;
}

// `finish` is the epilogue, of who has a tile's whole sum.
// A Work has `units` for this cluster: unit(i), slot(unit) of its tile's first part and step() to the next, of slots(),
// and number(unit), its tile's among those that are summed.
template <class Work, class Finish>
__device__ __forceinline__ void part_gemm(PartShared& s, const TensorMap& a_map, const TensorMap& b_map, const TensorMap& c_map,
                                          int m, int n, int k, plan::Out* c, i64 ldc, float* partials, u32* counters,
                                          const Finish& finish) {
  constexpr int MATES = plan::CLUSTER_M * plan::CLUSTER_N, CLUSTER = MATES * plan::CLUSTER_K;
  constexpr int WM = plan::BM / plan::CONSUMERS, BLOCKS = WM / 64, WIDTH = PartialSum::WIDTH;
  static_assert((plan::CONSUMERS + 1) * 128 == plan::THREADS && BLOCKS * 64 * plan::CONSUMERS == plan::BM, "rows of a warpgroup");
  const int clusters = gridDim.x / CLUSTER;
  const TileOrder order(m, n, clusters);
  const ClusterShare<plan::CLUSTER_K> share;
  const int k_blocks = k_blocks_of(k), rank = share.rank_of(share.rank_m, share.rank_n);
  const Work work(order.items, k_blocks, clusters, blockIdx.x / CLUSTER);
  const PartialSum sum = {partials, counters, work.slots()};
  const int warp = warp_index(), consumer = warp / 4 - 1;

  if (warp == 0 && elect_one()) {
    prefetch_maps(a_map, b_map, c_map);
    make_ring(s.ring, plan::CONSUMERS * 4 * share.kLoaders, 2);
    s.make();
  }
  share.begin(warp == 0);
  if (plan::DEPENDENT_LAUNCH) grid_dependency_launch();

  // All K blocks of one operand, by one thread: load(stage, tile, k).
  const auto fill = [&](u32 bytes, auto load) {
    Cursor cursor = {0, 1};
    for (int i = 0; i < work.units; ++i) {
      const Unit unit = share_of(work.unit(i), share.group, k_blocks);
      const Tile tile = order(unit.tile, share.rank_m, share.rank_n);
      int k0 = k_origin(k) + unit.first * plan::BK;
#pragma unroll 1
      for (int block = 0; block < unit.count; ++block, cursor.advance(), k0 += unit.step * plan::BK) {
        mbarrier_wait(s.ring.empty[cursor.stage], cursor.parity);
        mbarrier_expect_tx(s.ring.full[cursor.stage], bytes);
        load(cursor.stage, tile, k0);
      }
    }
  };

  if (consumer < 0) {
    setmaxnreg_decrease<plan::PRODUCER_REGISTERS>();
    if (warp == 0) {
      if (elect_one())
        fill(share.b_bytes(), [&](int stage, const Tile& t, int k0) { share.load_b(s.ring, stage, b_map, t.col, k0); });
    } else if (warp == 1 && elect_one()) {
      if (plan::DEPENDENT_LAUNCH) grid_dependency_wait();  // A; and what is written, which is when A has come
      fill(share.a_bytes(plan::BM), [&](int stage, const Tile& t, int k0) { share.load_a(s.ring, stage, a_map, t.row, t.rows, k0); });
    }
    __syncwarp();
    if (MATES == 1 && CLUSTER > 1) cluster_wait();
  } else {
    setmaxnreg_increase<plan::CONSUMER_REGISTERS>();
    const int barrier = 1 + consumer, row0 = consumer * WM;
    float acc[BLOCKS][plan::BN / 2];
    Cursor cursor = {0, 0};
    int slab = 0;
    const auto release = [&](int stage) { share.release(s.ring, stage); };
    for (int i = 0; i < work.units; ++i) {
      const Unit unit = work.unit(i);
      consume<BLOCKS>(acc, s.ring, cursor, row0, share_of(unit, share.group, k_blocks).count, release, [] {});
      s.sum(acc, rank - share.group * MATES, share.group, warp - 4, i, i + 1 < work.units);
      if (!sum(acc, unit, work.number(unit), work.slot(unit), work.step(), rank, consumer, s.seen[consumer], barrier)) continue;
      const Tile tile = order(unit.tile, share.rank_m, share.rank_n);
      const int col = tile.col + share.group * WIDTH;
      const Output<> out{c_map, c, ldc, m, n};
      stage_first<WIDTH>(out, s.slabs[consumer], slab, tile.row + row0, col, barrier, finish);
      stage_rest<WIDTH>(out, s.slabs[consumer], slab, tile.row + row0, col, barrier, finish);
      store_tile<BLOCKS, WIDTH>(out, s.slabs[consumer], slab, tile.row + row0, col, acc, barrier, finish);
    }
    if (threadIdx.x % 128 == 0) tma_store_wait_read<0>();  // shared memory lives until it has been read
    __syncwarp();
  }
  if (MATES > 1) share.sync();  // nobody leaves while a peer may still load into it or arrive at its barriers
}
}  // namespace tw
