// A K block of an operand into a stage of a ring, by TMA.
#pragma once
#include <tw/batch.cuh>
#include <tw/operand_tile.cuh>
#include <tw/tma.cuh>
namespace tw {
// The map of the second B of a pair, which lies as the first does; nothing where there is one B.
template <bool PAIRED> struct SecondMap {};
template <> struct SecondMap<true> { TensorMap map; };

__device__ __forceinline__ void prefetch_map(const TensorMap& map) { tma_prefetch_map(map); }
__device__ __forceinline__ void prefetch_map(const SecondMap<true>& second) { tma_prefetch_map(second.map); }
__device__ __forceinline__ void prefetch_map(const SecondMap<false>&) {}
template <class... Maps> __device__ __forceinline__ void prefetch_maps(const Maps&... maps) { (prefetch_map(maps), ...); }

namespace detail {
template <bool MULTICAST, CacheHint HINT>
__device__ __forceinline__ void copy(void* to, const TensorMap& map, Mbarrier& full, int x, int y, u16 blocks, OneMatrix) {
  if constexpr (MULTICAST) {
    tma_load_2d_multicast<HINT>(to, map, full, x, y, blocks);
  } else {
    tma_load_2d<HINT>(to, map, full, x, y);
  }
}
template <bool MULTICAST, CacheHint HINT>
__device__ __forceinline__ void copy(void* to, const TensorMap& map, Mbarrier& full, int x, int y, u16 blocks, MatrixAt at) {
  if constexpr (MULTICAST) {
    tma_load_5d_multicast<HINT>(to, map, full, x, y, at.z, at.w, at.v, blocks);
  } else {
    tma_load_5d<HINT>(to, map, full, x, y, at.z, at.w, at.v);
  }
}
}  // namespace detail

// The first `rows` of a tile (all, or half of them), of which this block loads slice `slice` of SLICES for all `blocks`
// of its cluster that need the tile. BOX: rows of a K-major tile that one copy brings. At: of which matrix of a batch.
template <int SLICES, int BOX, CacheHint HINT = CacheHint::kNone, class T, bool K_MAJOR, int ROWS, int K, class At = OneMatrix>
__device__ __forceinline__ void load_operand(OperandTile<T, K_MAJOR, ROWS, K>& tile, const TensorMap& map, Mbarrier& full,
                                             int row0, int rows, int k0, int slice, u16 blocks, At at = {}) {
  using Tile = OperandTile<T, K_MAJOR, ROWS, K>;
  if constexpr (K_MAJOR) {
#pragma unroll
    for (int row = 0; row < ROWS; row += BOX * SLICES) {
      if (row >= rows) break;
      const int mine = row + slice * BOX;
      detail::copy<(SLICES > 1), HINT>(tile.elements + Tile::chunk_at(mine, 0), map, full, k0, row0 + mine, blocks, at);
    }
  } else {
#pragma unroll
    for (int row = 0; row < ROWS; row += 64) {
      if (row >= rows) break;
      const int mine = slice * (K / SLICES);  // a slice is some of the k of every slab
      detail::copy<(SLICES > 1), HINT>(tile.elements + Tile::chunk_at(row / 64 * K + mine, 0), map, full, row0 + row, k0 + mine,
                                       blocks, at);
    }
  }
}
}  // namespace tw
