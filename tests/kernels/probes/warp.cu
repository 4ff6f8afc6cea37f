// One instruction of one warp: ldmatrix, stmatrix, mma.sync or elect.sync. Shared memory, registers and accumulators go
// in and out.
#include <tw/matrix.cuh>
#include <tw/memory.cuh>
#include <tw/warpgroup.cuh>

using tw::u32;
constexpr int WORDS = plan::SHARED_BYTES / 4, REGISTERS = 6;  // of a lane: four of matrices or of A, and two of B

struct Shared { alignas(16) u32 words[WORDS]; };

extern "C" __global__ void tw_gemm(int operation, const u32* offsets, u32* image, u32* registers, float* accumulators) {
  Shared& s = tw::shared<Shared>();
  const int lane = threadIdx.x;
  for (int i = lane; i < WORDS; i += 32) s.words[i] = image[i];
  u32* const mine = registers + lane * REGISTERS;
  u32 four[4] = {mine[0], mine[1], mine[2], mine[3]}, two[2] = {mine[4], mine[5]};
  float d[4];
  for (int i = 0; i < 4; ++i) d[i] = accumulators[lane * 4 + i];
  u32* const row = s.words + offsets[lane] / 4;
  __syncthreads();
  switch (operation) {
    case 0:
      tw::ldmatrix_x4<false>(four, row);
      break;
    case 1:
      tw::ldmatrix_x4<true>(four, row);
      break;
    case 2:
      tw::ldmatrix_x2<false>(two, row);
      break;
    case 3:
      tw::ldmatrix_x2<true>(two, row);
      break;
    case 4:
      tw::stmatrix_x4<false>(row, four[0], four[1], four[2], four[3]);
      break;
    case 5:
      tw::stmatrix_x4<true>(row, four[0], four[1], four[2], four[3]);
      break;
    case 6:
      tw::stmatrix_x2<false>(row, two[0], two[1]);
      break;
    case 7:
      tw::stmatrix_x2<true>(row, two[0], two[1]);
      break;
    case 8:
      tw::mma_m16n8k16<tw::bf16>(d, four, two[0], two[1]);
      break;
    case 9:
      tw::mma_m16n8k16<tw::fp16>(d, four, two[0], two[1]);
      break;
    case 10:
      four[0] = tw::elect_one();
      break;
  }
  __syncthreads();
  for (int i = 0; i < 4; ++i) mine[i] = four[i];
  for (int i = 0; i < 2; ++i) mine[4 + i] = two[i];
  for (int i = 0; i < 4; ++i) accumulators[lane * 4 + i] = d[i];
  for (int i = lane; i < WORDS; i += 32) image[i] = s.words[i];
}
