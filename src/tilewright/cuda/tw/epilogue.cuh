// The epilogue in a kernel: what becomes of fp32 accumulators just before they are rounded and stored.
#pragma once
#include <tw/epilogue_operand.cuh>
#include <tw/epilogue_sum.cuh>
#include <tw/functions.cuh>
#include <tw/epilogue_code.cuh>
namespace tw {
struct Epilogue {
  static constexpr bool NONE = epilogue::NONE, PAIRED = epilogue::PAIRED, STAGED = epilogue::STAGED;
  static constexpr bool ALL_LANES = SUM_LANES > 1;  // of a warp have to come at once, those beyond C's edge too
  const epilogue::Args& args;
  BatchIndex batch = {};

  // Of neighbours in a row of C with m rows and n columns, the first at (row, column), a multiple of N. Each element of C
  // goes through it once: an epilogue may write outputs of its own. `together` as in Place.
  template <int N>
  __device__ __forceinline__ void operator()(float (&acc)[N], int row, int column, int m, int n, bool together = N == 1) const {
    if constexpr (!epilogue::NONE) epilogue::apply(acc, args, Place{row, column, m, n, batch, together});
  }
  // Of a pair: `second` has the accumulators of the second B.
  template <int N>
  __device__ __forceinline__ void operator()(float (&acc)[N], const float (&second)[N], int row, int column, int m, int n,
                                             bool together = N == 1) const {
    epilogue::apply(acc, second, args, Place{row, column, m, n, batch, together});
  }
};

// The same of two neighbours with what was staged for them.
struct StagedEpilogue {
  static constexpr bool PAIRED = Epilogue::PAIRED;
  const Epilogue& whole;
  u32 pair;
  __device__ __forceinline__ StagedPlace place(int row, int column, int m, int n, bool together) const {
    return {{row, column, m, n, whole.batch, together}, pair};
  }
  template <int N>
  __device__ __forceinline__ void operator()(float (&acc)[N], int row, int column, int m, int n, bool together) const {
    epilogue::apply(acc, whole.args, place(row, column, m, n, together));
  }
  template <int N>
  __device__ __forceinline__ void operator()(float (&acc)[N], const float (&second)[N], int row, int column, int m, int n,
                                             bool together) const {
    epilogue::apply(acc, second, whole.args, place(row, column, m, n, together));
  }
};
}  // namespace tw
