// A warpgroup's wgmmas on one stage of the ring.
#pragma once
#include <tw/ring.cuh>
#include <tw/wgmma.cuh>
namespace tw {
// acc (+)= A B for BLOCKS blocks of 64 rows of the tile from `row` on; one group of wgmmas, left in flight.
template <int BLOCKS, int ALL>
__device__ __forceinline__ void multiply_stage(float (&acc)[ALL][plan::BN / 2], const Stage& stage, int row, bool accumulate) {
  const u32 a = stage.a.low() + TileA::step(row, 0), b = stage.b.low();
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < plan::BK; k += 16)
#pragma unroll
    for (int i = 0; i < BLOCKS; ++i)
      wgmma<plan::T, plan::BN, !plan::A_K_MAJOR, !plan::B_K_MAJOR>(
          acc[i], TileA::descriptor(a + TileA::step(i * 64, k)), TileB::descriptor(b + TileB::step(0, k)), accumulate || k > 0);
  wgmma_commit();
}
}  // namespace tw
