// A tile of A or B into shared memory by all threads of a block, with cp.async.
#pragma once
#include <tw/cp_async.cuh>
#include <tw/operand_tile.cuh>
#include <tw/row.cuh>
namespace tw {
// Rows [row0, row0 + ROWS) and k [k0, k0 + K) of an operand with `rows` rows and `k` columns; zeros where it ends before.
// ld counts elements between lines: rows where it is K-major, else columns. Call cp_async_commit after it.
template <int THREADS, bool ALIGNED, class T, bool K_MAJOR, int ROWS, int K>
__device__ __forceinline__ void load_tile(OperandTile<T, K_MAJOR, ROWS, K>& tile, const T* matrix, i64 ld, int row0,
                                          int rows, int k0, int k) {
  constexpr int V = 16 / sizeof(T), PIECES = ROWS * K / V / THREADS;
  static_assert(PIECES * V * THREADS == ROWS * K, "the threads do not divide a tile");
#pragma unroll
  for (int p = 0; p < PIECES; ++p) {
    const int i = p * THREADS + int(threadIdx.x), line = i / 8, chunk = i % 8;  // 8 threads to a line
    const int row = row0 + (K_MAJOR ? line : line / K * 64 + chunk * V);
    const int kk = k0 + (K_MAJOR ? chunk * V : line % K);
    const T* from = K_MAJOR ? matrix + row * ld + kk : matrix + kk * ld + row;
    const int left = K_MAJOR ? (row < rows ? k - kk : 0) : (kk < k ? rows - row : 0);  // elements of the line from here
    T* to = tile.elements + OperandTile<T, K_MAJOR, ROWS, K>::chunk_at(line, chunk);
    if constexpr (ALIGNED) {
      cp_async<16>(to, left > 0 ? from : matrix, left >= V ? 16 : left > 0 ? left * int(sizeof(T)) : 0);
    } else {
      store<V>(to, load_row<V>(from, 0, left, false));
    }
  }
}
}  // namespace tw
