// The ring of stages between whoever loads and whoever multiplies. A stage is one K block of both operands.
#pragma once
#include <tw/mbarrier.cuh>
#include <tw/operand_tile.cuh>
namespace tw {
using TileA = OperandTile<plan::T, plan::A_K_MAJOR, plan::BM, plan::BK>;
using TileB = OperandTile<plan::T, plan::B_K_MAJOR, plan::BN, plan::BK>;
struct Stage {
  TileA a;
  TileB b;
};

struct Ring {
  Stage stages[plan::STAGES];
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

// How many stages a tile takes, at least one, and where in K the first begins. With K = 0 it lies outside the operands and
// is all zeros: a test for it at the accumulators made the compiler spill them (324 bytes).
__device__ __forceinline__ int k_blocks_of(int k) { return k > 0 ? (k + plan::BK - 1) / plan::BK : 1; }
__device__ __forceinline__ int k_origin(int k) { return k > 0 ? 0 : plan::BK; }

// By one thread, before anybody uses the ring; a barrier of the block (or the cluster) has to follow.
__device__ __forceinline__ void make_ring(Ring& ring, int readers) {
  for (int i = 0; i < plan::STAGES; ++i) {
    mbarrier_init(ring.full[i], 1);
    mbarrier_init(ring.empty[i], readers);
  }
  fence_mbarrier_init();
}
}  // namespace tw
