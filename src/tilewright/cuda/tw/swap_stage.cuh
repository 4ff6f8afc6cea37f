// Swap-AB: the tile of B^T (weights) is on the 64-row side of wgmma, that of A (tokens) on the side of its N.
#pragma once
#include <tw/operand_tile.cuh>
#include <tw/stage_ring.cuh>
#include <tw/wgmma.cuh>
namespace tw {
using WeightTile = OperandTile<plan::T, plan::B_K_MAJOR, plan::BN, 64>;
using TokenTile = OperandTile<plan::T, plan::A_K_MAJOR, plan::BM, 64>;
// A K block: slices of 64 k, a swizzled line each.
struct SwapStage {
  WeightTile weights[plan::SLICES];
  TokenTile tokens[plan::SLICES];
};

// acc (+)= the 64 weights of the tile from `row` on, times all of its tokens; one group of wgmmas, left in flight.
__device__ __forceinline__ void multiply_swapped(float (&acc)[plan::BM / 2], const SwapStage& stage, int row, bool accumulate) {
  wgmma_fence();
#pragma unroll
  for (int slice = 0; slice < plan::SLICES; ++slice) {
    const u32 weights = stage.weights[slice].low() + WeightTile::step(row, 0), tokens = stage.tokens[slice].low();
#pragma unroll
    for (int k = 0; k < 64; k += 16)
      wgmma<plan::T, plan::BM, !plan::B_K_MAJOR, !plan::A_K_MAJOR>(
          acc, WeightTile::descriptor(weights + WeightTile::step(0, k)), TokenTile::descriptor(tokens + TokenTile::step(0, k)),
          accumulate || slice > 0 || k > 0);
  }
  wgmma_commit();
}

// What a block of a cluster does of K: `count` blocks from `first` on, an even share of all. At least one: a share of nothing,
// and K = 0, is a block past the end of K, which TMA fills with zeros.
struct KShare {
  int first, count;
  __device__ __forceinline__ KShare(int k, int rank) {
    const int blocks = (k + plan::BK - 1) / plan::BK;
    first = int(i64(blocks) * rank / plan::CLUSTER_K);
    count = int(i64(blocks) * (rank + 1) / plan::CLUSTER_K) - first;
    if (count < 1) first = blocks > 0 ? blocks : 1, count = 1;
  }
};
}  // namespace tw
