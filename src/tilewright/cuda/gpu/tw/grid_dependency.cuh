// Programmatic dependent launch: a kernel that starts under the tail of the one before it. GPU side.
#pragma once
namespace tw {
// griddepcontrol.wait (PTX ISA, "griddepcontrol"): until the kernels this one depends on have ended and their writes are
// visible. Returns at once in a kernel that was launched without the attribute.
__device__ __forceinline__ void grid_dependency_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// griddepcontrol.launch_dependents: from this block's side, the next kernel may start.
__device__ __forceinline__ void grid_dependency_launch() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
}  // namespace tw
