// A grid launched before the one it depends on has ended (programmatic dependent launch). Host side: grids run one
// after another, so that neither has anything to do.
#pragma once
#include <tw/types.cuh>
namespace tw {
// Wait until the grids this one depends on have ended and their writes are visible.
__device__ __forceinline__ void grid_dependency_wait() { tw_griddepcontrol_wait(); }
// Let grids that depend on this one start, once every block has said so or returned.
__device__ __forceinline__ void grid_dependency_launch() { tw_griddepcontrol_launch_dependents(); }
}  // namespace tw
