// rung: 1
// name: shared tile
// title: A tile of C reuses a tile of A and a tile of B
// idea: A block copies a BM x BK tile of A and a BK x BN tile of B to shared memory once and computes BM x BN outputs from them.
#include <tw/math.cuh>
#include <tw/memory.cuh>
#include <tw/types.cuh>

using tw::i64;
using namespace plan;

struct Shared {
  T a[BM][BK];
  T b[BK][BN];
};

// C[m, n] = A[m, k] B[k, n] with leading dimensions in elements.
extern "C" __global__ void __launch_bounds__(THREADS)
tw_gemm(int m, int n, int k, const T* a, i64 lda, const T* b, i64 ldb, T* c, i64 ldc) {
  Shared& s = tw::shared<Shared>();
  const int tiles_n = (n + BN - 1) / BN;
  const int row0 = blockIdx.x / tiles_n * BM, col0 = blockIdx.x % tiles_n * BN;
  const int t = threadIdx.x;
  constexpr int ROWS = THREADS / BN;  // rows of C that the block covers at a time
  constexpr int OUTPUTS = BM / ROWS;  // outputs a thread, one below the other
  const int tx = t % BN, ty = t / BN;
  float acc[OUTPUTS] = {};

  for (int k0 = 0; k0 < k; k0 += BK) {
#pragma unroll
    for (int base = 0; base < BM * BK; base += THREADS) {
      const int i = base + t, r = i / BK, kk = i % BK;
      const bool inside = row0 + r < m && k0 + kk < k;
      s.a[r][kk] = inside ? a[(row0 + r) * lda + k0 + kk] : T{};
    }
#pragma unroll
    for (int base = 0; base < BK * BN; base += THREADS) {
      const int i = base + t, kk = i / BN, j = i % BN;
      const bool inside = k0 + kk < k && col0 + j < n;
      s.b[kk][j] = inside ? b[(k0 + kk) * ldb + col0 + j] : T{};
    }
    __syncthreads();

    // One output after another, the loop over k rolled: nothing is kept in registers but the sum, so that each
    // multiply-add costs two shared loads.
#pragma unroll
    for (int o = 0; o < OUTPUTS; ++o) {
#pragma unroll 1
      for (int kk = 0; kk < BK; ++kk)
        acc[o] = tw::ffma(tw::to_float(s.a[ty + o * ROWS][kk]), tw::to_float(s.b[kk][tx]), acc[o]);
    }
    __syncthreads();
  }

#pragma unroll
  for (int o = 0; o < OUTPUTS; ++o) {
    const int row = row0 + ty + o * ROWS, col = col0 + tx;
    if (row < m && col < n) c[row * ldc + col] = tw::from_float<T>(acc[o]);
  }
}
