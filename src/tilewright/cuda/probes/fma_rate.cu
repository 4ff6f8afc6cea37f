// fp32 multiply-adds whose operands stay in registers: 64 sums a thread, 8 of K at a time, `passes` times. All sums add the
// same product, so that two of the three operands come from the operand reuse cache and nothing but the pipe is timed. (The
// outer product of a GEMM, 8 x 8, waits for the register file: 0.73 of 128 a clock on an H200.)
#include <tw/math.cuh>
#include <tw/stopwatch.cuh>
#include <tw/types.cuh>

using tw::u64;

// `operands` has 66 floats a thread: where its sums begin, and the two factors. `sums` a float a thread, `laps` one a block.
extern "C" __global__ void __launch_bounds__(plan::THREADS, 1)
tw_gemm(const float* operands, int passes, u64* laps, float* sums) {
  float acc[64];
  const float* const mine = operands + threadIdx.x * 66;
  for (int i = 0; i < 64; ++i) acc[i] = mine[i];
  const float a = mine[64], b = mine[65];
  __syncthreads();
  tw::Stopwatch watch;
  watch.start();
#pragma unroll 1
  for (int pass = 0; pass < passes; ++pass)
#pragma unroll
    for (int i = 0; i < 8 * 64; ++i) acc[i % 64] = tw::ffma(a, b, acc[i % 64]);
  __syncthreads();
  if (threadIdx.x == 0) watch.stop(laps + blockIdx.x * tw::kLapWords, u64(passes));
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 64; ++i) sum += acc[i];
  sums[blockIdx.x * plan::THREADS + threadIdx.x] = sum;
}
