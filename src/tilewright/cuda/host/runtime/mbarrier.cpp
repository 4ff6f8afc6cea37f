// See mbarrier.hpp.
#include "mbarrier.hpp"
#include <string.h>
#include "async.hpp"
#include "cluster.hpp"
#include "scheduler.hpp"

namespace tw {
namespace {
enum : u32 { kMaxCount = (1 << 20) - 1 };  // of arrivals, and of bytes either way (PTX ISA, "mbarrier")

// The 8 bytes. Poison has another tag, and so have zeros.
struct State {
  u64 pending : 20, expected : 20;
  u64 bytes : 21;  // those announced less those landed, plus kMaxCount: they may land first
  u64 phase : 1;   // the parity of the phase under way
  u64 tag : 2;

  int missing_bytes() const { return int(bytes) - int(kMaxCount); }
  bool is_valid() const { return tag == 1 && expected != 0 && pending <= expected && bytes <= 2 * kMaxCount; }
};
static_assert(sizeof(State) == 8, "an mbarrier has 8 bytes");

// Warps of the cluster.
struct WarpSet {
  u64 words[kMaxWarps / 64];

  void add(u32 warp) { words[warp / 64] |= u64(1) << warp % 64; }
  void add(const WarpSet& other) {
    for (u32 i = 0; i < kMaxWarps / 64; ++i) words[i] |= other.words[i];
  }
  void remove(const WarpSet& other) {
    for (u32 i = 0; i < kMaxWarps / 64; ++i) words[i] &= ~other.words[i];
  }
  int first() const {  // -1: none
    for (u32 i = 0; i < kMaxWarps / 64; ++i)
      if (words[i]) return int(i * 64) + __builtin_ctzll(words[i]);
    return -1;
  }
};

struct Slot {
  u32 rank, offset;
  u32 waiting_warps;  // of the block
  u32 waiting[kMaxThreadsPerBlock / kWarpLanes];  // lanes of these
  // Bytes of TMA loads that count for the phase under way, and for completed ones that no thread has waited for.
  u64 loads, loads_unseen;
  WarpSet arrived_from, completed_from;  // the same of warps of other blocks that arrived
};
InFlight<Slot> g_slots;
u32 g_slot_of[kMaxClusterBlocks][kSharedArena / 8];  // 1 + the index, by where the mbarrier lies

// By block: warps of others that arrived there, which nothing tells the block; and those of them that had passed
// their half of the cluster's barrier before, so that it will not tell either.
WarpSet g_unseen[kMaxClusterBlocks], g_unordered[kMaxClusterBlocks];

enum class Poll : u8 { kNone, kWaiting, kTimedOut };
Poll g_polls[kMaxThreads];
u32 g_vain_timeouts;

u8* address_of(const Block& block, u32 offset) { return block.shared + offset; }

Slot& slot_at(const Block& block, u32 offset) { return g_slots.items[g_slot_of[block.rank][offset / 8] - 1]; }

void store(const Block& block, u32 offset, State state) { memcpy(address_of(block, offset), &state, sizeof state); }

// "<operation> of mbarrier shared+40 of block rank 1", the beginning of a report.
void report_name(const char* operation, const Block& block, u32 offset) {
  g_report.add("%s: mbarrier shared+%u", operation, offset);
  if (g_cluster.block_count > 1) g_report.add(" of block rank %u", block.rank);
}

[[noreturn, gnu::noinline]] void no_mbarrier(const char* operation, const Block& block, u32 offset) {
  report_name(operation, block, offset);
  if (g_slot_of[block.rank][offset / 8]) fault("misuse", " has been overwritten");
  fault("misuse", " is not initialised");
}

State state_at(const Block& block, u32 offset, const char* operation) {
  State state;
  memcpy(&state, address_of(block, offset), sizeof state);
  if (__builtin_expect(!state.is_valid() || !g_slot_of[block.rank][offset / 8], 0))
    no_mbarrier(operation, block, offset);
  return state;
}

// A thread of the block knows that the phases before the one under way have completed.
void see(Slot& slot) {
  slot.loads_unseen = 0;
  g_unseen[slot.rank].remove(slot.completed_from);
  g_unordered[slot.rank].remove(slot.completed_from);
  slot.completed_from = {};
}

void wake(Block& block, Slot& slot) {
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

[[gnu::noinline]] void complete(Block& block, u32 offset, State state) {
  state.pending = state.expected;
  state.phase ^= 1;
  store(block, offset, state);
  Slot& slot = slot_at(block, offset);
  slot.loads_unseen += slot.loads;
  slot.loads = 0;
  slot.completed_from.add(slot.arrived_from);
  slot.arrived_from = {};
  g_vain_timeouts = 0;
  if (g_observer) g_observer->mbarrier_complete(address_of(block, offset));
  if (!slot.waiting_warps) return;
  see(slot);
  wake(block, slot);
}

// After a change of a phase's counts.
void settle(Block& block, u32 offset, State state, const char* operation) {
  const int missing = state.missing_bytes();
  if (state.pending != 0 || missing > 0) {
    store(block, offset, state);
  } else if (missing == 0) {
    complete(block, offset, state);
  } else {
    report_name(operation, block, offset);
    fault("misuse", " has all %u arrivals of its phase, and %d bytes more than they expected", u32(state.expected),
          -missing);
  }
}

void check_bytes(int64_t missing, const char* operation, const Block& block, u32 offset) {
  if (missing >= -int64_t(kMaxCount) && missing <= int64_t(kMaxCount)) return;
  report_name(operation, block, offset);
  fault("misuse", ": %lld bytes are outstanding in its phase; it counts up to %u either way", (long long)missing,
        kMaxCount);
}

// Before its state is looked at: whoever spoilt that is then known.
void tell_use(const Block& block, u32 offset, u64 pc) {
  if (g_observer) g_observer->mbarrier_use(address_of(block, offset), current_fiber(), pc);
}

void arrive(Block& block, u32 offset, u32 bytes, const char* operation, u64 pc) {
  tell_use(block, offset, pc);
  State state = state_at(block, offset, operation);
  if (state.pending == 0) {
    report_name(operation, block, offset);
    fault("misuse", " already has the %u arrivals of its phase, which waits for %d bytes", u32(state.expected),
          state.missing_bytes());
  }
  check_bytes(int64_t(state.missing_bytes()) + bytes, operation, block, offset);
  if (g_observer) g_observer->mbarrier_arrive(address_of(block, offset), current_fiber());
  state.bytes += bytes;
  --state.pending;
  settle(block, offset, state, operation);
}

// Whether the phase has completed, so that a wait would not block.
bool has_completed(u32 offset, u32 parity, const char* operation) {
  const State state = state_at(*current_fiber()->owner, offset, operation);
  if (parity > 1) fault("misuse", "%s: parity %u; it is 0 or 1", operation, parity);
  return state.phase != parity;
}

void pass(u32 offset) {
  Fiber& fiber = *current_fiber();
  ++g_counts.mbarrier_waits;
  see(slot_at(*fiber.owner, offset));
  if (g_observer) g_observer->mbarrier_leave(fiber.shared + offset, &fiber, false);
}

void enlist(const Fiber& fiber, u32 offset) {
  Slot& slot = slot_at(*fiber.owner, offset);
  slot.waiting_warps |= 1u << fiber.warp->index_in_block;
  slot.waiting[fiber.warp->index_in_block] |= 1u << fiber.lane;
}

const Slot* slot_of_waiter(const Fiber& fiber) {
  for (u32 i = 0; i < g_slots.count; ++i) {
    const Slot& slot = g_slots.items[i];
    if (slot.rank == fiber.owner->rank && slot.waiting[fiber.warp->index_in_block] >> fiber.lane & 1) return &slot;
  }
  return nullptr;
}
}  // namespace

void mbarriers_begin_cluster() {
  for (u32 i = 0; i < g_slots.count; ++i) g_slot_of[g_slots.items[i].rank][g_slots.items[i].offset / 8] = 0;
  g_slots.count = 0;
  memset(g_unseen, 0, sizeof g_unseen);
  memset(g_unordered, 0, sizeof g_unordered);
  memset(g_polls, 0, sizeof g_polls);
  g_vain_timeouts = 0;
}

u32 mbarrier_offset(const void* barrier, const char* operation) {
  const Fiber& fiber = *current_fiber();
  const u64 offset = u64(barrier) - u64(fiber.shared), limit = fiber.owner->shared_bytes;
  if (u64(barrier) % sizeof(State))
    fault("misaligned", "%s: the mbarrier shared%+lld is not at a multiple of 8", operation, (long long)offset);
  if (offset >= limit || limit - offset < sizeof(State))
    fault("misuse", "%s: the mbarrier %p is not in this block's %u bytes of shared memory", operation, barrier,
          fiber.owner->shared_bytes);
  return u32(offset);
}

void mbarrier_load_issued(Block& block, u32 offset, u32 bytes) {
  state_at(block, offset, "tma_load");
  slot_at(block, offset).loads += bytes;
}

void mbarrier_load_landed(Block& block, u32 offset, u32 bytes) {
  constexpr const char* kOperation = "tma_load";
  State state = state_at(block, offset, kOperation);
  check_bytes(state.missing_bytes() - int64_t(bytes), kOperation, block, offset);
  state.bytes -= bytes;
  settle(block, offset, state, kOperation);
}

bool time_out_polls() {
  constexpr u32 kPatience = 1 << 14;
  if (++g_vain_timeouts > kPatience) return false;
  bool any = false;
  for (u32 i = 0; i < g_slots.count; ++i) {
    Slot& slot = g_slots.items[i];
    for (u32 warps = slot.waiting_warps; warps; warps &= warps - 1) {
      const u32 index = u32(__builtin_ctz(warps));
      Warp& warp = g_cluster.blocks[slot.rank].first_warp[index];
      for (u32 lanes = slot.waiting[index]; lanes; lanes &= lanes - 1) {
        const u32 lane = u32(__builtin_ctz(lanes));
        Poll& poll = g_polls[warp.fibers[lane]->id];
        if (poll != Poll::kWaiting) continue;
        poll = Poll::kTimedOut;
        slot.waiting[index] &= ~(1u << lane);
        make_ready(warp, 1u << lane);
        any = true;
      }
      if (!slot.waiting[index]) slot.waiting_warps &= ~(1u << index);
    }
  }
  return any;
}

void cluster_orders_arrivals() {
  memcpy(g_unseen, g_unordered, sizeof g_unseen);
  memset(g_unordered, 0, sizeof g_unordered);
}

void check_mbarriers_at_exit(Block& block) {
  for (u32 i = 0; i < g_slots.count; ++i) {
    const Slot& slot = g_slots.items[i];
    if (slot.rank != block.rank) continue;
    if (const u64 bytes = slot.loads + slot.loads_unseen)
      fault("misuse",
            "traffic in flight at exit: the block returns, and no thread of it has waited for %llu bytes that TMA loads "
            "bring into it, counted on mbarrier shared+%u",
            (unsigned long long)bytes, slot.offset);
    State state;
    memcpy(&state, address_of(block, slot.offset), sizeof state);
    if (state.is_valid() && state.missing_bytes())
      fault("misuse", "traffic in flight at exit: the block returns, and its mbarrier shared+%u still expects %d bytes",
            slot.offset, state.missing_bytes());
  }
  const int warp = g_unseen[block.rank].first();
  if (warp < 0) return;
  const Warp& from = g_cluster.warps[warp];
  fault("misuse",
        "traffic in flight at exit: the block returns, and nothing has told it that the arrivals of block rank %u warp "
        "%u at its mbarriers have come",
        from.block->rank, from.index_in_block);
}

const void* mbarrier_of(const Fiber& fiber) {
  const Slot* slot = slot_of_waiter(fiber);
  return slot ? address_of(*fiber.owner, slot->offset) : nullptr;
}

void describe_mbarrier(Report& report, const Fiber& fiber) {
  const Slot& slot = *slot_of_waiter(fiber);
  State state;
  memcpy(&state, address_of(*fiber.owner, slot.offset), sizeof state);
  report.add(" shared+%u", slot.offset);
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

void tw_mbarrier_init(void* barrier, unsigned arrivals) {
  using namespace tw;
  constexpr const char* kOperation = "mbarrier_init";
  Fiber& fiber = *current_fiber();
  const Block& block = *fiber.owner;
  const u32 offset = mbarrier_offset(barrier, kOperation);
  if (arrivals < 1 || arrivals > kMaxCount)
    fault("misuse", "%s: %u arrivals; 1 to %u are possible", kOperation, arrivals, kMaxCount);
  u32& slot = g_slot_of[block.rank][offset / 8];
  if (slot) {
    report_name(kOperation, block, offset);
    fault("misuse", " is initialised already");
  }
  g_slots.add({block.rank, offset, 0, {}, 0, 0, {}, {}});
  slot = g_slots.count;
  State state = {};
  state.pending = state.expected = arrivals;
  state.bytes = kMaxCount;
  state.tag = 1;
  store(block, offset, state);
  if (g_observer) g_observer->mbarrier_init(barrier, &fiber, u64(__builtin_return_address(0)));
}

void tw_mbarrier_arrive(void* barrier) {
  constexpr const char* kOperation = "mbarrier_arrive";
  tw::arrive(*tw::current_fiber()->owner, tw::mbarrier_offset(barrier, kOperation), 0, kOperation,
             tw::u64(__builtin_return_address(0)));
}

void tw_mbarrier_arrive_expect_tx(void* barrier, unsigned bytes) {
  constexpr const char* kOperation = "mbarrier_expect_tx";
  tw::arrive(*tw::current_fiber()->owner, tw::mbarrier_offset(barrier, kOperation), bytes, kOperation,
             tw::u64(__builtin_return_address(0)));
}

void tw_mbarrier_arrive_remote(void* barrier, unsigned rank) {
  using namespace tw;
  constexpr const char* kOperation = "mbarrier_arrive_remote";
  const Fiber& fiber = *current_fiber();
  const u32 offset = mbarrier_offset(barrier, kOperation);
  if (rank >= g_cluster.block_count)
    fault("misuse", "%s: block rank %u of a cluster of %u", kOperation, rank, g_cluster.block_count);
  Block& block = g_cluster.blocks[rank];
  if (block.alive == 0)
    fault("misuse", "%s: block rank %u has returned, and its shared memory with it", kOperation, rank);
  if (rank != fiber.cluster_rank) {
    state_at(block, offset, kOperation);
    slot_at(block, offset).arrived_from.add(fiber.warp->index);
    g_unseen[rank].add(fiber.warp->index);
    if (has_arrived_at_cluster(fiber)) g_unordered[rank].add(fiber.warp->index);
  }
  arrive(block, offset, 0, kOperation, u64(__builtin_return_address(0)));
}

bool tw_mbarrier_try_wait(void* barrier, unsigned parity) {
  using namespace tw;
  constexpr const char* kOperation = "mbarrier_try_wait";
  const u32 offset = mbarrier_offset(barrier, kOperation);
  tell_use(*current_fiber()->owner, offset, u64(__builtin_return_address(0)));
  if (has_completed(offset, parity, kOperation)) {
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
  tell_use(*current_fiber()->owner, offset, u64(__builtin_return_address(0)));
  if (has_completed(offset, parity, kOperation)) {
    pass(offset);
    return;
  }
  ++g_counts.mbarrier_waits;
  ++g_counts.mbarrier_blocked;
  enlist(*current_fiber(), offset);
  suspend("mbarrier wait");
}

void tw_fence_mbarrier_init() {
  if (tw::g_observer) tw::g_observer->fence_mbarrier_init(tw::current_fiber());
}

void tw_fence_proxy_async() {
  if (tw::g_observer) tw::g_observer->fence_proxy_async(tw::current_fiber());
}
