// The ring of the rungs. A stage is one K block of both operands.
#pragma once
#include <tw/operand_tile.cuh>
#include <tw/stage_ring.cuh>
namespace tw {
using TileA = OperandTile<plan::T, plan::A_K_MAJOR, plan::BM, plan::BK>;
using TileB = OperandTile<plan::T, plan::B_K_MAJOR, plan::BN, plan::BK>;
struct Stage {
  TileA a;
  TileB b;
};
using Ring = StageRing<Stage>;

// How many stages a tile takes, at least one, and where in K the first begins. With K = 0 it lies outside the operands and
// is all zeros: a test for it at the accumulators made the compiler spill them (324 bytes).
__device__ __forceinline__ int k_blocks_of(int k) { return k > 0 ? (k + plan::BK - 1) / plan::BK : 1; }
__device__ __forceinline__ int k_origin(int k) { return k > 0 ? 0 : plan::BK; }
}  // namespace tw
