// V consecutive elements of a matrix row that may end before them.
#pragma once
#include <tw/memory.cuh>
#include <tw/types.cuh>
namespace tw {
// Elements [first, first + V) of a row with `length` elements; those past its end read as zero and are not touched.
// With `aligned`, a whole vector is one 16-byte load.
template <int V, class T> __device__ __forceinline__ Vec<T, V> load_row(const T* row, int first, int length, bool aligned) {
  if (aligned && first + V <= length) return load<V>(row + first);
  Vec<T, V> v = {};
#pragma unroll
  for (int e = 0; e < V; ++e)
    if (first + e < length) v[e] = row[first + e];
  return v;
}
template <int V, class T>
__device__ __forceinline__ void store_row(T* row, int first, int length, Vec<T, V> v, bool aligned) {
  if (aligned && first + V <= length) return store<V>(row + first, v);
#pragma unroll
  for (int e = 0; e < V; ++e)
    if (first + e < length) row[first + e] = v[e];
}
}  // namespace tw
