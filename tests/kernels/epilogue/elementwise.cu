// An epilogue without a product: each thread applies it to N neighbours of a tight fp32 matrix. Blocks of 64 threads.
#include <tw/epilogue.cuh>

extern "C" __global__ void tw_gemm(int m, int n, const float* acc, float* c,
                                   const __grid_constant__ epilogue::Args epilogue_args) {
  constexpr int N = plan::N;
  const int groups = (n + N - 1) / N, at = blockIdx.x * 64 + threadIdx.x, row = at / groups, col = at % groups * N;
  if (row >= m) return;
  float x[N] = {};
  for (int e = 0; e < N; ++e)
    if (col + e < n) x[e] = acc[row * n + col + e];
  tw::Epilogue{epilogue_args}(x, row, col, m, n);
  for (int e = 0; e < N; ++e)
    if (col + e < n) c[row * n + col + e] = x[e];
}
