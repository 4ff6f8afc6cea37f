// Where a thread is: every thread writes its linear number at the place its indices name.
#include <tw/types.cuh>

extern "C" __global__ void tw_gemm(float* out) {
  const int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const int threads = blockDim.x * blockDim.y * blockDim.z;
  out[block * threads + thread] += float(block * threads + thread);
}
