// Threads that wait for what never comes.
#include <tw/memory.cuh>
#include <tw/sync.cuh>

extern "C" __global__ void tw_gemm(float* out) {
  const int t = threadIdx.x;
  switch (plan::CASE) {
    case 0:  // warp 1 takes another barrier
      if (t / 32 == 1)
        tw::barrier_sync(3, 64);
      else
        __syncthreads();
      break;
    case 1:  // lanes 0-7 skip the warp's barrier and wait for the block
      if (t < 8) __syncthreads();
      __syncwarp();
      break;
    case 2:  // different collectives of one warp
      out[t] = t % 2 ? tw::shfl(1.0f, 0) : tw::shfl_xor(1.0f, 1);
      break;
    case 3:  // a lane that has left
      if (t == 0) return;
      out[t] = tw::shfl(1.0f, 0);
      break;
    case 4:
      tw::barrier_sync(16, 32);
      break;
    case 5:
      tw::barrier_sync(1, 33);
      break;
    case 6:
      tw::barrier_sync(1, t < 32 ? 96 : 64);
      break;
    case 7:  // spins, switching
      for (;;) __syncthreads();
    case 8:  // spins without a switch
      for (volatile int i = 0;; i = 1) {}
    case 9:  // spins on an atomic
      while (tw::atomic_add(out, 0.0f) == 0.0f) {}
  }
}
