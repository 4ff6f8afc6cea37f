// Vector clocks of the race detector: for every agent, the latest of its epochs known to have happened before.
//
// Clocks are shared, counted and never changed once published: after a barrier all its threads hold the same one, so
// that a barrier of 1024 threads costs one clock and 1024 pointers.
#pragma once
#include "runtime.hpp"

namespace tw {
// Agents are numbered in groups of 32. The first groups are the warps; then one cp.async agent a thread, in the same
// order. Later asynchronous agents (TMA slots, warps of wgmma) follow as further groups.
enum : u32 { kGroup = 32, kAlways = ~0u };

struct Clock {
  u32 references;
  u32* epoch;     // [agents]
  u32* earliest;  // [agents / 32]: the smallest epoch of each group; valid once published
};

class Clocks {
 public:
  // All clocks from now on cover this many agents, a multiple of 32. Earlier clocks become invalid.
  void begin(u32 agents);
  u32 agents() const { return agents_; }
  u32 groups() const { return agents_ / kGroup; }

  Clock* zero();                    // a new clock in which nothing has happened
  Clock* copy(const Clock* other);  // a new one with the same epochs
  void join(Clock* into, const Clock* other) const;
  void publish(Clock* clock) const;  // no change after this
  Clock* hold(Clock* clock) const {
    ++clock->references;
    return clock;
  }
  void release(Clock* clock);  // null is allowed

 private:
  Clock* fresh();

  u32 agents_ = 0;
  Clock** spare_ = nullptr;  // clocks nobody holds
  u32 spare_count_ = 0, spare_capacity_ = 0;
  Clock** all_ = nullptr;
  u32 all_count_ = 0, all_capacity_ = 0;
};
}  // namespace tw
