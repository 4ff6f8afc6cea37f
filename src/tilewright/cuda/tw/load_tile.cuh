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
  using Tile = OperandTile<T, K_MAJOR, ROWS, K>;
  constexpr int V = Tile::CHUNK, LINES = THREADS / 8, PASSES = ROWS * K / V / THREADS;  // 8 threads to a line
  static_assert(PASSES * V * THREADS == ROWS * K && (K_MAJOR || K % LINES == 0), "the threads do not divide a tile");
  const int line = int(threadIdx.x) / 8, chunk = int(threadIdx.x) % 8;
  T* to = tile.elements + Tile::chunk_at(line, chunk);  // LINES is a multiple of 8: as the swizzle is here, so it stays
  if (ALIGNED && row0 + ROWS <= rows && k0 + K <= k) {
    const T* from = matrix + (K_MAJOR ? row0 + line : k0 + line) * ld + (K_MAJOR ? k0 : row0) + chunk * V;
#pragma unroll
    for (int p = 0; p < PASSES; ++p)
      cp_async<16>(to + p * LINES * 64, from + (K_MAJOR ? p * LINES : p * LINES % K) * ld + (K_MAJOR ? 0 : p * LINES / K * 64));
    return;
  }
#pragma unroll 1
  for (int p = 0; p < PASSES; ++p) {
    const int l = p * LINES + line;
    const int row = row0 + (K_MAJOR ? l : l / K * 64 + chunk * V), kk = k0 + (K_MAJOR ? chunk * V : l % K);
    const int left = K_MAJOR ? (row < rows ? k - kk : 0) : (kk < k ? rows - row : 0);  // elements of the line from here
    const T* from = K_MAJOR ? matrix + row * ld + kk : matrix + kk * ld + row;
    if constexpr (ALIGNED) {
      cp_async<16>(to + p * LINES * 64, left > 0 ? from : matrix, left >= V ? 16 : left > 0 ? left * int(sizeof(T)) : 0);
    } else {
      store<V>(to + p * LINES * 64, load_row<V>(from, 0, left, false));
    }
  }
}
}  // namespace tw
