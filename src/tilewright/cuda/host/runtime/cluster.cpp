// See cluster.hpp. The last of the cluster's live threads to arrive wakes those that wait (PTX ISA, "barrier.cluster").
#include "cluster.hpp"
#include <string.h>
#include "peer_arrivals.hpp"
#include "scheduler.hpp"

namespace tw {
namespace {
struct ClusterBarrier {
  u32 phase;    // from 1
  u32 missing;  // live threads that have not arrived in it
  u32 waiting[kMaxWarps];  // lanes
  u32 arrived[kMaxThreads];  // the phase in which a thread arrived that it has not waited for; 0: none
} g_barrier;

void complete() {
  ++g_barrier.phase;
  g_barrier.missing = g_cluster.alive;
  cluster_orders_arrivals();
  if (g_observer) g_observer->barrier_complete(&g_barrier);
  for (u32 w = 0; w < g_cluster.warp_count; ++w) {
    Warp& warp = g_cluster.warps[w];
    for (u32 lanes = g_barrier.waiting[w]; lanes; lanes &= lanes - 1) {
      Fiber* fiber = warp.fibers[__builtin_ctz(lanes)];
      g_barrier.arrived[fiber->id] = 0;
      if (g_observer) g_observer->barrier_leave(&g_barrier, fiber);
    }
    make_ready(warp, g_barrier.waiting[w]);
    g_barrier.waiting[w] = 0;
  }
}

bool waits(const Fiber& fiber) { return g_barrier.waiting[fiber.warp->index] >> fiber.lane & 1; }
}  // namespace

void cluster_barrier_begin() {
  memset(g_barrier.waiting, 0, g_cluster.warp_count * sizeof g_barrier.waiting[0]);
  memset(g_barrier.arrived, 0, g_cluster.alive * sizeof g_barrier.arrived[0]);
  g_barrier.phase = 1;
  g_barrier.missing = g_cluster.alive;
}

void cluster_barrier_after_exit(const Fiber& fiber) {
  // A thread that has returned counts as arrived.
  if (g_barrier.arrived[fiber.id] != g_barrier.phase && --g_barrier.missing == 0 && g_cluster.alive != 0) complete();
}

bool has_arrived_at_cluster(const Fiber& fiber) { return g_barrier.arrived[fiber.id] != 0; }

void describe_cluster_wait(Report& report, const Fiber& fiber) {
  if (waits(fiber))
    report.add(" (%u of the cluster's %u live threads arrived)", g_cluster.alive - g_barrier.missing, g_cluster.alive);
}
}  // namespace tw

void tw_cluster_arrive() {
  using namespace tw;
  Fiber& fiber = *current_fiber();
  if (g_barrier.arrived[fiber.id]) fault("misuse", "cluster_arrive: the thread has not waited since it arrived last");
  if (g_observer) g_observer->barrier_arrive(&g_barrier, &fiber);
  g_barrier.arrived[fiber.id] = g_barrier.phase;
  if (--g_barrier.missing == 0) complete();
}

void tw_cluster_wait() {
  using namespace tw;
  Fiber& fiber = *current_fiber();
  const u32 arrived = g_barrier.arrived[fiber.id];
  if (arrived == 0) fault("misuse", "cluster_wait: the thread has not arrived");
  if (arrived != g_barrier.phase) {
    g_barrier.arrived[fiber.id] = 0;
    if (g_observer) g_observer->barrier_leave(&g_barrier, &fiber);
    return;
  }
  g_barrier.waiting[fiber.warp->index] |= 1u << fiber.lane;
  suspend("cluster_wait");
}

void* tw_in_block(const void* shared, unsigned rank) {
  using namespace tw;
  const Fiber& fiber = *current_fiber();
  const u64 offset = u64(shared) - u64(fiber.shared);
  if (offset >= fiber.owner->shared_bytes)
    fault("misuse", "store_remote: %p is not in this block's %u bytes of shared memory", shared, fiber.owner->shared_bytes);
  if (rank >= g_cluster.block_count)
    fault("misuse", "store_remote: block rank %u of a cluster of %u", rank, g_cluster.block_count);
  const Block& block = g_cluster.blocks[rank];
  if (block.alive == 0)
    fault("misuse", "store_remote: block rank %u has returned, and its shared memory with it", rank);
  return block.shared + offset;
}
