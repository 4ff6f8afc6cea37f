// cp.async, used rightly (0 to 2) and in ways that are mistakes (10 and up).
#include <tw/cp_async.cuh>
#include <tw/memory.cuh>

struct Shared { float stage[2][plan::THREADS * 4]; };

extern "C" __global__ void tw_gemm(int n, const float* in, float* out) {
  Shared& s = tw::shared<Shared>();
  const int t = threadIdx.x * 4;
  float* mine = &s.stage[0][t];
  switch (plan::CASE) {
    case 0:  // one copy, of which 4, 8, 12 or 16 bytes are read
      tw::cp_async<16>(mine, in + t, (threadIdx.x % 4 + 1) * 4);
      tw::cp_async_commit();
      tw::cp_async_wait<0>();
      break;
    case 1:  // two stages; the second is in flight while the first is read
      for (int i = 0; i < 2; ++i) {
        tw::cp_async<8>(&s.stage[i][t], in + i * plan::THREADS * 4 + t, 8);
        tw::cp_async<4>(&s.stage[i][t + 2], in + i * plan::THREADS * 4 + t + 2, 4);
        tw::cp_async<4>(&s.stage[i][t + 3], in + i * plan::THREADS * 4 + t + 3, 4);
        tw::cp_async_commit();
      }
      tw::cp_async_wait<1>();
      for (int e = 0; e < 4; ++e) out[t + e] = mine[e];
      tw::cp_async_wait<0>();
      mine = &s.stage[1][t];
      out += plan::THREADS * 4;
      break;
    case 2:  // nothing is read, wherever the source points
      tw::cp_async<16>(mine, in + n, 0);
      tw::cp_async_commit();
      tw::cp_async_wait<0>();
      break;
    case 10:  // read before the copy is waited for
      tw::cp_async<16>(mine, in + t, 16);
      tw::cp_async_commit();
      for (int e = 0; e < 4; ++e) out[t + e] = mine[e];
      tw::cp_async_wait<0>();
      return;
    case 11:  // waited for, but never committed
      tw::cp_async<16>(mine, in + t, 16);
      tw::cp_async_wait<0>();
      return;
    case 12:  // committed, but never waited for
      tw::cp_async<16>(mine, in + t, 16);
      tw::cp_async_commit();
      return;
    case 13:
      tw::cp_async<16>(mine + 1, in + t, 16);
      break;
    case 14:
      tw::cp_async<16>(mine, in + t + 2, 16);
      break;
    case 15:
      tw::cp_async<16>(mine, in + t, 20);
      break;
    case 16:
      tw::cp_async<16>(out + t, in + t, 16);
      break;
    case 17:
      tw::cp_async<16>(&s.stage[2][0], in + t, 16);
      break;
    case 18:
      tw::cp_async<16>(mine, in + n - 4, 16 + n * 0);
      tw::cp_async<16>(mine, in + n, 16);
      break;
  }
  for (int e = 0; e < 4; ++e) out[t + e] = mine[e];
}
