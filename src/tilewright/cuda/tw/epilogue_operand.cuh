// What an epilogue reads and writes beside the accumulators: scalars, and arrays of any strides.
#pragma once
#include <tw/arithmetic.cuh>
#include <tw/batch.cuh>
#include <tw/memory.cuh>
#include <tw/sync.cuh>
#include <tw/types.cuh>
namespace tw {
// Where neighbours in a row of C lie: the first at (row, col), in a matrix of m rows and n columns. Rows from m on and columns
// from n on are not there. `together` says that n is a multiple of their number, so that all of them are there or none.
struct Place { int row, col, m, n; BatchIndex batch; bool together; };

// The same of two neighbours, with what lies under them in the array that was staged (staged.cuh), 16 bits each.
struct StagedPlace : Place { u32 pair; };

struct EpilogueScalar { float value, pad; };

// Strides count elements; one of 0 is that of an array that is the same all along.
template <class T> struct EpilogueArray { T* pointer; i64 row, col, batch[3]; };

// How an array lies under a row of C: columns side by side, or apart; one value a row; one a column, side by side.
enum class Along { kFull, kStrided, kRow, kColumn };

// Of N elements the most that one access may take: of 16 bytes where all lines of all arrays start on such boundaries.
template <int N, class T> __device__ constexpr int epilogue_width() {
  int width = 1;
  while (epilogue::ALIGNED && N % (2 * width) == 0 && 2 * width * sizeof(T) <= 16) width *= 2;
  return width;
}

// Where the matrix of an array begins that lies under this one of C.
template <class T> __device__ __forceinline__ T* epilogue_matrix(const EpilogueArray<T>& array, const Place& at) {
  T* p = array.pointer;
#pragma unroll
  for (int i = 0; i < 3; ++i) p += at.batch.at[i] * array.batch[i];
  return p;
}

template <Along ALONG, class T> __device__ __forceinline__ T* epilogue_at(const EpilogueArray<T>& array, const Place& at) {
  T* p = epilogue_matrix(array, at);
  if constexpr (ALONG != Along::kColumn) p += at.row * array.row;
  if constexpr (ALONG == Along::kStrided) p += at.col * array.col;
  if constexpr (ALONG == Along::kFull || ALONG == Along::kColumn) p += at.col;
  return p;
}

// Elements [0, N) of the array under C's at `at`, those that are not there as 0. No branch lies around a load where neighbours
// are there together, so that those of several places are on their way at once.
template <Along ALONG, int N, class T>
__device__ __forceinline__ void epilogue_read(float (&x)[N], const EpilogueArray<T>& array, const Place& at) {
  Place where = at;
  if (ALONG == Along::kColumn && at.together && at.col >= at.n) where.col = 0;  // read all the same, for nobody
  const T* from = epilogue_at<ALONG>(array, where);
  const bool row = ALONG == Along::kColumn || at.row < at.m;
  if constexpr (ALONG == Along::kRow) {
    T value = {};
    if (row) value = *from;
#pragma unroll
    for (int e = 0; e < N; ++e) x[e] = to_float(value);
  } else {
    constexpr int WIDTH = ALONG == Along::kStrided ? 1 : epilogue_width<N, T>();
    const i64 apart = ALONG == Along::kStrided ? array.col : 1;
#pragma unroll
    for (int first = 0; first < N; first += WIDTH) {
      if constexpr (sizeof(T) == 2 && WIDTH % 2 == 0) {
        if (at.together) {  // two at a time, which takes half of the instructions
          Vec<u32, WIDTH / 2> v = {};
          if constexpr (ALONG == Along::kColumn) {  // with no branch around it, so that rows share one
            v = load<WIDTH / 2>(reinterpret_cast<const u32*>(from + first));
          } else if (row && at.col < at.n) {
            v = load<WIDTH / 2>(reinterpret_cast<const u32*>(from + first));
          }
#pragma unroll
          for (int e = 0; e < WIDTH; e += 2) unpack<T>(v[e / 2], x[first + e], x[first + e + 1]);
          continue;
        }
      }
      Vec<T, WIDTH> v = {};
      if (row && at.col + (at.together ? 0 : first + WIDTH - 1) < at.n) {
        v = load<WIDTH>(from + first * apart);
      } else if (!at.together) {
#pragma unroll
        for (int e = 0; e < WIDTH - 1; ++e)
          if (row && at.col + first + e < at.n) v[e] = from[first + e];
      }
#pragma unroll
      for (int e = 0; e < WIDTH; ++e) x[first + e] = to_float(v[e]);
    }
  }
}

// Of the array that is staged where a kernel does that; elsewhere it is read like any other.
template <int N, class T>
__device__ __forceinline__ void epilogue_read_staged(float (&x)[N], const EpilogueArray<T>& array, const Place& at) {
  epilogue_read<Along::kFull>(x, array, at);
}
template <class T>
__device__ __forceinline__ void epilogue_read_staged(float (&x)[2], const EpilogueArray<T>&, const StagedPlace& at) {
  unpack<T>(at.pair, x[0], x[1]);
}

// The same elements of an output of the epilogue's own, rounded to its type.
template <Along ALONG = Along::kFull, int N, class T>
__device__ __forceinline__ void epilogue_write(const EpilogueArray<T>& array, const float (&y)[N], const Place& at) {
  static_assert(ALONG == Along::kFull || ALONG == Along::kStrided, "an output has an element for each of C's");
  constexpr int WIDTH = ALONG == Along::kStrided ? 1 : epilogue_width<N, T>();
  T* to = epilogue_at<ALONG>(array, at);
  const i64 apart = ALONG == Along::kStrided ? array.col : 1;
  const bool row = at.row < at.m;
#pragma unroll
  for (int first = 0; first < N; first += WIDTH) {
    Vec<T, WIDTH> v;
#pragma unroll
    for (int e = 0; e < WIDTH; ++e) v[e] = from_float<T>(y[first + e]);
    if (row && at.col + (at.together ? 0 : first + WIDTH - 1) < at.n) {
      store<WIDTH>(to + first * apart, v);
    } else if (!at.together) {
#pragma unroll
      for (int e = 0; e < WIDTH - 1; ++e)
        if (row && at.col + first + e < at.n) to[first + e] = v[e];
    }
  }
}

// The largest of the elements of a row, or of all that a place of the array stands for, whoever comes first: NaN is larger than
// all. Along kRow a row's are one place.
template <Along ALONG, int N>
__device__ __forceinline__ void epilogue_largest(const EpilogueArray<float>& array, const float (&y)[N], const Place& at) {
  static_assert(ALONG == Along::kRow || ALONG == Along::kStrided, "a place a row, or one that strides tell");
  if (at.row >= at.m || at.col >= at.n) return;
  float* to = epilogue_at<ALONG>(array, at);
  float largest = y[0];
#pragma unroll
  for (int e = 0; e < N; ++e) {
    if (!at.together && at.col + e >= at.n) break;
    if constexpr (ALONG == Along::kRow) {
      largest = maximum(largest, y[e]);
    } else {
      atomic_largest(to + e * array.col, y[e]);
    }
  }
  if constexpr (ALONG == Along::kRow) atomic_largest(to, largest);
}
}  // namespace tw
