// See tma.hpp.
#include "tma.hpp"
#include <string.h>
#include "async.hpp"
#include "mbarrier.hpp"
#include "memory.hpp"
#include "scheduler.hpp"
#include "tensor_map.hpp"

namespace tw {
namespace {
// What loads and stores have in common. The map is a copy: the kernel's own may be gone before the box has moved.
struct Box {
  TensorMapImage map;
  BoxAt at;
  u32 offset;  // in shared memory
  u32 number;  // which observers know it by
  u64 due;     // at random: the moment at which it, or a load's part for one block, is done
  Fiber* issuer;
};
struct Load {
  Box box;
  u32 barrier;  // offset of the mbarrier
  u32 blocks;   // of the cluster, by rank: those in which it has not landed
};
struct Store {
  Box box;
  u32 group;
  bool done;
};

InFlight<Load> g_loads;
InFlight<Store> g_stores;  // until they are waited for, done or not
u32 g_open_group[kMaxThreads];  // number of the group that a thread's next commit closes
InFlight<u32> g_free_numbers;
u32 g_numbers;  // those below were taken
u64 g_moment;   // counts the times at which something may be done at random
u64 g_next_due;  // no work in flight is due before

Box make_box(const void* map, const void* shared, int rank, const int* at, const char* operation) {
  Fiber& fiber = *current_fiber();
  Box box = {tensor_map_at(map, operation), {}, 0, 0, 0, &fiber};
  for (int d = 0; d < rank; ++d) box.at[d] = at[d];
  if (box.map.rank != u32(rank))
    fault("misuse", "%s: %d coordinates for a tensor map of rank %u", operation, rank, box.map.rank);
  if (const long long bytes = (long long)at[0] * box.map.element_bytes; bytes % 16)  // measured on an H200
    fault("misuse", "%s_%dd: x = %d elements are %lld bytes; the first coordinate must be a multiple of 16 bytes, or "
          "hardware traps", operation, rank, at[0], bytes);
  const u64 offset = u64(shared) - u64(fiber.shared), limit = fiber.owner->shared_bytes;
  if (offset >= limit || limit - offset < box.map.box_bytes())
    fault("out-of-bounds", "%s: the box of %u bytes at shared%+lld is not in this block's %u bytes of shared memory",
          operation, box.map.box_bytes(), (long long)offset, fiber.owner->shared_bytes);
  if (offset % box.map.alignment())
    fault("misaligned", "%s: shared+%u is not at a multiple of %u, as a box with %u bytes of swizzle has to be",
          operation, u32(offset), box.map.alignment(), box.map.swizzle_bytes);
  box.offset = u32(offset);
  box.number = g_free_numbers.count ? g_free_numbers.items[--g_free_numbers.count] : g_numbers++;
  return box;
}

void end(const Box& box) {
  if (g_observer) g_observer->bulk_end(box.number);
  g_free_numbers.add(box.number);
}

// `blocks`: those whose shared memory it moves.
void begin(const Box& box, u32 blocks, bool is_store, u64 pc) {
  if (!g_observer) return;
  const u32 bytes = box.map.box_bytes();
  const BulkTraffic traffic = {box.map.base, bytes_inside(box.map, box.at), bytes, u32(__builtin_popcount(blocks))};
  g_observer->bulk_begin(box.issuer, box.number, is_store, traffic, pc);
  for (; blocks; blocks &= blocks - 1)
    g_observer->bulk_shared(box.number, u32(__builtin_ctz(blocks)), box.offset, bytes);
}

// The load arrives in one block. A fault is the issuer's.
void land(Load& load, u32 rank) {
  Fiber* running = current_fiber();
  tw_current = load.box.issuer;
  Block& block = g_cluster.blocks[rank];
  load.blocks &= ~(1u << rank);
  load_box(load.box.map, load.box.at, block.shared, load.box.offset);
  if (g_observer) g_observer->bulk_done(load.box.number, block.shared + load.barrier);
  mbarrier_load_landed(block, load.barrier, load.box.map.box_bytes());
  if (!load.blocks) end(load.box);
  tw_current = running;
}

// A delay of any order of magnitude, in moments: there is one at each switch between fibers.
void delay(Box& box) {
  box.due = g_moment + random_below(1u << random_below(14));
  if (box.due < g_next_due) g_next_due = box.due;
}

// Into one of the blocks that it has not arrived in, the first or any of them.
void land_next(u32 index, bool any) {
  Load& load = g_loads.items[index];
  u32 blocks = load.blocks;
  for (u32 skip = any ? random_below(u32(__builtin_popcount(blocks))) : 0; skip; --skip) blocks &= blocks - 1;
  land(load, u32(__builtin_ctz(blocks)));
  if (load.blocks)
    delay(load.box);
  else
    g_loads.remove(index);
}

void read_shared(Store& store) {
  if (store.done) return;
  store.done = true;
  store_box(store.box.map, store.box.at, store.box.issuer->shared, store.box.offset);
}

void check_destinations(u32 blocks) {
  if (blocks == 0 || blocks >> g_cluster.block_count)
    fault("misuse", "tma_load: multicast to blocks 0x%x of a cluster of %u", blocks, g_cluster.block_count);
  for (; blocks; blocks &= blocks - 1)
    if (const u32 rank = u32(__builtin_ctz(blocks)); g_cluster.blocks[rank].alive == 0)
      fault("misuse", "tma_load: multicast to block rank %u, which has returned, and its shared memory with it", rank);
}
}  // namespace

void bulk_begin_cluster() {
  g_loads.count = g_stores.count = g_free_numbers.count = g_numbers = 0;
  g_moment = 0;
  g_next_due = ~u64(0);
  memset(g_open_group, 0, sizeof g_open_group);
}

void bulk_progress() {
  if (++g_moment < g_next_due) return;
  g_next_due = ~u64(0);
  for (u32 i = g_loads.count; i-- > 0;) {  // from the newest, so that a removal moves only what has been seen
    if (g_loads.items[i].box.due <= g_moment)
      land_next(i, true);
    else if (g_loads.items[i].box.due < g_next_due)
      g_next_due = g_loads.items[i].box.due;
  }
  for (u32 i = 0; i < g_stores.count; ++i) {
    Store& store = g_stores.items[i];
    if (store.box.due <= g_moment)
      read_shared(store);
    else if (store.box.due < g_next_due)
      g_next_due = store.box.due;
  }
}

bool land_late() {
  if (!g_loads.count) return false;
  land_next(g_policy == AsyncPolicy::kRandom ? random_below(g_loads.count) : 0, g_policy == AsyncPolicy::kRandom);
  return true;
}

void check_stores_at_exit(const Fiber& fiber) {
  u32 mine = 0, uncommitted = 0;
  for (u32 i = 0; i < g_stores.count; ++i) {
    if (g_stores.items[i].box.issuer != &fiber) continue;
    ++mine;
    uncommitted += g_stores.items[i].group == g_open_group[fiber.id];
  }
  if (mine)
    fault("misuse",
          "traffic in flight at exit: the thread returns with %u TMA stores that may still read shared memory, since "
          "it has not waited for them; %u of them are not committed",
          mine, uncommitted);
}
}  // namespace tw

