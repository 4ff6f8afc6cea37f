// A wgmma operand in shared memory, as its 64-bit descriptor says (PTX ISA, "Asynchronous Warpgroup Level Matrix Shared
// Memory Layout"): 16 deep, in slices of 8 rows of A or columns of B, each of which is 16 chunks of 8 elements.
#pragma once
#include "tensor_core.hpp"

namespace tw {
enum : u32 { kChunkBytes = 16, kChunks = 16 };

// The linear address of a chunk is a sum of strides; then bits 4 to 6 of the *address* are XORed with bits 7 to 9 (as
// many as the swizzle has). So a step of 16 in K of a swizzled K-major tile is 32 bytes more in `start`.
struct Operand {
  u32 start;  // offset in the block's shared memory, as all here
  u32 slice;  // from one slice to the next of the same panel
  u32 panel;  // from one panel to the next; a panel is what the swizzle spans across K, of an MN-major operand
  u32 panel_shift;  // slices of a panel, as a power of two
  u32 row;  // K-major: from one row to the next of a slice; MN-major: from one k to the next
  u32 half;  // K-major: from k = 0..7 to 8..15 of a row; MN-major: from k = 0..7 to 8..15
  u32 mask;  // of the address bits 7 to 9, those XORed into 4 to 6
  bool mn_major;

  // Linear address of a slice's first chunk.
  u32 slice_start(u32 index) const {
    return start + (index >> panel_shift) * panel + (index & ((1u << panel_shift) - 1)) * slice;
  }

  // Where a chunk lies: K-major, chunk 2 i + h is k = 8 h .. 8 h + 7 of row i; MN-major, chunk k is all eight of k.
  u32 chunk(u32 index, u32 i) const {
    const u32 linear = slice_start(index) + (mn_major ? i % 8 * row + i / 8 * half : i / 2 * row + i % 2 * half);
    return linear ^ (linear >> 7 & mask) << 4;
  }
};

// Faults for a descriptor that no operand has; `name` is "A" or "B".
Operand decode(u64 descriptor, bool mn_major, const char* name);

// Faults unless slices first to first + count - 1 lie in the block's shared memory.
void check_bounds(const Operand& operand, u32 first, u32 count, const Block& block, const char* name);

// Tells the observer which ranges those slices are.
void report_ranges(const Operand& operand, u32 first, u32 count, Warp& warp, bool of_a);

void load_slice(const Operand& operand, u32 index, ElementType type, const u8* shared, Slice& slice);
}  // namespace tw
