// mbarriers: waits and polls (mbarrier.hpp, mbarrier_slot.hpp).
#include <string.h>
#include "mbarrier.hpp"
#include "mbarrier_slot.hpp"

namespace tw {
namespace {
enum class Poll : u8 { kNone, kWaiting, kTimedOut };
Poll g_polls[kMaxThreads];
u32 g_vain_timeouts;

// Whether the phase has completed, so that the running thread need not wait.
bool has_completed(u32 offset, u32 parity, const char* operation, u64 pc) {
  const MbarrierState state = use_mbarrier(*current_fiber()->owner, offset, operation, pc);
  if (parity > 1) fault("misuse", "%s: parity %u; it is 0 or 1", operation, parity);
  return state.phase != parity;
}

void pass(u32 offset) {
  Fiber& fiber = *current_fiber();
  ++g_counts.mbarrier_waits;
  see_completed(*find_mbarrier(*fiber.owner, offset));
  if (g_observer) g_observer->mbarrier_leave(fiber.shared + offset, &fiber, false);
}

void enlist(const Fiber& fiber, u32 offset) {
  MbarrierSlot& slot = *find_mbarrier(*fiber.owner, offset);
  slot.waiting_warps |= 1u << fiber.warp->index_in_block;
  slot.waiting[fiber.warp->index_in_block] |= 1u << fiber.lane;
}

const MbarrierSlot* slot_of_waiter(const Fiber& fiber) {
  for (u32 i = 0; i < g_mbarriers.count; ++i) {
    const MbarrierSlot& slot = g_mbarriers.items[i];
    if (slot.rank == fiber.owner->rank && slot.waiting[fiber.warp->index_in_block] >> fiber.lane & 1) return &slot;
  }
  return nullptr;
}

// Lets those lanes of a warp go on that only poll. Returns them.
u32 time_out(Warp& warp, u32 lanes) {
  u32 polling = 0;
  for (; lanes; lanes &= lanes - 1) {
    const u32 lane = u32(__builtin_ctz(lanes));
    Poll& poll = g_polls[warp.fibers[lane]->id];
    if (poll != Poll::kWaiting) continue;
    poll = Poll::kTimedOut;
    polling |= 1u << lane;
  }
  make_ready(warp, polling);
  return polling;
}
}  // namespace

void polls_begin_cluster() {
  memset(g_polls, 0, sizeof g_polls);
  g_vain_timeouts = 0;
}

void wake_waiting(Block& block, MbarrierSlot& slot) {
  g_vain_timeouts = 0;
  const void* key = address_of(block, slot.offset);
  for (u32 warps = slot.waiting_warps; warps; warps &= warps - 1) {
    const u32 index = u32(__builtin_ctz(warps));
    Warp& warp = block.first_warp[index];
    make_ready(warp, slot.waiting[index]);
    for (u32 lanes = g_observer ? slot.waiting[index] : 0; lanes; lanes &= lanes - 1)
      g_observer->mbarrier_leave(key, warp.fibers[__builtin_ctz(lanes)], true);
    slot.waiting[index] = 0;
  }
  slot.waiting_warps = 0;
}

bool time_out_polls() {
  constexpr u32 kPatience = 1 << 14;
  if (g_vain_timeouts == kPatience) return false;
  u32 any = 0;
  for (u32 i = 0; i < g_mbarriers.count; ++i) {
    MbarrierSlot& slot = g_mbarriers.items[i];
    for (u32 warps = slot.waiting_warps; warps; warps &= warps - 1) {
      const u32 index = u32(__builtin_ctz(warps));
      const u32 polling = time_out(g_cluster.blocks[slot.rank].first_warp[index], slot.waiting[index]);
      any |= polling;
      slot.waiting[index] &= ~polling;
      if (!slot.waiting[index]) slot.waiting_warps &= ~(1u << index);
    }
  }
  g_vain_timeouts += any != 0;
  return any != 0;
}

const void* mbarrier_of(const Fiber& fiber) {
  const MbarrierSlot* slot = slot_of_waiter(fiber);
  return slot ? address_of(*fiber.owner, slot->offset) : nullptr;
}

void describe_mbarrier(Report& report, const Fiber& fiber) {
  const u32 offset = slot_of_waiter(fiber)->offset;
  const MbarrierState state = read_state(*fiber.owner, offset);
  report.add(" shared+%u", offset);
  if (!state.is_valid()) {
    report.add(" (overwritten)");
    return;
  }
  report.add(" parity %u (phase %u, %u arrivals missing", u32(state.phase), u32(state.phase), u32(state.pending));
  if (const int missing = state.missing_bytes())
    report.add(", %d bytes %s", missing < 0 ? -missing : missing, missing < 0 ? "too many" : "missing");
  report.add(")");
}
}  // namespace tw

bool tw_mbarrier_try_wait(void* barrier, unsigned parity) {
  using namespace tw;
  constexpr const char* kOperation = "mbarrier_try_wait";
  const u32 offset = mbarrier_offset(barrier, kOperation);
  if (has_completed(offset, parity, kOperation, u64(__builtin_return_address(0)))) {
    pass(offset);
    return true;
  }
  const Fiber& fiber = *current_fiber();
  Poll& poll = g_polls[fiber.id];
  poll = Poll::kWaiting;
  enlist(fiber, offset);
  suspend("mbarrier try_wait");
  const bool completed = poll == Poll::kWaiting;
  poll = Poll::kNone;
  g_counts.mbarrier_waits += completed;
  g_counts.mbarrier_blocked += completed;
  return completed;
}

void tw_mbarrier_wait(void* barrier, unsigned parity) {
  using namespace tw;
  constexpr const char* kOperation = "mbarrier_wait";
  const u32 offset = mbarrier_offset(barrier, kOperation);
  if (has_completed(offset, parity, kOperation, u64(__builtin_return_address(0)))) {
    pass(offset);
    return;
  }
  ++g_counts.mbarrier_waits;
  ++g_counts.mbarrier_blocked;
  enlist(*current_fiber(), offset);
  suspend("mbarrier wait");
}
