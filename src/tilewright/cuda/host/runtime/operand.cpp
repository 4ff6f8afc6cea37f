// See operand.hpp.
#include "operand.hpp"

namespace tw {
namespace {
// Fields of a descriptor (PTX ISA, "Matrix Descriptor Format"); addresses and offsets are in units of 16 bytes.
constexpr u64 kOffset = 0x3fff;
constexpr u32 kLeading = 16, kStride = 32, kBase = 49, kSwizzle = 62;
constexpr u64 kKnown = kOffset | kOffset << kLeading | kOffset << kStride | u64(7) << kBase | u64(3) << kSwizzle;

u32 offset_at(u64 descriptor, u32 bit) { return u32(descriptor >> bit & kOffset) * kChunkBytes; }
}  // namespace

Operand decode(u64 descriptor, bool mn_major, const char* name) {
  if (descriptor & ~kKnown)
    fault("misuse", "wgmma: the descriptor of %s is 0x%016llx, with bits that no field has", name,
          (unsigned long long)descriptor);
  if (descriptor >> kBase & 7)
    fault("misuse",
          "wgmma: the descriptor of %s has a base offset of %u; 0 is possible here, of a tile that is aligned "
          "to the swizzle's pattern",
          name, u32(descriptor >> kBase & 7));
  static constexpr u32 spans[] = {kChunkBytes, 128, 64, 32};
  const u32 swizzle = u32(descriptor >> kSwizzle), span = spans[swizzle];
  const u32 leading = offset_at(descriptor, kLeading), stride = offset_at(descriptor, kStride);
  Operand operand = {};
  operand.start = offset_at(descriptor, 0);
  operand.row = span;
  operand.mask = span / kChunkBytes - 1;
  operand.mn_major = mn_major;
  operand.panel = stride;
  operand.half = swizzle == 0 ? leading : kChunkBytes;
  if (mn_major && swizzle != 0) {
    operand.panel_shift = u32(__builtin_ctz(span / kChunkBytes));
    operand.panel = leading;
    operand.slice = kChunkBytes;
    operand.half = stride;
  }
  return operand;
}

void check_bounds(const Operand& operand, u32 first, u32 count, const Block& block, const char* name) {
  u32 most = 0;
  for (u32 index = first; index < first + count; ++index) {
    const u32 last = operand.slice_start(index) + 7 * operand.row + operand.half;
    if ((last | 127) < block.shared_bytes) continue;  // a swizzle stays inside a line of 128 bytes
    for (u32 i = 0; i < kChunks; ++i) {
      const u32 end = operand.chunk(index, i) + kChunkBytes;
      most = end > most ? end : most;
    }
  }
  if (most <= block.shared_bytes) return;
  fault("out-of-bounds", "wgmma: its descriptor has %s end at shared+%u of block rank %u, which has %u shared bytes",
        name, most, block.rank, block.shared_bytes);
}

// As a set of chunks, so that what touches becomes one range, whatever order the swizzle puts it in.
void report_ranges(const Operand& operand, u32 first, u32 count, Warp& warp, bool of_a) {
  u64 set[kSharedArena / kChunkBytes / 64] = {};
  const auto is_in = [&](u32 chunk) { return (set[chunk / 64] >> chunk % 64 & 1) != 0; };
  u32 lowest = ~0u, highest = 0;
  for (u32 index = first; index < first + count; ++index)
    for (u32 i = 0; i < kChunks; ++i) {
      const u32 chunk = operand.chunk(index, i) / kChunkBytes;
      set[chunk / 64] |= u64(1) << chunk % 64;
      lowest = chunk < lowest ? chunk : lowest;
      highest = chunk > highest ? chunk : highest;
    }
  for (u32 begin = lowest, end; begin <= highest; begin = end + 1) {
    for (end = begin; end <= highest && is_in(end); ++end) {}
    if (end > begin) g_observer->wgmma_shared(&warp, begin * kChunkBytes, (end - begin) * kChunkBytes, of_a);
  }
}

void load_slice(const Operand& operand, u32 index, ElementType type, const u8* shared, Slice& slice) {
  u16 bits[8 * kDepth];
  for (u32 i = 0; i < kChunks; ++i) memcpy(bits + 8 * i, shared + operand.chunk(index, i), kChunkBytes);
  slice.set_order(!operand.mn_major);
  widen(type, bits, 8 * kDepth, slice.elements);
}
}  // namespace tw

unsigned tw_shared_address(const void* shared) {
  using namespace tw;
  const Fiber& fiber = *current_fiber();
  const u64 offset = u64(shared) - u64(fiber.shared);
  if (offset > fiber.owner->shared_bytes)
    fault("misuse", "the shared address of %p, which is not in this block's %u bytes of dynamic shared memory", shared,
          fiber.owner->shared_bytes);
  return u32(offset);
}
