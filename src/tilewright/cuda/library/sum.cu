// Partial sums added up, those of one row or column of an epilogue's values in an order that depends on their number alone.
#include <tw/batch.cuh>
#include <tw/memory.cuh>
#include <tw/types.cuh>

using tw::i64;
using tw::u32;
using namespace plan;

constexpr u32 PARTS = THREADS / KEPT;  // threads that share the partial sums of one result
static_assert(PARTS * KEPT == THREADS && (PARTS & (PARTS - 1)) == 0, "a tree has a power of two leaves");
struct Shared { float sums[THREADS]; };

// Strides count elements: `step` from result to result.
struct Results {
  float* first;
  i64 step;
  tw::BatchStrides batch;
};

// Of each of `kept` results, matrix after matrix of the batch, `count` partial sums, ld elements apart.
extern "C" __global__ void __launch_bounds__(THREADS)
tw_gemm(const float* partials, u32 count, int kept, i64 ld, const __grid_constant__ Results to, const tw::BatchSizes sizes) {
  Shared& s = tw::shared<Shared>();
  const u32 across = (kept + KEPT - 1) / KEPT, number = blockIdx.x / across, t = threadIdx.x, part = t / KEPT;
  const int result = int(blockIdx.x % across * KEPT + t % KEPT);
  const float* from = partials + i64(number) * count * ld + result;

  // Partial sums part, part + PARTS, ... one after another; in place of none -0, which leaves the bits of all it is added to.
  float sum = -0.0f;
  if (result < kept) {
#pragma unroll 1
    for (u32 first = part; first < count; first += AT_ONCE * PARTS) {
      float read[AT_ONCE];
#pragma unroll
      for (u32 i = 0; i < AT_ONCE; ++i) {
        const u32 at = first + i * PARTS;
        read[i] = -0.0f;
        if (at < count) read[i] = from[at * ld];
      }
#pragma unroll
      for (u32 i = 0; i < AT_ONCE; ++i) sum += read[i];
    }
  }
  s.sums[t] = sum;
#pragma unroll
  for (u32 half = THREADS / 2; half >= KEPT; half /= 2) {
    __syncthreads();
    if (t < half) s.sums[t] += s.sums[t + half];
  }
  if (part == 0 && result < kept) to.first[to.batch(sizes(number)) + result * to.step] = s.sums[t];
}
