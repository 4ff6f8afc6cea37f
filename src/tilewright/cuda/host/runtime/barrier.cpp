// Barriers of a block: __syncthreads and the named ones. The last to arrive wakes the others.
#include "scheduler.hpp"

namespace tw {
namespace {
[[gnu::noinline]] void complete(Block& block, Barrier& barrier) {
  barrier.arrived = 0;
  if (g_observer) g_observer->barrier_complete(&barrier);
  for (u32 w = 0; w < block.warps; ++w) {
    const u32 lanes = barrier.waiting[w];
    if (!lanes) continue;
    barrier.waiting[w] = 0;
    Warp& warp = block.first_warp[w];
    make_ready(warp, lanes);
    if (!g_observer) continue;
    for (u32 left = lanes; left; left &= left - 1)
      g_observer->barrier_leave(&barrier, warp.fibers[__builtin_ctz(left)]);
  }
}

bool is_complete(const Block& block, const Barrier& barrier) {
  return barrier.arrived == (barrier.needed == kAllThreads ? block.alive : barrier.needed);
}

// Named barriers count warps, each as 32 threads (PTX ISA, "barrier"). The threads that a block's last warp lacks
// arrive with its lane 0. __syncthreads counts those that are alive.
[[gnu::always_inline]] inline u32 weight(const Fiber& fiber, u32 needed) {
  const u32 members = fiber.warp->members;
  if (members == ~0u || needed == kAllThreads || fiber.lane != 0) return 1;
  return 1 + kWarpLanes - u32(__builtin_popcount(members));
}

// Whether the barrier is complete with this thread.
[[gnu::always_inline]] inline bool arrive(Barrier& barrier, u32 needed) {
  Fiber& fiber = *current_fiber();
  if (g_observer) g_observer->barrier_arrive(&barrier, &fiber);
  if (barrier.arrived == 0) barrier.needed = needed;
  if (barrier.needed != needed) {
    const u32 id = u32(&barrier - fiber.warp->block->barriers);
    if (needed == kAllThreads || barrier.needed == kAllThreads)
      fault("misuse", "barrier %u is used by __syncthreads and as a named barrier at the same time", id);
    fault("misuse", "barrier %u is used with %u and with %u threads at the same time", id, barrier.needed, needed);
  }
  barrier.arrived += weight(fiber, needed);
  if (!is_complete(*fiber.warp->block, barrier)) return false;
  complete(*fiber.warp->block, barrier);
  return true;
}

[[gnu::always_inline]] inline void sync(Barrier& barrier, u32 needed, const char* name) {
  Fiber& fiber = *current_fiber();
  if (arrive(barrier, needed)) {
    if (g_observer) g_observer->barrier_leave(&barrier, &fiber);
    return;
  }
  barrier.waiting[fiber.warp->index_in_block] |= 1u << fiber.lane;
  suspend(name);
}

Barrier& named(int id, int threads) {
  Block& block = *current_fiber()->warp->block;
  if (id < 0 || id >= int(kBarriers))
    fault("misuse", "barrier %d: a block has barriers 0 to %d", id, int(kBarriers) - 1);
  if (threads <= 0 || threads % int(kWarpLanes) || threads > int((block.threads + 31) / 32 * 32))
    fault("misuse", "barrier %d for %d threads: a multiple of 32 up to the block's %u is possible", id, threads,
          block.threads);
  return block.barriers[id];
}

// bar.sync is an aligned barrier: all threads of a warp have to execute the same one (PTX ISA, "barrier").
[[noreturn, gnu::noinline]] void diverged(const Warp& warp, u32 waiting, u32 place) {
  fault("divergence",
        "lane %u of warp %u is at the __syncthreads of line %u while lanes 0x%08x of it wait at another, of line %u",
        current_fiber()->lane, warp.index_in_block, place >> 16, waiting, warp.sync_place >> 16);
}
}  // namespace

void barriers_after_exit(Block& block) {
  Barrier& barrier = block.barriers[0];
  if (barrier.arrived == 0 || barrier.needed != kAllThreads || !is_complete(block, barrier)) return;
  ++g_counts.early_exits;
  complete(block, barrier);
}
}  // namespace tw

void tw_syncthreads(unsigned place) {
  tw::Warp& warp = *tw::current_fiber()->warp;
  tw::Block& block = *warp.block;
  const tw::u32 waiting = block.barriers[0].waiting[warp.index_in_block];
  if (!waiting)
    warp.sync_place = place;
  else if (__builtin_expect(warp.sync_place != place, 0))
    tw::diverged(warp, waiting, place);
  if (block.alive != block.threads) ++tw::g_counts.early_exits;
  tw::sync(block.barriers[0], tw::kAllThreads, "__syncthreads");
}

void tw_barrier_sync(int id, int threads) { tw::sync(tw::named(id, threads), tw::u32(threads), "barrier_sync"); }

void tw_barrier_arrive(int id, int threads) { tw::arrive(tw::named(id, threads), tw::u32(threads)); }
