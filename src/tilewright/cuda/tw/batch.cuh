// Which matrix of a batch: up to three batch dimensions, the last innermost.
#pragma once
#include <tw/types.cuh>
namespace tw {
struct BatchIndex { int at[3]; };

// Of how many matrices a batch is made along each dimension: 1 where there is no such dimension.
struct BatchSizes {
  int size[3];

  // Of the `number`-th matrix, the last dimension running fastest.
  __device__ __forceinline__ BatchIndex operator()(u32 number) const {
    const u32 rest = number / u32(size[2]);
    return {{int(rest / u32(size[1])), int(rest % u32(size[1])), int(number % u32(size[2]))}};
  }
};

// Elements from one matrix of an array to the next along each dimension: 0 where all share one.
struct BatchStrides {
  i64 stride[3];

  __device__ __forceinline__ i64 operator()(const BatchIndex& batch) const {
    return batch.at[0] * stride[0] + batch.at[1] * stride[1] + batch.at[2] * stride[2];
  }
};

// Where TMA finds a matrix of a batch: the coordinates behind the two within it, the last dimension first. None of one matrix.
struct OneMatrix {};
struct MatrixAt { int z, w, v; };

// A tile of a batch: its number in its matrix, and which matrix that is.
struct BatchTile {
  int tile;
  BatchIndex at;
};

// What a kernel is told of a batch: nothing where its plan is of one matrix.
template <bool BATCHED> struct Batch {
  template <class A, class B, class C> __device__ __forceinline__ BatchIndex select(u32&, int, A*&, B*&, C*&) const { return {}; }
  __device__ __forceinline__ int items(int tiles) const { return tiles; }
  __device__ __forceinline__ BatchTile operator()(int item, int) const { return {item, {}}; }
  __device__ __forceinline__ OneMatrix a_at(const BatchIndex&) const { return {}; }
  __device__ __forceinline__ OneMatrix b_at(const BatchIndex&) const { return {}; }
  __device__ __forceinline__ OneMatrix c_at(const BatchIndex&) const { return {}; }
  __device__ __forceinline__ i64 c_offset(const BatchIndex&) const { return 0; }
};
template <> struct Batch<true> {
  BatchSizes sizes;
  BatchStrides a, b, c;

  // Of a batch with `tiles` tiles a matrix, matrix after matrix: `tile` becomes its number in its matrix, the pointers that one's.
  template <class A, class B, class C>
  __device__ __forceinline__ BatchIndex select(u32& tile, int tiles, A*& a_first, B*& b_first, C*& c_first) const {
    const BatchIndex at = sizes(tile / u32(tiles));
    tile %= u32(tiles);
    a_first += a(at), b_first += b(at), c_first += c(at);
    return at;
  }
  __device__ __forceinline__ int items(int tiles) const { return tiles * sizes.size[0] * sizes.size[1] * sizes.size[2]; }
  __device__ __forceinline__ BatchTile operator()(int item, int tiles) const {
    return {int(u32(item) % u32(tiles)), sizes(u32(item) / u32(tiles))};
  }
  __device__ __forceinline__ MatrixAt a_at(const BatchIndex& at) const { return place(a, at); }
  __device__ __forceinline__ MatrixAt b_at(const BatchIndex& at) const { return place(b, at); }
  __device__ __forceinline__ MatrixAt c_at(const BatchIndex& at) const { return place(c, at); }
  __device__ __forceinline__ i64 c_offset(const BatchIndex& at) const { return c(at); }

 private:
  // Along a dimension in which all share one matrix the map has one.
  static __device__ __forceinline__ MatrixAt place(const BatchStrides& s, const BatchIndex& at) {
    return {s.stride[2] ? at.at[2] : 0, s.stride[1] ? at.at[1] : 0, s.stride[0] ? at.at[0] : 0};
  }
};
}  // namespace tw
