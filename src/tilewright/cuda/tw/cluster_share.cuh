// How the blocks of a cluster share their loads.
#pragma once
#include <tw/batch.cuh>
#include <tw/cluster.cuh>
#include <tw/load_stage.cuh>
#include <tw/ring.cuh>
#include <tw/sync.cuh>
namespace tw {
// A cluster is CLUSTER_M x CLUSTER_N blocks. Those of one column need the same tile of B, those of one row the same tile
// of A: each loads a slice of it and multicasts it to the others. A cluster may be several such groups, which share no loads.
template <int GROUPS = 1> struct ClusterShare {
  static constexpr int MATES = plan::CLUSTER_M * plan::CLUSTER_N;  // blocks of a group
  int rank_m, rank_n, group;

  __device__ __forceinline__ ClusterShare() : rank_m(0), rank_n(0), group(0) {
    if (MATES * GROUPS == 1) return;
    const int rank = int(cluster_rank()), in_group = GROUPS == 1 ? rank : rank % MATES;
    rank_m = in_group % plan::CLUSTER_M, rank_n = in_group / plan::CLUSTER_M;
    if (GROUPS > 1) group = rank / MATES;
  }
  // Of a block of this group in the cluster.
  __device__ __forceinline__ int rank_of(int m, int n) const { return m + plan::CLUSTER_M * n + group * MATES; }

  // Blocks whose loads this one receives, itself among them; and the `i`-th of them.
  static constexpr int kLoaders = plan::CLUSTER_M + plan::CLUSTER_N - 1;
  __device__ __forceinline__ u32 loader(int i) const {
    if (i < plan::CLUSTER_M) return u32(rank_of(i, rank_n));
    const int other = i - plan::CLUSTER_M;
    return u32(rank_of(rank_m, other + (other >= rank_n)));
  }

  // The barriers of all blocks of the cluster are there; or nobody of it needs this block's shared memory any more.
  static __device__ __forceinline__ void sync() {
    if constexpr (MATES > 1) {
      cluster_sync();
    } else {
      __syncthreads();
    }
  }

  // After the thread that makes the barriers has made them, by all warps; `made` in the warp of that thread, which need
  // not wait where it shares no loads and may begin with them at once. Who reaches other groups then has cluster_wait to come.
  static __device__ __forceinline__ void begin(bool made) {
    if constexpr (MATES == 1 && GROUPS > 1) {
      __syncwarp();
      cluster_arrive();
    }
    if constexpr (MATES > 1) {
      cluster_sync();
    } else if (made) {
      barrier_arrive(0, plan::THREADS);
    } else {
      barrier_sync(0, plan::THREADS);
    }
  }

  // Bytes of a K block that arrive here, the slices of all; of `rows` rows of A.
  static __device__ __forceinline__ u32 a_bytes(int rows) { return u32(sizeof(TileA)) / plan::BM * rows; }
  static __device__ __forceinline__ u32 b_bytes() { return sizeof(TileB); }

  // This block's part of a K block of either operand; the first `rows` rows of A.
  template <class At = OneMatrix>
  __device__ __forceinline__ void load_a(Ring& ring, int stage, const TensorMap& a_map, int row, int rows, int k0, At at = {}) const {
    constexpr int BOX = plan::BM / plan::CLUSTER_N / (plan::HALF_TAIL ? 2 : 1);
    u32 mates = 0;
    for (int i = 0; i < plan::CLUSTER_N; ++i) mates |= 1u << rank_of(rank_m, i);
    load_operand<plan::CLUSTER_N, BOX>(ring.stages[stage].a, a_map, ring.full[stage], row, rows, k0, rank_n, u16(mates), at);
  }
  // Of a pair each fills half of B's tile, whose accumulators are then those of the same columns, in the same threads.
  template <class At = OneMatrix, bool PAIRED = false>
  __device__ __forceinline__ void load_b(Ring& ring, int stage, const TensorMap& b_map, int col, int k0, At at = {},
                                         const SecondMap<PAIRED>& second = {}) const {
    constexpr int PARTS = PAIRED ? 2 : 1, ROWS = plan::BN / PARTS, BOX = ROWS / plan::CLUSTER_M;
    using Part = OperandTile<plan::T, plan::B_K_MAJOR, ROWS, plan::BK>;
    auto& parts = reinterpret_cast<Part(&)[PARTS]>(ring.stages[stage].b);
    u32 mates = 0;
    for (int i = 0; i < plan::CLUSTER_M; ++i) mates |= 1u << rank_of(i, rank_n);
    load_operand<plan::CLUSTER_M, BOX>(parts[0], b_map, ring.full[stage], col, ROWS, k0, rank_m, u16(mates), at);
    if constexpr (PAIRED)
      load_operand<plan::CLUSTER_M, BOX>(parts[1], second.map, ring.full[stage], col, ROWS, k0, rank_m, u16(mates), at);
  }
  // Both, by one thread.
  template <class At = OneMatrix, bool PAIRED = false>
  __device__ __forceinline__ void load(Ring& ring, Cursor at, const TensorMap& a_map, const TensorMap& b_map, int row, int col,
                                       int rows, int k0, At a_at = {}, At b_at = {}, const SecondMap<PAIRED>& second = {}) const {
    mbarrier_expect_tx(ring.full[at.stage], a_bytes(rows) + b_bytes());
    load_a(ring, at.stage, a_map, row, rows, k0, a_at);
    load_b(ring, at.stage, b_map, col, k0, b_at, second);
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
