// See memory.hpp.
#include "memory.hpp"
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

namespace tw {
namespace {
// From one block's arena to the next: the arena and what guards its end, a multiple of any page size (64 KB at most).
constexpr u64 kArenaStride = kSharedArena + (128u << 10);
constexpr u64 kSharedAlignment = 1024;  // what a 128-byte swizzle needs of its shared memory

constexpr u64 kStackStride = kStackGuard + kStackBytes;

u8* g_stacks;
u32 g_stack_count;
u8* g_arenas;
u32 g_arena_count, g_arena_bytes;

u64 page_bytes() {
  static const u64 bytes = u64(sysconf(_SC_PAGESIZE));
  return bytes;
}

u64 round_up(u64 value, u64 to) { return (value + to - 1) / to * to; }

u8* map(u64 bytes, int protection) {
#if !defined(MAP_NORESERVE)
  constexpr int kNoReserve = 0;
#else
  constexpr int kNoReserve = MAP_NORESERVE;
#endif
  void* address = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | kNoReserve, -1, 0);
  return address == MAP_FAILED ? nullptr : static_cast<u8*>(address);
}

bool open(u8* address, u64 bytes) { return bytes == 0 || mprotect(address, bytes, PROT_READ | PROT_WRITE) == 0; }
}  // namespace

bool reserve_stacks(u32 threads) {
  if (threads <= g_stack_count) return true;
  if (g_stacks) munmap(g_stacks, g_stack_count * kStackStride);
  g_stack_count = 0;
  g_stacks = map(threads * kStackStride, PROT_NONE);
  if (!g_stacks) return false;
  for (u32 i = 0; i < threads; ++i) {
    if (open(stack_of(i), kStackBytes)) continue;
    // A process may have some 65000 mappings, and each guard is one. Without room for them, the rest goes unguarded.
    if (!open(stack_of(i), (threads - i) * kStackStride - kStackGuard)) {
      munmap(g_stacks, threads * kStackStride);
      g_stacks = nullptr;
      return false;
    }
    break;
  }
  g_stack_count = threads;
  return true;
}

u8* stack_of(u32 thread) { return g_stacks + thread * kStackStride + kStackGuard; }

// Shared memory ends at a protected page, but for what its alignment leaves, and protected pages lie below its first.
static u8* arena_end(u32 rank) { return g_arenas + rank * kArenaStride + kSharedArena; }

u8* shared_of(u32 rank) { return arena_end(rank) - round_up(g_arena_bytes, kSharedAlignment); }

static u8* first_page(u32 rank) {
  u8* shared = shared_of(rank);
  return shared - u64(shared) % page_bytes();
}

static void poison_around_shared() {
  for (u32 rank = 0; g_arena_bytes > 0 && rank < g_arena_count; ++rank) {
    u8 *const shared = shared_of(rank), *const end = shared + g_arena_bytes;
    memset(first_page(rank), kPoison, u64(shared - first_page(rank)));
    memset(end, kPoison, u64(arena_end(rank) - end));
  }
}

bool reserve_shared(u32 blocks, u32 bytes) {
  if (!g_arenas) g_arenas = map(kMaxClusterBlocks * kArenaStride, PROT_NONE);
  if (!g_arenas) return false;
  if (blocks == g_arena_count && bytes == g_arena_bytes) {
    poison_around_shared();
    return true;
  }
  if (mprotect(g_arenas, kMaxClusterBlocks * kArenaStride, PROT_NONE) != 0) return false;
  g_arena_count = blocks;
  g_arena_bytes = bytes;
  for (u32 rank = 0; rank < blocks; ++rank) {
    if (bytes > 0 && !open(first_page(rank), u64(arena_end(rank) - first_page(rank)))) {
      g_arena_count = 0;
      return false;
    }
  }
  poison_around_shared();
  return true;
}

static const u8* changed(const u8* from, const u8* to) {
  if (from == to || (*from == kPoison && memcmp(from, from + 1, u64(to - from) - 1) == 0)) return nullptr;
  while (*from == kPoison) ++from;
  return from;
}

