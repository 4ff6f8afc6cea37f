// wgmma over a shared memory that the host has laid out: `steps` of 16 in K, each with its descriptors of A and B, whose
// addresses count from the struct. Accumulators go in and out as each thread holds them.
#include <tw/memory.cuh>
#include <tw/wgmma.cuh>

struct Shared { alignas(1024) tw::u32 words[plan::SHARED_BYTES / 4]; };

extern "C" __global__ void tw_gemm(const tw::u32* image, const tw::u32* a_fragments, const tw::u64* descriptors,
                                   float* accumulators, float* early, int steps, int accumulate) {
  Shared& s = tw::shared<Shared>();
  const int t = threadIdx.x, threads = blockDim.x;
  for (int i = t; i < plan::SHARED_BYTES / 4; i += threads) s.words[i] = image[i];
  __syncthreads();

  constexpr int SIZE = plan::N / 2;
  float d[SIZE];
  for (int i = 0; i < SIZE; ++i) d[i] = accumulators[t * SIZE + i];
  const tw::u64 base = tw::shared_address(&s) >> 4;
  tw::wgmma_fence();
  for (int k = 0; k < steps; ++k) {
    const tw::u64 a = descriptors[2 * k] + base, b = descriptors[2 * k + 1] + base;
    if constexpr (plan::A_IN_REGISTERS) {
      const tw::u32* from = a_fragments + (k * threads + t) * 4;
      const tw::u32 fragment[4] = {from[0], from[1], from[2], from[3]};
      tw::wgmma<plan::T, plan::N, plan::TRANSPOSE_B != 0>(d, fragment, b, accumulate || k > 0);
    } else {
      tw::wgmma<plan::T, plan::N, plan::TRANSPOSE_A != 0, plan::TRANSPOSE_B != 0>(d, a, b, accumulate || k > 0);
    }
    if (k % 2 == 0) tw::wgmma_commit();
  }
  tw::wgmma_commit();
  early[t] = d[0];  // too early
  tw::wgmma_wait<0>();
  tw::wgmma_pin(d);
  for (int i = 0; i < SIZE; ++i) accumulators[t * SIZE + i] = d[i];
}
