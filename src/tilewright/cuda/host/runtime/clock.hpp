// Vector clocks of the race detector: for every agent, the latest of its epochs known to have happened before.
//
// Clocks are shared, counted and never changed once published: after a barrier all its threads hold the same one, so
// that a barrier of 1024 threads costs one clock and 1024 pointers.
#pragma once
#include "runtime.hpp"

namespace tw {
// Agents are numbered in groups of 32. Those of the generic proxy come first: the threads, warp by warp, then one
// cp.async agent a thread, in the same order. Those of the async proxy follow, as they turn up.
enum : u32 { kGroup = 32, kAlways = ~0u };

struct Clock {
  u32 references;
  bool fences;       // whether `fenced` is in use; if not, it stands for zeros
  u32* epoch;        // [agents]
  u32* earliest;     // [agents / 32]: the smallest epoch of each group; valid once published
  u32* fenced;       // [generic agents]: the latest epoch that a proxy fence followed on the way here
  u32* all_fenced;   // [generic agents / 32]: the smallest of each group; valid once published
};

class Clocks {
 public:
  // All clocks from now on cover this many generic agents, a multiple of 32, and no other. Earlier clocks become invalid.
  void begin(u32 generic);
  // Makes room for more agents. Clocks stay valid and know nothing of the new ones.
  void grow(u32 agents);
  u32 agents() const { return agents_; }

  Clock* zero();                    // a new clock in which nothing has happened
  Clock* copy(const Clock* other);  // a new one with the same epochs
  void join(Clock* into, const Clock* other) const;
  // Everything known of the generic proxy is followed by a proxy fence.
  void fence(Clock* clock) const;
  void raise(Clock* clock, u32 agent, u32 epoch) const {
    if (clock->epoch[agent] < epoch) clock->epoch[agent] = epoch;
  }
  void raise_fenced(Clock* clock, u32 agent, u32 epoch) const;
  void publish(Clock* clock) const;  // no change after this
  Clock* hold(Clock* clock) const {
    ++clock->references;
    return clock;
  }
  void release(Clock* clock);  // null is allowed

 private:
  Clock* fresh();
  void place(Clock* clock, u32* memory) const;
  size_t words() const { return size_t(agents_ + generic_) + (agents_ + generic_) / kGroup; }
  void use_fences(Clock* clock) const;

  u32 generic_ = 0, agents_ = 0;
  Clock** spare_ = nullptr;  // clocks nobody holds
  u32 spare_count_ = 0, spare_capacity_ = 0;
  Clock** all_ = nullptr;
  u32 all_count_ = 0, all_capacity_ = 0;
};
}  // namespace tw
