// The main loop of the rungs' warpgroups that multiply.
#pragma once
#include <tw/consume_ring.cuh>
#include <tw/multiply_stage.cuh>
#include <tw/ring.cuh>
namespace tw {
// acc = the product of BLOCKS blocks of 64 rows of the tile from `row` on; the rest as in consume_ring.
template <int BLOCKS, int ALL, class Release, class HandedOver>
__device__ __forceinline__ void consume(float (&acc)[ALL][plan::BN / 2], Ring& ring, Cursor& cursor, int row, int k_blocks,
                                        Release release, HandedOver handed_over) {
  const auto multiply = [&](const Stage& stage, bool accumulate) { multiply_stage<BLOCKS>(acc, stage, row, accumulate); };
  consume_ring<BLOCKS>(acc, ring, cursor, k_blocks, multiply, release, handed_over);
}
}  // namespace tw
