// Copies 64x64 tiles, one above the other, through registers, stmatrix and TMA stores from one buffer.
#include <tw/fence.cuh>
#include <tw/matrix.cuh>
#include <tw/memory.cuh>
#include <tw/operand_tile.cuh>
#include <tw/sync.cuh>
#include <tw/tma.cuh>

enum Fault { NONE, NO_FENCE, OVERWRITES, NO_BARRIER_AFTER_WAIT, NO_BARRIER_BEFORE_STORE, NO_WAIT_AT_EXIT };
__device__ constexpr bool is(Fault fault) { return plan::FAULT == fault; }

using Tile = tw::OperandTile<tw::bf16, true, 64, 64>;
struct Shared {
  Tile tile;
};

extern "C" __global__ void __launch_bounds__(128) tw_gemm(const __grid_constant__ tw::TensorMap out_map,
                                                          const tw::bf16* in, int tiles) {
  Shared& s = tw::shared<Shared>();
  const int t = threadIdx.x, lane = t % 32, row = t / 32 * 16;
  for (int tile = 0; tile < tiles; ++tile, in += 64 * 64) {
    if (t == 0 && !is(OVERWRITES)) tw::tma_store_wait_read<0>();  // of the tile before
    if (!is(NO_BARRIER_AFTER_WAIT)) __syncthreads();
    for (int column = 0; column < 64; column += 16) {
      const auto pair = [&](int down, int right) {  // as a warp's accumulators hold them
        return tw::load<2>(in + (row + lane / 4 + down) * 64 + column + lane % 4 * 2 + right);
      };
      tw::u32 r[4];
      for (int i = 0; i < 4; ++i) {
        const auto p = pair(i % 2 * 8, i / 2 * 8);
        r[i] = tw::pack<tw::bf16>(tw::to_float(p[0]), tw::to_float(p[1]));
      }
      tw::stmatrix_x4(s.tile.elements + Tile::index(row + lane % 16, column + lane / 16 * 8), r[0], r[1], r[2], r[3]);
    }
    if (!is(NO_FENCE)) tw::fence_proxy_async();
    if (!is(NO_BARRIER_BEFORE_STORE)) __syncthreads();
    if (t == 0) {
      tw::tma_store_2d(out_map, s.tile.elements, 0, tile * 64);
      tw::tma_store_commit();
    }
  }
  if (t == 0 && !is(NO_WAIT_AT_EXIT)) tw::tma_store_wait<0>();
}
