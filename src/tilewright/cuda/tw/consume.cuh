// The main loop of a warpgroup that multiplies what others load.
#pragma once
#include <tw/multiply_stage.cuh>
#include <tw/ring.cuh>
namespace tw {
// acc = the product of BLOCKS blocks of 64 rows of the tile from `row` on, over `k_blocks` (at least one) stages of the
// ring from `cursor` on; release(stage) tells the loader that this warp has read a stage. One group of wgmmas stays in flight:
// the stage before it is released under it. `handed_over()` comes when the last wgmma has been issued.
template <int BLOCKS, int ALL, class Release, class HandedOver>
__device__ __forceinline__ void consume(float (&acc)[ALL][plan::BN / 2], Ring& ring, Cursor& cursor, int row, int k_blocks,
                                        Release release, HandedOver handed_over) {
  int before = 0;
  for (int block = 0; block < k_blocks; ++block) {
    mbarrier_wait(ring.full[cursor.stage], cursor.parity);
    multiply_stage<BLOCKS>(acc, ring.stages[cursor.stage], row, block > 0);
    wgmma_wait<1>();
    if (block > 0) release(before);
    before = cursor.stage;
    cursor.advance();
  }
  handed_over();
  wgmma_wait<0>();
  release(before);
#pragma unroll
  for (int i = 0; i < BLOCKS; ++i) wgmma_pin(acc[i]);
}
}  // namespace tw
