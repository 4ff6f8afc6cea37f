// branch: decode
// name: mma
// title: Up to eight tokens: tensor cores fed from registers
// idea: k is renumbered within groups of 32, alike in both operands, so that a lane's fragments of mma.sync are 16 bytes in a row: a load feeds it.
#include <tw/epilogue.cuh>
#include <tw/grid_dependency.cuh>
#include <tw/k_parts.cuh>
#include <tw/matrix.cuh>
#include <tw/memory.cuh>
#include <tw/types.cuh>
#include <tw/warpgroup.cuh>

using tw::i64;
using tw::u32;
using namespace plan;

constexpr int GROUP = 32, PAIR = 16;  // k that a lane's 16 bytes stand for in all four lanes of a row; weights of an mma.sync
static_assert(BM == 8 * NT && BN == PAIR * RB * WR && BK == UN * GROUP && THREADS == 32 * WK * WR, "the warps do not cover the tile");

struct Weights { tw::Vec<u32, 4> lines[UN][RB][2]; };
struct Shared { tw::Partials<WK, BM, BN, 4> partials; };  // 4: the 8 weights x 4 tokens that a warp stores hit all banks

// C[m, n] = A[m, k] B[k, n] with leading dimensions in elements. The columns of B, weights, are the 16 rows of mma.sync and
// the rows of A, tokens, its 8 columns. Lane l holds of a row l / 4 in place of k = 2 t, 2 t + 1, 2 t + 8, 2 t + 9 (t = l % 4)
// and the same 16 on what lies at 8 t ... 8 t + 7: a sum over k does not mind, as long as both operands do it.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
tw_gemm(int m, int n, int k, const T* a, i64 lda, const T* b, i64 ldb, Out* c, i64 ldc,
        const __grid_constant__ epilogue::Args epilogue_args) {
  Shared& s = tw::shared<Shared>();
  const int tiles_n = (n + BN - 1) / BN;
  const int row0 = blockIdx.x / tiles_n * BM, col0 = blockIdx.x % tiles_n * BN;
  const int warp = tw::warp_index(), lane = threadIdx.x % 32, line = lane / 4, at = lane % 4 * 8;
  const int part = warp % WK, first = warp / WK * RB * PAIR;
  const T *tokens[NT], *weights[RB][2];
#pragma unroll
  for (int i = 0; i < NT; ++i) {
    const int row = row0 + i * 8 + line;
    tokens[i] = a + (row < m ? row : m - 1) * lda + at;  // past the edge the last one again: nobody stores its sums
  }
#pragma unroll
  for (int r = 0; r < RB; ++r)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int col = col0 + first + r * PAIR + half * 8 + line;
      weights[r][half] = b + (col < n ? col : n - 1) * ldb + at;
    }
  float acc[RB][NT][4] = {};
  Weights batches[BATCHES];

  if (DEPENDENT_LAUNCH) tw::grid_dependency_launch();
  const auto load = [&](auto step, Weights& to, int k0) {
#pragma unroll
    for (int u = 0; u < UN; ++u)
#pragma unroll
      for (int r = 0; r < RB; ++r)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          to.lines[u][r][half] = tw::load_pairs(step, weights[r][half], k0 + u * GROUP, k - at);
  };
  const auto begin = [&] {
    if (DEPENDENT_LAUNCH) tw::grid_dependency_wait();  // the kernel before writes the tokens, and may still read C
  };
  const auto multiply = [&](auto step, const Weights& from, int k0) {
#pragma unroll
    for (int u = 0; u < UN; ++u)
#pragma unroll
      for (int i = 0; i < NT; ++i) {
        const tw::Vec<u32, 4> x = tw::load_pairs(step, tokens[i], k0 + u * GROUP, k - at);
#pragma unroll
        for (int r = 0; r < RB; ++r) {
          const auto &low = from.lines[u][r][0], &high = from.lines[u][r][1];  // weights 0-7 and 8-15
#pragma unroll
          for (int p = 0; p < 4; p += 2) {
            const u32 w[4] = {low[p], high[p], low[p + 1], high[p + 1]};
            tw::mma_m16n8k16<T>(acc[r][i], w, x[p], x[p + 1]);
          }
        }
      }
  };
  tw::stream_k<BK, WK>(k, part, batches, load, begin, multiply);

#pragma unroll
  for (int r = 0; r < RB; ++r)
#pragma unroll
    for (int i = 0; i < NT; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        s.partials.sums[part][i * 8 + lane % 4 * 2 + e % 2][first + r * PAIR + e / 2 * 8 + line] = acc[r][i][e];
  s.partials.store(c, ldc, row0, col0, m, n, tw::Epilogue{epilogue_args});
}
