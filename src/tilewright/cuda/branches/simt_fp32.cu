// branch: simt
// name: fp32
// title: True fp32, whichever way the operands lie
// idea: Rung 4's two buffers; an operand whose lines run along K is transposed on the way, one whose lines run across it is copied.
#include <tw/batch.cuh>
#include <tw/epilogue.cuh>
#include <tw/grid_dependency.cuh>
#include <tw/memory.cuh>
#include <tw/micro_tile.cuh>
#include <tw/step_loader.cuh>
#include <tw/types.cuh>

using tw::i64;
using namespace plan;

// A warp's lanes lie LANES_M x LANES_N over its part of the tile; a thread's rows and columns come in groups of 4.
constexpr int LANES_M = BM / TM / WARPS_M, LANES_N = BN / TN / WARPS_N;
static_assert(LANES_M * LANES_N == 32 && WARPS_M * WARPS_N * 32 == THREADS, "the warps do not cover the tile");

using LoaderA = tw::StepLoader<T, A_K_MAJOR, BM, BK, THREADS, ALIGNED>;
using LoaderB = tw::StepLoader<T, B_K_MAJOR, BN, BK, THREADS, ALIGNED>;
struct Shared {
  T a[2][BK][BM + LoaderA::PAD];
  T b[2][BK][BN + LoaderB::PAD];
};

// C[m, n] = A[m, k] B[k, n] with leading dimensions in elements, from row to row or, of column-major operands, from column to
// column.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
tw_gemm(int m, int n, int k, const T* a, i64 lda, const T* b, i64 ldb, Out* c, i64 ldc,
        const __grid_constant__ tw::Batch<BATCHED> batch, const __grid_constant__ epilogue::Args epilogue_args) {
  Shared& s = tw::shared<Shared>();
  const int tiles_n = (n + BN - 1) / BN;
  tw::u32 tile = blockIdx.x;
  const tw::BatchIndex at = batch.select(tile, (m + BM - 1) / BM * tiles_n, a, b, c);
  const int row0 = tile / tiles_n * BM, col0 = tile % tiles_n * BN;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int tx = warp % WARPS_N * LANES_N * TN + lane % LANES_N * 4;
  const int ty = warp / WARPS_N * LANES_M * TM + lane / LANES_N * 4;
  float acc[TM][TN] = {}, av[2][TM], bv[2][TN];

  if (DEPENDENT_LAUNCH) {
    tw::grid_dependency_launch();
    tw::grid_dependency_wait();  // the kernel before writes A, and may still read C
  }
  LoaderA rows(a, lda, row0, m);
  LoaderB columns(b, ldb, col0, n);
  const int whole_k = ALIGNED && rows.fits() && columns.fits() ? k : 0;  // up to here no K-step needs a bound
  const auto fetch = [&](int k0, int buffer) {
    if (k0 + BK <= whole_k) {
      rows.fetch<true>(s.a[buffer], k - k0);
      columns.fetch<true>(s.b[buffer], k - k0);
    } else {
      rows.fetch<false>(s.a[buffer], k - k0);
      columns.fetch<false>(s.b[buffer], k - k0);
    }
    tw::cp_async_commit();
  };
  const auto hand_over = [&](int buffer) {
    rows.hand_over(s.a[buffer]);
    columns.hand_over(s.b[buffer]);
    tw::cp_async_wait<0>();
    __syncthreads();
  };
  const auto load = [&](int buffer, int kk) {
    tw::load_fragment<4, 4 * LANES_M>(av[kk % 2], &s.a[buffer][kk][ty]);
    tw::load_fragment<4, 4 * LANES_N>(bv[kk % 2], &s.b[buffer][kk][tx]);
  };

  fetch(0, 0);
  hand_over(0);
  load(0, 0);
#pragma unroll 1
  for (int k0 = 0, buffer = 0; k0 < k; k0 += BK, buffer ^= 1) {
    fetch(k0 + BK, buffer ^ 1);  // past the end of K: zeros
#pragma unroll
    for (int kk = 0; kk < BK; ++kk) {
      if (kk + 1 < BK) {
        load(buffer, kk + 1);
      } else {  // all of this buffer is in registers
        hand_over(buffer ^ 1);
        load(buffer ^ 1, 0);
      }
      tw::multiply(acc, av[kk % 2], bv[kk % 2]);
    }
  }

  tw::store_block<4 * LANES_M, 4 * LANES_N, 4>(c, ldc, row0 + ty, col0 + tx, m, n, acc, ALIGNED,
                                               tw::Epilogue{epilogue_args, at});
}
