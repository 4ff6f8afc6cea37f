// rung: 5
// name: mma-sync
// title: Tensor cores, a warp at a time
// idea: ldmatrix feeds mma.sync m16n8k16 from swizzled tiles; cp.async keeps several K-steps in flight. The roof changes.
#include <tw/batch.cuh>
#include <tw/cp_async.cuh>
#include <tw/load_tile.cuh>
#include <tw/memory.cuh>
#include <tw/types.cuh>
#include <tw/warp_tile.cuh>

using tw::i64;
using namespace plan;

constexpr int WM = BM / WARPS_M, WN = BN / WARPS_N;  // a warp's part of the tile
static_assert(WARPS_M * WARPS_N * 32 == THREADS && WM % 16 == 0 && WN % 16 == 0, "the warps do not cover the tile");

struct Shared {
  tw::OperandTile<T, A_K_MAJOR, BM, BK> a[STAGES];
  tw::OperandTile<T, B_K_MAJOR, BN, BK> b[STAGES];
};

// C[m, n] = A[m, k] B[k, n] with leading dimensions in elements.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
tw_gemm(int m, int n, int k, const T* a, i64 lda, const T* b, i64 ldb, Out* c, i64 ldc,
        const __grid_constant__ tw::Batch<BATCHED> batch, const __grid_constant__ epilogue::Args epilogue_args) {
  Shared& s = tw::shared<Shared>();
  const int tiles_n = (n + BN - 1) / BN;
  tw::u32 tile = blockIdx.x;
  const tw::BatchIndex at = batch.select(tile, (m + BM - 1) / BM * tiles_n, a, b, c);
  const int row0 = tile / tiles_n * BM, col0 = tile % tiles_n * BN;
  const int warp = threadIdx.x / 32, wm = warp / WARPS_N * WM, wn = warp % WARPS_N * WN;
  float acc[WM / 16][WN / 8][4] = {};
  tw::u32 af[2][WM / 16][4], bf[2][WN / 16][4];

  const auto fetch = [&](int k0) {
    if (k0 < k) {
      tw::load_tile<THREADS, ALIGNED>(s.a[k0 / BK % STAGES], a, lda, row0, m, k0, k);
      tw::load_tile<THREADS, ALIGNED>(s.b[k0 / BK % STAGES], b, ldb, col0, n, k0, k);
    }
    tw::cp_async_commit();
  };
  const auto hand_over = [&] {
    tw::cp_async_wait<STAGES - 2>();
    __syncthreads();
  };
  const auto load = [&](int buffer, int kk) {
    tw::load_a(af[kk / 16 % 2], s.a[buffer], wm, kk);
    tw::load_b(bf[kk / 16 % 2], s.b[buffer], wn, kk);
  };

  for (int buffer = 0; buffer < STAGES - 1; ++buffer) fetch(buffer * BK);
  hand_over();
  if (k > 0) load(0, 0);
#pragma unroll 1
  for (int k0 = 0, buffer = 0; k0 < k; k0 += BK) {
    fetch(k0 + (STAGES - 1) * BK);  // into the buffer before, which all have read
#pragma unroll
    for (int kk = 0; kk < BK; kk += 16) {
      if (kk + 16 < BK) {
        load(buffer, kk + 16);
      } else {  // all of this buffer is in registers
        hand_over();
        buffer = buffer + 1 == STAGES ? 0 : buffer + 1;
        if (k0 + BK < k) load(buffer, 0);
      }
      tw::multiply<T>(acc, af[kk / 16 % 2], bf[kk / 16 % 2]);
    }
  }

  tw::store_fragments(c, ldc, row0 + wm, col0 + wn, m, n, acc, ALIGNED, tw::Epilogue{epilogue_args, at});
}
