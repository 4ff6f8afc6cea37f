// rung: 4
// name: double-buffered
// title: Tile k + 1 arrives while tile k is computed
// idea: Two buffers: B comes by cp.async, A through registers because it is transposed; fragments are loaded one k ahead, across the barrier.
#include <tw/memory.cuh>
#include <tw/micro_tile.cuh>
#include <tw/step_loader.cuh>
#include <tw/types.cuh>

using tw::i64;
using namespace plan;

constexpr int V = 16 / sizeof(T);  // elements in a 16-byte access
// A warp's lanes lie LANES_M x LANES_N over its part of the tile, whatever the tile and the micro-tile.
constexpr int LANES_M = BM / TM / WARPS_M, LANES_N = BN / TN / WARPS_N;
static_assert(LANES_M * LANES_N == 32 && WARPS_M * WARPS_N * 32 == THREADS, "the warps do not cover the tile");

struct Shared {
  T a[2][BK][BM + PAD];  // transposed
  T b[2][BK][BN];
};

// C[m, n] = A[m, k] B[k, n] with leading dimensions in elements.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
tw_gemm(int m, int n, int k, const T* a, i64 lda, const T* b, i64 ldb, T* c, i64 ldc) {
  Shared& s = tw::shared<Shared>();
  const int tiles_n = (n + BN - 1) / BN;
  const int row0 = blockIdx.x / tiles_n * BM, col0 = blockIdx.x % tiles_n * BN;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int tx = warp % WARPS_N * LANES_N * TN + lane % LANES_N * V;
  const int ty = warp / WARPS_N * LANES_M * TM + lane / LANES_N * 4;
  float acc[TM][TN] = {}, av[2][TM], bv[2][TN];

  tw::StepLoader<T, false, BN, BK, THREADS, ALIGNED> columns(b, ldb, col0, n);
  tw::StepLoader<T, true, BM, BK, THREADS, ALIGNED> rows(a, lda, row0, m);
  const int whole_k = ALIGNED && columns.fits() ? k : 0;  // up to here no K-step needs a bound
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
    tw::load_fragment<V, V * LANES_N>(bv[kk % 2], &s.b[buffer][kk][tx]);
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

  tw::store_block<4 * LANES_M, V * LANES_N>(c, ldc, row0 + ty, col0 + tx, m, n, acc, ALIGNED);
}
