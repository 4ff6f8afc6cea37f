// See launch.hpp. Cluster after cluster is set up and run; all of it on a stack of its own, so that a fault anywhere is
// one switch back to the caller.
#include "launch.hpp"
#include <string.h>
#include "async.hpp"
#include "cluster.hpp"
#include "context.hpp"
#include "cp_async.hpp"
#include "fault.hpp"
#include "mbarrier.hpp"
#include "memory.hpp"
#include "signals.hpp"
#include "tma.hpp"
#include "warpgroup.hpp"
#include "wgmma.hpp"

tw::Dim3 tw_block_dim, tw_grid_dim;
unsigned long long tw_fma_count;

namespace tw {
Observer* g_observer;

namespace {
const LaunchRequest* g_request;
void* g_main;
void* g_left_behind;
ObserverEntry* g_observers;
alignas(64) u8 g_driver_stack[256 << 10];

u32 threads_per_block() { return tw_block_dim.x * tw_block_dim.y * tw_block_dim.z; }

Dim3 unravel(u64 linear, Dim3 extent) {
  return {u32(linear % extent.x), u32(linear / extent.x % extent.y), u32(linear / extent.x / extent.y)};
}

// Stacks lie a power of two apart: without an offset of its own, each thread's frame would want the same cache sets.
u8* stack_top(u32 thread) { return stack_of(thread) + kStackBytes - thread * 9 % 64 * 64; }

void prepare_warp(Warp& warp, Block& block, u32 index_in_block) {
  const u32 lanes = block.threads - index_in_block * kWarpLanes;
  warp.members = lanes >= kWarpLanes ? ~0u : (1u << lanes) - 1;
  warp.ready = warp.alive = warp.members;
  warp.index = block.rank * block.warps + index_in_block;
  warp.index_in_block = index_in_block;
  warp.block = &block;
  warp.meeting.operation = nullptr;
  warp.meeting.arrived = 0;
}

void prepare_thread(Fiber& fiber, Block& block, u32 thread) {
  fiber.thread = unravel(thread, tw_block_dim);
  fiber.block = block.index;
  fiber.shared = block.shared;
  fiber.cluster_rank = block.rank;
  fiber.warp = block.first_warp + thread / kWarpLanes;
  fiber.owner = &block;
  fiber.lane = thread % kWarpLanes;
  fiber.warp->fibers[fiber.lane] = &fiber;
  fiber.thread_in_block = thread;
  fiber.id = block.rank * block.threads + thread;
  fiber.waiting = nullptr;
  fiber.stack = stack_of(fiber.id);
  fiber.stack_pointer = make_context(stack_top(fiber.id), fiber_main);
  copies_begin_thread(fiber);
}

void prepare_block(Block& block, u32 rank, u64 block_id) {
  block.rank = rank;
  block.threads = block.alive = threads_per_block();
  block.warps = (block.threads + kWarpLanes - 1) / kWarpLanes;
  block.shared = shared_of(rank);
  block.shared_bytes = g_request->shared_bytes;
  block.index = unravel(block_id, tw_grid_dim);
  block.first_warp = g_cluster.warps + rank * block.warps;
  memset(block.barriers, 0, sizeof block.barriers);
  memset(block.shared, kPoison, block.shared_bytes);
  for (u32 w = 0; w < block.warps; ++w) prepare_warp(block.first_warp[w], block, w);
  warpgroups_begin_block(block);
  wgmma_begin_block(block);
  Fiber* fibers = g_cluster.fibers + rank * block.threads;
  for (u32 thread = 0; thread < block.threads; ++thread) prepare_thread(fibers[thread], block, thread);
}

// What page protection cannot see of a stray store: it is found when the block has ended, too late to say whose it was.
void check_around_shared(const Block& block) {
  const u8* found = overwritten_around_shared(block.rank);
  if (!found) return;
  blame(nullptr);
  g_report.add("a write of unknown threads at ");
  describe_address(g_report, u64(found));
  fault("out-of-bounds", " [block %u,%u,%u]; check_bounds names thread and line", block.index.x, block.index.y,
        block.index.z);
}

// `ids` are those of the blocks, by rank.
void run(const u64* ids, u32 blocks) {
  poll_interrupts();
  for (u32 rank = 0; rank < blocks; ++rank) prepare_block(g_cluster.blocks[rank], rank, ids[rank]);
  g_cluster.block_count = blocks;
  g_cluster.warp_count = blocks * g_cluster.blocks[0].warps;
  g_cluster.alive = blocks * g_cluster.blocks[0].threads;
  mbarriers_begin_cluster();
  bulk_begin_cluster();
  cluster_barrier_begin();
  if (g_observer) g_observer->cluster_begin(g_cluster.blocks, blocks, g_cluster.blocks[0].threads);
  run_cluster();
  if (g_observer) g_observer->cluster_end();
  for (u32 rank = 0; rank < blocks; ++rank) check_around_shared(g_cluster.blocks[rank]);
  g_counts.blocks += blocks;
}

// Blocks that run together: a cluster's, or as many as were asked for.
u32 resident(const LaunchRequest& request) {
  return request.cluster_blocks > 1 ? request.cluster_blocks : request.together;
}

// The body of a launch, on the driver's stack.
void drive() {
  set_leavable(true);
  const LaunchRequest& request = *g_request;
  const u64 size = request.cluster_blocks, blocks = u64(request.grid[0]) * request.grid[1] * request.grid[2];
  const u64 count = request.block_ids ? request.block_id_count : blocks;
  const u64 most = resident(request);
  u64 ids[kMaxClusterBlocks], last = ~u64(0);
  u32 gathered = 0;
  for (u64 i = 0; i < count; ++i) {
    const u64 block = request.block_ids ? request.block_ids[i] : i, cluster = block / size;
    if (size > 1 && cluster == last) continue;  // one run for neighbours of one cluster
    last = cluster;
    for (u64 rank = 0; rank < size; ++rank) ids[gathered++] = cluster * size + rank;
    if (gathered < most && i + 1 < count) continue;
    run(ids, gathered);
    gathered = 0;
  }
  end_launch();
}

Observer* find_observer(const char* name) {
  for (const ObserverEntry* entry = g_observers; name && entry; entry = entry->next)
    if (strcmp(entry->name, name) == 0) return entry->observer;
  return nullptr;
}
}  // namespace

ObserverEntry::ObserverEntry(const char* name, Observer* observer) : name(name), observer(observer), next(g_observers) {
  g_observers = this;
}

void call_kernel() { g_request->thunk(g_request->arguments); }

bool is_launch_state(u64 address) { return address - g_request->arguments_begin < g_request->arguments_bytes; }

void* main_context() {
  set_leavable(false);
  return g_main;
}

void end_launch() {
  tw_context_switch(&g_left_behind, main_context());
  __builtin_unreachable();
}
}  // namespace tw

