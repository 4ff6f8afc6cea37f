// Two blocks share A, which block 1 multicasts to both, one buffer for all K blocks: C = A B, B per block.
#include <tw/cluster.cuh>
#include <tw/fragment.cuh>
#include <tw/mbarrier.cuh>
#include <tw/memory.cuh>
#include <tw/operand_tile.cuh>
#include <tw/tma.cuh>
#include <tw/wgmma.cuh>

enum Fault { NONE, PEER_NOT_READY, PEER_STILL_READS, LEAVES_EARLY };
__device__ constexpr bool is(Fault fault) { return plan::FAULT == fault; }

using Tile = tw::OperandTile<tw::bf16, true, 64, 64>;
struct Shared {
  Tile a, b;
  tw::Mbarrier full, empty;
};

extern "C" __global__ void __launch_bounds__(128) tw_gemm(const __grid_constant__ tw::TensorMap a_map,
                                                          const __grid_constant__ tw::TensorMap b_map, int k, tw::bf16* c) {
  Shared& s = tw::shared<Shared>();
  const int t = threadIdx.x, rank = int(tw::cluster_rank());
  constexpr int BLOCKS = 2;
  if (t == 0) {
    tw::mbarrier_init(s.full, 1);
    tw::mbarrier_init(s.empty, is(PEER_STILL_READS) ? 4 : 4 * BLOCKS);
    tw::fence_mbarrier_init();
  }
  if (is(PEER_NOT_READY)) __syncthreads();
  else tw::cluster_sync();

  float d[32];
  for (int block = 0; block < k / 64; ++block) {
    if (t == 0) {
      tw::mbarrier_wait(s.empty, block % 2 ^ 1);
      tw::mbarrier_expect_tx(s.full, 2 * sizeof(Tile));
      if (rank == 1) tw::tma_load_2d_multicast(&s.a, a_map, s.full, block * 64, 0, 0b11);
      tw::tma_load_2d(&s.b, b_map, s.full, block * 64, rank * 64);
    }
    __syncwarp();
    tw::mbarrier_wait(s.full, block % 2);
    tw::wgmma_fence();
    for (int i = 0; i < 64; i += 16)
      tw::wgmma<tw::bf16, 64, false, false>(d, Tile::descriptor(s.a.low() + Tile::step(0, i)),
                                            Tile::descriptor(s.b.low() + Tile::step(0, i)), block > 0 || i > 0);
    tw::wgmma_commit();
    tw::wgmma_wait<0>();
    if (is(PEER_STILL_READS)) {
      if (t % 32 == 0) tw::mbarrier_arrive(s.empty);
    } else if (t % 32 < BLOCKS) {
      tw::mbarrier_arrive_remote(s.empty, tw::u32(t % 32));
    }
  }
  tw::wgmma_pin(d);
  tw::store_fragment(c + rank * 64, 128, t / 32 * 16, 0, 64, 64, d, true);
  if (!is(LEAVES_EARLY)) tw::cluster_sync();
}
