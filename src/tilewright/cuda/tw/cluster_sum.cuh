// The sum of the blocks' accumulators of a cluster along K, through each other's shared memory, in a fixed order.
#pragma once
#include <tw/cluster.cuh>
#include <tw/mbarrier.cuh>
#include <tw/memory.cuh>
#include <tw/types.cuh>
namespace tw {
// Warp w of each block has GROUPS fragments of 4 registers a lane. Fragment j of all of them is summed by warp w of one
// block: the others store theirs into its shared memory and arrive at its mbarrier. There are two sets of slots: who has
// had all fragments of one tile knows that the others have read those of the tile before.
template <int BLOCKS, int WARPS, int GROUPS> struct ClusterSum {
  static constexpr int SLOTS = (GROUPS * WARPS + BLOCKS - 1) / BLOCKS;

  Vec<float, 4> slots[2][SLOTS][BLOCKS - 1][32];  // by the number of the other block, itself left out
  Mbarrier full[2][WARPS];

  // Neighbouring fragments belong to different blocks, and to different warps of one block where there are more.
  static __device__ __forceinline__ int item(int group, int warp) { return group * WARPS + warp; }
  static __device__ __forceinline__ int owner(int item) { return (item + item / BLOCKS) % BLOCKS; }

  // By one thread; a barrier of the cluster has to follow before anybody calls operator().
  __device__ __forceinline__ void make() {
    for (int set = 0; set < 2; ++set)
      for (int warp = 0; warp < WARPS; ++warp) mbarrier_init(full[set][warp], BLOCKS - 1);
    fence_mbarrier_init();
  }

  // By all lanes of a warp, for its `round`-th tile (from 0): d becomes the sum where this block is the owner. Returns
  // which groups these are, a bit each.
  __device__ __forceinline__ u32 operator()(float (&d)[4 * GROUPS], int rank, int warp, int round) {
    const int lane = int(threadIdx.x) % 32, set = round % 2;
    u32 mine = 0;
#pragma unroll
    for (int j = 0; j < GROUPS; ++j) {
      const int i = item(j, warp), to = owner(i);
      if (to == rank) {
        mine |= 1u << j;
      } else {
        const Vec<float, 4> v = {{d[4 * j], d[4 * j + 1], d[4 * j + 2], d[4 * j + 3]}};
        store_remote(slots[set][i / BLOCKS][rank - (rank > to)][lane].data, u32(to), v);
      }
    }
    __syncwarp();
    if (lane < BLOCKS && lane != rank) mbarrier_arrive_remote_release(full[set][warp], u32(lane));
    mbarrier_wait_cluster(full[set][warp], u32(round / 2 % 2));
#pragma unroll
    for (int j = 0; j < GROUPS; ++j) {
      if ((mine >> j & 1) == 0) continue;
      const Vec<float, 4> own = {{d[4 * j], d[4 * j + 1], d[4 * j + 2], d[4 * j + 3]}};
      Vec<float, 4> parts[BLOCKS], sum;
#pragma unroll
      for (int p = 0; p < BLOCKS; ++p) {  // one slot is read for nothing: no branch between the loads
        const int slot = p - (p > rank || p == BLOCKS - 1);
        parts[p] = load<4>(slots[set][item(j, warp) / BLOCKS][slot][lane].data);
      }
#pragma unroll
      for (int p = 0; p < BLOCKS; ++p)  // by rank, whoever sums: the bits do not depend on the owner
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float part = p == rank ? own.data[e] : parts[p].data[e];
          sum.data[e] = p == 0 ? part : sum.data[e] + part;
        }
#pragma unroll
      for (int e = 0; e < 4; ++e) d[4 * j + e] = sum.data[e];
    }
    return mine;
  }
};
}  // namespace tw
