// Which warp this is, one thread of it, and how many registers it has. Host side.
#pragma once
#include <tw/cuda.cuh>
namespace tw {
// The warp's index in a one-dimensional block.
__device__ __forceinline__ int warp_index() { return int(threadIdx.x) / 32; }
// True in one lane of the warp.
__device__ __forceinline__ bool elect_one() { return tw_elect_one(); }
// By all warps of a warpgroup: take registers from the pool, waiting for them, or give them back.
template <int N> __device__ __forceinline__ void setmaxnreg_increase() {
  static_assert(N >= 24 && N <= 256 && N % 8 == 0, "setmaxnreg takes 24 to 256 registers in steps of 8");
  tw_setmaxnreg(N, true);
}
template <int N> __device__ __forceinline__ void setmaxnreg_decrease() {
  static_assert(N >= 24 && N <= 256 && N % 8 == 0, "setmaxnreg takes 24 to 256 registers in steps of 8");
  tw_setmaxnreg(N, false);
}
}  // namespace tw
