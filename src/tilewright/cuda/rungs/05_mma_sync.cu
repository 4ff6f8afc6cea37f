// rung: 5
// name: mma-sync
// title: Tensor cores, a warp at a time
// idea: ldmatrix feeds mma.sync m16n8k16 from swizzled tiles; cp.async keeps several K-steps in flight. The roof changes.
#include <tw/cp_async.cuh>
#include <tw/fragment.cuh>
#include <tw/load_tile.cuh>
#include <tw/matrix.cuh>
#include <tw/memory.cuh>
#include <tw/operand_tile.cuh>
#include <tw/types.cuh>

using tw::i64;
using tw::u32;
using namespace plan;

constexpr int WM = BM / WARPS_M, WN = BN / WARPS_N;  // a warp's part of the tile
static_assert(WARPS_M * WARPS_N * 32 == THREADS && WM % 16 == 0 && WN % 16 == 0, "the warps do not cover the tile");

using TileA = tw::OperandTile<T, A_K_MAJOR, BM, BK>;
using TileB = tw::OperandTile<T, B_K_MAJOR, BN, BK>;
struct Shared {
  TileA a[STAGES];
  TileB b[STAGES];
};

// C[m, n] = A[m, k] B[k, n]; leading dimensions count elements between rows, or columns where an operand is column-major.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
tw_gemm(int m, int n, int k, const T* a, i64 lda, const T* b, i64 ldb, T* c, i64 ldc) {
  Shared& s = tw::shared<Shared>();
  const int tiles_n = (n + BN - 1) / BN;
  const int row0 = blockIdx.x / tiles_n * BM, col0 = blockIdx.x % tiles_n * BN;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int wm = warp / WARPS_N * WM, wn = warp % WARPS_N * WN;
  // ldmatrix.x4 takes row j of 8x8 matrix i from lane 8 i + j. Along A's rows go matrices 0 and 1, along B's 0 and 2.
  const int inner = lane % 8, odd = lane / 8 % 2 * 8, upper = lane / 16 * 8;
  float acc[WM / 16][WN / 8][4] = {};
  u32 af[2][WM / 16][4], bf[2][WN / 16][4];

  const auto fetch = [&](int k0) {
    const int stage = k0 / BK % STAGES;
    tw::load_tile<THREADS, ALIGNED>(s.a[stage], a, lda, row0, m, k0, k);
    tw::load_tile<THREADS, ALIGNED>(s.b[stage], b, ldb, col0, n, k0, k);
  };
  const auto load = [&](int stage, int kk) {
#pragma unroll
    for (int i = 0; i < WM / 16; ++i) {
      const int row = wm + i * 16 + (A_K_MAJOR ? inner : 0) + odd, kr = kk + (A_K_MAJOR ? 0 : inner) + upper;
      tw::ldmatrix_x4<!A_K_MAJOR>(af[kk / 16 % 2][i], s.a[stage].elements + TileA::index(row, kr));
    }
#pragma unroll
    for (int j = 0; j < WN / 16; ++j) {
      const int row = wn + j * 16 + (B_K_MAJOR ? inner : 0) + upper, kr = kk + (B_K_MAJOR ? 0 : inner) + odd;
      tw::ldmatrix_x4<!B_K_MAJOR>(bf[kk / 16 % 2][j], s.b[stage].elements + TileB::index(row, kr));
    }
  };

  for (int stage = 0; stage < STAGES - 1; ++stage) {
    if (stage * BK < k) fetch(stage * BK);
    tw::cp_async_commit();
  }
  tw::cp_async_wait<STAGES - 2>();
  __syncthreads();
  load(0, 0);
  for (int k0 = 0, stage = 0; k0 < k; k0 += BK) {
    if (k0 + (STAGES - 1) * BK < k) fetch(k0 + (STAGES - 1) * BK);  // into the stage before, which all have read
    tw::cp_async_commit();
#pragma unroll
    for (int kk = 0; kk < BK; kk += 16) {
      if (kk + 16 < BK) {
        load(stage, kk + 16);
      } else {  // the next stage's first fragments arrive under this one's last multiplications
        tw::cp_async_wait<STAGES - 2>();
        __syncthreads();
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        load(stage, 0);
      }
#pragma unroll
      for (int i = 0; i < WM / 16; ++i)
#pragma unroll
        for (int step = 0; step < WN / 8; ++step) {
          const int j = i % 2 ? WN / 8 - 1 - step : step;
          tw::mma_m16n8k16<T>(acc[i][j], af[kk / 16 % 2][i], bf[kk / 16 % 2][j / 2][j % 2 * 2],
                              bf[kk / 16 % 2][j / 2][j % 2 * 2 + 1]);
        }
    }
  }

#pragma unroll
  for (int i = 0; i < WM / 16; ++i)
#pragma unroll
    for (int j = 0; j < WN / 8; ++j)
      tw::store_fragment(c, ldc, row0 + wm + i * 16, col0 + wn + j * 8, m, n, acc[i][j], ALIGNED);
}
