// When wgmma instructions read their operands and write their accumulators.
#pragma once
#include "async.hpp"

#pragma GCC visibility push(hidden)
namespace tw {
void wgmma_begin_block(const Block& block);
void check_wgmma_at_exit(const Fiber& fiber);

void execute_some(Warp& warp);
// A moment at which a warp's instructions may or may not have come further.
inline void wgmma_progress(Warp& warp) {
  if (__builtin_expect(g_policy == AsyncPolicy::kRandom, 0)) execute_some(warp);
}
}  // namespace tw
#pragma GCC visibility pop
