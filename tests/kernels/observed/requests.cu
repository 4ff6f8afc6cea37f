// Accesses whose requests are easy to count by hand: one warp, lane t.
#include <tw/memory.cuh>
#include <tw/sync.cuh>

struct Shared { float value[1024]; };

extern "C" __global__ void tw_gemm(const float* in, float* out) {
  Shared& s = tw::shared<Shared>();
  const int t = threadIdx.x;
  tw::atomic_add(out + 96, 1.0f);  // 32 lanes, one element
  s.value[32 * t] = 2.0f;  // all in one bank
  __syncthreads();
  out[32 + t] = s.value[32 * t] + in[200];  // the same element of in for all
  out[64 + t] = in[t + 1];  // a row that starts off a sector's boundary: 5 sectors where 4 would do
  for (int i = 0; i < t; ++i) s.value[t + 32 * i] = 1.0f;  // lane t comes by t times
  if (t < 16) out[t] = in[2 * t];  // half a warp, every second element: 4 sectors where 2 would do
}
