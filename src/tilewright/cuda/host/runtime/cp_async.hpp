// Copies of cp.async: each thread's own, in groups.
#pragma once
#include "runtime.hpp"

#pragma GCC visibility push(hidden)
namespace tw {
void copies_begin_thread(const Fiber& fiber);
// Does each of a thread's copies in flight, or not, at random.
void copies_progress(const Fiber& fiber);
void check_copies_at_exit(const Fiber& fiber);
}  // namespace tw
#pragma GCC visibility pop
