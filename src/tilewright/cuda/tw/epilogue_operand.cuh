// What an epilogue reads and writes beside the accumulators: scalars, and arrays of any strides.
#pragma once
#include <tw/batch.cuh>
#include <tw/memory.cuh>
#include <tw/types.cuh>
namespace tw {
// Where neighbours in a row of C lie: the first at (row, col), in a matrix of m rows and n columns. Rows from m on and columns
// from n on are not there.
struct Place { int row, col, m, n; BatchIndex batch; };

struct EpilogueScalar { float value, pad; };

// Strides count elements; one of 0 is that of an array that is the same all along.
template <class T> struct EpilogueArray { T* pointer; i64 row, col, batch[3]; };

// How an array lies under a row of C: columns side by side, or apart; one value a row; one a column, side by side.
enum class Along { kFull, kStrided, kRow, kColumn };

// Of N elements the most that one access of 16 bytes may take.
template <int N, class T> __device__ constexpr int epilogue_width() {
  int width = 1;
  while (N % (2 * width) == 0 && 2 * width * sizeof(T) <= 16) width *= 2;
  return width;
}

template <Along ALONG, class T> __device__ __forceinline__ T* epilogue_at(const EpilogueArray<T>& array, const Place& at) {
  T* p = array.pointer;
#pragma unroll
  for (int i = 0; i < 3; ++i) p += at.batch.at[i] * array.batch[i];
  if constexpr (ALONG != Along::kColumn) p += at.row * array.row;
  if constexpr (ALONG == Along::kStrided) p += at.col * array.col;
  if constexpr (ALONG == Along::kFull || ALONG == Along::kColumn) p += at.col;
  return p;
}

// Whether accesses of so many bytes are legal wherever the column is a multiple of their elements: the same for all threads.
template <class T> __device__ __forceinline__ bool epilogue_aligned(const EpilogueArray<T>& array, int bytes) {
  const i64 strides = array.row | array.batch[0] | array.batch[1] | array.batch[2];
  return (reinterpret_cast<u64>(array.pointer) | u64(strides) * sizeof(T)) % bytes == 0;
}

// Elements [0, N) of the array under C's at `at`, those that are not there as 0.
template <Along ALONG, int N, class T>
__device__ __forceinline__ void epilogue_read(float (&x)[N], const EpilogueArray<T>& array, const Place& at) {
  const T* from = epilogue_at<ALONG>(array, at);
  const bool row = ALONG == Along::kColumn || at.row < at.m;
  if constexpr (ALONG == Along::kRow) {
    const float value = row ? to_float(*from) : 0.0f;
#pragma unroll
    for (int e = 0; e < N; ++e) x[e] = value;
  } else {
    constexpr int WIDTH = ALONG == Along::kStrided ? 1 : epilogue_width<N, T>();
    const i64 apart = ALONG == Along::kStrided ? array.col : 1;
    const bool wide = WIDTH > 1 && epilogue_aligned(array, WIDTH * sizeof(T));
#pragma unroll
    for (int first = 0; first < N; first += WIDTH) {
      if constexpr (WIDTH > 1) {
        if (wide && row && at.col + first + WIDTH <= at.n) {
          widen(x + first, load<WIDTH>(from + first));
          continue;
        }
      }
#pragma unroll
      for (int e = first; e < first + WIDTH; ++e) x[e] = row && at.col + e < at.n ? to_float(from[e * apart]) : 0.0f;
    }
  }
}

// The same elements of an output of the epilogue's own, rounded to its type.
template <Along ALONG = Along::kFull, int N, class T>
__device__ __forceinline__ void epilogue_write(const EpilogueArray<T>& array, const float (&y)[N], const Place& at) {
  static_assert(ALONG == Along::kFull || ALONG == Along::kStrided, "an output has an element for each of C's");
  constexpr int WIDTH = ALONG == Along::kStrided ? 1 : epilogue_width<N, T>();
  T* to = epilogue_at<ALONG>(array, at);
  if (at.row >= at.m) return;
  const i64 apart = ALONG == Along::kStrided ? array.col : 1;
  const bool wide = WIDTH > 1 && epilogue_aligned(array, WIDTH * sizeof(T));
#pragma unroll
  for (int first = 0; first < N; first += WIDTH) {
    if constexpr (WIDTH > 1) {
      if (wide && at.col + first + WIDTH <= at.n) {
        Vec<T, WIDTH> v;
#pragma unroll
        for (int e = 0; e < WIDTH; ++e) v[e] = from_float<T>(y[first + e]);
        store<WIDTH>(to + first, v);
        continue;
      }
    }
#pragma unroll
    for (int e = first; e < first + WIDTH; ++e)
      if (at.col + e < at.n) to[e * apart] = from_float<T>(y[e]);
  }
}
}  // namespace tw
