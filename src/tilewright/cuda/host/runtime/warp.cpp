// See warp.hpp: __syncwarp and the shuffles, and the atomics, which need no meeting.
#include "warp.hpp"
#include "fault.hpp"
#include "scheduler.hpp"

namespace tw {
namespace {
void complete(Warp& warp, u32 waiting) {
  Rendezvous& meeting = warp.meeting;
  meeting.work(warp);
  meeting.operation = nullptr;
  meeting.arrived = 0;
  make_ready(warp, waiting);
}

struct Shuffle {
  float given, received;
  int selector;
};

// Each lane receives the value of lane `source(lane, selector)`, or keeps its own where that is outside the warp.
template <class Source> void exchange(Warp& warp, Source source) {
  for (u32 here = warp.meeting.arrived; here; here &= here - 1) {
    const int lane = __builtin_ctz(here);
    Shuffle& mine = *static_cast<Shuffle*>(warp.meeting.operands[lane]);
    int from = source(lane, mine.selector);
    if (from < 0 || from >= int(kWarpLanes)) from = lane;
    if (!(warp.meeting.arrived >> from & 1)) {
      blame(warp.fibers[lane]);
      fault("divergence", "%s: lane %d reads lane %d, which has returned or does not exist", warp.meeting.operation,
            lane, from);
    }
    mine.received = static_cast<Shuffle*>(warp.meeting.operands[from])->given;
  }
}

float shuffle(const char* name, float value, int selector, void (*work)(Warp&)) {
  Shuffle shuffle = {value, 0.0f, selector};
  meet(name, &shuffle, work);
  return shuffle.received;
}

// What `work` makes of what is there; returns that.
template <class T, class Work>
T atomically(const char* name, T* address, u64 pc, Work work, bool acquire = false, bool release = false) {
  if (u64(address) % sizeof(T))
    fault("misaligned", "%s of %u bytes at %p", name, u32(sizeof(T)), static_cast<void*>(address));
  if (g_observer) {
    g_observer->atomic(u64(address), sizeof(T), pc);
    if (acquire || release) g_observer->atomic_order(address, current_fiber(), acquire, release);
  }
  const T old = *address;
  *address = work(old);
  yield_now_and_then();
  return old;
}

template <class T> T add(T* address, T value, u64 pc, bool acquire = false, bool release = false) {
  return atomically("atomic_add", address, pc, [value](T old) { return old + value; }, acquire, release);
}

void sync_memory(Warp& warp) {
  if (!g_observer) return;
  g_observer->barrier_complete(&warp.meeting);
  for (u32 here = warp.meeting.arrived; here; here &= here - 1)
    g_observer->barrier_leave(&warp.meeting, warp.fibers[__builtin_ctz(here)]);
}
}  // namespace

void meet(const char* operation, void* operand, void (*work)(Warp& warp)) {
  Fiber& fiber = *current_fiber();
  Warp& warp = *fiber.warp;
  Rendezvous& meeting = warp.meeting;
  if (!meeting.operation) {
    meeting.operation = operation;
    meeting.work = work;
  } else if (meeting.work != work) {
    fault("divergence", "lane %u is at %s while others of warp %u wait at %s", fiber.lane, operation,
          warp.index_in_block, meeting.operation);
  }
  const u32 waiting = meeting.arrived;
  meeting.operands[fiber.lane] = operand;
  meeting.arrived |= 1u << fiber.lane;
  if (meeting.arrived == warp.alive)
    complete(warp, waiting);
  else
    suspend(operation);
}

void meeting_after_exit(Warp& warp) {
  if (warp.meeting.operation && warp.meeting.arrived == warp.alive) complete(warp, warp.meeting.arrived);
}
}  // namespace tw

void tw_syncwarp() {
  tw::Fiber& fiber = *tw::current_fiber();
  if (tw::g_observer) tw::g_observer->barrier_arrive(&fiber.warp->meeting, &fiber);
  tw::meet("__syncwarp", nullptr, tw::sync_memory);
}

float tw_shuffle(float value, int lane) {
  return tw::shuffle("shfl", value, lane, [](tw::Warp& warp) {
    tw::exchange(warp, [](int, int selector) { return selector & int(tw::kWarpLanes - 1); });
  });
}

float tw_shuffle_xor(float value, int mask) {
  return tw::shuffle("shfl_xor", value, mask, [](tw::Warp& warp) {
    tw::exchange(warp, [](int lane, int selector) { return lane ^ selector; });
  });
}

float tw_shuffle_down(float value, int delta) {
  return tw::shuffle("shfl_down", value, delta, [](tw::Warp& warp) {
    tw::exchange(warp, [](int lane, int selector) { return lane + selector; });
  });
}

float tw_atomic_add_f32(float* address, float value) {
  return tw::add(address, value, tw::u64(__builtin_return_address(0)));
}

unsigned tw_atomic_add_u32(unsigned* address, unsigned value) {
  return tw::add(address, value, tw::u64(__builtin_return_address(0)));
}

void tw_atomic_largest_f32(float* address, float value) {
  const auto larger = [value](float old) { return old != old || old >= value ? old : value; };
  tw::atomically("atomic_largest", address, tw::u64(__builtin_return_address(0)), larger);
}

unsigned tw_atomic_add_ordered(unsigned* address, unsigned value, bool acquire, bool release) {
  return tw::add(address, value, tw::u64(__builtin_return_address(0)), acquire, release);
}
