// One thread that does to an mbarrier what a list of operations says, and writes down what each test says. The bytes are
// those of a TMA load of the map's box.
#include <tw/memory.cuh>
#include <tw/tma.cuh>

using tw::u32;
enum Operation : u32 { kArrive, kExpect, kTest, kLoad, kPollUntil, kPause };  // in the low byte; above, a number

struct Shared {
  alignas(1024) u32 box[256];
  tw::Mbarrier barrier;
};

extern "C" __global__ void tw_gemm(const __grid_constant__ tw::TensorMap map, int arrivals, int count,
                                   const u32* operations, u32* out) {
  Shared& s = tw::shared<Shared>();
  if (threadIdx.x != 0) return;
  tw::mbarrier_init(s.barrier, u32(arrivals));
  tw::fence_mbarrier_init();
  for (int i = 0; i < count; ++i) {
    const u32 number = operations[i] >> 8;
    u32 result = 0;
    switch (operations[i] & 0xff) {
      case kArrive:
        tw::mbarrier_arrive(s.barrier);
        break;
      case kExpect:
        tw::mbarrier_expect_tx(s.barrier, number);
        break;
      case kTest:
        result = tw::mbarrier_try_wait(s.barrier, number);
        break;
      case kLoad:
        tw::tma_load_2d(s.box, map, s.barrier, 0, 0);
        break;
      case kPollUntil:  // the phase of that parity has completed
        for (int poll = 0; poll < 100000 && result == 0; ++poll) result = tw::mbarrier_try_wait(s.barrier, number);
        break;
      case kPause:  // for as long as a load takes, by asking for a phase that has not completed
        for (int poll = 0; poll < 256; ++poll) result |= u32(tw::mbarrier_try_wait(s.barrier, number));
        break;
    }
    out[i] = result;
  }
}
