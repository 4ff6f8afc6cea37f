// An mbarrier as its operations (mbarrier.cpp) and its waits (mbarrier_wait.cpp) see it: the 8 bytes, and its slot with
// what they cannot hold.
#pragma once
#include "async.hpp"
#include "peer_arrivals.hpp"
#include "scheduler.hpp"

#pragma GCC visibility push(hidden)
namespace tw {
enum : u32 { kMaxCount = (1 << 20) - 1 };  // of arrivals, and of bytes either way (PTX ISA, "mbarrier")

// The 8 bytes. Poison has another tag, and so have zeros.
struct MbarrierState {
  u64 pending : 20, expected : 20;
  u64 bytes : 21;  // those announced less those landed, plus kMaxCount: they may land first
  u64 phase : 1;   // the parity of the phase under way
  u64 tag : 2;

  int missing_bytes() const { return int(bytes) - int(kMaxCount); }
  bool is_valid() const { return tag == 1 && expected != 0 && pending <= expected && bytes <= 2 * kMaxCount; }
};
static_assert(sizeof(MbarrierState) == 8, "an mbarrier has 8 bytes");

struct MbarrierSlot {
  u32 rank, offset;
  u32 waiting_warps;  // of the block
  u32 waiting[kMaxThreadsPerBlock / kWarpLanes];  // lanes of these
  // Bytes of TMA loads that count for the phase under way, and for completed ones that no thread has waited for.
  u64 loads, loads_unseen;
  WarpSet arrived_from, completed_from;  // the same of warps of other blocks that arrived
};
extern InFlight<MbarrierSlot> g_mbarriers;

// Null where none was initialised.
MbarrierSlot* find_mbarrier(const Block& block, u32 offset);

inline u8* address_of(const Block& block, u32 offset) { return block.shared + offset; }

inline MbarrierState read_state(const Block& block, u32 offset) {
  MbarrierState state;
  __builtin_memcpy(&state, address_of(block, offset), sizeof state);
  return state;
}

// Both fault where there is no mbarrier; the latter before its state is looked at tells observers of its use.
MbarrierState mbarrier_state(const Block& block, u32 offset, const char* operation);
MbarrierState use_mbarrier(const Block& block, u32 offset, const char* operation, u64 pc);

// A thread of the block knows that the phases before the one under way have completed.
void see_completed(MbarrierSlot& slot);
// The phase has completed that all waiting threads wait for.
void wake_waiting(Block& block, MbarrierSlot& slot);
void polls_begin_cluster();
}  // namespace tw
#pragma GCC visibility pop
