// The deadlock report: who waits where.
#include "cluster.hpp"
#include "fault.hpp"
#include "mbarrier.hpp"
#include "scheduler.hpp"

namespace tw {
namespace {
constexpr u32 kMaxLines = 48;

// Threads first..last of one warp, or whole warps, that wait for the same thing.
struct Group {
  const Fiber* fiber;
  u32 first_warp, last_warp, first_lane, last_lane;
};

// The barrier that a thread waits at, if that is what it does.
const Barrier* barrier_of(const Fiber& fiber) {
  const u32 warp = fiber.thread_in_block / kWarpLanes;
  for (const Barrier& barrier : fiber.owner->barriers)
    if (barrier.waiting[warp] >> fiber.lane & 1) return &barrier;
  return nullptr;
}

// The lanes that a thread waits with for the rest of its warp.
u32 met_by(const Fiber& fiber) {
  const u32 arrived = fiber.warp->meeting.operation ? fiber.warp->meeting.arrived : 0;
  return arrived >> fiber.lane & 1 ? arrived : 0;
}

bool waits_alike(const Fiber& a, const Fiber& b) {
  return a.waiting == b.waiting && barrier_of(a) == barrier_of(b) && met_by(a) == met_by(b) &&
         mbarrier_of(a) == mbarrier_of(b);
}

bool is_whole_warp(const Group& group) {
  return group.first_lane == 0 && u32(__builtin_popcount(group.fiber->warp->members)) == group.last_lane + 1;
}

void print(const Group& group) {
  const Fiber& fiber = *group.fiber;
  const Block& block = *fiber.owner;
  const u32 base = block.first_warp->index;
  Report& report = g_report;
  report.add("\n  ");
  if (g_cluster.block_count > 1) report.add("block rank %u ", block.rank);
  if (group.first_warp == group.last_warp)
    report.add("warp %u lanes %u-%u: ", group.first_warp - base, group.first_lane, group.last_lane);
  else
    report.add("warps %u-%u: ", group.first_warp - base, group.last_warp - base);
  report.add("%s", fiber.waiting);
  if (const Barrier* barrier = barrier_of(fiber)) {
    const u32 needed = barrier->needed == kAllThreads ? block.alive : barrier->needed;
    report.add(" (barrier %u: %u of %u threads arrived)", u32(barrier - block.barriers), barrier->arrived, needed);
  } else if (const u32 arrived = met_by(fiber)) {
    report.add(" (%d of %d live lanes arrived)", __builtin_popcount(arrived), __builtin_popcount(fiber.warp->alive));
  } else if (mbarrier_of(fiber)) {
    describe_mbarrier(report, fiber);
  } else {
    describe_cluster_wait(report, fiber);
  }
}

// The longest run of lanes from `lane` on that wait alike.
Group lanes_from(const Warp& warp, u32 lane) {
  Group group = {warp.fibers[lane], warp.index, warp.index, lane, lane};
  while (group.last_lane + 1 < u32(__builtin_popcount(warp.members)) &&
         waits_alike(*group.fiber, *warp.fibers[group.last_lane + 1]))
    ++group.last_lane;
  return group;
}
}  // namespace

void report_deadlock() {
  g_report.add("no thread can run:");
  Group open = {};
  u32 lines = 0;
  const auto flush = [&] {
    if (open.fiber && ++lines <= kMaxLines) print(open);
    open.fiber = nullptr;
  };
  for (u32 w = 0; w < g_cluster.warp_count; ++w) {
    const Warp& warp = g_cluster.warps[w];
    for (u32 lane = 0; lane < u32(__builtin_popcount(warp.members));) {
      const Group group = lanes_from(warp, lane);
      lane = group.last_lane + 1;
      const bool extends = open.fiber && is_whole_warp(open) && is_whole_warp(group) &&
                           open.fiber->owner == group.fiber->owner && waits_alike(*open.fiber, *group.fiber);
      if (extends) {
        open.last_warp = group.last_warp;
        continue;
      }
      flush();
      open = group;
    }
  }
  flush();
  if (lines > kMaxLines) g_report.add("\n  and %u more groups", lines - kMaxLines);
  blame(nullptr);  // nobody's in particular
  const Dim3 block = g_cluster.blocks[0].index;
  fault("deadlock", " [block %u,%u,%u]", block.x, block.y, block.z);
}
}  // namespace tw
