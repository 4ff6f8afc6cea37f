// What a kernel passes as a tensor map, and the copies of boxes that it describes (PTX ISA, "Tensors").
#pragma once
#include "runtime.hpp"

#pragma GCC visibility push(hidden)
namespace tw {
constexpr int kMostDimensions = 5;
using BoxAt = int[kMostDimensions];  // the coordinates of a box's first element, 0 along dimensions that there are not

// The 128 bytes. Python packs them and checks what the CUDA driver would (backends/emulator_tensor_map.py): keep the
// two in step. Dimension 0 is contiguous.
struct TensorMapImage {
  u64 magic, base;
  u64 extents[kMostDimensions];
  u64 strides[kMostDimensions - 1];  // bytes from line to line, from plane to plane, and so on
  u32 rank, element_bytes;
  u32 box[kMostDimensions];
  u32 swizzle_bytes;  // 0, 32, 64 or 128: also the bytes of a row of the box, unless 0
  u8 unused[8];

  u32 row_bytes() const { return box[0] * element_bytes; }
  u32 box_bytes() const { return row_bytes() * box[1] * box[2] * box[3] * box[4]; }
  u32 alignment() const { return swizzle_bytes ? 8 * swizzle_bytes : 128; }  // of the box in shared memory
};
static_assert(sizeof(TensorMapImage) == 128, "a tensor map has 128 bytes");

// Faults where there is no tensor map.
TensorMapImage tensor_map_at(const void* map, const char* operation);

// Of a box's bytes, those that lie inside the tensor. `at`: its first element.
u64 bytes_inside(const TensorMapImage& map, const BoxAt& at);

// `shared` is a block's shared memory, `offset` where the box lies in it.
void load_box(const TensorMapImage& map, const BoxAt& at, u8* shared, u32 offset);
void store_box(const TensorMapImage& map, const BoxAt& at, const u8* shared, u32 offset);
}  // namespace tw
#pragma GCC visibility pop
