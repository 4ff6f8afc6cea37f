// The fence between a thread's own accesses and those of the units that work beside it. Host side.
#pragma once
#include <tw/types.cuh>
namespace tw {
// What this thread wrote to (and read from) shared memory comes before what TMA and wgmma do there afterwards.
__device__ __forceinline__ void fence_proxy_async() { tw_fence_proxy_async(); }
}  // namespace tw
