// Boxes that TMA loads, dumped as they lie in shared memory with what lies behind them; what nothing was written to is
// all ones. Each block of `senders` loads the box `step` further along the outermost dimension, to where `share_bytes`
// a rank lead; into itself, or into all `receivers`. Behind the dump: whether all expected bytes came.
#include <tw/cluster.cuh>
#include <tw/fence.cuh>
#include <tw/memory.cuh>
#include <tw/tma.cuh>

using tw::u32;
constexpr int WORDS = (plan::SHARED_BYTES - 1024) / 4;

struct Shared {
  alignas(1024) u32 words[WORDS];
  tw::Mbarrier full;
};

extern "C" __global__ void tw_gemm(const __grid_constant__ tw::TensorMap map, int dimensions, int x, int y, int z,
                                   int step, int share_bytes, u32 senders, u32 receivers, u32 expected, int polls,
                                   int dump_words, u32* out) {
  Shared& s = tw::shared<Shared>();
  const int t = threadIdx.x, block = int(tw::cluster_rank());
  for (int i = t; i < WORDS; i += blockDim.x) s.words[i] = 0xffffffff;
  tw::fence_proxy_async();
  if (t == 0) {
    tw::mbarrier_init(s.full, 1);
    tw::fence_mbarrier_init();
  }
  tw::cluster_sync();
  const bool receives = ((receivers ? receivers : senders) >> block & 1) != 0;
  if (t == 0 && receives) tw::mbarrier_expect_tx(s.full, expected);
  if (t == 0 && (senders >> block & 1) != 0) {
    u32* const to = s.words + block * (share_bytes / 4);
    const int outermost = (dimensions == 2 ? y : z) + block * step;
    if (receivers == 0) {
      if (dimensions == 2) tw::tma_load_2d(to, map, s.full, x, outermost);
      if (dimensions == 3) tw::tma_load_3d<tw::CacheHint::kEvictFirst>(to, map, s.full, x, y, outermost);
    } else {
      if (dimensions == 2)
        tw::tma_load_2d_multicast<tw::CacheHint::kEvictLast>(to, map, s.full, x, outermost, tw::u16(receivers));
      if (dimensions == 3) tw::tma_load_3d_multicast(to, map, s.full, x, y, outermost, tw::u16(receivers));
    }
  }
  bool landed = !receives;
  for (int i = 0; i < polls && !landed; ++i) landed = tw::mbarrier_try_wait(s.full, 0);  // never for ever
  __syncthreads();
  out += block * (dump_words + 1);
  for (int i = t; i < dump_words; i += blockDim.x) out[i] = s.words[i];
  if (t == 0) out[dump_words] = landed;
  tw::cluster_sync();
}
