// wgmma: matrix multiply-accumulate of a warpgroup, operands in shared memory. Host side.
#pragma once
#include <tw/types.cuh>
namespace tw {
// Before the first wgmma, and when registers were touched that the next one uses.
__device__ __forceinline__ void wgmma_fence() { tw_wgmma_fence(); }
// Close the group of wgmmas issued since the last commit.
__device__ __forceinline__ void wgmma_commit() { tw_wgmma_commit(); }
// Wait until at most N of the newest groups are still in flight.
template <int N> __device__ __forceinline__ void wgmma_wait() { tw_wgmma_wait(N); }
// The accumulators are read or written here and not before: a host compiler knows, for it sees a call.
template <int N> __device__ __forceinline__ void wgmma_pin(float (&)[N]) {}

// m64nNk16 in fp32, A and B in shared memory by descriptor (tw/descriptor.cuh). Thread t of the warpgroup holds d[4 j],
// d[4 j + 1] = row 16 (t / 32) + t % 32 / 4, columns 8 j + 2 (t % 4) and the next; d[4 j + 2], d[4 j + 3] = the same 8
// rows below.
template <class T, int N, bool TRANSPOSE_A, bool TRANSPOSE_B>
__device__ __forceinline__ void wgmma(float (&d)[N / 2], u64 a, u64 b, bool accumulate) {
  static_assert(N >= 8 && N <= 256 && N % 8 == 0, "wgmma has widths 8 to 256 in steps of 8");
  tw_wgmma(d, N, nullptr, a, b, accumulate, host::element_type(T{}), TRANSPOSE_A, TRANSPOSE_B);
}
// The same with A in registers: the fragment of mma_m16n8k16, each warp its 16 rows.
template <class T, int N, bool TRANSPOSE_B>
__device__ __forceinline__ void wgmma(float (&d)[N / 2], const u32 (&a)[4], u64 b, bool accumulate) {
  static_assert(N >= 8 && N <= 256 && N % 8 == 0, "wgmma has widths 8 to 256 in steps of 8");
  tw_wgmma(d, N, a, 0, b, accumulate, host::element_type(T{}), false, TRANSPOSE_B);
}
}  // namespace tw
