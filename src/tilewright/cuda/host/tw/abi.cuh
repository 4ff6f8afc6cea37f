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

void tw_cp_async(void* shared_dst, const void* global_src, int bytes, int valid);
void tw_cp_async_commit();
void tw_cp_async_wait(int newest_allowed);
}
#pragma GCC visibility pop
