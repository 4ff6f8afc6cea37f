// See async.hpp.
#include "async.hpp"
#include <stdlib.h>
#include "cp_async.hpp"
#include "signals.hpp"
#include "tma.hpp"

namespace tw {
AsyncPolicy g_policy;

namespace {
u64 g_random;

// xorshift64* (Marsaglia 2003; Vigna 2016), whose upper half is the better one.
u32 random_bits() {
  g_random ^= g_random >> 12;
  g_random ^= g_random << 25;
  g_random ^= g_random >> 27;
  return u32(g_random * 0x2545F4914F6CDD1Dull >> 32);
}
}  // namespace

void async_begin_launch(AsyncPolicy policy, u64 seed) {
  g_policy = policy;
  g_random = (seed + 1) * 0x9E3779B97F4A7C15ull | 1;  // any seed gives a state that is not zero
}

bool coin() { return random_bits() >> 31; }

u32 random_below(u32 limit) { return u32(u64(random_bits()) * limit >> 32); }

void progress_at_random(const Fiber& fiber) {
  copies_progress(fiber);
  bulk_progress();
}

void* grown(void* items, u32* room, size_t item_bytes) {
  const u32 wanted = *room ? 2 * *room : 16;
  set_leavable(false);  // Ctrl-C must not leave the C library's allocator half way
  void* memory = realloc(items, wanted * item_bytes);
  set_leavable(true);
  if (!memory) fault("misuse", "the system has no memory for %u operations in flight", wanted);
  *room = wanted;
  return memory;
}
}  // namespace tw
