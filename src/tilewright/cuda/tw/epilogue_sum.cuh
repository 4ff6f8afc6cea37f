// Sums of the rows and columns of what an epilogue computes: what a warp has at once of each becomes one partial sum, and another
// kernel adds these up. No place is written twice, so that the order of a sum does not depend on who comes when.
#pragma once
#include <tw/epilogue_operand.cuh>
#include <tw/sync.cuh>
#include <tw/types.cuh>
namespace tw {
// Of all lanes that come at once, epilogue::ACROSS lie side by side with N neighbours of a row each, and epilogue::DOWN such
// rows below each other, epilogue::ROWS_APART from one to the next: a block of C. Lanes that come by themselves are one each.
constexpr int SUM_LANES = epilogue::ACROSS * epilogue::DOWN;

// The sum over the block of each row, or of each column with ALONG kColumn, to a place of its own: those of neighbouring rows, or
// columns, lie side by side, and from block to block the array steps by `col`, or by `row`; a matrix has fewer than 2^32 (64-bit
// offsets were spilled). What lies outside of C counts as -0, which alone leaves the bits of all that is added to it.
template <Along ALONG, int N>
__device__ __forceinline__ void epilogue_sum(const EpilogueArray<float>& array, const float (&y)[N], const Place& at) {
  static_assert(ALONG == Along::kRow || ALONG == Along::kColumn, "a sum of each row or of each column");
  static_assert(N == epilogue::NEIGHBOURS, "the neighbours that the plan says a lane has");
  constexpr u32 COLUMNS = N * epilogue::ACROSS, ROWS = epilogue::DOWN * epilogue::ROWS_APART;
  const int lane = int(threadIdx.x) % 32;
  float* to = epilogue_matrix(array, at);
  float sum[N];
#pragma unroll
  for (int e = 0; e < N; ++e) sum[e] = at.row < at.m && at.col + e < at.n ? y[e] : -0.0f;
  if constexpr (ALONG == Along::kRow) {
#pragma unroll
    for (int e = 1; e < N; ++e) sum[0] += sum[e];
#pragma unroll
    for (int mask = 1; mask < epilogue::ACROSS; mask *= 2) sum[0] += shfl_xor(sum[0], mask);
    if (lane % epilogue::ACROSS == 0 && at.row < at.m && at.col < at.n)
      to[u32(at.col) / COLUMNS * u32(array.col) + u32(at.row)] = sum[0];
  } else {
    int left = N, column = at.col;  // a lane's columns: halved at each step, the other half going to the other lane
#pragma unroll
    for (int mask = SUM_LANES / 2; mask >= epilogue::ACROSS; mask /= 2) {
      if (left == 1) {
        sum[0] += shfl_xor(sum[0], mask);
        continue;
      }
      left /= 2;
      const bool upper = (lane & mask) != 0;
      column += upper ? left : 0;
#pragma unroll
      for (int e = 0; e < N / 2; ++e)
        if (e < left) {
          const float other = shfl_xor(upper ? sum[e] : sum[e + left], mask);
          sum[e] = (upper ? sum[e + left] : sum[e]) + other;
        }
    }
    // Lanes that ended with the same column have the same sum.
    constexpr int ALIKE = epilogue::DOWN > N ? SUM_LANES / N : epilogue::ACROSS;
    const u32 block = u32(at.row) / ROWS, group = block * epilogue::ROWS_APART + u32(at.row) % epilogue::ROWS_APART;
    if (lane % ALIKE >= epilogue::ACROSS || block * ROWS >= u32(at.m)) return;
#pragma unroll
    for (int e = 0; e < N; ++e)
      if (e < left && column + e < at.n) to[group * u32(array.row) + u32(column + e)] = sum[e];
  }
}
}  // namespace tw
