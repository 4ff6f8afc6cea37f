// A 64x64 tile of C, its K blocks brought by TMA through a ring of two stages; one warpgroup loads, one multiplies.
#include <tw/fragment.cuh>
#include <tw/mbarrier.cuh>
#include <tw/memory.cuh>
#include <tw/operand_tile.cuh>
#include <tw/tma.cuh>
#include <tw/wgmma.cuh>

enum Fault { NONE, NO_FULL_WAIT, NO_EMPTY_WAIT, TOO_MANY_BYTES, TOO_FEW_BYTES, READ_BEFORE_WAIT, RELEASED_TOO_EARLY,
             LOADS_TOO_MUCH, INITIALISED_TOO_LATE };
__device__ constexpr bool is(Fault fault) { return plan::FAULT == fault; }

using Tile = tw::OperandTile<tw::bf16, true, 64, 64>;
constexpr int STAGES = 2;
struct Stage {
  Tile a, b;
};
struct Shared {
  Stage stages[STAGES];
  tw::Mbarrier full[STAGES], empty[STAGES];
};

__device__ void load(Shared& s, const tw::TensorMap& a_map, const tw::TensorMap& b_map, int k_blocks) {
  for (int block = 0; block < k_blocks + is(LOADS_TOO_MUCH); ++block) {
    const int stage = block % STAGES, parity = block / STAGES % 2;
    if (!is(NO_EMPTY_WAIT)) tw::mbarrier_wait(s.empty[stage], parity ^ 1);
    const int bytes = is(TOO_MANY_BYTES) ? sizeof(Stage) + 16 : is(TOO_FEW_BYTES) ? sizeof(Tile) : sizeof(Stage);
    tw::mbarrier_expect_tx(s.full[stage], bytes);
    tw::tma_load_2d(&s.stages[stage].a, a_map, s.full[stage], block * 64, 0);
    tw::tma_load_2d(&s.stages[stage].b, b_map, s.full[stage], block * 64, 0);
  }
}

__device__ void multiply(Shared& s, int k_blocks, tw::bf16* c) {
  float d[32];
  for (int block = 0; block < k_blocks; ++block) {
    const int stage = block % STAGES, parity = block / STAGES % 2;
    if (!is(NO_FULL_WAIT)) tw::mbarrier_wait(s.full[stage], parity);
    const tw::u32 a = s.stages[stage].a.low(), b = s.stages[stage].b.low();
    tw::wgmma_fence();
    for (int k = 0; k < 64; k += 16)
      tw::wgmma<tw::bf16, 64, false, false>(d, Tile::descriptor(a + Tile::step(0, k)),
                                            Tile::descriptor(b + Tile::step(0, k)), block > 0 || k > 0);
    tw::wgmma_commit();
    const bool last = block + 1 == k_blocks;
    if (!is(RELEASED_TOO_EARLY) && !(is(READ_BEFORE_WAIT) && last)) tw::wgmma_wait<0>();
    if (threadIdx.x % 32 == 0) tw::mbarrier_arrive(s.empty[stage]);
    if (is(RELEASED_TOO_EARLY)) tw::wgmma_wait<0>();
  }
  tw::wgmma_pin(d);
  tw::store_fragment(c, 64, threadIdx.x / 32 % 4 * 16, 0, 64, 64, d, true);
  tw::wgmma_wait<0>();
}

extern "C" __global__ void __launch_bounds__(256) tw_gemm(const __grid_constant__ tw::TensorMap a_map,
                                                          const __grid_constant__ tw::TensorMap b_map, int k, tw::bf16* c) {
  Shared& s = tw::shared<Shared>();
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; ++stage) {
      tw::mbarrier_init(s.full[stage], 1);
      tw::mbarrier_init(s.empty[stage], 4);
    }
    tw::fence_mbarrier_init();
  }
  if (!is(INITIALISED_TOO_LATE)) __syncthreads();
  if (threadIdx.x == 0) load(s, a_map, b_map, k / 64);
  if (threadIdx.x >= 128) multiply(s, k / 64, c);
}
