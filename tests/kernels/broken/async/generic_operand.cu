// C = (2 A) B for one 64x64 tile: threads write A's tile, doubled, TMA brings B's, and wgmma reads both.
#include <tw/fence.cuh>
#include <tw/fragment.cuh>
#include <tw/mbarrier.cuh>
#include <tw/memory.cuh>
#include <tw/operand_tile.cuh>
#include <tw/sync.cuh>
#include <tw/tma.cuh>
#include <tw/wgmma.cuh>

enum Fault { NONE, READERS_FENCE, NO_FENCE, FENCE_BEFORE_WRITE, ONE_THREAD_FENCES, NO_BARRIER, UNWRITTEN };
__device__ constexpr bool is(Fault fault) { return plan::FAULT == fault; }

using Tile = tw::OperandTile<tw::bf16, true, 64, 64>;
struct Shared {
  Tile a, b;
  tw::Mbarrier full;
};

extern "C" __global__ void __launch_bounds__(128) tw_gemm(const __grid_constant__ tw::TensorMap b_map,
                                                          const tw::bf16* a, tw::bf16* c) {
  Shared& s = tw::shared<Shared>();
  const int t = threadIdx.x;
  if (t == 0) {
    tw::mbarrier_init(s.full, 1);
    tw::fence_mbarrier_init();
    tw::mbarrier_expect_tx(s.full, sizeof(Tile));
    tw::tma_load_2d(&s.b, b_map, s.full, 0, 0);
  }
  if (is(FENCE_BEFORE_WRITE)) tw::fence_proxy_async();
  for (int i = t; i < 64 * (is(UNWRITTEN) ? 63 : 64) / 8; i += 128) {
    tw::Vec<tw::bf16, 8> chunk = tw::load<8>(a + i * 8);
    for (int e = 0; e < 8; ++e) chunk[e] = tw::from_float<tw::bf16>(2 * tw::to_float(chunk[e]));
    tw::store<8>(s.a.elements + Tile::index(i / 8, i % 8 * 8), chunk);
  }
  const bool writers_fence = is(NONE) || is(NO_BARRIER) || is(UNWRITTEN) || (is(ONE_THREAD_FENCES) && t == 0);
  if (writers_fence) tw::fence_proxy_async();
  if (is(NO_BARRIER)) __syncwarp();
  else __syncthreads();
  if (is(READERS_FENCE)) tw::fence_proxy_async();

  tw::mbarrier_wait(s.full, 0);
  float d[32];
  tw::wgmma_fence();
  for (int k = 0; k < 64; k += 16)
    tw::wgmma<tw::bf16, 64, false, false>(d, Tile::descriptor(s.a.low() + Tile::step(0, k)),
                                          Tile::descriptor(s.b.low() + Tile::step(0, k)), k > 0);
  tw::wgmma_commit();
  tw::wgmma_wait<0>();
  tw::wgmma_pin(d);
  tw::store_fragment(c, 64, t / 32 * 16, 0, 64, 64, d, true);
}
