// The sum of the accumulators of a cluster's blocks along K through each other's shared memory, each its share of the columns.
#pragma once
#include <tw/cluster.cuh>
#include <tw/mbarrier.cuh>
#include <tw/memory.cuh>
#include <tw/types.cuh>
namespace tw {
// BLOCKS blocks of a cluster, APART ranks from each other, have WARPS warps each with ROWS x COUNT accumulators a lane of one
// tile. Warp w of each adds up, for the columns that are its block's, what it and warp w of the others have.
template <int BLOCKS, int APART, int WARPS, int ROWS, int COUNT> struct ColumnSum {
  static constexpr int OWN = COUNT / BLOCKS, VECTORS = OWN / 4;  // accumulators of a row that are a block's
  static_assert(VECTORS * 4 * BLOCKS == COUNT, "whole fragments of 8 columns");

  Vec<float, 4> slots[BLOCKS - 1][WARPS][ROWS * VECTORS][32];  // slot q - 1 is from the block of rank (this one's XOR q)
  Mbarrier full[WARPS];   // completed by those who have written here
  Mbarrier empty[WARPS];  // completed by those who have read what was written there

  // By one thread; a barrier of the cluster has to follow before anybody calls operator().
  __device__ __forceinline__ void make() {
    for (int warp = 0; warp < WARPS; ++warp) {
      mbarrier_init(full[warp], BLOCKS - 1);
      mbarrier_init(empty[warp], BLOCKS - 1);
    }
    fence_mbarrier_init();
  }

  // By all lanes of a warp, for its `round`-th tile (from 0), with `more` to come: the first OWN of each row of acc become
  // the sum (in place: of a copy ptxas made spills), the rest 0. This block is the `rank`-th along K; the first of them has
  // rank `mate` in the cluster.
  __device__ __forceinline__ void operator()(float (&acc)[ROWS][COUNT], int mate, int rank, int warp, int round, bool more) {
    const int lane = int(threadIdx.x) % 32;
    const bool peer = lane < BLOCKS && lane != rank;
    if (round > 0) mbarrier_wait_cluster(empty[warp], u32((round - 1) % 2));  // the others have read the tile before
    exchange(acc, rank);
#pragma unroll
    for (int i = 0; i < ROWS * VECTORS; ++i)
#pragma unroll
      for (int q = 1; q < BLOCKS; ++q) {  // at any time each block receives from one
        const float* d = acc[i / VECTORS] + q * OWN + i % VECTORS * 4;
        const Vec<float, 4> part = {{d[0], d[1], d[2], d[3]}};
        store_remote(slots[q - 1][warp][i][lane].data, u32(mate + (rank ^ q) * APART), part);
      }
#pragma unroll
    for (int i = 0; i < ROWS * COUNT; ++i)
      if (i % COUNT >= OWN) acc[i / COUNT][i % COUNT] = 0;  // so that no register keeps it for the next wgmma, which reads none
    __syncwarp();
    if (peer) mbarrier_arrive_remote_release(full[warp], u32(mate + lane * APART));
    mbarrier_wait_cluster(full[warp], u32(round % 2));
#pragma unroll
    for (int i = 0; i < ROWS * VECTORS; ++i) {
      Vec<float, 4> parts[BLOCKS];
#pragma unroll
      for (int e = 0; e < 4; ++e) parts[0].data[e] = acc[i / VECTORS][i % VECTORS * 4 + e];
#pragma unroll
      for (int q = 1; q < BLOCKS; ++q) parts[q] = load<4>(slots[q - 1][warp][i][lane].data);
      // Neighbours, then pairs of them: the same sums whatever the rank, and so the same bits in all columns.
#pragma unroll
      for (int bit = 1; bit < BLOCKS; bit *= 2)
#pragma unroll
        for (int q = 0; q < BLOCKS; q += 2 * bit)
#pragma unroll
          for (int e = 0; e < 4; ++e) parts[q].data[e] += parts[q + bit].data[e];
#pragma unroll
      for (int e = 0; e < 4; ++e) acc[i / VECTORS][i % VECTORS * 4 + e] = parts[0].data[e];
    }
    if (!more) return;  // the others may have returned
    __syncwarp();
    if (peer) mbarrier_arrive_remote_release(empty[warp], u32(mate + lane * APART));
  }

 private:
  // The columns of the block of rank (this one's XOR q) to place q, in registers, which no number known only now can index.
  static __device__ __forceinline__ void exchange(float (&acc)[ROWS][COUNT], int rank) {
#pragma unroll
    for (int bit = 1; bit < BLOCKS; bit *= 2) {
      const bool other = (rank & bit) != 0;
#pragma unroll
      for (int i = 0; i < ROWS * COUNT; ++i) {
        const int row = i / COUNT, at = i % COUNT;
        if (at / OWN & bit) continue;
        const float a = acc[row][at], b = acc[row][at + bit * OWN];
        acc[row][at] = other ? b : a;
        acc[row][at + bit * OWN] = other ? a : b;
      }
    }
  }
};
}  // namespace tw
