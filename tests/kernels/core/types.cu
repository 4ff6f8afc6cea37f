// Conversions, and loads and stores of 2, 4, 8 and 16 bytes.
#include <tw/math.cuh>
#include <tw/memory.cuh>
#include <tw/types.cuh>

extern "C" __global__ void tw_gemm(const float* in, tw::bf16* narrow, float* wide) {
  const int t = threadIdx.x * 8;
  const auto first = tw::load<4>(in + t), second = tw::load<4>(in + t + 4);
  tw::Vec<tw::bf16, 8> v;
  for (int e = 0; e < 8; ++e) v[e] = tw::from_float<tw::bf16>(e < 4 ? first[e] : second[e - 4]);
  tw::store<8>(narrow + t, v);
  const auto back = tw::load<8>(narrow + t);
  const auto pair = tw::load<2>(narrow + t);
  const auto four = tw::load<4>(narrow + t + 4);
  const auto one = tw::load<1>(narrow + t + 2);
  tw::Vec<float, 4> low = {{tw::to_float(pair[0]), tw::to_float(pair[1]), tw::to_float(one[0]), tw::to_float(back[3])}};
  tw::store<4>(wide + t, low);
  for (int e = 0; e < 4; ++e)
    tw::store<1>(wide + t + 4 + e, tw::Vec<float, 1>{{tw::ffma(tw::to_float(four[e]), 1.0f, 0.0f)}});
}
