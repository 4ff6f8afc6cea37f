// rung: 3
// name: vectorised
// title: 16-byte loads and stores
// idea: A quarter of the load and store instructions: every global access moves 16 bytes, and C leaves in whole sectors.
#include <tw/memory.cuh>
#include <tw/micro_tile.cuh>
#include <tw/row.cuh>
#include <tw/types.cuh>

using tw::i64;
using namespace plan;

constexpr int V = 16 / sizeof(T);   // elements in a 16-byte access
constexpr int KW = 32 / sizeof(T);  // elements of a row of A in one 32-byte sector
constexpr int TX = BN / TN, TY = BM / TM;

struct Shared {
  T a[BK][BM + PAD];  // transposed; PAD = 4 spreads the KW x 16 patch that a warp stores over all banks
  T b[BK][BN];
};

// C[m, n] = A[m, k] B[k, n] with leading dimensions in elements.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
tw_gemm(int m, int n, int k, const T* a, i64 lda, const T* b, i64 ldb, T* c, i64 ldc) {
  Shared& s = tw::shared<Shared>();
  const int tiles_n = (n + BN - 1) / BN;
  const int row0 = blockIdx.x / tiles_n * BM, col0 = blockIdx.x % tiles_n * BN;
  const int t = threadIdx.x, tx = t % TX, ty = t / TX;
  float acc[TM][TN] = {};

  for (int k0 = 0; k0 < k; k0 += BK) {
#pragma unroll 2
    for (int base = 0; base < BM * BK / V; base += THREADS) {  // two lanes a sector, 16 rows a request
      const int i = base + t, r = i / 2 % BM, kk = i / (2 * BM) * KW + i % 2 * V;
      const auto v = tw::load_row<V>(a + (row0 + r) * lda, k0 + kk, row0 + r < m ? k : 0, ALIGNED);
#pragma unroll
      for (int e = 0; e < V; ++e) s.a[kk + e][r] = v[e];
    }
#pragma unroll 2
    for (int base = 0; base < BK * BN / V; base += THREADS) {
      const int i = base + t, kk = i / (BN / V), j = i % (BN / V) * V;
      tw::store<V>(&s.b[kk][j], tw::load_row<V>(b + (k0 + kk) * ldb, col0 + j, k0 + kk < k ? n : 0, ALIGNED));
    }
    __syncthreads();

#pragma unroll 4
    for (int kk = 0; kk < BK; ++kk) {
      float av[TM], bv[TN];
      tw::load_fragment<4, 4 * TY>(av, &s.a[kk][4 * ty]);
      tw::load_fragment<V, V * TX>(bv, &s.b[kk][V * tx]);
      tw::multiply(acc, av, bv);
    }
    __syncthreads();
  }

  tw::store_block<4 * TY, V * TX>(c, ldc, row0 + 4 * ty, col0 + V * tx, m, n, acc, ALIGNED);
}
