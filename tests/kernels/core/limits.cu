// What lies at the edges of the machine: of shared and local memory, of barriers, of instructions.
#include <tw/cp_async.cuh>
#include <tw/memory.cuh>
#include <tw/sync.cuh>
#include <tw/types.cuh>

struct Shared {
  alignas(16) char bytes[240];
  tw::u32 count[4];
};

template <class T> __device__ void touch(Shared& s, tw::i64 at) { *reinterpret_cast<volatile T*>(s.bytes + at) = T(1); }

// A frame of so many KB, of which only the far end is touched; `at` is 0.
template <int KB> __device__ __attribute__((noinline)) float frame(int t, tw::i64 at) {
  volatile float local[KB << 8];
  local[at] = float(t + 1);
  __syncthreads();
  return local[at];
}

// Waits for another thread, but not for ever.
__device__ float wait_for(tw::u32* flag) {
  for (int i = 0; i < 1 << 24; ++i)
    if (tw::atomic_add(flag, 0u)) return 1.0f;
  return 0.0f;
}

extern "C" __global__ void tw_gemm(tw::i64 at, const float* in, float* out) {
  Shared& s = tw::shared<Shared>();
  const int t = threadIdx.x, lane = t % 32;
  float result = 1.0f;
  switch (plan::CASE) {
    case 1:
      touch<unsigned char>(s, at);
      break;
    case 2:
      touch<tw::u16>(s, at);
      break;
    case 4:
      touch<float>(s, at);
      break;
    case 8:
      tw::store<2>(reinterpret_cast<float*>(s.bytes + at), tw::load<2>(in));
      break;
    case 16:
      tw::store<4>(reinterpret_cast<float*>(s.bytes + at), tw::load<4>(in));
      break;
    case 20:
      tw::atomic_add(reinterpret_cast<float*>(s.bytes + at), 1.0f);
      break;
    case 30:  // all of the local memory that a GPU gives
      result = frame<500>(t, at) == float(t + 1);
      break;
    case 31:  // more than that; what is touched lies beyond a page of guard
      result = t == 5 ? frame<620>(t, at) : frame<1>(t, at);
      break;
    case 40:  // two barriers for one warp
      if (lane < 16)
        __syncthreads();
      else
        __syncthreads();
      break;
    case 41:  // one barrier, reached in two ways
      for (int i = 0; i < 3; ++i) {
        if (lane < 16) result += in[i];
        __syncthreads();
      }
      break;
    case 42:  // the last warp counts as 32 threads
      s.count[0] = 0;
      tw::barrier_sync(1, (int(blockDim.x) + 31) / 32 * 32);
      tw::atomic_add(&s.count[0], 1u);
      __syncthreads();
      result = float(s.count[0] == blockDim.x);
      break;
    case 50:  // one lane waits for another of its warp, which runs later
    case 51:  // for one in the middle of the block
      if (t == 0) s.count[0] = 0;
      __syncthreads();
      if (t == 0) result = wait_for(&s.count[0]);
      if (t == (plan::CASE == 50 ? 7 : int(blockDim.x) / 2)) tw::atomic_add(&s.count[0], 1u);
      break;
    case 60:
      if (t == 5) __builtin_trap();
      break;
    case 61:  // an address that is none: bits 47 and up differ
      if (t == 5) result = *reinterpret_cast<const volatile float*>(0x8000000000000000ull + tw::u64(at));
      break;
    case 70: {  // many copies in flight
      const int first = 4 * t;
      for (int i = 0; i < 1000; ++i) tw::cp_async<4>(s.bytes + first, in + i % 4, i == 999 ? 4 : 0);
      tw::cp_async_commit();
      tw::cp_async_wait<0>();
      result = *reinterpret_cast<float*>(s.bytes + first) == in[3];
      break;
    }
  }
  out[t] = result;
}
