// When asynchronous copies are done.
#pragma once
#include "runtime.hpp"

#pragma GCC visibility push(hidden)
namespace tw {
enum class AsyncPolicy : u32 {
  kEager,   // at issue
  kLazy,    // as late as is legal: by the wait for the copy's group; its destination is NaN until then
  kRandom,  // at some moment between the two, seeded
};

void copies_begin_launch(AsyncPolicy policy, u64 seed);
void copies_begin_thread(const Fiber& fiber);
void check_copies_at_exit(const Fiber& fiber);

bool coin();  // of AsyncPolicy::kRandom, for whatever it decides

extern bool g_copies_at_random;
void complete_some(const Fiber& fiber);
// A moment at which a thread's copies may or may not have come further.
inline void copies_progress(const Fiber& fiber) {
  if (g_copies_at_random) complete_some(fiber);
}
}  // namespace tw
#pragma GCC visibility pop
