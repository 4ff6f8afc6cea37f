// What a kernel costs that does nothing but meet: its blocks as a tensor-core kernel's, shared memory and threads too.
#include <tw/cluster.cuh>
#include <tw/memory.cuh>
#include <tw/types.cuh>

struct Shared { tw::u32 words[plan::SHARED_BYTES / 4]; };

extern "C" __global__ void __launch_bounds__(plan::THREADS, 1) tw_gemm(tw::u32* met) {
  Shared& s = tw::shared<Shared>();
  if (threadIdx.x == 0) s.words[0] = blockIdx.x + 1;
  if (plan::CLUSTER > 1) {
    tw::cluster_sync();
  } else {
    __syncthreads();
  }
  if (threadIdx.x == plan::THREADS - 1) met[blockIdx.x] = s.words[0];
  if (plan::CLUSTER > 1) tw::cluster_sync();  // as kernels must whose blocks reach each other's memory
}