void tw_tma_prefetch(const void* map) { tw::tensor_map_at(map, "tma_prefetch_map"); }

void tw_tma_load(void* shared_dst, const void* map, void* barrier, int rank, const int* at, bool multicast,
                 unsigned blocks) {
  using namespace tw;
  const Fiber& fiber = *current_fiber();
  if (!multicast) blocks = 1u << fiber.cluster_rank;
  check_destinations(blocks);
  Load load = {make_box(map, shared_dst, rank, at, "tma_load"), mbarrier_offset(barrier, "tma_load"), blocks};
  const u32 bytes = load.box.map.box_bytes();
  for (u32 left = blocks; left; left &= left - 1)
    mbarrier_load_issued(g_cluster.blocks[__builtin_ctz(left)], load.barrier, bytes);
  ++g_counts.tma_loads;
  begin(load.box, blocks, false, u64(__builtin_return_address(0)));
  if (g_policy == AsyncPolicy::kEager) {
    while (load.blocks) land(load, u32(__builtin_ctz(load.blocks)));
    return;
  }
  for (u32 left = blocks; left; left &= left - 1)
    memset(g_cluster.blocks[__builtin_ctz(left)].shared + load.box.offset, kPoison, bytes);
  delay(g_loads.add(load).box);
  async_progress(fiber);
}

void tw_tma_store(const void* map, const void* shared_src, int rank, const int* at) {
  using namespace tw;
  const Fiber& fiber = *current_fiber();
  const Box box = make_box(map, shared_src, rank, at, "tma_store");
  for (int d = 0; d < rank; ++d)
    if (at[d] < 0)  // measured on an H200; loads may
      fault("misuse", "tma_store_%dd: coordinate %d is %d; a store begins inside the tensor or past its end, or hardware "
            "traps", rank, d, at[d]);
  Store& store = g_stores.add({box, g_open_group[fiber.id], false});
  ++g_counts.tma_stores;
  begin(store.box, 1u << fiber.cluster_rank, true, u64(__builtin_return_address(0)));
  if (g_policy == AsyncPolicy::kEager) read_shared(store);
  delay(store.box);
  async_progress(fiber);
}

void tw_tma_store_commit() {
  using namespace tw;
  Fiber& fiber = *current_fiber();
  ++g_open_group[fiber.id];
  if (g_observer) g_observer->bulk_commit(&fiber);
}

void tw_tma_store_wait(int newest_allowed, bool read_only) {
  using namespace tw;
  Fiber& fiber = *current_fiber();
  async_progress(fiber);
  const auto is_due = [&](const Store& store) {
    return store.box.issuer == &fiber && store.group + u32(newest_allowed) < g_open_group[fiber.id];
  };
  // What was read is written at once as well, so that a wait for reads only is no different here.
  for (u32 i = 0; i < g_stores.count; ++i)
    if (is_due(g_stores.items[i])) read_shared(g_stores.items[i]);
  if (g_observer) g_observer->bulk_wait(&fiber, u32(newest_allowed), read_only);
  for (u32 i = 0; i < g_stores.count;) {
    if (!is_due(g_stores.items[i])) {
      ++i;
      continue;
    }
    end(g_stores.items[i].box);
    g_stores.remove(i);
  }
}
