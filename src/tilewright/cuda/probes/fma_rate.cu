// fp32 multiply-adds on an 8 x 8 block a thread whose operands stay in registers, 8 of K at a time, `passes` times.
#include <tw/micro_tile.cuh>
#include <tw/stopwatch.cuh>
#include <tw/types.cuh>

using tw::u64;

// `operands` has 16 floats a thread: 8 of A, 8 of B. `sums` a float a thread, `laps` one a block.
extern "C" __global__ void __launch_bounds__(plan::THREADS, 1)
tw_gemm(const float* operands, int passes, u64* laps, float* sums) {
  float acc[8][8] = {}, a[8], b[8];
  const float* const mine = operands + threadIdx.x * 16;
  for (int i = 0; i < 8; ++i) a[i] = mine[i], b[i] = mine[8 + i];
  __syncthreads();
  tw::Stopwatch watch;
  watch.start();
#pragma unroll 1
  for (int pass = 0; pass < passes; ++pass)
#pragma unroll
    for (int k = 0; k < 8; ++k) tw::multiply(acc, a, b);
  __syncthreads();
  if (threadIdx.x == 0) watch.stop(laps + blockIdx.x * tw::kLapWords, u64(passes));
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 64; ++i) sum += acc[i / 8][i % 8];
  sums[blockIdx.x * plan::THREADS + threadIdx.x] = sum;
}
