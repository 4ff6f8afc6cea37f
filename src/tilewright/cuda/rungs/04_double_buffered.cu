// rung: 4
// name: double-buffered
// title: Tile k + 1 arrives while tile k is computed
// idea: Two buffers: B comes by cp.async, A through registers because it is transposed; fragments are loaded one k ahead, across the barrier.
#include <tw/cp_async.cuh>
#include <tw/memory.cuh>
#include <tw/micro_tile.cuh>
#include <tw/row.cuh>
#include <tw/types.cuh>

using tw::i64;
using namespace plan;

constexpr int V = 16 / sizeof(T);   // elements in a 16-byte access
constexpr int KW = 32 / sizeof(T);  // elements of a row of A in one 32-byte sector
// A warp's lanes lie LANES_M x LANES_N over its part of the tile, whatever the tile and the micro-tile.
constexpr int LANES_M = BM / TM / WARPS_M, LANES_N = BN / TN / WARPS_N;
static_assert(LANES_M * LANES_N == 32 && WARPS_M * WARPS_N * 32 == THREADS, "the warps do not cover the tile");
constexpr int A_PIECES = BM * BK / V / THREADS, B_PIECES = BK * BN / V / THREADS;  // 16-byte pieces a thread
constexpr int B_STEP = THREADS * V / BN;  // rows from one piece of B to the next
static_assert(A_PIECES * V * THREADS == BM * BK && B_PIECES * B_STEP == BK, "the threads do not divide a tile");

struct Shared {
  T a[2][BK][BM + PAD];  // transposed; PAD = 4 spreads the KW x 16 patch that a warp stores over all banks
  T b[2][BK][BN];
};

// C[m, n] = A[m, k] B[k, n] with leading dimensions in elements.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
tw_gemm(int m, int n, int k, const T* a, i64 lda, const T* b, i64 ldb, T* c, i64 ldc) {
  Shared& s = tw::shared<Shared>();
  const int tiles_n = (n + BN - 1) / BN;
  const int row0 = blockIdx.x / tiles_n * BM, col0 = blockIdx.x % tiles_n * BN;
  const int t = threadIdx.x, lane = t % 32, warp = t / 32;
  const int tx = warp % WARPS_N * LANES_N * TN + lane % LANES_N * V;
  const int ty = warp / WARPS_N * LANES_M * TM + lane / LANES_N * 4;
  float acc[TM][TN] = {}, av[2][TM], bv[2][TN];

  // Where this thread's pieces of the next K-step lie. Rows of A past m are read from row m - 1: nothing of them is stored.
  const T *a_next[A_PIECES], *b_next = b + t * V / BN * ldb + col0 + t * V % BN;
#pragma unroll
  for (int p = 0; p < A_PIECES; ++p) {  // two lanes a sector, 16 rows a request
    const int i = p * THREADS + t, r = row0 + i / 2 % BM;
    a_next[p] = a + (r < m ? r : m - 1) * lda + i / (2 * BM) * KW + i % 2 * V;
  }
  const int whole_k = ALIGNED && col0 + BN <= n ? k : 0;  // up to here no K-step needs a bound
  tw::Vec<T, V> staged[A_PIECES];
  const auto fetch = [&](int k0, int buffer) {
    T* shared = &s.b[buffer][t * V / BN][t * V % BN];
    if (k0 + BK <= whole_k) {
#pragma unroll
      for (int p = 0; p < A_PIECES; ++p) staged[p] = tw::load<V>(a_next[p]);
#pragma unroll
      for (int p = 0; p < B_PIECES; ++p) tw::cp_async<16>(shared + p * B_STEP * BN, b_next + p * B_STEP * ldb);
    } else {
#pragma unroll
      for (int p = 0; p < A_PIECES; ++p)
        staged[p] = tw::load_row<V>(a_next[p], 0, k - k0 - (p * THREADS + t) / (2 * BM) * KW - t % 2 * V, ALIGNED);
#pragma unroll
      for (int p = 0; p < B_PIECES; ++p) {
        const int length = k0 + t * V / BN + p * B_STEP < k ? n - col0 - t * V % BN : 0;
        tw::store<V>(shared + p * B_STEP * BN, tw::load_row<V>(b_next + p * B_STEP * ldb, 0, length, ALIGNED));
      }
    }
    tw::cp_async_commit();
  };
  const auto hand_over = [&](int buffer) {
#pragma unroll
    for (int p = 0; p < A_PIECES; ++p) {
      const int i = p * THREADS + t;
#pragma unroll
      for (int e = 0; e < V; ++e) s.a[buffer][i / (2 * BM) * KW + i % 2 * V + e][i / 2 % BM] = staged[p][e];
      a_next[p] += BK;  // only here: the load that still reads the old address would hold it up
    }
    b_next += BK * ldb;
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
