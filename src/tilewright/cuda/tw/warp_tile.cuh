// A warp's part of a tile in mma.sync's fragments: from shared memory by ldmatrix, multiplied, and through the epilogue to C.
#pragma once
#include <tw/epilogue.cuh>
#include <tw/fragment.cuh>
#include <tw/matrix.cuh>
#include <tw/operand_tile.cuh>
namespace tw {
// COUNT blocks of 16 rows and 16 k of A from (row, k) on. ldmatrix.x4 takes line j of 8x8 matrix i from lane 8 i + j:
// matrices 1 and 3 lie 8 rows on, 2 and 3 lie 8 k on. MN-major lines run along the rows, and are transposed on the way.
template <int COUNT, class T, bool K_MAJOR, int ROWS, int K>
__device__ __forceinline__ void load_a(u32 (&to)[COUNT][4], const OperandTile<T, K_MAJOR, ROWS, K>& tile, int row, int k) {
  const int lane = int(threadIdx.x) % 32, inner = lane % 8, odd = lane / 8 % 2 * 8, upper = lane / 16 * 8;
  const int r = row + odd + (K_MAJOR ? inner : 0), kk = k + upper + (K_MAJOR ? 0 : inner);
#pragma unroll
  for (int i = 0; i < COUNT; ++i) ldmatrix_x4<!K_MAJOR>(to[i], tile.elements + tile.index(r + i * 16, kk));
}
// The same of B, whose 16 rows are the columns of two mma.sync: matrices 1 and 3 lie 8 k on, 2 and 3 lie 8 rows on.
template <int COUNT, class T, bool K_MAJOR, int ROWS, int K>
__device__ __forceinline__ void load_b(u32 (&to)[COUNT][4], const OperandTile<T, K_MAJOR, ROWS, K>& tile, int row, int k) {
  const int lane = int(threadIdx.x) % 32, inner = lane % 8, odd = lane / 8 % 2 * 8, upper = lane / 16 * 8;
  const int r = row + upper + (K_MAJOR ? inner : 0), kk = k + odd + (K_MAJOR ? 0 : inner);
#pragma unroll
  for (int j = 0; j < COUNT; ++j) ldmatrix_x4<!K_MAJOR>(to[j], tile.elements + tile.index(r + j * 16, kk));
}

// acc += a b, row by row, back and forth: each mma.sync shares a fragment with the one before it.
template <class T, int M, int N>
__device__ __forceinline__ void multiply(float (&acc)[M][2 * N][4], const u32 (&a)[M][4], const u32 (&b)[N][4]) {
#pragma unroll
  for (int i = 0; i < M; ++i)
#pragma unroll
    for (int step = 0; step < 2 * N; ++step) {
      const int j = i % 2 ? 2 * N - 1 - step : step;
      mma_m16n8k16<T>(acc[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
}

template <class T, int M, int N>
__device__ __forceinline__ void store_fragments(T* c, i64 ldc, int row, int column, int m, int n,
                                                const float (&acc)[M][N][4], bool aligned, const Epilogue& finish) {
  constexpr int WIDTH = Epilogue::NONE ? 1 : N;  // fragments at once, for what an epilogue reads to be on its way together
#pragma unroll
  for (int i = 0; i < M; ++i)
#pragma unroll
    for (int j = 0; j < N; j += WIDTH) {
      const auto& d = *reinterpret_cast<const float(*)[4 * WIDTH]>(&acc[i][j][0]);
      store_fragment(c, ldc, row + i * 16, column + j * 8, m, n, d, aligned, finish);
    }
}
}  // namespace tw
