// rung: 6
// name: wgmma
// title: Tensor cores, a warpgroup at a time
// idea: wgmma m64nNk16 reads both operands from swizzled shared memory itself, asynchronously: no ldmatrix, no fragments.
#include <tw/cp_async.cuh>
#include <tw/fence.cuh>
#include <tw/fragment.cuh>
#include <tw/load_tile.cuh>
#include <tw/memory.cuh>
#include <tw/operand_tile.cuh>
#include <tw/types.cuh>
#include <tw/wgmma.cuh>

using tw::i64;
using tw::u32;
using namespace plan;

constexpr int WM = BM / CONSUMERS, BLOCKS = WM / 64;  // a warpgroup's rows of the tile, 64 to a wgmma
static_assert(CONSUMERS * 128 == THREADS && BLOCKS * 64 * CONSUMERS == BM, "the warpgroups do not cover the tile");

using TileA = tw::OperandTile<T, A_K_MAJOR, BM, BK>;
using TileB = tw::OperandTile<T, B_K_MAJOR, BN, BK>;
struct Shared {
  TileA a[STAGES];
  TileB b[STAGES];
};

// C[m, n] = A[m, k] B[k, n] with leading dimensions in elements.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
tw_gemm(int m, int n, int k, const T* a, i64 lda, const T* b, i64 ldb, T* c, i64 ldc) {
  Shared& s = tw::shared<Shared>();
  const int tiles_n = (n + BN - 1) / BN;
  const int row0 = blockIdx.x / tiles_n * BM, col0 = blockIdx.x % tiles_n * BN;
  const int warp = threadIdx.x / 32, wm = warp / 4 * WM;
  float acc[BLOCKS][BN / 2] = {};

  const auto fetch = [&](int k0) {
    const int stage = k0 / BK % STAGES;
    tw::load_tile<THREADS, ALIGNED>(s.a[stage], a, lda, row0, m, k0, k);
    tw::load_tile<THREADS, ALIGNED>(s.b[stage], b, ldb, col0, n, k0, k);
  };

  for (int stage = 0; stage < STAGES - 2; ++stage) {
    if (stage * BK < k) fetch(stage * BK);
    tw::cp_async_commit();
  }
  for (int k0 = 0, stage = 0; k0 < k; k0 += BK, stage = stage + 1 == STAGES ? 0 : stage + 1) {
    tw::cp_async_wait<STAGES - 3>();
    tw::fence_proxy_async();  // wgmma reads what cp.async and ordinary stores wrote
    __syncthreads();          // this stage is here, and the wgmmas before the last have read theirs
    const u32 from_a = s.a[stage].low() + TileA::step(wm, 0), from_b = s.b[stage].low();
    tw::wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < BK; kk += 16)
#pragma unroll
      for (int i = 0; i < BLOCKS; ++i)
        tw::wgmma<T, BN, !A_K_MAJOR, !B_K_MAJOR>(acc[i], TileA::descriptor(from_a + TileA::step(i * 64, kk)),
                                                 TileB::descriptor(from_b + TileB::step(0, kk)), true);
    tw::wgmma_commit();
    if (k0 + (STAGES - 2) * BK < k) fetch(k0 + (STAGES - 2) * BK);
    tw::cp_async_commit();
    tw::wgmma_wait<1>();
  }
  tw::wgmma_wait<0>();

#pragma unroll
  for (int i = 0; i < BLOCKS; ++i) {
    tw::wgmma_pin(acc[i]);
    tw::store_fragment(c, ldc, row0 + wm + i * 64 + warp % 4 * 16, col0, m, n, acc[i], ALIGNED);
  }
}
