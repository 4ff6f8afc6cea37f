// A box that TMA loads into each block of a cluster, dumped as it lies in shared memory. Each block loads its share of
// the box's outermost dimension and multicasts it to all.
// Without WAITS, it is dumped too early.
#include <tw/cluster.cuh>
#include <tw/memory.cuh>
#include <tw/tma.cuh>

struct Shared {
  alignas(1024) tw::u32 box[plan::BOX_BYTES / 4];
  tw::Mbarrier full;
};

extern "C" __global__ void tw_gemm(const __grid_constant__ tw::TensorMap map, int x, int y, int z, tw::u32* out) {
  Shared& s = tw::shared<Shared>();
  const int t = threadIdx.x;
  constexpr int kShare = plan::BOX_BYTES / plan::CLUSTER;
  const int rank = int(tw::cluster_rank());
  if (t == 0) {
    tw::tma_prefetch_map(map);
    tw::mbarrier_init(s.full, 1);
    tw::fence_mbarrier_init();
  }
  tw::cluster_sync();
  if (t == 0) {
    tw::mbarrier_expect_tx(s.full, plan::BOX_BYTES);
    tw::u32* share = s.box + rank * (kShare / 4);
    constexpr tw::u16 kAll = (1 << plan::CLUSTER) - 1;
    if (plan::RANK == 2 && plan::CLUSTER == 1) tw::tma_load_2d(share, map, s.full, x, y);
    if (plan::RANK == 3 && plan::CLUSTER == 1) tw::tma_load_3d(share, map, s.full, x, y, z);
    if (plan::RANK == 2 && plan::CLUSTER > 1)
      tw::tma_load_2d_multicast(share, map, s.full, x, y + rank * plan::SHARE, kAll);
    if (plan::RANK == 3 && plan::CLUSTER > 1)
      tw::tma_load_3d_multicast<tw::CacheHint::kEvictFirst>(share, map, s.full, x, y, z + rank * plan::SHARE, kAll);
  }
  plan::WAITS ? tw::mbarrier_wait(s.full, 0) : __syncthreads();
  out += rank * (plan::BOX_BYTES / 4);
  for (int i = t; i < plan::BOX_BYTES / 4; i += blockDim.x) out[i] = s.box[i];
  tw::mbarrier_wait(s.full, 0);
}
