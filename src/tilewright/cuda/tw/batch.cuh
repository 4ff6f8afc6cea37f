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
}  // namespace tw
