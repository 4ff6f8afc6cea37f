// mma.sync on fragments that stay in registers: each warp's 64 x 64 tile, 16 of K at a time, `passes` times.
#include <tw/stopwatch.cuh>
#include <tw/types.cuh>
#include <tw/warp_tile.cuh>

using tw::u32;
using tw::u64;

// `fragments` has 32 words a thread: 16 of A, 16 of B. `sums` a float a thread, `laps` one a block.
extern "C" __global__ void __launch_bounds__(plan::THREADS, 1)
tw_gemm(const u32* fragments, int passes, u64* laps, float* sums) {
  float acc[4][8][4] = {};
  u32 a[4][4], b[4][4];
  const u32* const mine = fragments + threadIdx.x * 32;
  for (int i = 0; i < 16; ++i) a[i / 4][i % 4] = mine[i], b[i / 4][i % 4] = mine[16 + i];
  __syncthreads();
  tw::Stopwatch watch;
  watch.start();
#pragma unroll 1
  for (int pass = 0; pass < passes; ++pass) tw::multiply<plan::T>(acc, a, b);
  __syncthreads();
  if (threadIdx.x == 0) watch.stop(laps + blockIdx.x * tw::kLapWords, u64(passes));
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 128; ++i) sum += acc[i / 32][i / 4 % 8][i % 4];
  sums[blockIdx.x * plan::THREADS + threadIdx.x] = sum;
}
