// See scheduler.hpp.
#include "scheduler.hpp"
#include "async.hpp"
#include "cluster.hpp"
#include "context.hpp"
#include "cp_async.hpp"
#include "launch.hpp"
#include "mbarrier.hpp"
#include "tma.hpp"
#include "warpgroup.hpp"
#include "wgmma.hpp"

tw::Context* tw_current;

namespace tw {
Cluster g_cluster;
Counts g_counts;

namespace {
void* g_runner;  // the context that called run_cluster
void* g_left_behind;
bool g_polls_next;

Fiber* take(Warp& warp, u32 candidates) {
  const u32 lane = u32(__builtin_ctz(candidates));
  warp.ready &= ~(1u << lane);
  return warp.fibers[lane];
}

[[gnu::noinline]] Fiber* from_next_warp(u32 index) {
  wgmma_progress(g_cluster.warps[index]);
  for (u32 tried = 0; tried < g_cluster.warp_count; ++tried) {
    if (++index == g_cluster.warp_count) index = 0;
    Warp& other = g_cluster.warps[index];
    if (other.ready) return take(other, other.ready);
  }
  return nullptr;
}

// When nobody is ready: what was put off until now. Polls time out and loads land in turns, so that a kernel that polls
// sees both answers.
bool do_late_work() {
  g_polls_next = !g_polls_next;
  return g_polls_next ? land_late() || time_out_polls() : time_out_polls() || land_late();
}

[[gnu::noinline]] Fiber* when_all_wait(u32 index) {
  while (do_late_work())
    if (Fiber* next = from_next_warp(index)) return next;
  return nullptr;
}

[[gnu::always_inline]] inline Fiber* after(const Fiber& last) {
  Warp& warp = *last.warp;
  if (!warp.ready) return from_next_warp(warp.index);
  const u32 above = warp.ready & ~((2u << last.lane) - 1);
  return take(warp, above ? above : warp.ready);
}

[[gnu::always_inline]] inline void switch_to(Fiber* next, Fiber& from) {
  if (next == &from) return;
  ++g_counts.switches;
  async_progress(*next);
  tw_current = next;
  tw_context_switch(&from.stack_pointer, next->stack_pointer);
}

[[gnu::always_inline]] inline void switch_to_next(Fiber& from) {
  poll_interrupts();
  Fiber* next = after(from);
  if (__builtin_expect(next == nullptr, 0)) next = when_all_wait(from.warp->index);
  if (__builtin_expect(next == nullptr, 0)) report_deadlock();
  switch_to(next, from);
}
}  // namespace

void suspend(const char* waiting) {
  Fiber& fiber = *current_fiber();
  fiber.waiting = waiting;
  async_progress(fiber);
  switch_to_next(fiber);
}

void yield() {
  poll_interrupts();
  Fiber& fiber = *current_fiber();
  Warp& warp = *fiber.warp;
  land_late();  // whoever yields may spin until somebody runs who waits for it
  make_ready(warp, 1u << fiber.lane);
  async_progress(fiber);
  const u32 above = warp.ready & ~((2u << fiber.lane) - 1);
  switch_to(above ? take(warp, above) : from_next_warp(warp.index), fiber);
}

void fiber_main() {
  call_kernel();
  Fiber& fiber = *current_fiber();
  check_copies_at_exit(fiber);
  check_stores_at_exit(fiber);
  check_wgmma_at_exit(fiber);
  check_warpgroup_at_exit(fiber);
  if (g_observer) g_observer->thread_exit(&fiber);
  fiber.waiting = "exited";
  fiber.warp->alive &= ~(1u << fiber.lane);
  --fiber.owner->alive;
  --g_cluster.alive;
  meeting_after_exit(*fiber.warp);
  barriers_after_exit(*fiber.owner);
  cluster_barrier_after_exit(fiber);
  if (fiber.owner->alive == 0) check_mbarriers_at_exit(*fiber.owner);
  if (g_cluster.alive == 0) tw_context_switch(&g_left_behind, g_runner);
  switch_to_next(fiber);
  __builtin_unreachable();
}

void run_cluster() {
  g_polls_next = true;
  Warp& first = g_cluster.warps[0];
  tw_current = take(first, 1);
  tw_context_switch(&g_runner, current_fiber()->stack_pointer);
  tw_current = nullptr;
}
}  // namespace tw
