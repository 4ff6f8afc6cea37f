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

// A 16 x 4 COUNT / 2 block of C, its first element at (row, column), as mma.sync and wgmma leave it in a warp: lane l holds
// rows l / 4 and l / 4 + 8, of every 8 columns those at 2 (l % 4) and the next.
template <class T, int COUNT, class Finish = AsSummed>
__device__ __forceinline__ void store_fragment(T* c, i64 ldc, int row, int column, int m, int n, const float (&d)[COUNT],
                                               bool aligned, const Finish& finish = {}) {
  const int lane = int(threadIdx.x) % 32, r = row + lane / 4, first = column + lane % 4 * 2;
#pragma unroll
  for (int j = 0; j < COUNT / 4; ++j) {
    if (r < m) {
      float x[2] = {d[4 * j], d[4 * j + 1]};
      finish(x, r, first + 8 * j, m, n);
      store_pair(c + r * ldc, first + 8 * j, n, x[0], x[1], aligned);
    }
    if (r + 8 < m) {
      float x[2] = {d[4 * j + 2], d[4 * j + 3]};
      finish(x, r + 8, first + 8 * j, m, n);
      store_pair(c + (r + 8) * ldc, first + 8 * j, n, x[0], x[1], aligned);
    }
  }
}
}  // namespace tw
