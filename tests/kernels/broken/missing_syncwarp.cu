// Broken: the lanes of a warp hand each other their sums without __syncwarp, relying on lockstep.
// The sum over K is split over the two halves of a warp; lane i + 16 leaves its part for lane i.
#include <tw/math.cuh>
#include <tw/memory.cuh>
#include <tw/types.cuh>

using tw::i64;
using namespace plan;

struct Shared { float part[TILE / 2][TILE]; };

extern "C" __global__ void __launch_bounds__(THREADS) tw_gemm(int m, int n, int k, const float* a, i64 lda,
                                                              const float* b, i64 ldb, float* c, i64 ldc) {
  Shared& s = tw::shared<Shared>();
  const int tiles_n = (n + TILE - 1) / TILE, tx = threadIdx.x % TILE, ty = threadIdx.x / TILE;
  const int row = blockIdx.x / tiles_n * TILE + ty / 2, col = blockIdx.x % tiles_n * TILE + tx;
  for (int half = 0; half < 2; ++half) {  // the block has two threads an output: rows come in two halves of the tile
    const int r = row + half * TILE / 2;
    float acc = 0.0f;
    for (int kk = ty % 2; kk < k; kk += 2)
      if (r < m && col < n) acc = tw::ffma(a[r * lda + kk], b[kk * ldb + col], acc);
    if (ty % 2 == 1) s.part[ty / 2][tx] = acc;
    if (!BROKEN) __syncwarp();
    if (ty % 2 == 0 && r < m && col < n) c[r * ldc + col] = acc + s.part[ty / 2][tx];
    if (!BROKEN) __syncwarp();
  }
}
