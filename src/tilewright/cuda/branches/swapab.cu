// branch: swapab
// name: swap-ab
// title: The weights take the rows of wgmma
// idea: With few tokens, B^T (weights) is wgmma's 64-row operand and A its narrow one: no row is padding, and the ring is all weights.
#include <tw/cluster.cuh>
#include <tw/cluster_sum.cuh>
#include <tw/consume_ring.cuh>
#include <tw/epilogue.cuh>
#include <tw/grid_dependency.cuh>
#include <tw/load_stage.cuh>
#include <tw/memory.cuh>
#include <tw/store_tokens.cuh>
#include <tw/swap_stage.cuh>
#include <tw/sync.cuh>
#include <tw/tma.cuh>
#include <tw/types.cuh>
#include <tw/warpgroup.cuh>

using namespace plan;

constexpr int WARPS = BN / 16;  // that multiply, 16 weights each; two more load, one warp an operand
static_assert(THREADS == 32 * (WARPS + 2), "a warpgroup multiplies 64 weights");
constexpr tw::CacheHint WEIGHTS_HINT = WEIGHTS_EVICT_FIRST ? tw::CacheHint::kEvictFirst : tw::CacheHint::kNone;

struct Unsplit {
  tw::StageRing<tw::SwapStage> ring;
  tw::TokenPatch patches[WARPS];
  __device__ __forceinline__ void make() { tw::make_ring(ring, WARPS, 2); }
  // The groups of 8 tokens that this warp has to store: all.
  __device__ __forceinline__ tw::u32 reduce(float (&)[BM / 2], int, int, int) { return ~0u; }
};
template <int BLOCKS> struct Split : Unsplit {
  tw::ClusterSum<BLOCKS, WARPS, BM / 8> sum;
  __device__ __forceinline__ void make() {
    Unsplit::make();
    sum.make();
  }
  __device__ __forceinline__ tw::u32 reduce(float (&d)[BM / 2], int rank, int warp, int round) {
    if (round == 0) tw::cluster_wait();  // the others have started, and made their barriers
    return sum(d, rank, warp, round);
  }
};
template <> struct Split<1> : Unsplit {};
using Shared = Split<CLUSTER_K>;

// C[m, n] = A[m, k] B[k, n]; a_map is A, the tokens, b_map is B, the weights. A cluster computes BM tokens of BN columns
// at a time; its blocks share K.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
tw_gemm(const __grid_constant__ tw::TensorMap a_map, const __grid_constant__ tw::TensorMap b_map, int m, int n, int k,
        Out* c, tw::i64 ldc, const __grid_constant__ epilogue::Args epilogue_args) {
  Shared& s = tw::shared<Shared>();
  const int clusters = gridDim.x / CLUSTER_K, cluster = blockIdx.x / CLUSTER_K, rank = blockIdx.x % CLUSTER_K;
  const int tiles_m = (m + BM - 1) / BM, tiles = tiles_m * ((n + BN - 1) / BN);  // along M first: the same weights
  const int warp = tw::warp_index();
  const tw::KShare share(k, rank);

  if (warp == WARPS && tw::elect_one()) {
    tw::tma_prefetch_map(b_map);
    s.make();
  }
  if (CLUSTER_K > 1) {
    __syncwarp();
    tw::cluster_arrive();  // waited for where the first sum is exchanged
  }
  if (warp == WARPS) {
    tw::barrier_arrive(0, THREADS);  // it made the barriers, so it need not wait: the ring fills with weights at once
  } else {
    tw::barrier_sync(0, THREADS);
  }
  if (DEPENDENT_LAUNCH) tw::grid_dependency_launch();

  // All K blocks of this block's tiles of one operand, by one thread: load(stage, full, row, column, k, slice).
  const auto fill = [&](tw::u32 bytes, auto load) {
    tw::Cursor cursor = {0, 1};
    for (int tile = cluster; tile < tiles; tile += clusters) {
      const int row = tile % tiles_m * BM, column = tile / tiles_m * BN;
#pragma unroll 1
      for (int block = share.first; block < share.first + share.count; ++block, cursor.advance()) {
        tw::Mbarrier& full = s.ring.full[cursor.stage];
        tw::mbarrier_wait(s.ring.empty[cursor.stage], cursor.parity);
        tw::mbarrier_expect_tx(full, bytes);
#pragma unroll
        for (int i = 0; i < SLICES; ++i) load(s.ring.stages[cursor.stage], full, row, column, block * BK + i * 64, i);
      }
    }
  };

  if (warp == WARPS) {
    if (tw::elect_one())  // the same thread again
      fill(sizeof(tw::SwapStage::weights), [&](tw::SwapStage& stage, tw::Mbarrier& full, int, int column, int k0, int i) {
        tw::load_operand<1, BN, WEIGHTS_HINT>(stage.weights[i], b_map, full, column, BN, k0, 0, 0);
      });
    __syncwarp();
  } else if (warp == WARPS + 1) {
    if (tw::elect_one()) {
      if (DEPENDENT_LAUNCH) tw::grid_dependency_wait();  // A, and C, which is written when it has come
      fill(sizeof(tw::SwapStage::tokens), [&](tw::SwapStage& stage, tw::Mbarrier& full, int row, int, int k0, int i) {
        tw::load_operand<1, BM>(stage.tokens[i], a_map, full, row, BM, k0, 0, 0);
      });
    }
    __syncwarp();
  } else {
    float acc[1][BM / 2];
    tw::Cursor cursor = {0, 0};
    const auto multiply = [&](const tw::SwapStage& stage, bool accumulate) {
      tw::multiply_swapped(acc[0], stage, warp / 4 * 64, accumulate);
    };
    const auto release = [&](int stage) {
      if (threadIdx.x % 32 == 0) tw::mbarrier_arrive(s.ring.empty[stage]);
    };
    int round = 0;
    for (int tile = cluster; tile < tiles; tile += clusters, ++round) {
      tw::consume_ring<1>(acc, s.ring, cursor, share.count, multiply, release, [] {});
      const tw::u32 groups = s.reduce(acc[0], rank, warp, round);
      const int row = tile % tiles_m * BM, column = tile / tiles_m * BN + warp * 16;
      tw::store_tokens(s.patches[warp], c, ldc, row, column, m, n, acc[0], groups, tw::Epilogue{epilogue_args});
    }
    return;
  }
  if (CLUSTER_K > 1) tw::cluster_wait();
}
