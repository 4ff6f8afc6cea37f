// CUDA's own spelling on a host: qualifiers, the index variables, barriers, and the way into a kernel.
#pragma once
#include <tw/abi.cuh>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__

#define threadIdx (tw_current->thread)
#define blockIdx (tw_current->block)
#define blockDim tw_block_dim
#define gridDim tw_grid_dim
// A macro, since it tells one call of the source from another: a return address does not, for compilers copy calls.
#define __syncthreads() tw_syncthreads(unsigned(__LINE__) << 16 | (__COUNTER__ & 0xffff))

__forceinline__ void __syncwarp() { tw_syncwarp(); }

namespace tw::host {
// Pops a kernel's arguments, one pointer to each, as cuLaunchKernel is given them.
struct Arguments {
  void** next;
  template <class P> __forceinline__ P pop() { return *static_cast<P*>(*next++); }
};
// A call whose arguments are evaluated left to right, which only braces promise.
struct Call {
  template <class... P> __forceinline__ Call(void (*kernel)(P...), P... arguments) { kernel(arguments...); }
};
template <class... P> __forceinline__ void call(void (*kernel)(P...), void** pointers) {
  [[maybe_unused]] Arguments arguments{pointers};
  Call{kernel, arguments.pop<P>()...};
}
}  // namespace tw::host

// The one visible symbol of a kernel's library: <kernel>_thunk(void** arguments).
#define TW_EXPORT(kernel)                                                                   \
  extern "C" __attribute__((visibility("default"))) void kernel##_thunk(void** arguments) { \
    tw::host::call(kernel, arguments);                                                      \
  }
