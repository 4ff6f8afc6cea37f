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

// Steps of DEPTH are dealt to WARPS warps in turn. This one, number `warp`, goes through its own: load(step, batch, k0)
// fills a batch of registers, multiply(step, batch, k0) uses it. `begin` comes once, after the first loads have been issued
// and before anything is multiplied. One batch is loaded and multiplied, and other warps load meanwhile; of several each is
// filled again once it has been used, while the next is multiplied. That loop has no branch, or the compiler would gather
// the loads of all batches at its end.
template <int DEPTH, int WARPS, int BATCHES, class Batch, class Load, class Begin, class Multiply>
__device__ __forceinline__ void stream_k(int k, int warp, Batch (&batches)[BATCHES], Load load, Begin begin, Multiply multiply) {
  const int whole = k / DEPTH, mine = (whole + WARPS - 1 - warp) / WARPS;
  const auto k_of = [&](int step) { return (warp + step * WARPS) * DEPTH; };
  if constexpr (BATCHES == 1) {
#pragma unroll 1
    for (int step = 0; step < mine; ++step) {
      load(WholeStep(), batches[0], k_of(step));
      if (step == 0) begin();
      multiply(WholeStep(), batches[0], k_of(step));
    }
    if (mine == 0) begin();
  } else {
#pragma unroll
    for (int i = 0; i < BATCHES; ++i)
      if (i < mine) load(WholeStep(), batches[i], k_of(i));
    begin();
    int step = 0;
#pragma unroll 1
    for (; step <= mine - 2 * BATCHES; step += BATCHES)
#pragma unroll
      for (int i = 0; i < BATCHES; ++i) {
        multiply(WholeStep(), batches[i], k_of(step + i));
        load(WholeStep(), batches[i], k_of(step + i + BATCHES));
      }
#pragma unroll
    for (int i = 0; i < 2 * BATCHES - 1; ++i) {  // what is left is less than two rounds
      if (step + i < mine) multiply(WholeStep(), batches[i % BATCHES], k_of(step + i));
      if (step + i + BATCHES < mine) load(WholeStep(), batches[i % BATCHES], k_of(step + i + BATCHES));
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

  // Their sums, always added in the same order, through the epilogue to the tile of C at (row, column). By all threads,
  // after their stores.
  template <class T, class Finish>
  __device__ __forceinline__ void store(T* c, i64 ldc, int row, int column, int m, int n, const Finish& finish) const {
    __syncthreads();
    for (int i = threadIdx.x; i < ROWS * COLUMNS; i += plan::THREADS) {
      const int r = i / COLUMNS, j = i % COLUMNS;
      float sum[1] = {sums[0][r][j]};
#pragma unroll
      for (int part = 1; part < PARTS; ++part) sum[0] += sums[part][r][j];
      if (row + r >= m || column + j >= n) continue;
      finish(sum, row + r, column + j, m, n);
      c[(row + r) * ldc + column + j] = from_float<T>(sum[0]);
    }
  }
};
}  // namespace tw
