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

void maximum(u32* __restrict to, const u32* __restrict from, u32 count) {
  for (u32 i = 0; i < count; ++i) to[i] = to[i] > from[i] ? to[i] : from[i];
}

void smallest_of_groups(u32* __restrict smallest, const u32* __restrict epochs, u32 count) {
  for (u32 group = 0; group < count / kGroup; ++group) {
    u32 least = kAlways;
    for (u32 i = group * kGroup; i < (group + 1) * kGroup; ++i) least = epochs[i] < least ? epochs[i] : least;
    smallest[group] = least;
  }
}
}  // namespace

void Clocks::begin(u32 generic) {
  if (generic != generic_) {
    for (u32 i = 0; i < all_count_; ++i) {
      free(all_[i]->epoch);
      free(all_[i]);
    }
    all_count_ = 0;
    generic_ = agents_ = generic;
  }
  spare_count_ = 0;
  for (u32 i = 0; i < all_count_; ++i) append(spare_, spare_count_, spare_capacity_, all_[i]);
}

void Clocks::place(Clock* clock, u32* memory) const {
  clock->epoch = memory;
  clock->earliest = clock->epoch + agents_;
  clock->fenced = clock->earliest + agents_ / kGroup;
  clock->all_fenced = clock->fenced + generic_;
}

void Clocks::grow(u32 agents) {
  if (agents <= agents_) return;
  const u32 before = agents_;
  agents_ = agents;
  for (u32 i = 0; i < all_count_; ++i) {
    const Clock old = *all_[i];
    place(all_[i], static_cast<u32*>(allocate(words(), sizeof(u32))));
    memcpy(all_[i]->epoch, old.epoch, before * sizeof(u32));
    memcpy(all_[i]->earliest, old.earliest, before / kGroup * sizeof(u32));
    memcpy(all_[i]->fenced, old.fenced, (generic_ + generic_ / kGroup) * sizeof(u32));
    free(old.epoch);
  }
}

Clock* Clocks::fresh() {
  if (spare_count_ == 0) {
    auto* clock = static_cast<Clock*>(allocate(1, sizeof(Clock)));
    place(clock, static_cast<u32*>(allocate(words(), sizeof(u32))));
    append(all_, all_count_, all_capacity_, clock);
    append(spare_, spare_count_, spare_capacity_, clock);
  }
  Clock* clock = spare_[--spare_count_];
  clock->references = 1;
  clock->fences = false;
  return clock;
}

Clock* Clocks::zero() {
  Clock* clock = fresh();
  memset(clock->epoch, 0, agents_ * sizeof(u32));
  memset(clock->earliest, 0, agents_ / kGroup * sizeof(u32));
  return clock;
}

Clock* Clocks::copy(const Clock* other) {
  Clock* clock = fresh();
  memcpy(clock->epoch, other->epoch, agents_ * sizeof(u32));
  clock->fences = other->fences;
  if (other->fences) memcpy(clock->fenced, other->fenced, generic_ * sizeof(u32));
  return clock;
}

void Clocks::use_fences(Clock* clock) const {
  if (!clock->fences) memset(clock->fenced, 0, generic_ * sizeof(u32));
  clock->fences = true;
}

void Clocks::join(Clock* into, const Clock* other) const {
  maximum(into->epoch, other->epoch, agents_);
  if (!other->fences) return;
  use_fences(into);
  maximum(into->fenced, other->fenced, generic_);
}

void Clocks::fence(Clock* clock) const {
  memcpy(clock->fenced, clock->epoch, generic_ * sizeof(u32));
  clock->fences = true;
}

void Clocks::raise_fenced(Clock* clock, u32 agent, u32 epoch) const {
  if (epoch == 0) return;
  use_fences(clock);
  if (clock->fenced[agent] < epoch) clock->fenced[agent] = epoch;
}

void Clocks::publish(Clock* clock) const {
  smallest_of_groups(clock->earliest, clock->epoch, agents_);
  if (clock->fences) smallest_of_groups(clock->all_fenced, clock->fenced, generic_);
}

void Clocks::release(Clock* clock) {
  if (clock != nullptr && --clock->references == 0) append(spare_, spare_count_, spare_capacity_, clock);
}
}  // namespace tw
