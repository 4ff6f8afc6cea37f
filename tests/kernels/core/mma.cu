// mma.sync by one warp, ROUNDS times over: fragments in, fragments out.
#include <tw/matrix.cuh>

extern "C" __global__ void tw_gemm(int rounds, const tw::u32* a, const tw::u32* b, float* d) {
  const int lane = threadIdx.x;
  const tw::u32 a_fragment[4] = {a[lane * 4], a[lane * 4 + 1], a[lane * 4 + 2], a[lane * 4 + 3]};
  float sum[4] = {d[lane * 4], d[lane * 4 + 1], d[lane * 4 + 2], d[lane * 4 + 3]};
  for (int i = 0; i < rounds; ++i) tw::mma_m16n8k16<plan::T>(sum, a_fragment, b[lane * 2], b[lane * 2 + 1]);
  for (int i = 0; i < 4; ++i) d[lane * 4 + i] = sum[i];
}
