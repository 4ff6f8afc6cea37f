// Shuffles, __syncwarp and atomics.
#include <tw/memory.cuh>
#include <tw/sync.cuh>

struct Shared {
  float sum;
  tw::u32 turns;
};

extern "C" __global__ void tw_gemm(float* out) {
  const int t = threadIdx.x, lane = t % 32;
  Shared& s = tw::shared<Shared>();
  if (t == 0) s = {0.0f, 0};
  __syncthreads();
  float v = float(t);
  for (int i = 16; i > 0; i /= 2) v += tw::shfl_xor(v, i);
  out[t] = v;                                            // the sum of a warp's numbers
  out[plan::THREADS + t] = tw::shfl(float(t), lane / 2);  // each value twice
  out[plan::THREADS * 2 + t] = tw::shfl_down(float(t), 3);
  __syncwarp();
  tw::atomic_add(&s.sum, float(t));
  tw::atomic_add(&s.turns, 1u);
  __syncthreads();
  out[plan::THREADS * 3 + t] = s.sum;
  out[plan::THREADS * 4 + t] = float(s.turns);
}
