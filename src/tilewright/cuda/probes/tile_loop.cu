// A tile's wgmmas on operands that stay in shared memory, and TMA loads of 16 KB boxes into other shared memory beside
// them; neither waits for the other. With `passes` = 0 only the loads run, for `budget` clocks; with `most` = 0 only the
// wgmmas; with neither a thread an SM asks for the time. `passes` times SETS K blocks are multiplied; the accumulators
// start again from nothing every 64 passes.
#include <tw/box_walk.cuh>
#include <tw/fence.cuh>
#include <tw/memory.cuh>
#include <tw/multiply_stage.cuh>
#include <tw/ring.cuh>
#include <tw/stopwatch.cuh>
#include <tw/sync.cuh>
#include <tw/tma.cuh>
#include <tw/types.cuh>
#include <tw/warpgroup.cuh>
#include <tw/wgmma.cuh>

using namespace plan;
using tw::u32;
using tw::u64;

constexpr int BLOCKS = BM / (64 * CONSUMERS), ROWS = 128, BYTES = ROWS * 128;
static_assert(BLOCKS * 64 * CONSUMERS == BM && THREADS == 128 * (CONSUMERS + 1), "the warpgroups do not cover the tile");

struct Shared {
  tw::Stage operands[SETS];
  unsigned char boxes[STAGES][BYTES];
  tw::Mbarrier full[STAGES];
  u32 finished, unused;
};

// `operands` has SETS stages as they lie in shared memory, `sums` a float a multiplying thread, `laps` two a block: of the
// wgmmas (passes) and of the loads (boxes). Block b loads boxes b, b + gridDim.x, ... of `boxes`, `across` to a row.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
tw_gemm(const __grid_constant__ tw::TensorMap from, const u32* operands, u32 boxes, u32 across, int passes, int most,
        u64 budget, u64* laps, float* sums) {
  Shared& s = tw::shared<Shared>();
  const int warp = tw::warp_index(), consumer = warp / 4;
  u32* const words = reinterpret_cast<u32*>(s.operands);
  for (int i = threadIdx.x; i < int(sizeof(s.operands)) / 4; i += THREADS) words[i] = operands[i];
  tw::fence_proxy_async();
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) tw::mbarrier_init(s.full[i], 1);
    tw::fence_mbarrier_init();
    s.finished = 0;
  }
  __syncthreads();
  u64* const lap = laps + blockIdx.x * 2 * tw::kLapWords;
  volatile u32* const finished = &s.finished;
  tw::Stopwatch watch;

  if (consumer == CONSUMERS) {
    if (warp == 4 * CONSUMERS && most > 0 && tw::elect_one()) {
      tw::BoxWalk<64, ROWS> walk(blockIdx.x, gridDim.x, boxes, across);
      const auto load = [&](int stage) {
        tw::mbarrier_expect_tx(s.full[stage], BYTES);
        tw::tma_load_2d(s.boxes[stage], from, s.full[stage], walk.x(), walk.y());
        walk.next();
      };
#pragma unroll 1
      for (int i = 0; i < STAGES; ++i) load(i);
      watch.start();
      int done = 0, stage = 0;
      u32 parity = 0;
      const auto arrived = [&] { tw::mbarrier_wait(s.full[stage], parity); };
      const auto advance = [&] {
        if (++stage == STAGES) stage = 0, parity ^= 1;
      };
      const auto over = [&] { return passes > 0 ? *finished != 0 : watch.spent() >= budget; };
      do {
        arrived();
        load(stage);
        advance();
        ++done;
      } while (done < most && (stage > 0 || !over()));  // asked once a round, which costs the loads less
      watch.stop(lap + tw::kLapWords, u64(done));
      for (int i = 0; i < STAGES; ++i) arrived(), advance();
    }
    __syncwarp();
  } else if (passes > 0) {
    float acc[BLOCKS][BN / 2] = {};
    const int row = consumer * BLOCKS * 64;
    watch.start();
    for (int pass = 0; pass < passes; ++pass) {
#pragma unroll
      for (int set = 0; set < SETS; ++set)
        tw::multiply_stage<BLOCKS>(acc, s.operands[set], row, set > 0 || pass % 64 > 0);
      tw::wgmma_wait<1>();
    }
    tw::wgmma_wait<0>();
    if (threadIdx.x == 0) watch.stop(lap, u64(passes));
    tw::barrier_sync(1, 128 * CONSUMERS);
    if (threadIdx.x == 0) *finished = 1;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < BLOCKS; ++i) {
      tw::wgmma_pin(acc[i]);
#pragma unroll
      for (int e = 0; e < BN / 2; ++e) sum += acc[i][e];
    }
    sums[blockIdx.x * 128 * CONSUMERS + threadIdx.x] = sum;
  } else if (most == 0 && threadIdx.x == 0) {
    watch.start();
    u64 asked = 0;
    while (watch.spent() < budget) ++asked;
    watch.stop(lap, asked);
  }
}
