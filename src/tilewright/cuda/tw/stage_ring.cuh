// A ring of stages between whoever loads and whoever multiplies, whatever a stage is.
#pragma once
#include <tw/mbarrier.cuh>
#include <tw/types.cuh>
namespace tw {
template <class STAGE> struct StageRing {
  STAGE stages[plan::STAGES];
  Mbarrier full[plan::STAGES];   // completed by the bytes of a stage
  Mbarrier empty[plan::STAGES];  // completed by those who have read it
};

// Where in the ring somebody is. A barrier's phases alternate in parity; one that has never completed lets parity 1
// pass, so whoever waits for empty stages starts with that.
struct Cursor {
  int stage;
  u32 parity;
  __device__ __forceinline__ void advance() {
    if (++stage == plan::STAGES) stage = 0, parity ^= 1;
  }
  __device__ __forceinline__ void skip(int stages) {
    const int to = stage + stages;
    stage = to % plan::STAGES;
    parity ^= to / plan::STAGES % 2;
  }
};

// By one thread, before anybody uses the ring; a barrier of the block (or the cluster) has to follow.
template <class STAGE> __device__ __forceinline__ void make_ring(StageRing<STAGE>& ring, int readers, int loaders = 1) {
  for (int i = 0; i < plan::STAGES; ++i) {
    mbarrier_init(ring.full[i], loaders);
    mbarrier_init(ring.empty[i], readers);
  }
  fence_mbarrier_init();
}
}  // namespace tw
