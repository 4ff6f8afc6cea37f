// A box that lies in shared memory as `in` says, stored by TMA.
#include <tw/fence.cuh>
#include <tw/memory.cuh>
#include <tw/tma.cuh>

struct Shared { alignas(1024) tw::u32 words[plan::SHARED_BYTES / 4]; };

extern "C" __global__ void tw_gemm(const __grid_constant__ tw::TensorMap map, int dimensions, int x, int y, int z,
                                   int words, const tw::u32* in) {
  Shared& s = tw::shared<Shared>();
  const int t = threadIdx.x;
  for (int i = t; i < words; i += blockDim.x) s.words[i] = in[i];
  tw::fence_proxy_async();
  __syncthreads();
  if (t != 0) return;
  if (dimensions == 2) tw::tma_store_2d(map, s.words, x, y);
  if (dimensions == 3) tw::tma_store_3d<tw::CacheHint::kEvictFirst>(map, s.words, x, y, z);
  tw::tma_store_commit();
  tw::tma_store_wait<0>();
}
