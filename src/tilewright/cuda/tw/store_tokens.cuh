// Accumulators whose rows are columns of C on their way to C: elements of 16 bits are transposed by stmatrix, in shared
// memory of each warp's own; eight of 32 bits side by side, which eight lanes hold, are a sector as they are.
#pragma once
#include <tw/math.cuh>
#include <tw/matrix.cuh>
#include <tw/memory.cuh>
#include <tw/row.cuh>
#include <tw/types.cuh>
namespace tw {
// Up to 32 tokens of 16 columns of C. A line is 8 columns of one token: stmatrix writes eight lines in a row.
struct TokenPatch {
  static constexpr int GROUPS = plan::BM < 32 ? plan::BM / 8 : 4;
  alignas(16) u16 elements[GROUPS * 2 * 64];
  static __device__ __forceinline__ int line(int group, int lane) { return (group * 16 + lane % 16) * 8; }
};

// A warp's 16 columns of C from `column` on of BM tokens from `row` on, of which it stores the groups of 8 whose bit is set
// in `groups`. Of a group lane l holds columns l / 4 and l / 4 + 8 of tokens 2 (l % 4) and the next, and takes each through
// the epilogue by itself. A store of the warp fills 32 bytes of each of 16 rows: whole sectors, where rows are aligned. In
// fp32 it fills them of four.
template <class C, class Finish>
__device__ __forceinline__ void store_tokens(TokenPatch& patch, C* c, i64 ldc, int row, int column, int m, int n,
                                             const float (&d)[plan::BM / 2], u32 groups, const Finish& finish) {
  constexpr int GROUPS = plan::BM / 8;
  const int lane = int(threadIdx.x) % 32;
  const auto token_of = [&](int i) { return row + i / 4 * 8 + lane % 4 * 2 + i % 2; };
  const auto column_of = [&](int i) { return column + lane / 4 + i % 4 / 2 * 8; };
  const auto finished = [&](int i) {
    // Times 1, of which ptxas makes an instruction: an accumulator that an epilogue stores as it is would be rounded too late
    // for it to see that no wgmma is in flight (C7514: it then runs them one after another).
    float x[1] = {Finish::NONE ? d[i] : mul(d[i], 1.0f)};
    finish(x, token_of(i), column_of(i), m, n);
    return x[0];
  };
  if constexpr (sizeof(C) == 4) {
#pragma unroll
    for (int i = 0; i < plan::BM / 2; ++i)
      if ((groups >> i / 4 & 1) && token_of(i) < m && column_of(i) < n) c[token_of(i) * ldc + column_of(i)] = finished(i);
  } else {
#pragma unroll
    for (int first = 0; first < GROUPS; first += TokenPatch::GROUPS) {
      __syncwarp();  // what was there has been read
#pragma unroll
      for (int j = first; j < first + TokenPatch::GROUPS && j < GROUPS; ++j)
        if (groups >> j & 1)
          stmatrix_x2<true>(patch.elements + TokenPatch::line(j - first, lane), pack<C>(finished(4 * j), finished(4 * j + 1)),
                            pack<C>(finished(4 * j + 2), finished(4 * j + 3)));
      __syncwarp();
#pragma unroll
      for (int j = first; j < first + TokenPatch::GROUPS && j < GROUPS; j += 2) {
        const int group = j + lane / 16, token = row + group * 8 + lane % 8;
        if (group < GROUPS && (groups >> group & 1) && token < m)
          store_row<8>(c + token * ldc, column + lane / 8 % 2 * 8, n,
                       load<8>(reinterpret_cast<const C*>(patch.elements + TokenPatch::line(group - first, lane))),
                       plan::ALIGNED);
      }
    }
  }
}
}  // namespace tw
