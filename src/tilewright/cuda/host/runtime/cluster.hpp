// The barrier of a cluster's threads, in two halves.
#pragma once
#include "fault.hpp"
#include "runtime.hpp"

#pragma GCC visibility push(hidden)
namespace tw {
void cluster_barrier_begin();
void cluster_barrier_after_exit(const Fiber& fiber);
// Between its arrival and its wait.
bool has_arrived_at_cluster(const Fiber& fiber);
// " (32 of 256 threads arrived)" where the thread waits at it.
void describe_cluster_wait(Report& report, const Fiber& fiber);
}  // namespace tw
#pragma GCC visibility pop
