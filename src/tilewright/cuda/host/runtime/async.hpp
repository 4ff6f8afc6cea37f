// When asynchronous work is done, and what is in flight. Shared by all that is asynchronous: cp.async, TMA, wgmma.
#pragma once
#include "runtime.hpp"

#pragma GCC visibility push(hidden)
namespace tw {
enum class AsyncPolicy : u32 {
  kEager,   // at issue
  kLazy,    // as late as is legal; what it writes is NaN until then
  kRandom,  // at some moment between the two, seeded
};
extern AsyncPolicy g_policy;

void async_begin_launch(AsyncPolicy policy, u64 seed);

// Of the launch's random numbers.
bool coin();
u32 random_below(u32 limit);

// A moment at which work in flight may or may not have come further: a thread's cp.async copies, and any TMA copy.
void progress_at_random(const Fiber& fiber);
inline void async_progress(const Fiber& fiber) {
  if (__builtin_expect(g_policy == AsyncPolicy::kRandom, 0)) progress_at_random(fiber);
}

// Work in flight, oldest first. Hardware has no limit of it that a program could run into, so here is none. The memory
// is kept for later launches.
void* grown(void* items, u32* room, size_t item_bytes);
template <class T> struct InFlight {
  T* items;
  u32 count, room;

  T& add(const T& item) {
    if (__builtin_expect(count == room, 0)) items = static_cast<T*>(grown(items, &room, sizeof(T)));
    return items[count++] = item;
  }
  void remove(u32 first, u32 number = 1) {
    count -= number;
    if (number) __builtin_memmove(items + first, items + first + number, (count - first) * sizeof(T));
  }
};
}  // namespace tw
#pragma GCC visibility pop
