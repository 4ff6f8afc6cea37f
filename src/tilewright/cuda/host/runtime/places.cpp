// See places.hpp.
#include "places.hpp"
#include <dlfcn.h>
#include "memory.hpp"

namespace tw {
namespace {
using ull = unsigned long long;

const Block* g_blocks;
u32 g_block_count;

// Lines of the runtime's own memory that were found to be legitimate (threadIdx, blockDim, a kernel's constants).
constexpr u32 kKnownLines = 256;
u64 g_known_lines[kKnownLines];

const char* verb(bool write) { return write ? "write" : "read"; }

[[noreturn]] void outside(u64 address, u32 bytes, bool write, u64 pc) {
  g_report.add("%s of %u bytes at ", verb(write), bytes);
  describe_address(g_report, address);
  fault("out-of-bounds", ", pc 0x%llx", ull(pc));
}

[[noreturn]] void misaligned(u64 address, u32 bytes, bool write, u64 pc) {
  g_report.add("%s of %u bytes, not at a multiple of %u: ", verb(write), bytes, bytes);
  describe_address(g_report, address);
  fault("misaligned", ", pc 0x%llx", ull(pc));
}

bool is_misaligned(u64 address, u32 bytes) {
  return bytes <= 16 && (bytes & (bytes - 1)) == 0 && (address & (bytes - 1)) != 0;
}

// The launch's arguments; constants and globals of the kernel's own library or of the runtime.
bool is_runtime_state(const Fiber& fiber, u64 address, u64 pc) {
  if (fits(address - u64(&fiber), 1, sizeof(Fiber)) || is_launch_state(address)) return true;
  Dl_info at, kernel, self;
  if (dladdr(reinterpret_cast<void*>(address), &at) == 0) return false;
  return (dladdr(reinterpret_cast<void*>(pc), &kernel) != 0 && at.dli_fbase == kernel.dli_fbase) ||
         (dladdr(reinterpret_cast<void*>(&g_blocks), &self) != 0 && at.dli_fbase == self.dli_fbase);
}

}  // namespace

void places_begin(const Block* blocks, u32 count) {
  g_blocks = blocks;
  g_block_count = count;
  for (u64& line : g_known_lines) line = 0;
}

SharedPlace shared_place(const void* address) {
  for (u32 rank = 0; rank < g_block_count; ++rank) {
    const u64 offset = u64(address) - u64(g_blocks[rank].shared);
    if (offset < g_blocks[rank].shared_bytes) return {rank, u32(offset)};
  }
  fault("misuse", "%p is not in shared memory", address);
}

Place locate_elsewhere(const Fiber& fiber, u64 address, u32 bytes, bool write, u64 pc) {
  u32 count;
  const Buffer* all = buffers(&count);
  for (u32 i = 0; i < count; ++i) {
    const Buffer& b = all[i];
    const u64 from_start = address - b.base;
    if (from_start >= extent_of(b)) continue;
    const u64 in_row = from_start < b.pitch ? from_start : from_start % b.pitch;
    if (!fits(in_row, bytes, b.row_bytes)) continue;  // padding here, but maybe a row of another view of this memory
    if (is_misaligned(address, bytes)) misaligned(address, bytes, write, pc);
    return {Space::kGlobal, i, u32(from_start)};
  }
  for (u32 i = 0; i < g_block_count; ++i) {  // those of the cluster, this fiber's own among them
    const u64 offset = address - u64(g_blocks[i].shared);
    if (!fits(offset, bytes, g_blocks[i].shared_bytes)) continue;
    if (is_misaligned(address, bytes)) misaligned(address, bytes, write, pc);
    return {Space::kShared, i, u32(offset)};
  }
  u64& known = g_known_lines[address / 64 % kKnownLines];
  if (known != address / 64) {
    if (!is_runtime_state(fiber, address, pc)) outside(address, bytes, write, pc);
    known = address / 64;
  }
  return {Space::kRuntime, 0, 0};
}
}  // namespace tw
