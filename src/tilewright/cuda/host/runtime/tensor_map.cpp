// See tensor_map.hpp.
#include "tensor_map.hpp"
#include <string.h>

namespace tw {
namespace {
using i64 = int64_t;
constexpr u64 kMagic = 0x70616d2d6d742d77;  // of emulator_tensor_map.py
constexpr u32 kChunk = 16;  // bytes that stay together under a swizzle
constexpr u32 kMaxRowBytes = 256 * 8;

struct Range {
  i64 first, last;  // last: exclusive
  bool empty() const { return first >= last; }
  bool holds(i64 i) const { return i >= first && i < last; }
};

// Of a dimension of the box, the part inside the tensor, counted from the box's first element.
Range inside(const TensorMapImage& map, const BoxAt& at, u32 dimension) {
  const i64 start = at[dimension], extent = i64(map.extents[dimension]), box = map.box[dimension];
  return {start < 0 ? -start : 0, extent - start < box ? extent - start : box};
}

// Where a row of the box begins at `offset`, a swizzle exchanges its chunks: bits 4 to 6 of a chunk's address are XORed
// with bits 7 to 9, which are the same throughout the row. (Those are of 128 bytes; of a shorter span, fewer.)
u32 flip_of(const TensorMapImage& map, u32 offset) {
  return map.swizzle_bytes ? (offset >> 7) * kChunk & (map.swizzle_bytes - 1) : 0;
}

void row_to_shared(const TensorMapImage& map, u8* shared, u32 offset, const u8* row) {
  const u32 flip = flip_of(map, offset), bytes = map.row_bytes();
  for (u32 byte = 0; byte < bytes; byte += kChunk) memcpy(shared + offset + (byte ^ flip), row + byte, kChunk);
}

void row_from_shared(const TensorMapImage& map, const u8* shared, u32 offset, u8* row) {
  const u32 flip = flip_of(map, offset), bytes = map.row_bytes();
  for (u32 byte = 0; byte < bytes; byte += kChunk) memcpy(row + byte, shared + offset + (byte ^ flip), kChunk);
}

// Calls `inner(offset, row)` for each row of the box that has elements inside the tensor, and `outer(offset)` for the
// others. `row` is where the row's first element would lie in global memory.
template <class Inner, class Outer>
void each_row(const TensorMapImage& map, const BoxAt& at, u32 offset, Inner inner, Outer outer) {
  const bool any = !inside(map, at, 0).empty();
  const u32 rows = map.box_bytes() / map.row_bytes();
  for (u32 number = 0; number < rows; ++number, offset += map.row_bytes()) {
    bool there = any;
    u64 row = map.base + u64(i64(at[0])) * map.element_bytes;
    u32 rest = number;
    for (u32 d = 1; d < u32(kMostDimensions); ++d) {
      const i64 i = rest % map.box[d];
      rest /= map.box[d];
      there = there && inside(map, at, d).holds(i);
      row += u64(at[d] + i) * map.strides[d - 1];
    }
    if (there)
      inner(offset, row);
    else
      outer(offset);
  }
}

// The part of a row that lies inside the tensor, in bytes from the row's first.
struct Part {
  size_t first, bytes;
  bool whole;
};

Part part_inside(const TensorMapImage& map, const BoxAt& at) {
  const Range x = inside(map, at, 0);
  return {size_t(x.first) * map.element_bytes, x.empty() ? 0 : size_t(x.last - x.first) * map.element_bytes,
          x.first == 0 && x.last == i64(map.box[0])};
}
}  // namespace

TensorMapImage tensor_map_at(const void* map, const char* operation) {
  if (u64(map) % 64) fault("misaligned", "%s: the tensor map %p is not at a multiple of 64", operation, map);
  TensorMapImage image;
  memcpy(&image, map, sizeof image);
  if (image.magic != kMagic) fault("misuse", "%s: %p is not a tensor map", operation, map);
  return image;
}

u64 bytes_inside(const TensorMapImage& map, const BoxAt& at) {
  u64 elements = 1;
  for (u32 d = 0; d < u32(kMostDimensions); ++d) {
    const Range range = inside(map, at, d);
    elements *= range.empty() ? 0 : u64(range.last - range.first);
  }
  return elements * map.element_bytes;
}

void load_box(const TensorMapImage& map, const BoxAt& at, u8* shared, u32 offset) {
  static const u8 zeros[kMaxRowBytes] = {};
  const Part part = part_inside(map, at);
  u8 clipped[kMaxRowBytes];
  if (!part.whole) memset(clipped, 0, map.row_bytes());
  const auto inner = [&](u32 to, u64 row) {
    if (part.whole) return row_to_shared(map, shared, to, reinterpret_cast<const u8*>(row));
    memcpy(clipped + part.first, reinterpret_cast<const u8*>(row + part.first), part.bytes);
    row_to_shared(map, shared, to, clipped);
  };
  each_row(map, at, offset, inner, [&](u32 to) { row_to_shared(map, shared, to, zeros); });
}

// A store that is clipped at the end of a line goes on to the next multiple of 16 bytes: that is how hardware writes
// (measured on an H200). What lies there, padding or another matrix's columns, is overwritten.
void store_box(const TensorMapImage& map, const BoxAt& at, const u8* shared, u32 offset) {
  Part part = part_inside(map, at);
  if (part.bytes) {
    const size_t end = part.first + part.bytes, past = (at[0] * size_t(map.element_bytes) + end) % 16;
    part.bytes = (past ? end + 16 - past : end) - part.first;
    if (part.first + part.bytes > map.row_bytes()) part.bytes = map.row_bytes() - part.first;
  }
  const auto inner = [&](u32 from, u64 row) {
    if (part.whole) return row_from_shared(map, shared, from, reinterpret_cast<u8*>(row));
    u8 clipped[kMaxRowBytes];
    row_from_shared(map, shared, from, clipped);
    memcpy(reinterpret_cast<u8*>(row + part.first), clipped + part.first, part.bytes);
  };
  each_row(map, at, offset, inner, [](u32) {});
}
}  // namespace tw
