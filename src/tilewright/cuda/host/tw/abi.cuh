// What a kernel built for the host and the emulator's runtime know of each other; both sides include it, so the
// compiler checks both. No standard header: this is part of every kernel's translation unit.
#pragma once
namespace tw {
struct Dim3 { unsigned x, y, z; };

// The part of a fiber that kernel code reads through threadIdx, blockIdx and shared<T>().
struct Context {
  Dim3 thread, block;
  unsigned char* shared;  // this block's dynamic shared memory
  unsigned cluster_rank;  // of the block
  unsigned lane;          // 0..31, of the warp
};

// Of the operands of tensor-core instructions.
enum ElementType : int { kBf16 = 0, kFp16 = 1 };

namespace host {
inline unsigned bits_of(float x) {
  unsigned bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline float float_of(unsigned bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}
// A bf16 is the upper half of a float.
inline float bf16_to_float(unsigned short x) { return float_of(unsigned(x) << 16); }
// An fp16 has 112 less in its exponent and 13 bits less behind it. A subnormal m is 2^-14 (1 + m / 1024) without its
// leading 1; infinity has the largest exponent there is, and every NaN becomes the one that cvt makes (measured on an
// H200). No branch, so that a loop of it is vectorised.
inline float fp16_to_float(unsigned short x) {
  const unsigned magnitude = unsigned(x & 0x7fff) << 13;
  const unsigned exponent = magnitude >= 31u << 23 ? 224u << 23 : 112u << 23;
  const unsigned leading = magnitude < 1u << 23 ? 113u << 23 : 0u;  // 2^-14
  const float result = float_of(magnitude + (leading ? leading : exponent)) - float_of(leading);
  return float_of(magnitude > 31u << 23 ? 0x7fffffffu : bits_of(result) | unsigned(x & 0x8000) << 16);
}
}  // namespace host
}  // namespace tw

#pragma GCC visibility push(default)
extern "C" {
extern tw::Context* tw_current;  // the running fiber; null outside a kernel
extern tw::Dim3 tw_block_dim, tw_grid_dim;
extern unsigned long long tw_fma_count;  // counted by kernels compiled with TW_COUNT

void tw_syncthreads(unsigned place);  // which call of the source: its line << 16 and a number of its own
void tw_syncwarp();
void tw_barrier_sync(int id, int threads);
void tw_barrier_arrive(int id, int threads);

float tw_shuffle(float value, int lane);
float tw_shuffle_xor(float value, int mask);
float tw_shuffle_down(float value, int delta);

float tw_atomic_add_f32(float* address, float value);
unsigned tw_atomic_add_u32(unsigned* address, unsigned value);
void tw_atomic_largest_f32(float* address, float value);  // NaN is larger than all numbers
unsigned tw_atomic_add_ordered(unsigned* address, unsigned value, bool acquire, bool release);

void tw_cp_async(void* shared_dst, const void* global_src, int bytes, int valid);
void tw_cp_async_commit();
void tw_cp_async_wait(int newest_allowed);

// Warp-wide matrix instructions; `type` is an ElementType.
void tw_ldmatrix(unsigned* registers, const void* row, int matrices, bool transposed);
void tw_stmatrix(void* row, const unsigned* registers, int matrices, bool transposed);
void tw_mma_m16n8k16(float* d, const unsigned* a, const unsigned* b, int type);
bool tw_elect_one();

// mbarriers: 8 bytes of shared memory each.
void tw_mbarrier_init(void* barrier, unsigned arrivals);
void tw_mbarrier_arrive(void* barrier);
void tw_mbarrier_arrive_remote(void* barrier, unsigned rank);  // the one at the same offset in another block's memory
void tw_mbarrier_arrive_expect_tx(void* barrier, unsigned bytes);
bool tw_mbarrier_try_wait(void* barrier, unsigned parity);  // lets others run when it has to say no
void tw_mbarrier_wait(void* barrier, unsigned parity);
void tw_fence_mbarrier_init();
void tw_fence_proxy_async();

// Clusters.
void tw_cluster_arrive();
void tw_cluster_wait();
void* tw_in_block(const void* shared, unsigned rank);

// TMA. `map` points to a 128-byte tensor map; coordinates count elements, the contiguous dimension first.
void tw_tma_prefetch(const void* map);
void tw_tma_load(void* shared_dst, const void* map, void* barrier, int rank, const int* at, bool multicast,
                 unsigned blocks);
void tw_tma_store(const void* map, const void* shared_src, int rank, const int* at);
void tw_tma_store_commit();
void tw_tma_store_wait(int newest_allowed, bool read_only);

// wgmma, of a warpgroup: each warp does its 16 rows. `a_registers` is null when A comes from shared memory.
unsigned tw_shared_address(const void* shared);
void tw_wgmma_fence();
void tw_wgmma(float* d, int n, const unsigned* a_registers, unsigned long long a, unsigned long long b, bool accumulate,
              int type, bool transpose_a, bool transpose_b);
void tw_wgmma_commit();
void tw_wgmma_wait(int newest_allowed);

void tw_setmaxnreg(int registers, bool increase);
void tw_griddepcontrol_wait();
void tw_griddepcontrol_launch_dependents();
}
#pragma GCC visibility pop
