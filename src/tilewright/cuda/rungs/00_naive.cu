// rung: 0
// name: naive
// title: One thread per output
// idea: Each thread computes one element of C; threadIdx.x walks its columns, so B is read coalesced and A is broadcast.
#include <tw/math.cuh>
#include <tw/types.cuh>

using tw::i64;
using plan::T;

// C[m, n] = A[m, k] B[k, n] with leading dimensions in elements.
extern "C" __global__ void __launch_bounds__(plan::THREADS)
tw_gemm(int m, int n, int k, const T* a, i64 lda, const T* b, i64 ldb, T* c, i64 ldc) {
  const int tiles_n = (n + plan::BN - 1) / plan::BN;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // SWAPPED is the classic mistake: the lanes of a warp walk the rows, so every load of A and every store of C
  // touches 32 different rows.
  const int row = blockIdx.x / tiles_n * plan::BM + (plan::SWAPPED ? lane : warp);
  const int col = blockIdx.x % tiles_n * plan::BN + (plan::SWAPPED ? warp : lane);
  if (row >= m || col >= n) return;

  const T* a_row = a + row * lda;
  const T* b_col = b + col;
  float acc = 0.0f;
  for (int kk = 0; kk < k; ++kk) acc = tw::ffma(tw::to_float(a_row[kk]), tw::to_float(b_col[kk * ldb]), acc);
  c[row * ldc + col] = tw::from_float<T>(acc);
}
