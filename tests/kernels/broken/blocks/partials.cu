// Blocks leave partial sums in global memory; the last of them at a counter adds them up, in their order.
#include <tw/memory.cuh>
#include <tw/sync.cuh>

enum Fault { NONE, NOT_RELEASED, NOT_ACQUIRED, RELAXED, NO_BARRIER, NOT_THE_LAST, ONE_SLOT, COUNTER_STAYS };
__device__ constexpr bool is(Fault fault) { return plan::FAULT == fault; }

constexpr int THREADS = 64;
constexpr tw::Order ORDER = is(NOT_RELEASED)   ? tw::Order::kAcquire
                            : is(NOT_ACQUIRED) ? tw::Order::kRelease
                            : is(RELAXED)      ? tw::Order::kRelaxed
                                               : tw::Order::kAcquireRelease;
struct Shared { tw::u32 seen[2]; };

// partials[gridDim.x, THREADS] and c[THREADS], the sum of its rows.
extern "C" __global__ void __launch_bounds__(THREADS) tw_gemm(float* partials, tw::u32* counter, float* c) {
  Shared& s = tw::shared<Shared>();
  const int t = threadIdx.x, block = blockIdx.x, blocks = gridDim.x;
  partials[(is(ONE_SLOT) ? 0 : block) * THREADS + (t ^ 32)] = float(block + t);
  if (!is(NO_BARRIER)) __syncthreads();
  if (t == 0) s.seen[0] = tw::atomic_add<ORDER>(counter, 1);
  __syncthreads();
  if (s.seen[0] != tw::u32(is(NOT_THE_LAST) ? 0 : blocks - 1)) return;
  if (t == 0 && !is(COUNTER_STAYS)) *counter = 0;
  float sum = 0;
  for (int i = 0; i < blocks; ++i) sum += partials[i * THREADS + t];
  c[t] = sum;
}
