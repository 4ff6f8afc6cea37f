// A tile of A or B in shared memory as TMA writes it and wgmma reads it: lines of 128 bytes under the 128-byte swizzle.
#pragma once
#include <tw/memory.cuh>
#include <tw/types.cuh>
namespace tw {
// ROWS (of A: along M; of B: along N) by K elements of 16 bits. K-major: a line is 64 k of one row, row after row.
// MN-major: a line is 64 rows at one k; K such lines are a slab, slab after slab.
template <class T, bool K_MAJOR, int ROWS, int K> struct OperandTile {
  static_assert(sizeof(T) == 2 && K == 64 && ROWS % (K_MAJOR ? 8 : 64) == 0, "a tile is whole swizzled lines");
  static constexpr int LINE = 128, CHUNK = 16 / sizeof(T);  // bytes of a line; elements of a 16-byte chunk

  T elements[ROWS * K];

  // Chunk c of line l lies where chunk c ^ (l % 8) would: eight lines one after another cover all banks in any column.
  static __device__ __forceinline__ constexpr int chunk_at(int line, int chunk) {
    return (line * LINE + (chunk ^ line % 8) * 16) / int(sizeof(T));
  }
  // Index of the chunk that element (row, k) begins.
  static __device__ __forceinline__ constexpr int index(int row, int k) {
    return K_MAJOR ? chunk_at(row, k / CHUNK) : chunk_at(row / 64 * K + k, row % 64 / CHUNK);
  }

  // wgmma's matrix descriptor (PTX ISA, "Matrix Descriptor Format"), bytes in units of 16: address in bits 0-13, leading
  // dimension offset in 16-29 (between slabs; K-major: not used), stride offset in 32-45 (between groups of 8 lines),
  // 128-byte swizzle in 62-63. Only the low word depends on the place: `low` of the tile and `step` from there.
  __device__ __forceinline__ u32 low() const {
    // In a cluster the bits of an address above these tell its block: they would end up in the leading dimension offset.
    return (shared_address(elements) & 0x3FFFF) >> 4 | (K_MAJOR ? 1 : K * LINE >> 4) << 16;
  }
  static __device__ __forceinline__ u64 descriptor(u32 low) {
    return u64(1u << 30 | 8 * LINE >> 4) << 32 | low;
  }
  static __device__ __forceinline__ constexpr u32 step(int row, int k) {
    return (K_MAJOR ? row * LINE + k * int(sizeof(T)) : (row / 64 * K + k) * LINE) >> 4;
  }
};
}  // namespace tw
