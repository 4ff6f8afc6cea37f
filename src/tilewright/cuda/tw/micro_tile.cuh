// A thread's TM x TN block of C: its fragments of A and B, its multiply-adds, and its way to C.
#pragma once
#include <tw/as_summed.cuh>
#include <tw/math.cuh>
#include <tw/memory.cuh>
#include <tw/row.cuh>
#include <tw/types.cuh>
namespace tw {
// COUNT elements in groups of WIDTH, each group one access and STRIDE elements from the next, converted on the way.
template <int WIDTH, int STRIDE, int COUNT, class T>
__device__ __forceinline__ void load_fragment(float (&out)[COUNT], const T* first) {
#pragma unroll
  for (int g = 0; g < COUNT / WIDTH; ++g) widen(out + g * WIDTH, load<WIDTH>(first + g * STRIDE));
}

// acc += a b, row by row, back and forth: each multiply-add shares an operand with the one before it, which then comes
// from the operand reuse cache instead of the register file.
template <int TM, int TN>
__device__ __forceinline__ void multiply(float (&acc)[TM][TN], const float (&a)[TM], const float (&b)[TN]) {
#pragma unroll
  for (int i = 0; i < TM; ++i)
#pragma unroll
    for (int step = 0; step < TN; ++step) {
      const int j = i % 2 ? TN - 1 - step : step;
      acc[i][j] = ffma(a[i], b[j], acc[i][j]);
    }
}

// As store_block, columns in groups of V; TOGETHER says that those of a group lie in C together or not at all.
template <bool TOGETHER, int ROW_STRIDE, int COL_STRIDE, int V, class T, int TM, int TN, class Finish>
__device__ __forceinline__ void store_groups(T* c, i64 ldc, int row, int col, int m, int n, const float (&acc)[TM][TN],
                                             bool aligned, const Finish& finish) {
  constexpr int AT_ONCE = Finish::NONE ? 1 : 4;  // rows that go through an epilogue before the first is stored
#pragma unroll
  for (int i = 0; i < TM; i += AT_ONCE) {
    const int r = row + i / 4 * ROW_STRIDE + i % 4;
    if (!Finish::ALL_LANES && r >= m) continue;
    float x[AT_ONCE][TN / V][V];
#pragma unroll
    for (int k = 0; k < AT_ONCE; ++k)
#pragma unroll
      for (int g = 0; g < TN / V; ++g) {
#pragma unroll
        for (int e = 0; e < V; ++e) x[k][g][e] = acc[i + k][g * V + e];
        finish(x[k][g], r + k, col + g * COL_STRIDE, m, n, TOGETHER);
      }
#pragma unroll
    for (int k = 0; k < AT_ONCE; ++k) {
      if ((Finish::ALL_LANES || k > 0) && r + k >= m) continue;
#pragma unroll
      for (int g = 0; g < TN / V; ++g) {
        Vec<T, V> v;
#pragma unroll
        for (int e = 0; e < V; ++e) v[e] = from_float<T>(x[k][g][e]);
        store_row<V>(c + (r + k) * ldc, col + g * COL_STRIDE, n, v, aligned);
      }
    }
  }
}

// The block to C, its first element at (row, col): rows in groups of 4, ROW_STRIDE apart, columns in groups of WIDTH
// (0: of 16 bytes), COL_STRIDE apart. What lies outside m x n is left out.
template <int ROW_STRIDE, int COL_STRIDE, int WIDTH = 0, class T, int TM, int TN, class Finish = AsSummed>
__device__ __forceinline__ void store_block(T* c, i64 ldc, int row, int col, int m, int n, const float (&acc)[TM][TN],
                                            bool aligned, const Finish& finish = {}) {
  constexpr int V = WIDTH ? WIDTH : 16 / sizeof(T);
  if (Finish::NONE || n % V == 0)
    return store_groups<true, ROW_STRIDE, COL_STRIDE, V>(c, ldc, row, col, m, n, acc, aligned, finish);
  if constexpr (!Finish::NONE) store_groups<false, ROW_STRIDE, COL_STRIDE, V>(c, ldc, row, col, m, n, acc, aligned, finish);
}
}  // namespace tw
