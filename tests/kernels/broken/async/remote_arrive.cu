// Block 1 of a cluster tells block 0 that it has come, and that it is about to go.
#include <tw/cluster.cuh>
#include <tw/mbarrier.cuh>
#include <tw/memory.cuh>

enum Fault { NONE, NO_CLUSTER_BARRIER, ORDINARY_WRITE, UNSEEN_AT_EXIT };
__device__ constexpr bool is(Fault fault) { return plan::FAULT == fault; }

struct Shared {
  tw::Mbarrier come, go;
};

extern "C" __global__ void __launch_bounds__(32) tw_gemm(float* out) {
  Shared& s = tw::shared<Shared>();
  const int t = threadIdx.x;
  if (t == 0) {
    tw::mbarrier_init(s.come, 1);
    tw::mbarrier_init(s.go, 1);
    tw::fence_mbarrier_init();
  }
  if (is(NO_CLUSTER_BARRIER)) __syncthreads();
  else tw::cluster_sync();
  if (tw::cluster_rank() == 1) {
    if (t == 0) tw::mbarrier_arrive_remote(s.come, 0);
    if (t == 0) tw::mbarrier_arrive_remote(s.go, 0);
    return;
  }
  tw::mbarrier_wait(s.come, 0);
  if (!is(UNSEEN_AT_EXIT)) tw::mbarrier_wait(s.go, 0);
  if (is(ORDINARY_WRITE) && t == 31) s.come.state = 0;
  out[t] = 1.0f;
}
