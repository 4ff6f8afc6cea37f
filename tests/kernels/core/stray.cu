// One access at an element of the caller's choice.
#include <tw/memory.cuh>
#include <tw/types.cuh>

struct Shared { float value[plan::SHARED_BYTES / 4]; };

extern "C" __global__ void tw_gemm(tw::i64 at, const float* in, float* out) {
  if (threadIdx.x != 5 || blockIdx.x != 1) return;
  Shared& s = tw::shared<Shared>();
  switch (plan::CASE) {
    case 0:
      out[0] = in[at];
      break;
    case 1:
      out[at] = 1.0f;
      break;
    case 2:
      tw::store<4>(out + at, tw::load<4>(in));
      break;
    case 3:
      s.value[at] = in[0];
      break;
    case 4:
      out[0] = float(100 / int(at));
      break;
    case 5: {  // more local memory than a thread has
      volatile char local[1 << 20];
      for (int i = int(at); i >= 0; i -= 1024) local[i] = 1;
      out[0] = local[0];
    }
  }
}
