// mbarriers: what arrivals and bytes do to them (mbarrier.hpp, mbarrier_slot.hpp).
#include "mbarrier.hpp"
#include <string.h>
#include "mbarrier_slot.hpp"

namespace tw {
InFlight<MbarrierSlot> g_mbarriers;

namespace {
u32 g_slot_of[kMaxClusterBlocks][kSharedArena / 8];  // 1 + the index, by where the mbarrier lies

void write_state(const Block& block, u32 offset, MbarrierState state) {
  memcpy(address_of(block, offset), &state, sizeof state);
}

// "<operation>: mbarrier shared+40 of block rank 1", the beginning of a report.
void report_name(const char* operation, const Block& block, u32 offset) {
  g_report.add("%s: mbarrier shared+%u", operation, offset);
  if (g_cluster.block_count > 1) g_report.add(" of block rank %u", block.rank);
}

[[noreturn, gnu::noinline]] void no_mbarrier(const char* operation, const Block& block, u32 offset) {
  report_name(operation, block, offset);
  fault("misuse", "%s", find_mbarrier(block, offset) ? " has been overwritten" : " is not initialised");
}

[[gnu::noinline]] void complete(Block& block, u32 offset, MbarrierState state) {
  state.pending = state.expected;
  state.phase ^= 1;
  write_state(block, offset, state);
  MbarrierSlot& slot = *find_mbarrier(block, offset);
  slot.loads_unseen += slot.loads;
  slot.loads = 0;
  slot.completed_from.add(slot.arrived_from);
  slot.arrived_from = {};
  if (g_observer) g_observer->mbarrier_complete(address_of(block, offset));
  if (slot.waiting_warps) see_completed(slot);
  wake_waiting(block, slot);
}

// After a change of a phase's counts.
void settle(Block& block, u32 offset, MbarrierState state, const char* operation) {
  const int missing = state.missing_bytes();
  if (state.pending != 0 || missing > 0) {
    write_state(block, offset, state);
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

void arrive(Block& block, u32 offset, u32 bytes, const char* operation, u64 pc) {
  MbarrierState state = use_mbarrier(block, offset, operation, pc);
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

}  // namespace

MbarrierSlot* find_mbarrier(const Block& block, u32 offset) {
  const u32 index = g_slot_of[block.rank][offset / 8];
  return index ? &g_mbarriers.items[index - 1] : nullptr;
}

MbarrierState mbarrier_state(const Block& block, u32 offset, const char* operation) {
  const MbarrierState state = read_state(block, offset);
  if (__builtin_expect(!state.is_valid() || !find_mbarrier(block, offset), 0)) no_mbarrier(operation, block, offset);
  return state;
}

MbarrierState use_mbarrier(const Block& block, u32 offset, const char* operation, u64 pc) {
  // Before its state is looked at: whoever spoilt that is then known.
  if (g_observer) g_observer->mbarrier_use(address_of(block, offset), current_fiber(), pc);
  return mbarrier_state(block, offset, operation);
}

void see_completed(MbarrierSlot& slot) {
  slot.loads_unseen = 0;
  told_of_arrivals(slot.rank, slot.completed_from);
  slot.completed_from = {};
}

void mbarriers_begin_cluster() {
  for (u32 i = 0; i < g_mbarriers.count; ++i) g_slot_of[g_mbarriers.items[i].rank][g_mbarriers.items[i].offset / 8] = 0;
  g_mbarriers.count = 0;
  peer_arrivals_begin_cluster();
  polls_begin_cluster();
}

u32 mbarrier_offset(const void* barrier, const char* operation) {
  const Fiber& fiber = *current_fiber();
  const u64 offset = u64(barrier) - u64(fiber.shared), limit = fiber.owner->shared_bytes;
  if (u64(barrier) % sizeof(MbarrierState))
    fault("misaligned", "%s: the mbarrier shared%+lld is not at a multiple of 8", operation, (long long)offset);
  if (offset >= limit || limit - offset < sizeof(MbarrierState))
    fault("misuse", "%s: the mbarrier %p is not in this block's %u bytes of shared memory", operation, barrier,
          fiber.owner->shared_bytes);
  return u32(offset);
}

void mbarrier_load_issued(Block& block, u32 offset, u32 bytes) {
  mbarrier_state(block, offset, "tma_load");
  find_mbarrier(block, offset)->loads += bytes;
}

void mbarrier_load_landed(Block& block, u32 offset, u32 bytes) {
  constexpr const char* kOperation = "tma_load";
  MbarrierState state = mbarrier_state(block, offset, kOperation);
  check_bytes(state.missing_bytes() - int64_t(bytes), kOperation, block, offset);
  state.bytes -= bytes;
  settle(block, offset, state, kOperation);
}

void check_mbarriers_at_exit(const Block& block) {
  for (u32 i = 0; i < g_mbarriers.count; ++i) {
    const MbarrierSlot& slot = g_mbarriers.items[i];
    if (slot.rank != block.rank) continue;
    if (const u64 bytes = slot.loads + slot.loads_unseen)
      fault("misuse",
            "traffic in flight at exit: the block returns, and no thread of it has waited for %llu bytes that TMA "
            "loads bring into it, counted on mbarrier shared+%u",
            (unsigned long long)bytes, slot.offset);
    const MbarrierState state = read_state(block, slot.offset);
    if (state.is_valid() && state.missing_bytes())
      fault("misuse", "traffic in flight at exit: the block returns, and its mbarrier shared+%u still expects %d bytes",
            slot.offset, state.missing_bytes());
  }
  check_peer_arrivals_at_exit(block);
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
  g_mbarriers.add({block.rank, offset, 0, {}, 0, 0, {}, {}});
  slot = g_mbarriers.count;
  MbarrierState state = {};
  state.pending = state.expected = arrivals;
  state.bytes = kMaxCount;
  state.tag = 1;
  write_state(block, offset, state);
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
    if (MbarrierSlot* slot = find_mbarrier(block, offset)) slot->arrived_from.add(fiber.warp->index);
    peer_arrived(rank, fiber);
  }
  arrive(block, offset, 0, kOperation, u64(__builtin_return_address(0)));
}

void tw_fence_mbarrier_init() {
  if (tw::g_observer) tw::g_observer->fence_mbarrier_init(tw::current_fiber());
}

void tw_fence_proxy_async() {
  if (tw::g_observer) tw::g_observer->fence_proxy_async(tw::current_fiber());
}
