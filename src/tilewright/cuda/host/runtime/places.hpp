// Where an address lies as the kernel sees it: on its stack, in shared memory, in one operand, or nowhere it may be.
#pragma once
#include "runtime.hpp"

namespace tw {
enum class Space : u8 { kLocal, kShared, kGlobal, kRuntime };

struct Place {
  Space space;
  u32 index;   // shared: rank of the block whose arena it is; global: the operand
  u32 offset;  // bytes from the start of that arena, or of that operand (of which it is the low 32 bits)
};

// Whether bytes offset to offset + bytes are inside an extent. Below its start, offset is near 2^64 and a sum wraps.
inline bool fits(u64 offset, u64 bytes, u64 extent) { return offset < extent && extent - offset >= bytes; }

// For what is neither on the fiber's stack nor inside its block's shared memory, or is misaligned there.
Place locate_elsewhere(const Fiber& fiber, u64 address, u32 bytes, bool write, u64 pc);

// Faults as "out-of-bounds" or "misaligned", saying where that is, when the access is not one that the current kernel
// may make: every byte has to lie inside a row of a buffer, or inside the launch's shared memory. Leading dimension
// padding and the slack between a buffer's end and its page's are outside.
inline Place locate(const Fiber& fiber, u64 address, u32 bytes, bool write, u64 pc) {
  if (address - u64(fiber.stack) < kStackBytes) return {Space::kLocal, 0, 0};
  const u64 offset = address - u64(fiber.shared);
  const bool aligned = (offset & (bytes - 1)) == 0;  // bytes is a power of two, or looked at again below
  if (aligned && fits(offset, bytes, fiber.owner->shared_bytes))
    return {Space::kShared, fiber.owner->rank, u32(offset)};
  return locate_elsewhere(fiber, address, bytes, write, pc);
}

// Where an address of shared memory lies that a primitive has checked.
struct SharedPlace { u32 rank, offset; };
SharedPlace shared_place(const void* address);

// The blocks that run now, whose arenas are shared memory.
void places_begin(const Block* blocks, u32 count);
}  // namespace tw
