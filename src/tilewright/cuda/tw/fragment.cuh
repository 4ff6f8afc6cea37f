// The accumulators of the tensor cores on their way to C.
#pragma once
#include <tw/as_summed.cuh>
#include <tw/memory.cuh>
#include <tw/types.cuh>
namespace tw {
// Two neighbours of a row of C with `n` columns; what lies past its end is left out.
template <class T>
__device__ __forceinline__ void store_pair(T* row, int column, int n, float first, float second, bool aligned) {
  if (aligned && column + 1 < n) {
    if constexpr (sizeof(T) == 2) {
      return store<1>(reinterpret_cast<u32*>(row + column), Vec<u32, 1>{{pack<T>(first, second)}});
    } else {
      return store<2>(row + column, Vec<T, 2>{{from_float<T>(first), from_float<T>(second)}});
    }
  }
  if (column < n) row[column] = from_float<T>(first);
  if (column + 1 < n) row[column + 1] = from_float<T>(second);
}

// Two neighbours among accumulators, from `at` on, through the epilogue into `x`. Of a pair the second half are the second B's.
template <int COUNT, class Finish>
__device__ __forceinline__ void finish_pair(float (&x)[2], const float (&d)[COUNT], int at, int row, int column, int m, int n,
                                            bool together, const Finish& finish) {
  x[0] = d[at], x[1] = d[at + 1];
  if constexpr (Finish::PAIRED) {
    const float second[2] = {d[at + COUNT / 2], d[at + COUNT / 2 + 1]};
    finish(x, second, row, column, m, n, together);
  } else {
    finish(x, row, column, m, n, together);
  }
}

// As store_fragment; TOGETHER says that neighbours lie in C together or not at all.
template <bool TOGETHER, class T, int COUNT, class Finish>
__device__ __forceinline__ void store_pairs(T* c, i64 ldc, int row, int column, int m, int n, const float (&d)[COUNT],
                                            bool aligned, const Finish& finish) {
  constexpr int AT_ONCE = 4, FRAGMENTS = COUNT / (Finish::PAIRED ? 8 : 4);  // AT_ONCE pairs of each row that go through the epilogue before the first is stored: no load passes a store
  const int lane = int(threadIdx.x) % 32, r = row + lane / 4, first = column + lane % 4 * 2;
#pragma unroll
  for (int from = 0; from < FRAGMENTS; from += AT_ONCE) {
    float x[AT_ONCE][2][2];
#pragma unroll
    for (int j = from; j < from + AT_ONCE && j < FRAGMENTS; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        finish_pair(x[j - from][half], d, 4 * j + 2 * half, r + 8 * half, first + 8 * j, m, n, TOGETHER, finish);
#pragma unroll
    for (int j = from; j < from + AT_ONCE && j < FRAGMENTS; ++j) {
      const auto &upper = x[j - from][0], &lower = x[j - from][1];
      if (r < m) store_pair(c + r * ldc, first + 8 * j, n, upper[0], upper[1], aligned);
      if (r + 8 < m) store_pair(c + (r + 8) * ldc, first + 8 * j, n, lower[0], lower[1], aligned);
    }
  }
}

// A 16 x 4 COUNT / 2 block of C, its first element at (row, column), as mma.sync and wgmma leave it in a warp: lane l holds
// rows l / 4 and l / 4 + 8, of every 8 columns those at 2 (l % 4) and the next. Of a pair there are as many columns as that of
// each, and half of them of C.
template <class T, int COUNT, class Finish = AsSummed>
__device__ __forceinline__ void store_fragment(T* c, i64 ldc, int row, int column, int m, int n, const float (&d)[COUNT],
                                               bool aligned, const Finish& finish = {}) {
  if (Finish::NONE || n % 2 == 0) return store_pairs<true>(c, ldc, row, column, m, n, d, aligned, finish);
  if constexpr (!Finish::NONE) store_pairs<false>(c, ldc, row, column, m, n, d, aligned, finish);
}
}  // namespace tw
