// Broken: 16-byte loads of B that start one element after a 16-byte boundary.
// (N is a multiple of 4; each thread computes four columns.)
#include <tw/math.cuh>
#include <tw/memory.cuh>
#include <tw/types.cuh>

using tw::i64;
using namespace plan;

extern "C" __global__ void __launch_bounds__(THREADS) tw_gemm(int m, int n, int k, const float* a, i64 lda,
                                                              const float* b, i64 ldb, float* c, i64 ldc) {
  const int tiles_n = (n + 4 * TILE - 1) / (4 * TILE), tx = threadIdx.x % TILE, ty = threadIdx.x / TILE;
  const int row = blockIdx.x / tiles_n * TILE + ty, col = blockIdx.x % tiles_n * 4 * TILE + 4 * tx;
  if (row >= m || col >= n) return;
  float acc[4] = {};
  for (int kk = 0; kk < k; ++kk) {
    const float av = a[row * lda + kk];
    const auto bv = tw::load<4>(b + kk * ldb + col + (BROKEN && col == 0));
    for (int j = 0; j < 4; ++j) acc[j] = tw::ffma(av, bv[j], acc[j]);
  }
  for (int j = 0; j < 4; ++j) c[row * ldc + col + j] = acc[j];
}
