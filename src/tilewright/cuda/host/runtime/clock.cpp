// See clock.hpp.
#include "clock.hpp"
#include "table.hpp"
#include <string.h>

namespace tw {
namespace {
void append(Clock**& list, u32& count, u32& capacity, Clock* clock) {
  if (count == capacity) {
    capacity = capacity == 0 ? 64 : 2 * capacity;
    list = static_cast<Clock**>(realloc(list, capacity * sizeof(Clock*)));
    if (list == nullptr) fault("misuse", "the race detector ran out of memory");
  }
  list[count++] = clock;
}
}  // namespace

void Clocks::begin(u32 agents) {
  if (agents != agents_) {
    for (u32 i = 0; i < all_count_; ++i) free(all_[i]);
    all_count_ = 0;
    agents_ = agents;
  }
  spare_count_ = 0;
  for (u32 i = 0; i < all_count_; ++i) append(spare_, spare_count_, spare_capacity_, all_[i]);
}

Clock* Clocks::fresh() {
  if (spare_count_ == 0) {
    auto* memory = static_cast<u8*>(allocate(1, sizeof(Clock) + (agents_ + groups()) * sizeof(u32)));
    auto* clock = reinterpret_cast<Clock*>(memory);
    clock->epoch = reinterpret_cast<u32*>(memory + sizeof(Clock));
    clock->earliest = clock->epoch + agents_;
    append(all_, all_count_, all_capacity_, clock);
    append(spare_, spare_count_, spare_capacity_, clock);
  }
  Clock* clock = spare_[--spare_count_];
  clock->references = 1;
  return clock;
}

Clock* Clocks::zero() {
  Clock* clock = fresh();
  memset(clock->epoch, 0, (agents_ + groups()) * sizeof(u32));
  return clock;
}

Clock* Clocks::copy(const Clock* other) {
  Clock* clock = fresh();
  memcpy(clock->epoch, other->epoch, agents_ * sizeof(u32));
  return clock;
}

void Clocks::join(Clock* into, const Clock* other) const {
  u32* __restrict to = into->epoch;
  const u32* __restrict from = other->epoch;
  for (u32 i = 0; i < agents_; ++i) to[i] = to[i] > from[i] ? to[i] : from[i];
}

void Clocks::publish(Clock* clock) const {
  for (u32 group = 0; group < groups(); ++group) {
    u32 earliest = kAlways;
    for (u32 i = group * kGroup; i < (group + 1) * kGroup; ++i)
      earliest = clock->epoch[i] < earliest ? clock->epoch[i] : earliest;
    clock->earliest[group] = earliest;
  }
}

void Clocks::release(Clock* clock) {
  if (clock != nullptr && --clock->references == 0) append(spare_, spare_count_, spare_capacity_, clock);
}
}  // namespace tw
