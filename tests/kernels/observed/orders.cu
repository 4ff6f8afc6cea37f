// Shared memory handed from thread to thread, with just enough order (or, from CASE 100 on, not quite).
#include <tw/cp_async.cuh>
#include <tw/memory.cuh>
#include <tw/sync.cuh>

struct Shared {
  float value[64];
  tw::u16 half[64];
  tw::u32 sum;
};

__device__ float hand_over(Shared& s, const float* in, int t) {
  const int warp = t / 32, lane = t % 32, neighbour = warp * 32 + (lane + 1) % 32;
  switch (plan::CASE) {
    case 0:
    case 100:  // within a warp; the other warp needs a barrier of the block
      s.value[t] = in[t];
      __syncwarp();
      return s.value[plan::CASE == 0 ? neighbour : 63 - t];
    case 1:  // two threads write the two halves of one word
      s.half[t] = tw::u16(t);
      __syncthreads();
      return float(s.half[63 - t]);
    case 2:
    case 102:  // a value that a shuffle brings needs no memory; a shuffle orders none
      s.value[t] = in[t];
      if (plan::CASE == 2) return tw::shfl(s.value[t], (lane + 1) % 32);
      return tw::shfl(in[t], 0) + s.value[neighbour];
    case 3:
    case 103:  // atomics do not race with each other, but with plain reads
      if (t == 0) s.sum = 0;
      __syncthreads();
      tw::atomic_add(&s.sum, 1u);
      if (plan::CASE == 3) __syncthreads();
      return float(s.sum);
    case 4:
    case 104: {  // of two groups of copies, waiting for all but the newest gives the first
      tw::cp_async<4>(&s.value[t], in + t, 4);
      tw::cp_async_commit();
      if (warp == 0) tw::cp_async<4>(&s.half[2 * t], in + t, 4);
      tw::cp_async_commit();
      tw::cp_async_wait<1>();
      const float first = plan::CASE == 4 || warp == 1 ? s.value[t] : float(s.half[2 * t]);
      tw::cp_async_wait<0>();
      return first;
    }
    case 5:  // one warp fills, the other reads: it arrives and goes on
      if (warp == 0) {
        s.value[t] = in[t];
        tw::barrier_arrive(1, 64);
        return 0.0f;
      }
      tw::barrier_sync(1, 64);
      return s.value[lane];
    case 105:  // the same, but written after the arrival
      if (warp == 0) {
        tw::barrier_arrive(1, 64);
        s.value[t] = in[t];
        __syncwarp();
        return 0.0f;
      }
      tw::barrier_sync(1, 64);
      return s.value[lane];
    default:  // a barrier orders what came before it, not what came after it
      s.value[t] = in[t];
      __syncthreads();
      if (t == 63) s.value[0] = 1.0f;
      return s.value[t == 0 ? 0 : t];
  }
}

extern "C" __global__ void tw_gemm(const float* in, float* out) {
  const int t = threadIdx.x;
  out[t] = hand_over(tw::shared<Shared>(), in, t);
}
