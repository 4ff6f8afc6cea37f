// Which warp this is, one thread of it, and how many registers it has. GPU side.
#pragma once
namespace tw {
// The warp's index in a one-dimensional block; by a shuffle, so that the compiler knows it to be the same in all lanes.
__device__ __forceinline__ int warp_index() { return __shfl_sync(0xffffffffu, int(threadIdx.x) / 32, 0); }
// elect.sync (PTX ISA, "elect.sync"): true in one lane of the warp, each time in the same one. Asked in the branch itself,
// it tells the compiler that one thread runs it: TMA there needs no loop over the lanes, which a stored answer costs.
__device__ __forceinline__ bool elect_one() {
  int elected;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.s32 %0, 1, 0, p;\n}" : "=r"(elected));
  return elected != 0;
}
// setmaxnreg (PTX ISA, "setmaxnreg"), by all warps of a warpgroup: take registers from the pool, waiting for them, or
// give them back.
template <int N> __device__ __forceinline__ void setmaxnreg_increase() {
  static_assert(N >= 24 && N <= 256 && N % 8 == 0, "setmaxnreg takes 24 to 256 registers in steps of 8");
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ __forceinline__ void setmaxnreg_decrease() {
  static_assert(N >= 24 && N <= 256 && N % 8 == 0, "setmaxnreg takes 24 to 256 registers in steps of 8");
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
}  // namespace tw
