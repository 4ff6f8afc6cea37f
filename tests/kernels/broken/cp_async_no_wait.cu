// Broken: the tile of B is read while its asynchronous copies may be in flight.
#include <tw/cp_async.cuh>
#include <tw/math.cuh>
#include <tw/memory.cuh>
#include <tw/types.cuh>

using tw::i64;
using namespace plan;

struct Shared {
  float a[TILE][TILE];
  float b[TILE][TILE];
};

extern "C" __global__ void __launch_bounds__(THREADS) tw_gemm(int m, int n, int k, const float* a, i64 lda,
                                                              const float* b, i64 ldb, float* c, i64 ldc) {
  Shared& s = tw::shared<Shared>();
  const int tiles_n = (n + TILE - 1) / TILE, tx = threadIdx.x % TILE, ty = threadIdx.x / TILE;
  const int row = blockIdx.x / tiles_n * TILE + ty, col = blockIdx.x % tiles_n * TILE + tx;
  float acc = 0.0f;
  for (int k0 = 0; k0 < k; k0 += TILE) {
    s.a[ty][tx] = row < m && k0 + tx < k ? a[row * lda + k0 + tx] : 0.0f;
    const int left = k0 + ty < k ? n - col : 0;
    tw::cp_async<4>(&s.b[ty][tx], left > 0 ? b + (k0 + ty) * ldb + col : b, left > 0 ? 4 : 0);
    tw::cp_async_commit();
    if (!BROKEN) tw::cp_async_wait<0>();
    __syncthreads();
    for (int kk = 0; kk < TILE; ++kk) acc = tw::ffma(s.a[ty][kk], s.b[kk][tx], acc);
    __syncthreads();
  }
  if (row < m && col < n) c[row * ldc + col] = acc;
}
