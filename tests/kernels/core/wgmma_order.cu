// The order of wgmma, its fence, commit and wait; used rightly (0 to 9) and in ways that are mistakes. All elements of A
// and B are 1, so that each step of 16 in K adds 16 to every accumulator.
#include <tw/memory.cuh>
#include <tw/sync.cuh>
#include <tw/warpgroup.cuh>
#include <tw/wgmma.cuh>

constexpr tw::u64 STRIDE = 128;  // without a swizzle: 8x16-byte core matrices in a row, along M or N
constexpr tw::u64 FORMAT = (64 * 16 / 16) << 16 | (STRIDE >> 4) << 32;

struct Shared { alignas(1024) tw::bf16 ones[64 * 16]; };

template <int N> __device__ void multiply(float (&d)[N / 2], tw::u64 a, tw::u64 b, bool accumulate = true) {
  tw::wgmma<tw::bf16, N, false, false>(d, a, b, accumulate);
}

extern "C" __global__ void tw_gemm(float* out) {
  Shared& s = tw::shared<Shared>();
  const int t = threadIdx.x, warp = tw::warp_index();
  for (int i = t; i < 64 * 16; i += blockDim.x) s.ones[i] = tw::from_float<tw::bf16>(1.0f);
  __syncthreads();
  const tw::u64 ones = FORMAT | tw::shared_address(s.ones) >> 4;
  float d[8] = {}, e[8] = {};
  if (plan::CASE != 10) tw::wgmma_fence();
  switch (plan::CASE) {
    case 0:  // two groups in flight; the first is waited for
      multiply<16>(d, ones, ones);
      tw::wgmma_commit();
      multiply<16>(e, ones, ones);
      tw::wgmma_commit();
      tw::wgmma_wait<1>();
      out[t] = d[0];
      out[128 + t] = e[0];  // too early
      tw::wgmma_wait<0>();
      out[256 + t] = d[1] + e[1];
      return;
    case 1:  // two groups on one accumulator: the first alone does not give it back
      multiply<16>(d, ones, ones);
      tw::wgmma_commit();
      multiply<16>(d, ones, ones);
      tw::wgmma_commit();
      tw::wgmma_wait<1>();
      out[t] = d[0];  // too early
      multiply<16>(d, ones, ones);  // no fence: nobody may have touched it
      tw::wgmma_commit();
      tw::wgmma_wait<0>();
      out[128 + t] = d[7];
      return;
    case 2:  // the operand is overwritten before the wait
      multiply<16>(d, ones, ones);
      tw::wgmma_commit();
      __syncthreads();
      for (int i = t; i < 64 * 16; i += blockDim.x) s.ones[i] = tw::from_float<tw::bf16>(2.0f);
      __syncthreads();
      tw::wgmma_wait<0>();
      out[t] = d[0];
      return;
    case 3: {  // the registers of A belong to the next step before this one is waited for
      for (int k = 0; k < 2; ++k) {
        const tw::u32 one = tw::pack<tw::bf16>(1.0f + k, 1.0f + k);
        tw::u32 a[4] = {one, one, one, one};
        tw::wgmma<tw::bf16, 16, false>(d, a, ones, true);
      }
      break;
    }
    case 10:  // no fence at all
      multiply<16>(d, ones, ones);
      break;
    case 11:  // none since the accumulator came back
      multiply<16>(d, ones, ones);
      tw::wgmma_commit();
      tw::wgmma_wait<0>();
      d[0] *= 2.0f;
      multiply<16>(d, ones, ones);
      break;
    case 12:  // never waited for
      multiply<16>(d, ones, ones);
      tw::wgmma_commit();
      multiply<16>(d, ones, ones);
      return;
    case 13:  // an accumulator written in flight
      multiply<16>(d, ones, ones);
      if (t == 37) d[3] = 0.0f;
      break;
    case 14:  // one accumulator as two shapes
      multiply<16>(d, ones, ones);
      multiply<8>(reinterpret_cast<float (&)[4]>(d[4]), ones, ones);
      break;
    case 15:  // more accumulators than a thread has registers
    {
      float wide[128], other[128];
      for (int i = 0; i < 128; ++i) wide[i] = other[i] = 0.0f;
      multiply<256>(wide, ones, ones & 0x3fff);
      multiply<256>(other, ones, ones & 0x3fff);
      break;
    }
    case 20:
      multiply<16>(d, ones + 17, ones);
      break;
    case 21:
      multiply<16>(d, ones, ones + 128);
      break;
    case 22:
      multiply<16>(d, ones, ones | tw::u64(1) << 49);
      break;
    case 23:
      multiply<16>(d, ones, ones | tw::u64(1) << 14);
      break;
    case 30:  // another width in warp 2
      if (warp == 2)
        multiply<8>(reinterpret_cast<float (&)[4]>(d), ones, ones);
      else
        multiply<16>(d, ones, ones);
      break;
    case 31:  // another descriptor in warp 2
      multiply<16>(d, ones, warp == 2 ? ones + 8 : ones);
      break;
    case 32:  // warp 2 leaves before the others
      if (warp == 2) return;
      multiply<16>(d, ones, ones);
      break;
    case 36:  // warp 3, which is the first to go on, leaves
      if (warp == 3) return;
      multiply<16>(d, ones, ones);
      break;
    case 33:  // warp 2 does one fewer
      multiply<16>(d, ones, ones);
      if (warp != 2) multiply<16>(d, ones, ones);
      break;
    case 34:  // lanes disagree
      multiply<16>(d, ones, ones, t != 37);
      break;
    case 35:  // a lane has left
      if (t == 37) return;
      multiply<16>(d, ones, ones);
      break;
  }
  tw::wgmma_commit();
  tw::wgmma_wait<0>();
  out[t] = d[0];
}
