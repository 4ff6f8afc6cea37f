// The epilogue of those who have none.
#pragma once
#include <tw/types.cuh>
namespace tw {
struct AsSummed {
  template <int N> __device__ __forceinline__ void operator()(float (&)[N], int, int, int, int) const {}
};
}  // namespace tw
