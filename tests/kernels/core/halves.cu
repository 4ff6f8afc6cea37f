// Conversions of 16-bit elements: `narrow` are `in` as such, `pairs` packed two by two, `wide` are `halves` as floats.
#include <tw/types.cuh>

extern "C" __global__ void tw_gemm(int count, const float* in, plan::T* narrow, tw::u32* pairs, const plan::T* halves,
                                   float* wide) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    narrow[i] = tw::from_float<plan::T>(in[i]);
    wide[i] = tw::to_float(halves[i]);
    if (i % 2 == 0) pairs[i / 2] = tw::pack<plan::T>(in[i], in[i + 1]);
  }
}
