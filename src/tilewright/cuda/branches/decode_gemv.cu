// branch: decode
// name: gemv
// title: One or two tokens: the weights are read once
// idea: A warp holds RW rows of weights to a few tokens; WK warps share K, and each keeps RW x UN loads of 16 bytes a lane in flight.
#include <tw/epilogue.cuh>
#include <tw/grid_dependency.cuh>
#include <tw/k_parts.cuh>
#include <tw/math.cuh>
#include <tw/memory.cuh>
#include <tw/sync.cuh>
#include <tw/types.cuh>
#include <tw/warpgroup.cuh>

using tw::i64;
using namespace plan;

constexpr int V = 16 / sizeof(T), ACROSS = 32 * V;  // elements of a load; of one by all lanes, side by side along K
static_assert(BN == RW * WR && BK == UN * ACROSS && THREADS == 32 * WK * WR, "the warps do not cover the tile");

struct Weights { tw::Vec<T, V> rows[UN][RW]; };
struct Shared { tw::Partials<WK, BM, BN, 0> partials; };

// C[m, n] = A[m, k] B[k, n] with leading dimensions in elements: A are the tokens, a row each, and B the weights, whose
// columns lie one after another. So a column of B is a line of memory along K, and a row of the usual weight matrix.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
tw_gemm(int m, int n, int k, const T* a, i64 lda, const T* b, i64 ldb, Out* c, i64 ldc,
        const __grid_constant__ epilogue::Args epilogue_args) {
  Shared& s = tw::shared<Shared>();
  const int tiles_n = (n + BN - 1) / BN;
  const int row0 = blockIdx.x / tiles_n * BM, col0 = blockIdx.x % tiles_n * BN;
  const int warp = tw::warp_index(), lane = threadIdx.x % 32, part = warp % WK, first = warp / WK * RW;
  const T *tokens[BM], *weights[RW];
#pragma unroll
  for (int i = 0; i < BM; ++i) tokens[i] = a + (row0 + i < m ? row0 + i : m - 1) * lda;  // past the edge the last one
#pragma unroll                                                                         // again: nobody stores its sums
  for (int r = 0; r < RW; ++r) weights[r] = b + (col0 + first + r < n ? col0 + first + r : n - 1) * ldb;
  float acc[RW][BM] = {};
  Weights batch[1];

  if (DEPENDENT_LAUNCH) tw::grid_dependency_launch();
  const auto load = [&](auto step, Weights& to, int k0) {
#pragma unroll
    for (int u = 0; u < UN; ++u)
#pragma unroll
      for (int r = 0; r < RW; ++r) to.rows[u][r] = tw::load_chunk(step, weights[r], k0 + u * ACROSS + lane * V, k);
  };
  const auto begin = [&] {
    if (DEPENDENT_LAUNCH) tw::grid_dependency_wait();  // the kernel before writes the tokens, and may still read C
  };
  const auto multiply = [&](auto step, const Weights& from, int k0) {
#pragma unroll
    for (int u = 0; u < UN; ++u)
#pragma unroll
      for (int i = 0; i < BM; ++i) {
        float x[V], w[V];
        tw::widen(x, tw::load_chunk(step, tokens[i], k0 + u * ACROSS + lane * V, k));
#pragma unroll
        for (int r = 0; r < RW; ++r) {
          tw::widen(w, from.rows[u][r]);
#pragma unroll
          for (int e = 0; e < V; ++e) acc[r][i] = tw::ffma(w[e], x[e], acc[r][i]);
        }
      }
  };
  tw::stream_k<BK, WK>(k, part, batch, load, begin, multiply);

#pragma unroll
  for (int r = 0; r < RW; ++r)
#pragma unroll
    for (int i = 0; i < BM; ++i) {
      float sum = acc[r][i];
#pragma unroll
      for (int mask = 16; mask > 0; mask /= 2) sum += tw::shfl_xor(sum, mask);
      if (lane == 0) s.partials.sums[part][i][first + r] = sum;
    }
  s.partials.store(c, ldc, row0, col0, m, n, tw::Epilogue{epilogue_args});
}
