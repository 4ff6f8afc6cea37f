// A persistent kernel as rung 11, whose work is parts of K of tiles. A branch brings the list of them.
#pragma once
#include <tw/cluster_share.cuh>
#include <tw/consume.cuh>
#include <tw/fragment.cuh>
#include <tw/grid_dependency.cuh>
#include <tw/partial_sum.cuh>
#include <tw/ring.cuh>
#include <tw/slab_store.cuh>
#include <tw/tile_order.cuh>
#include <tw/warpgroup.cuh>
namespace tw {
struct PartShared {
  SlabRing slabs[plan::CONSUMERS];  // first, since it ends on a boundary of the ring's 1,024 bytes
  Ring ring;
  u32 seen[4];  // by each warpgroup, of its tile's counter
};

// `out` and `c` are the same matrix: as TMA stores it, and for elements of fp32, which no slab holds.
// A Work has `units` for this cluster: unit(i), slot(unit) of its tile's first part and step() to the next, of slots(),
// and number(unit), its tile's among those that are summed.
template <class Work, class C>
__device__ __forceinline__ void part_gemm(PartShared& s, const TensorMap& a_map, const TensorMap& b_map, const TensorMap& c_map,
                                          int m, int n, int k, C* c, i64 ldc, float* partials, u32* counters) {
  constexpr int CLUSTER = plan::CLUSTER_M * plan::CLUSTER_N, WM = plan::BM / plan::CONSUMERS, BLOCKS = WM / 64;
  static_assert((plan::CONSUMERS + 1) * 128 == plan::THREADS && BLOCKS * 64 * plan::CONSUMERS == plan::BM, "rows of a warpgroup");
  const int clusters = gridDim.x / CLUSTER;
  const TileOrder order(m, n, clusters);
  const ClusterShare share;
  const int k_blocks = k_blocks_of(k), rank = share.rank_m + plan::CLUSTER_M * share.rank_n;
  const Work work(order.items, k_blocks, clusters, blockIdx.x / CLUSTER);
  const PartialSum sum = {partials, counters, work.slots()};
  const int warp = warp_index(), consumer = warp / 4 - 1;

  if (warp == 0 && elect_one()) {
    tma_prefetch_map(a_map);
    tma_prefetch_map(b_map);
    tma_prefetch_map(c_map);
    make_ring(s.ring, plan::CONSUMERS * 4 * share.kLoaders, 2);
  }
  share.begin(warp == 0);
  if (plan::DEPENDENT_LAUNCH) grid_dependency_launch();

  // All K blocks of one operand, by one thread: load(stage, tile, k).
  const auto fill = [&](u32 bytes, auto load) {
    Cursor cursor = {0, 1};
    for (int i = 0; i < work.units; ++i) {
      const Unit unit = work.unit(i);
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
  } else {
    setmaxnreg_increase<plan::CONSUMER_REGISTERS>();
    const int barrier = 1 + consumer, row0 = consumer * WM;
    float acc[BLOCKS][plan::BN / 2];
    Cursor cursor = {0, 0};
    int slab = 0;
    const auto release = [&](int stage) { share.release(s.ring, stage); };
    for (int i = 0; i < work.units; ++i) {
      const Unit unit = work.unit(i);
      consume<BLOCKS>(acc, s.ring, cursor, row0, unit.count, release, [] {});
      if (!sum(acc, unit, work.number(unit), work.slot(unit), work.step(), rank, consumer, s.seen[consumer], barrier)) continue;
      const Tile tile = order(unit.tile, share.rank_m, share.rank_n);
      if constexpr (sizeof(C) == sizeof(plan::T)) {
        store_slabs<BLOCKS>(Output{c_map, c, ldc, m, n}, s.slabs[consumer], slab, tile.row + row0, tile.col, acc, barrier);
      } else {
        const int row = tile.row + row0 + warp % 4 * 16;
#pragma unroll
        for (int b = 0; b < BLOCKS; ++b) store_fragment(c, ldc, row + b * 64, tile.col, m, n, acc[b], true);
      }
    }
    if (threadIdx.x % 128 == 0) tma_store_wait_read<0>();  // shared memory lives until it has been read
    __syncwarp();
  }
  if (CLUSTER > 1) share.sync();  // nobody leaves while a peer may still write to it or arrive at its barriers
}
}  // namespace tw
