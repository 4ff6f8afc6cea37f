// How the blocks of a cluster share their loads.
#pragma once
#include <tw/cluster.cuh>
#include <tw/load_stage.cuh>
#include <tw/ring.cuh>
#include <tw/sync.cuh>
namespace tw {
// A cluster is CLUSTER_M x CLUSTER_N blocks. Those of one column need the same tile of B, those of one row the same tile
// of A: each loads a slice of it and multicasts it to the others.
struct ClusterShare {
  int rank_m, rank_n;

  __device__ __forceinline__ ClusterShare() : rank_m(0), rank_n(0) {
    if (plan::CLUSTER_M * plan::CLUSTER_N == 1) return;
    const int rank = int(cluster_rank());
    rank_m = rank % plan::CLUSTER_M, rank_n = rank / plan::CLUSTER_M;
  }

  // Blocks whose loads this one receives, itself among them; and the `i`-th of them.
  static constexpr int kLoaders = plan::CLUSTER_M + plan::CLUSTER_N - 1;
  __device__ __forceinline__ u32 loader(int i) const {
    if (i < plan::CLUSTER_M) return u32(i + plan::CLUSTER_M * rank_n);
    const int other = i - plan::CLUSTER_M;
    return u32(rank_m + plan::CLUSTER_M * (other + (other >= rank_n)));
  }

  // The barriers of all blocks of the cluster are there; or nobody of it needs this block's shared memory any more.
  static __device__ __forceinline__ void sync() {
    if constexpr (plan::CLUSTER_M * plan::CLUSTER_N > 1) {
      cluster_sync();
    } else {
      __syncthreads();
    }
  }

  // After the thread that makes the barriers has made them, by all warps; `made` in the warp of that thread, which need
  // not wait where it has no peers and may load at once.
  static __device__ __forceinline__ void begin(bool made) {
    if constexpr (plan::CLUSTER_M * plan::CLUSTER_N > 1) {
      cluster_sync();
    } else if (made) {
      barrier_arrive(0, plan::THREADS);
    } else {
      barrier_sync(0, plan::THREADS);
    }
  }

  // This block's part of a K block of the tile; the first `rows` rows of A.
  __device__ __forceinline__ void load(Ring& ring, Cursor at, const TensorMap& a_map, const TensorMap& b_map, int row, int col,
                                       int rows, int k0) const {
    constexpr int BOX_A = plan::BM / plan::CLUSTER_N / (plan::HALF_TAIL ? 2 : 1), BOX_B = plan::BN / plan::CLUSTER_M;
    u32 row_mates = 0, column_mates = 0;
    for (int i = 0; i < plan::CLUSTER_N; ++i) row_mates |= 1u << (rank_m + plan::CLUSTER_M * i);
    for (int i = 0; i < plan::CLUSTER_M; ++i) column_mates |= 1u << (i + plan::CLUSTER_M * rank_n);
    Stage& stage = ring.stages[at.stage];
    Mbarrier& full = ring.full[at.stage];
    mbarrier_expect_tx(full, u32(sizeof(TileA)) / plan::BM * rows + u32(sizeof(TileB)));  // the slices of all
    load_operand<plan::CLUSTER_N, BOX_A>(stage.a, a_map, full, row, rows, k0, rank_n, u16(row_mates));
    load_operand<plan::CLUSTER_M, BOX_B>(stage.b, b_map, full, col, plan::BN, k0, rank_m, u16(column_mates));
  }

  // One warp has read a stage: tell everybody whose loads fill it. By all lanes of the warp.
  __device__ __forceinline__ void release(Ring& ring, int stage) const {
    const int lane = int(threadIdx.x) % 32;
    if constexpr (kLoaders == 1) {
      if (lane == 0) mbarrier_arrive(ring.empty[stage]);
    } else {
      if (lane < kLoaders) mbarrier_arrive_remote(ring.empty[stage], loader(lane));
    }
  }
};
}  // namespace tw
