// The main loop of a warpgroup that multiplies what others load, whatever a stage is.
#pragma once
#include <tw/stage_ring.cuh>
#include <tw/wgmma.cuh>
namespace tw {
// `k_blocks` (at least one) stages of the ring from `cursor` on: multiply(stage, accumulate) issues a stage's wgmmas into
// the first BLOCKS of acc as one group, release(stage) tells the loader that this warp has read it. One group stays in flight:
// the stage before it is released under it. `handed_over()` comes when the last wgmma has been issued.
template <int BLOCKS, int ALL, int COUNT, class STAGE, class Multiply, class Release, class HandedOver>
__device__ __forceinline__ void consume_ring(float (&acc)[ALL][COUNT], StageRing<STAGE>& ring, Cursor& cursor, int k_blocks,
                                             Multiply multiply, Release release, HandedOver handed_over) {
  int before = 0;
  for (int block = 0; block < k_blocks; ++block) {
    mbarrier_wait(ring.full[cursor.stage], cursor.parity);
    multiply(ring.stages[cursor.stage], block > 0);
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
