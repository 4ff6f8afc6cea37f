// TMA, wgmma, ldmatrix, mma.sync and stmatrix of one warpgroup, their counts easy to make by hand. Each of BLOCKS blocks of
// a cluster loads a slice of B for all of them.
#include <tw/cluster.cuh>
#include <tw/fence.cuh>
#include <tw/matrix.cuh>
#include <tw/mbarrier.cuh>
#include <tw/memory.cuh>
#include <tw/operand_tile.cuh>
#include <tw/sync.cuh>
#include <tw/tma.cuh>
#include <tw/types.cuh>
#include <tw/wgmma.cuh>

using T = tw::bf16;
using Tile = tw::OperandTile<T, true, 64, 64>;
struct Shared {
  Tile a, b, c;
  tw::Mbarrier full;
};

extern "C" __global__ void tw_gemm(const __grid_constant__ tw::TensorMap a_map, const __grid_constant__ tw::TensorMap b_map,
                                   const __grid_constant__ tw::TensorMap c_map) {
  Shared& s = tw::shared<Shared>();
  const int thread = int(threadIdx.x), lane = thread % 32, warp = thread / 32, rank = int(tw::cluster_rank());
  if (thread == 0) {
    tw::mbarrier_init(s.full, 1);
    tw::fence_mbarrier_init();
  }
  tw::cluster_sync();
  if (thread == 0) {
    tw::mbarrier_expect_tx(s.full, 2 * sizeof(Tile));
    tw::tma_load_2d(&s.a, a_map, s.full, 0, 0);
    constexpr int ROWS = 64 / plan::BLOCKS;
    T* slice = s.b.elements + rank * ROWS * 64;
    if (plan::BLOCKS == 1) tw::tma_load_2d(slice, b_map, s.full, 0, 0);
    else tw::tma_load_2d_multicast(slice, b_map, s.full, 0, rank * ROWS, (1 << plan::BLOCKS) - 1);
  }
  tw::mbarrier_wait(s.full, 0);

  float d[32] = {};
  tw::wgmma_fence();
  for (int k = 0; k < 64; k += 16)
    tw::wgmma<T, 64, false, false>(d, Tile::descriptor(s.a.low() + Tile::step(0, k)),
                                   Tile::descriptor(s.b.low() + Tile::step(0, k)), true);
  tw::wgmma_commit();
  tw::wgmma_wait<0>();
  tw::wgmma_pin(d);

  tw::u32 a[4], b[4];
  float e[4] = {};
  tw::ldmatrix_x4(a, s.a.elements + Tile::index(16 * warp + lane % 16, lane / 16 * 8));  // in eights over all banks
  tw::ldmatrix_x2(reinterpret_cast<tw::u32(&)[2]>(b), s.b.elements + lane % 16 * 64);    // eight rows in four banks
  tw::mma_m16n8k16<T>(e, a, b[0], b[1]);

  const int row = 16 * warp + lane % 16;
  for (int column = 0; column < 64; column += 16)
    tw::stmatrix_x4(s.c.elements + Tile::index(row, column + lane / 16 * 8), tw::pack<T>(d[0], e[0]), 0, 0, 0);
  tw::fence_proxy_async();
  __syncthreads();
  if (thread == 0) {
    tw::tma_store_2d(c_map, &s.c, 0, rank * 64);
    tw::tma_store_commit();
    tw::tma_store_wait<0>();
  }
  tw::cluster_sync();
}