const u8* overwritten_around_shared(u32 rank) {
  if (g_arena_bytes == 0) return nullptr;
  const u8* shared = shared_of(rank);
  const u8* below = changed(first_page(rank), shared);
  return below ? below : changed(shared + g_arena_bytes, arena_end(rank));
}

static bool is_stack_guard(u64 address) {
  const u64 offset = address - u64(g_stacks);
  return offset < g_stack_count * kStackStride && offset % kStackStride < kStackGuard;
}

static bool describe_shared(Report& report, u64 address) {
  for (u32 rank = 0; rank < g_arena_count; ++rank) {
    const u64 arena = u64(g_arenas) + rank * kArenaStride;
    if (address < arena || address >= arena + kArenaStride) continue;
    report.add("shared%+lld of block rank %u, which has %u shared bytes", (long long)(address - u64(shared_of(rank))),
               rank, g_arena_bytes);
    return true;
  }
  return false;
}

static void describe_near(Report& report, u64 address, u32 index, u32 count, const Buffer& buffer) {
  static const char* const operands[] = {" (a)", " (b)", " (c)", " (partials)", " (counters)"};
  const u64 end = buffer.base + extent_of(buffer);
  const u64 element = buffer.element_bytes ? buffer.element_bytes : 1;
  if (address < buffer.base)
    report.add("%llu bytes before", (unsigned long long)(buffer.base - address));
  else if (address >= end)
    report.add("%llu bytes past the end of", (unsigned long long)(address - end));
  else
    report.add("inside");
  report.add(" matrix %u%s of %llux%llu elements of %llu bytes", index, count == 3 || count == 5 ? operands[index] : "",
             (unsigned long long)buffer.rows, (unsigned long long)(buffer.row_bytes / element),
             (unsigned long long)element);
  if (address < buffer.base || buffer.pitch == 0) return;
  const u64 offset = address - buffer.base;
  const u64 row = buffer.rows > 1 ? offset / buffer.pitch : 0;
  report.add(", where row %llu, column %llu would be", (unsigned long long)row,
             (unsigned long long)((offset - row * buffer.pitch) / element));
}

void describe_address(Report& report, u64 address) {
  report.add("address 0x%llx: ", (unsigned long long)address);
  if (is_stack_guard(address)) {
    report.add("a thread's local memory of %u KB has overflowed", kLocalBytes >> 10);
    return;
  }
  if (describe_shared(report, address)) return;
  u32 count;
  const Buffer* all = buffers(&count);
  const Buffer* nearest = nullptr;
  u64 nearest_distance = kGuardBytes;
  for (u32 i = 0; i < count; ++i) {
    const u64 end = all[i].base + extent_of(all[i]);
    const u64 distance = address < all[i].base ? all[i].base - address : address >= end ? address - end : 0;
    if (distance >= nearest_distance) continue;
    nearest = &all[i];
    nearest_distance = distance;
  }
  if (nearest)
    describe_near(report, address, u32(nearest - all), count, *nearest);
  else
    report.add(address < page_bytes() ? "a null pointer" : "near no matrix");
}
}  // namespace tw

// Allocates `bytes` filled with poison. Returns 0, or -1 where the system has no memory.
TW_API int tw_allocate(tw::u64 bytes, tw::Allocation* out) {
  using namespace tw;
  const u64 needed = round_up(bytes, 16);
  const u64 data = round_up(needed, page_bytes());
  const u64 total = kGuardBytes + data + kGuardBytes;
  u8* mapping = map(total, PROT_NONE);
  if (!mapping) return -1;
  u8* first_page = mapping + kGuardBytes;
  if (!open(first_page, data)) {
    munmap(mapping, total);
    return -1;
  }
  memset(first_page, kPoison, data);
  *out = {u64(first_page + data - needed), u64(mapping), total};
  return 0;
}

TW_API void tw_free(tw::u64 mapping, tw::u64 bytes) { munmap(reinterpret_cast<void*>(mapping), bytes); }
