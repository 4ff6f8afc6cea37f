// How long one thread's work takes on its SM, and how much it was.
#pragma once
#include <tw/counters.cuh>
#include <tw/types.cuh>
namespace tw {
struct Stopwatch {
  u64 clocks, nanoseconds;

  __device__ __forceinline__ void start() {
    nanoseconds = global_nanoseconds();
    clocks = sm_clock();
  }
  __device__ __forceinline__ u64 spent() const { return sm_clock() - clocks; }
  // A lap is five numbers: the SM, what was done, clocks, and the nanoseconds at which it began and ended.
  __device__ __forceinline__ void stop(u64* lap, u64 work) const {
    const u64 taken = spent(), end = global_nanoseconds();
    lap[0] = sm_index();
    lap[1] = work;
    lap[2] = taken;
    lap[3] = nanoseconds;
    lap[4] = end;
  }
};
constexpr int kLapWords = 5;
}  // namespace tw
