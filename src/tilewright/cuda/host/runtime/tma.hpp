// TMA copies in flight (PTX ISA, "cp.async.bulk.tensor").
#pragma once
#include "runtime.hpp"

#pragma GCC visibility push(hidden)
namespace tw {
void bulk_begin_cluster();
// A moment at which some of what is in flight may be done, at random.
void bulk_progress();
// Does a load in flight, the oldest or at random any, as far as one block's part goes. False: there is none.
bool land_late();
// The thread has returned: faults when its stores may still read shared memory.
void check_stores_at_exit(const Fiber& fiber);
}  // namespace tw
#pragma GCC visibility pop
