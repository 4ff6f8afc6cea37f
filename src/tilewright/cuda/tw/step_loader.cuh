// K-steps of A or B on their way to shared memory, where a tile has a line at each k, whichever way the matrix's lines run.
#pragma once
#include <tw/cp_async.cuh>
#include <tw/row.cuh>
#include <tw/types.cuh>
namespace tw {
// ROWS (of A: along M; of B: along N) by K elements from row `first` of `rows` on, K-step after K-step, into tiles
// T[K][ROWS + PAD or more]. fetch() issues the loads of a step and hand_over() ends it; then a barrier has to follow. `left`
// is what is left of K from the step's beginning on. WHOLE promises that all of it is there, on 16-byte boundaries.
template <class T, bool K_MAJOR, int ROWS, int K, int THREADS, bool ALIGNED> struct StepLoader;

// Lines along K are transposed on the way, through registers: two threads take 32 bytes of a line, 16 lines a request.
template <class T, int ROWS, int K, int THREADS, bool ALIGNED> struct StepLoader<T, true, ROWS, K, THREADS, ALIGNED> {
  static constexpr int V = 16 / sizeof(T), SECTOR = 32 / sizeof(T), PIECES = ROWS * K / V / THREADS;
  static constexpr int PAD = 4;  // spreads the SECTOR x 16 patch that a warp stores over all banks
  static_assert(PIECES * V * THREADS == ROWS * K && K % SECTOR == 0, "the threads do not divide a tile");
  const T* next[PIECES];
  Vec<T, V> staged[PIECES];

  // Rows past the last are read from it: nothing of them is stored.
  __device__ __forceinline__ StepLoader(const T* matrix, i64 ld, int first, int rows) {
#pragma unroll
    for (int p = 0; p < PIECES; ++p) {
      const int r = first + row(p);
      next[p] = matrix + (r < rows ? r : rows - 1) * ld + depth(p);
    }
  }
  // Where in the tile a piece begins.
  static __device__ __forceinline__ int row(int p) { return (p * THREADS + int(threadIdx.x)) / 2 % ROWS; }
  static __device__ __forceinline__ int depth(int p) {
    const int i = p * THREADS + int(threadIdx.x);
    return i / (2 * ROWS) * SECTOR + i % 2 * V;
  }
  // Whether all rows of the tile can be read.
  __device__ __forceinline__ bool fits() const { return true; }
  template <bool WHOLE, int WIDTH> __device__ __forceinline__ void fetch(T (&)[K][WIDTH], int left) {
#pragma unroll
    for (int p = 0; p < PIECES; ++p) {
      if constexpr (WHOLE) {
        staged[p] = load<V>(next[p]);
      } else {
        staged[p] = load_row<V>(next[p], 0, left - depth(p), ALIGNED);
      }
    }
  }
  template <int WIDTH> __device__ __forceinline__ void hand_over(T (&tile)[K][WIDTH]) {
#pragma unroll
    for (int p = 0; p < PIECES; ++p) {
#pragma unroll
      for (int e = 0; e < V; ++e) tile[depth(p) + e][row(p)] = staged[p][e];
      next[p] += K;  // only here: the load that still reads the old address would hold it up
    }
  }
};

// Lines across K are copied as they are.
template <class T, int ROWS, int K, int THREADS, bool ALIGNED> struct StepLoader<T, false, ROWS, K, THREADS, ALIGNED> {
  static constexpr int V = 16 / sizeof(T), PIECES = ROWS * K / V / THREADS, STEP = THREADS * V / ROWS;  // from line to line
  static constexpr int PAD = 0;
  static_assert(PIECES * STEP == K && STEP * ROWS == THREADS * V, "the threads do not divide a tile");
  const T* next;
  i64 ld;
  int length;  // elements of a line from this thread's first on
  bool inside;

  __device__ __forceinline__ StepLoader(const T* matrix, i64 ld, int first, int rows)
      : next(matrix + line() * ld + first + column()), ld(ld), length(rows - first - column()), inside(first + ROWS <= rows) {}
  static __device__ __forceinline__ int line() { return int(threadIdx.x) * V / ROWS; }
  static __device__ __forceinline__ int column() { return int(threadIdx.x) * V % ROWS; }
  __device__ __forceinline__ bool fits() const { return inside; }
  template <bool WHOLE, int WIDTH> __device__ __forceinline__ void fetch(T (&tile)[K][WIDTH], int left) {
    T* to = &tile[line()][column()];
#pragma unroll
    for (int p = 0; p < PIECES; ++p) {
      if constexpr (WHOLE) {
        cp_async<16>(to + p * STEP * WIDTH, next + p * STEP * ld);
      } else {
        store<V>(to + p * STEP * WIDTH, load_row<V>(next + p * STEP * ld, 0, line() + p * STEP < left ? length : 0, ALIGNED));
      }
    }
  }
  template <int WIDTH> __device__ __forceinline__ void hand_over(T (&)[K][WIDTH]) { next += K * ld; }
};
}  // namespace tw
