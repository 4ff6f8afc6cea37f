// Who runs next. Ready threads are one mask a warp: the next ready lane of the same warp comes first, then the next
// warp. A fiber switches straight to the next one, with no scheduler in between.
#pragma once
#include "runtime.hpp"

#pragma GCC visibility push(hidden)
namespace tw {
// The blocks that run together, and their threads.
struct Cluster {
  Fiber fibers[kMaxThreads];
  Warp warps[kMaxWarps];
  Block blocks[kMaxClusterBlocks];
  u32 block_count, warp_count, alive;
};
extern Cluster g_cluster;

// What a launch did. Python mirrors it (backends/emulator_runtime.py).
struct Counts {
  u64 blocks, switches;
  u64 early_exits;  // __syncthreads passed after a thread of the block had returned: hardware does not promise that
  u64 mbarrier_waits, mbarrier_blocked;  // by thread; blocked: those that had to wait
  u64 tma_loads, tma_stores;
  u64 dependency_waits, dependency_launches;  // griddepcontrol, by thread
};
extern Counts g_counts;

// Stops the running fiber until somebody makes it ready; `waiting` says for what, in a deadlock report. Best called last
// by a primitive, so that the compiler jumps and the fiber, made ready, goes on in the kernel at once.
void suspend(const char* waiting);

// Lets others run: the lanes above, then the next warps, so that all of them come before this fiber goes on.
void yield();

inline void make_ready(Warp& warp, u32 lanes) { warp.ready |= lanes; }

// Where each fiber starts: runs the kernel, then the next fiber; the last one returns to whoever called run_cluster.
void fiber_main();

// Runs the prepared g_cluster until its last thread has returned.
void run_cluster();

// Asked at each atomic: whoever spins on one waits for a thread that may not have run yet.
inline void yield_now_and_then() {
  constexpr u32 kTurn = 1024;  // a switch each time would make atomics several times as slow
  static u32 count;
  if (__builtin_expect(++count % kTurn == 0, 0)) yield();
}

enum : u32 { kAllThreads = ~0u };  // what __syncthreads needs: the block's live threads

// A thread has left: whoever waits for all live threads may have waited for it (barrier.cpp, warp.cpp).
void barriers_after_exit(Block& block);
void meeting_after_exit(Warp& warp);

[[noreturn]] void report_deadlock();
}  // namespace tw
#pragma GCC visibility pop
