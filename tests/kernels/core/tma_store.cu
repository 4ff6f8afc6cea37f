// A box that lies in shared memory as `in` says, stored by TMA, twice: to (x, y, z), and then with every word inverted
// in the same buffer, to (x2, y, z).
#include <tw/fence.cuh>
#include <tw/memory.cuh>
#include <tw/tma.cuh>

struct Shared { alignas(1024) tw::u32 box[plan::BOX_BYTES / 4]; };

__device__ void store(const tw::TensorMap& map, const Shared& s, int x, int y, int z) {
  if (threadIdx.x != 0) return;
  if (plan::RANK == 2)
    tw::tma_store_2d<tw::CacheHint::kEvictFirst>(map, s.box, x, y);
  else
    tw::tma_store_3d(map, s.box, x, y, z);
  tw::tma_store_commit();
}

extern "C" __global__ void tw_gemm(const __grid_constant__ tw::TensorMap map, int x, int y, int z, int x2,
                                   const tw::u32* in) {
  Shared& s = tw::shared<Shared>();
  const int t = threadIdx.x;
  for (int i = t; i < plan::BOX_BYTES / 4; i += blockDim.x) s.box[i] = in[i];
  tw::fence_proxy_async();
  __syncthreads();
  store(map, s, x, y, z);
  if (t == 0 && plan::WAIT) tw::tma_store_wait_read<0>();
  __syncthreads();
  for (int i = t; i < plan::BOX_BYTES / 4; i += blockDim.x) s.box[i] = ~in[i];
  tw::fence_proxy_async();
  __syncthreads();
  store(map, s, x2, y, z);
  if (t == 0) tw::tma_store_wait<0>();
}
