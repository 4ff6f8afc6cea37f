// Structs copied and arrays filled: plan::CASE says which. One block of 32 threads.
#include <tw/memory.cuh>
#include <tw/sync.cuh>

struct Pair { float x, y; };  // 8 bytes, aligned as a float is
struct Five { float v[5]; };
struct Shared { Five five[32]; float value[32][32]; };

extern "C" float tw_of_nowhere(float);  // no library defines it

extern "C" __global__ void tw_gemm(const float* in, float* out) {
  Shared& s = tw::shared<Shared>();
  const int t = threadIdx.x;
  const Five* five_in = reinterpret_cast<const Five*>(in + 1);
  Five* five_out = reinterpret_cast<Five*>(out + 1);
  if constexpr (plan::CASE == 0 || plan::CASE == 1) {  // through shared memory, without a barrier and with one
    s.five[t] = five_in[t];
    if constexpr (plan::CASE == 1) __syncthreads();
    five_out[t] = s.five[31 - t];
  }
  if constexpr (plan::CASE == 2) five_out[t] = five_in[t];
  if constexpr (plan::CASE == 3)
    reinterpret_cast<Pair*>(out + 1)[t] = reinterpret_cast<const Pair*>(in + 1)[t];
  if constexpr (plan::CASE == 4) {  // loops that a compiler turns into memset and memcpy
    for (int i = 0; i < 16; ++i) s.value[t][i] = 0.0f;
    for (int i = 0; i < 16; ++i) s.value[t][16 + i] = in[16 * t + i];
    __syncthreads();
    float sum = 0.0f;
    for (int i = 0; i < 32; ++i) sum += s.value[31 - t][i];
    out[t] = sum;
  }
  if constexpr (plan::CASE == 5) out[t] += 1.0f;  // a read, too
  if constexpr (plan::CASE == 6) five_out[t] = five_in[t + 32 * int(in[0])];  // past the end where in[0] is not 0
  if constexpr (plan::CASE == 7) {
    tw::atomic_add(out + t, 1.0f);
    tw::atomic_add(out + t, 1.0f);  // the last call, which could be a jump
  }
  if constexpr (plan::CASE == 8) {  // one element as two types
    float* value = s.value[0] + t;
    *value = 1.0f;
    *reinterpret_cast<unsigned*>(s.value[0] + t + int(in[0])) = 0x40000000u;
    out[t] = *value;
  }
  if constexpr (plan::CASE == 9) out[t] = tw_of_nowhere(in[t]);
}
