// Fences between proxies. GPU side.
#pragma once
namespace tw {
// fence.proxy.async.shared::cta (PTX ISA, "membar/fence"): this thread's ordinary accesses of shared memory come before
// what TMA and wgmma do to it afterwards.
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
}  // namespace tw
