// Barriers: each round, a thread reads what its neighbour wrote in the round before.
#include <tw/memory.cuh>
#include <tw/sync.cuh>

struct Shared { float value[plan::THREADS]; };

constexpr int HALF = plan::THREADS / 2;

__device__ void rotate(Shared& s, int rounds) {
  const int t = threadIdx.x;
  for (int i = 0; i < rounds; ++i) {
    const float next = s.value[(t + 1) % plan::THREADS];
    __syncthreads();
    s.value[t] = next;
    __syncthreads();
  }
}

// The upper half fills, the lower half reads: barrier 1 says full, barrier 2 says empty.
__device__ void hand_over(Shared& s, int rounds) {
  const int t = threadIdx.x;
  float sum = 0;
  for (int i = 0; i < rounds; ++i) {
    if (t >= HALF) {
      if (i > 0) tw::barrier_sync(2, plan::THREADS);
      s.value[t - HALF] = float(i + t - HALF);
      tw::barrier_arrive(1, plan::THREADS);
    } else {
      tw::barrier_sync(1, plan::THREADS);
      sum += s.value[t];
      if (i + 1 < rounds) tw::barrier_arrive(2, plan::THREADS);
    }
  }
  if (t < HALF) s.value[t] = sum;
}

extern "C" __global__ void tw_gemm(int rounds, float* out) {
  Shared& s = tw::shared<Shared>();
  const int t = threadIdx.x;
  s.value[t] = float(t);
  __syncthreads();
  if (plan::CASE == 0) rotate(s, rounds);
  if (plan::CASE == 1) hand_over(s, rounds);
  if (plan::CASE == 2 && t % 2) return;  // half the threads are gone at the next barrier
  __syncthreads();
  out[blockIdx.x * plan::THREADS + t] = s.value[t];
}
