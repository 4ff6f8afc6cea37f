// setmaxnreg by warpgroups of a block of 384 threads, which has at most 168 registers a thread; used rightly (0 and 1)
// and in ways that are mistakes.
#include <tw/sync.cuh>
#include <tw/warpgroup.cuh>

extern "C" __global__ void tw_gemm(float* out) {
  const int warp = tw::warp_index(), warpgroup = warp / 4;
  switch (plan::CASE) {
    case 0:  // the split of a producer and two consumers
      if (warpgroup == 0)
        tw::setmaxnreg_decrease<40>();
      else
        tw::setmaxnreg_increase<232>();
      break;
    case 1:
      tw::setmaxnreg_decrease<40>();
      if (warpgroup == 1) tw::setmaxnreg_increase<240>();
      break;
    case 10:
      if (warp == 6)
        tw::setmaxnreg_decrease<40>();
      else
        tw::setmaxnreg_decrease<48>();
      break;
    case 11:
      if (warp != 6) tw::setmaxnreg_decrease<40>();
      break;
    case 12:
      if (warpgroup == 0)
        tw::setmaxnreg_decrease<48>();
      else
        tw::setmaxnreg_increase<232>();
      break;
    case 13:
      tw::setmaxnreg_decrease<176>();
      break;
    case 14:
      tw::setmaxnreg_decrease<40>();
      tw::setmaxnreg_increase<32>();
      break;
    case 15:
      if (threadIdx.x == 7) return;
      tw::setmaxnreg_decrease<40>();
      break;
  }
  out[threadIdx.x] = 1.0f;
}
