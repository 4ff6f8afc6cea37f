// wgmma over a shared memory that the host has filled: `steps` of 16 in K, each with descriptors of A and B whose
// addresses count from its beginning. One warpgroup a block; each block has an image and accumulators of its own.
#include <tw/cluster.cuh>
#include <tw/fence.cuh>
#include <tw/memory.cuh>
#include <tw/wgmma.cuh>

using tw::u32;
using tw::u64;
constexpr int WORDS = plan::SHARED_BYTES / 4, SIZE = plan::N / 2;

struct Shared { alignas(1024) u32 words[WORDS]; };

template <bool A_IN_REGISTERS, bool TRANSPOSE_A, bool TRANSPOSE_B>
__device__ __forceinline__ void multiply(float (&d)[SIZE], const u32* fragments, const u64* descriptors, u64 base,
                                         int steps, bool accumulate) {
  for (int k = 0; k < steps; ++k) {
    const u64 a = descriptors[2 * k] + base, b = descriptors[2 * k + 1] + base;
    const u32* from = fragments + (k * 128 + threadIdx.x) * 4;
    const u32 fragment[4] = {from[0], from[1], from[2], from[3]};
    tw::wgmma_fence();
    if constexpr (A_IN_REGISTERS)
      tw::wgmma<plan::T, plan::N, TRANSPOSE_B>(d, fragment, b, accumulate || k > 0);
    else
      tw::wgmma<plan::T, plan::N, TRANSPOSE_A, TRANSPOSE_B>(d, a, b, accumulate || k > 0);
    tw::wgmma_commit();
    tw::wgmma_wait<0>();
    tw::wgmma_pin(d);
  }
}

extern "C" __global__ void tw_gemm(int kind, const u32* image, const u32* fragments, const u64* descriptors, int steps,
                                   int accumulate, float* accumulators, u32* addresses) {
  Shared& s = tw::shared<Shared>();
  const int t = threadIdx.x, block = int(tw::cluster_rank());
  for (int i = t; i < WORDS; i += 128) s.words[i] = image[block * WORDS + i];
  tw::fence_proxy_async();
  __syncthreads();
  float d[SIZE];
  float* const mine = accumulators + (block * 128 + t) * SIZE;
  for (int i = 0; i < SIZE; ++i) d[i] = mine[i];
  // On a GPU the bits of a shared address from 24 on are the rank of the block in its cluster. A descriptor has room for
  // 18: unmasked, the rank would end up in its other fields. (The emulator's addresses are offsets and need no mask.)
  const u32 address = tw::shared_address(&s);
  const u64 base = (address & 0x3ffff) >> 4;
  const bool add = accumulate != 0;
  switch (kind) {  // 1: B is MN-major, 2: A is, 4: A comes from registers
    case 0:
      multiply<false, false, false>(d, fragments, descriptors, base, steps, add);
      break;
    case 1:
      multiply<false, false, true>(d, fragments, descriptors, base, steps, add);
      break;
    case 2:
      multiply<false, true, false>(d, fragments, descriptors, base, steps, add);
      break;
    case 3:
      multiply<false, true, true>(d, fragments, descriptors, base, steps, add);
      break;
    case 4:
      multiply<true, false, false>(d, fragments, descriptors, base, steps, add);
      break;
    case 5:
      multiply<true, false, true>(d, fragments, descriptors, base, steps, add);
      break;
  }
  for (int i = 0; i < SIZE; ++i) mine[i] = d[i];
  if (t == 0) addresses[block] = address;
}
