// Where C waits in shared memory to leave.
#pragma once
#include <tw/types.cuh>
namespace tw {
// 64 rows of EPILOGUE_COLUMNS columns of C, elements of 16 bits, a line of 128, 64 or 32 bytes each, swizzled as wide.
struct Slab {
  u16 elements[64 * plan::EPILOGUE_COLUMNS];
  // Index of the 16-byte chunk of a row: its number XORed with the row within 1,024, 512 or 256 bytes.
  static __device__ __forceinline__ int chunk_at(int row, int chunk) {
    constexpr int CHUNKS = plan::EPILOGUE_COLUMNS / 8;
    return (row * CHUNKS + (chunk ^ row / (8 / CHUNKS) % CHUNKS)) * 8;
  }
};

// One warpgroup's slabs, used in turn.
struct SlabRing {
  Slab slabs[plan::EPILOGUE_SLABS];
};
}  // namespace tw
