// rung: 2
// name: register block
// title: Each thread keeps a TM x TN block of C in registers
// idea: A value loaded from shared memory is used TM or TN times from registers; A lies transposed, so that a thread's rows are one wide load.
#include <tw/math.cuh>
#include <tw/memory.cuh>
#include <tw/types.cuh>

using tw::i64;
using namespace plan;

constexpr int V = 16 / sizeof(T);   // elements of B in a 16-byte load
constexpr int KW = 32 / sizeof(T);  // elements of a row of A in one 32-byte sector
constexpr int TX = BN / TN, TY = BM / TM;

struct Shared {
  T a[BK][BM + PAD];  // transposed; PAD = 4 spreads the KW x (32 / KW) patch that a warp stores over all banks
  T b[BK][BN];
};

// Where group g of a thread's rows or columns starts. INTERLEAVED puts neighbouring threads' groups side by side, so
// that a warp's load is contiguous; the other map (a thread's TN columns adjacent) strides over the banks.
template <int WIDTH, int THREADS_ACROSS, int PER_THREAD> __device__ __forceinline__ int group(int g, int thread) {
  return INTERLEAVED ? (g * THREADS_ACROSS + thread) * WIDTH : thread * PER_THREAD + g * WIDTH;
}

// C[m, n] = A[m, k] B[k, n] with leading dimensions in elements.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
tw_gemm(int m, int n, int k, const T* a, i64 lda, const T* b, i64 ldb, T* c, i64 ldc) {
  Shared& s = tw::shared<Shared>();
  const int tiles_n = (n + BN - 1) / BN;
  const int row0 = blockIdx.x / tiles_n * BM, col0 = blockIdx.x % tiles_n * BN;
  const int t = threadIdx.x, tx = t % TX, ty = t / TX;
  float acc[TM][TN] = {};

  for (int k0 = 0; k0 < k; k0 += BK) {
#pragma unroll 4
    for (int base = 0; base < BM * BK; base += THREADS) {
      const int i = base + t, r = i / KW % BM, kk = i / (KW * BM) * KW + i % KW;
      const bool inside = row0 + r < m && k0 + kk < k;
      s.a[kk][r] = inside ? a[(row0 + r) * lda + k0 + kk] : T{};
    }
#pragma unroll 4
    for (int base = 0; base < BK * BN; base += THREADS) {
      const int i = base + t, kk = i / BN, j = i % BN;
      const bool inside = k0 + kk < k && col0 + j < n;
      s.b[kk][j] = inside ? b[(k0 + kk) * ldb + col0 + j] : T{};
    }
    __syncthreads();

#pragma unroll 4
    for (int kk = 0; kk < BK; ++kk) {
      float av[TM], bv[TN];
#pragma unroll
      for (int i = 0; i < TM; i += 4) tw::widen(av + i, tw::load<4>(&s.a[kk][group<4, TY, TM>(i / 4, ty)]));
#pragma unroll
      for (int j = 0; j < TN; j += V) tw::widen(bv + j, tw::load<V>(&s.b[kk][group<V, TX, TN>(j / V, tx)]));
#pragma unroll
      for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int step = 0; step < TN; ++step) {
          const int j = i % 2 ? TN - 1 - step : step;  // back and forth: each shares an operand with the one before
          acc[i][j] = tw::ffma(av[i], bv[j], acc[i][j]);
        }
    }
    __syncthreads();
  }

#pragma unroll
  for (int i = 0; i < TM; ++i)
#pragma unroll
    for (int j = 0; j < TN; ++j) {
      const int row = row0 + group<4, TY, TM>(i / 4, ty) + i % 4, col = col0 + group<V, TX, TN>(j / V, tx) + j % V;
      if (row < m && col < n) c[row * ldc + col] = tw::from_float<T>(acc[i][j]);
    }
}
