// Conversions, one a thread: a float to two of 16 bits, or one of 16 bits (in the low half of a word) to a float.
#include <tw/memory.cuh>
#include <tw/types.cuh>

using tw::u16;
using tw::u32;

extern "C" __global__ void tw_gemm(int operation, int count, const float* floats, const u32* words, u32* narrow,
                                   float* wide) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) return;
  switch (operation) {
    case 0:
      narrow[i] = tw::pack<tw::bf16>(floats[i], floats[count - 1 - i]);
      break;
    case 1:
      narrow[i] = tw::pack<tw::fp16>(floats[i], floats[count - 1 - i]);
      break;
    case 2:
      narrow[i] = tw::from_float<tw::bf16>(floats[i]).bits;
      break;
    case 3:
      narrow[i] = tw::from_float<tw::fp16>(floats[i]).bits;
      break;
    case 4:
      wide[i] = tw::to_float(tw::bf16{u16(words[i])});
      break;
    case 5:
      wide[i] = tw::to_float(tw::fp16{u16(words[i])});
      break;
  }
}
