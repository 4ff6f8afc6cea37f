// N elements that move as one access.
#pragma once
namespace tw {
template <class T, int N> struct alignas(N * sizeof(T)) Vec {
  T data[N];
  __device__ __forceinline__ T& operator[](int i) { return data[i]; }
  __device__ __forceinline__ const T& operator[](int i) const { return data[i]; }
};
}  // namespace tw