extern "C" void __cxa_pure_virtual() { __builtin_trap(); }

TW_API void tw_launch(const tw::LaunchRequest* request, tw::LaunchResult* result) {
  using namespace tw;
  memset(result, 0, offsetof(LaunchResult, report) + 1);
  g_request = request;
  g_report.clear();
  g_counts = {};
  tw_fma_count = 0;
  tw_block_dim = {request->block[0], request->block[1], request->block[2]};
  tw_grid_dim = {request->grid[0], request->grid[1], request->grid[2]};
  register_buffers(request->buffers, request->buffer_count);
  async_begin_launch(AsyncPolicy(request->policy), request->seed);
  g_observer = find_observer(request->observer);

  if (request->observer && !g_observer) {
    set_kind("internal");
    g_report.add("no observer is called %s", request->observer);
  } else if (!reserve_stacks(resident(*request) * threads_per_block()) ||
             !reserve_shared(resident(*request), request->shared_bytes)) {
    set_kind("memory");
    const u32 threads = resident(*request) * threads_per_block();
    g_report.add(
        "the system gives no memory for %u threads: %llu MB of address space for their stacks, and shared memory "
        "(ulimit -v may forbid it)",
        threads, threads * (unsigned long long)(kStackBytes + kStackGuard) >> 20);
  } else {
    catch_signals(request->interrupts != 0);
    tw_context_switch(&g_main, make_context(g_driver_stack + sizeof g_driver_stack, drive));
    release_signals();
    if (g_interrupts && !g_report.kind[0]) set_kind("interrupted");  // it came when all was done
  }
  g_observer = nullptr;
  tw_current = nullptr;
  result->counts = g_counts;
  result->fmas = tw_fma_count;
  memcpy(result->kind, g_report.kind, sizeof result->kind);
  memcpy(result->report, g_report.text, g_report.length + 1);
}
