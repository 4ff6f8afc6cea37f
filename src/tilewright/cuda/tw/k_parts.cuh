// K dealt out to the warps of a block, and their partial sums brought together.
#pragma once
#include <tw/memory.cuh>
#include <tw/row.cuh>
#include <tw/types.cuh>
namespace tw {
// A step of K, for code that is made twice: one whose elements are all there, and the last, which may end anywhere.
struct WholeStep { static constexpr bool kWhole = true; };
struct LastStep { static constexpr bool kWhole = false; };

// The 16 bytes from element `at` on of a line of `k` elements; in the last step those past its end are zero.
template <class Step, class T>
__device__ __forceinline__ Vec<T, 16 / sizeof(T)> load_chunk(Step, const T* line, int at, int k) {
  constexpr int V = 16 / sizeof(T);
  if constexpr (Step::kWhole && plan::ALIGNED) return load<V>(line + at);
  return load_row<V>(line, at, k, plan::ALIGNED);
}
// The same as four registers of two elements each, the first in the low half: as matrix instructions take them.
template <class Step, class T> __device__ __forceinline__ Vec<u32, 4> load_pairs(Step step, const T* line, int at, int k) {
  if constexpr (Step::kWhole && plan::ALIGNED) return load<4>(reinterpret_cast<const u32*>(line + at));
  const Vec<T, 8> v = load_chunk(step, line, at, k);
  Vec<u32, 4> pairs;
#pragma unroll
  for (int p = 0; p < 4; ++p) pairs[p] = v[2 * p].bits | u32(v[2 * p + 1].bits) << 16;
  return pairs;
}

// Steps of DEPTH are dealt to WARPS warps in turn. This one, number `warp`, goes through its own with BATCHES batches of
// registers: load(step, batch, k0) fills one, multiply(step, batch, k0) uses it, and it is filled again at once. `begin`
// comes after the first loads have been issued.
template <int DEPTH, int WARPS, int BATCHES, class Batch, class Load, class Begin, class Multiply>
__device__ __forceinline__ void stream_k(int k, int warp, Batch (&batches)[BATCHES], Load load, Begin begin, Multiply multiply) {
  const int whole = k / DEPTH;
#pragma unroll
  for (int i = 0; i < BATCHES; ++i)
    if (warp + i * WARPS < whole) load(WholeStep(), batches[i], (warp + i * WARPS) * DEPTH);
  begin();
#pragma unroll 1
  for (int step = warp; step < whole; step += BATCHES * WARPS) {
#pragma unroll
    for (int i = 0; i < BATCHES; ++i) {
      const int now = step + i * WARPS, next = now + BATCHES * WARPS;
      if (i == 0 || now < whole) multiply(WholeStep(), batches[i], now * DEPTH);
      if (next < whole) load(WholeStep(), batches[i], next * DEPTH);
    }
  }
  if (k % DEPTH != 0 && whole % WARPS == warp) {
    load(LastStep(), batches[0], whole * DEPTH);
    multiply(LastStep(), batches[0], whole * DEPTH);
  }
}

// What PARTS warps have summed for a tile of C, each over its own steps of K.
template <int PARTS, int ROWS, int COLUMNS, int PAD> struct Partials {
  float sums[PARTS][ROWS][COLUMNS + PAD];

  // Their sums, always added in the same order, to the tile of C at (row, column). By all threads, after their stores.
  template <class T> __device__ __forceinline__ void store(T* c, i64 ldc, int row, int column, int m, int n) const {
    __syncthreads();
    for (int i = threadIdx.x; i < ROWS * COLUMNS; i += plan::THREADS) {
      const int r = i / COLUMNS, j = i % COLUMNS;
      float sum = sums[0][r][j];
#pragma unroll
      for (int part = 1; part < PARTS; ++part) sum += sums[part][r][j];
      if (row + r < m && column + j < n) c[(row + r) * ldc + column + j] = from_float<T>(sum);
    }
  }
};
}  // namespace tw
