// C = A B for a 16x8 tile, its K blocks brought by TMA into one buffer and read by ldmatrix: an ordinary read, which the
// next load must not overtake.
#include <tw/fence.cuh>
#include <tw/matrix.cuh>
#include <tw/mbarrier.cuh>
#include <tw/memory.cuh>
#include <tw/operand_tile.cuh>
#include <tw/tma.cuh>

enum Fault { NONE, LANE_FENCES, LOADER_FENCES, NO_FENCE, NO_WAIT };
__device__ constexpr bool is(Fault fault) { return plan::FAULT == fault; }

using TileA = tw::OperandTile<tw::bf16, true, 16, 64>;
using TileB = tw::OperandTile<tw::bf16, true, 8, 64>;
struct Shared {
  TileA a;
  TileB b;
  tw::Mbarrier full, empty;
};

extern "C" __global__ void __launch_bounds__(64) tw_gemm(const __grid_constant__ tw::TensorMap a_map,
                                                         const __grid_constant__ tw::TensorMap b_map, int k, float* c) {
  Shared& s = tw::shared<Shared>();
  const int lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    tw::mbarrier_init(s.full, 1);
    tw::mbarrier_init(s.empty, 1);
    tw::fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int block = 0; block < k / 64; ++block) {
      if (!is(NO_WAIT)) tw::mbarrier_wait(s.empty, block % 2 ^ 1);
      if (is(LOADER_FENCES)) tw::fence_proxy_async();
      tw::mbarrier_expect_tx(s.full, sizeof(TileA) + sizeof(TileB));
      tw::tma_load_2d(&s.a, a_map, s.full, block * 64, 0);
      tw::tma_load_2d(&s.b, b_map, s.full, block * 64, 0);
    }
  }
  if (threadIdx.x < 32) return;
  float d[4] = {};
  for (int block = 0; block < k / 64; ++block) {
    tw::mbarrier_wait(s.full, block % 2);
    for (int i = 0; i < 64; i += 16) {
      tw::u32 a[4], b[2];
      tw::ldmatrix_x4(a, s.a.elements + TileA::index(lane % 16, i + lane / 16 * 8));
      tw::ldmatrix_x2(b, s.b.elements + TileB::index(lane % 8, i + lane / 8 % 2 * 8));
      tw::mma_m16n8k16<tw::bf16>(d, a, b[0], b[1]);
    }
    if (is(NONE)) tw::fence_proxy_async();
    __syncwarp();
    if (is(LANE_FENCES) && lane == 0) tw::fence_proxy_async();
    if (lane == 0) tw::mbarrier_arrive(s.empty);
  }
  for (int i = 0; i < 4; ++i) c[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = d[i];
}
