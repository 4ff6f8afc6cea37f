// What the emulator's parts know of each other: fibers, warps, blocks, and who may watch them.
//
// A GPU thread is a fiber; the blocks of one cluster run together on the calling OS thread; clusters run one after
// another. Nothing here uses the C++ standard library, so that the runtime links with no C++ library at all.
// All of it is plain state of one launch at a time: thread_local in a library loaded late runs out of static TLS.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "../tw/abi.cuh"

// The library is built with hidden visibility: only what carries this can be called from Python or a kernel.
#define TW_API extern "C" __attribute__((visibility("default")))

#pragma GCC visibility push(hidden)
namespace tw {
using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;

enum : u32 {
  kWarpLanes = 32,
  kMaxClusterBlocks = 8,
  kMaxThreadsPerBlock = 1024,
  kMaxThreads = kMaxClusterBlocks * kMaxThreadsPerBlock,
  kMaxWarps = kMaxThreads / kWarpLanes,
  kSharedArena = 256u << 10,  // address space per block; kSharedLimit of it may be used
  kSharedLimit = 227u << 10,  // CUDA: largest dynamic shared memory of one block on sm_90
  kLocalBytes = 512u << 10,  // CUDA: local memory of one thread
  kStackBytes = kLocalBytes + (64u << 10),  // with what a host compiler and this runtime need beside it
  kStackGuard = 64u << 10,  // protected, below each stack: a multiple of any page size
  kBarriers = 16,  // named barriers of a block; __syncthreads is number 0
};

struct Warp;
struct Block;

// What a switch touches is one cache line: with a thousand fibers, that is what a switch costs.
struct alignas(64) Fiber : Context {
  void* stack_pointer;
  Warp* warp;
  const char* waiting;  // what it last waited for, for the deadlock report

  Block* owner;
  u8* stack;            // lowest address of kStackBytes
  u32 thread_in_block;  // linear
  u32 id;               // linear within the cluster: rank * threads + thread_in_block
};

// Where the live lanes of a warp meet to do one thing together: the last to come does `work` for all of them.
struct Rendezvous {
  const char* operation;  // null while nobody is there
  void (*work)(Warp& warp);
  u32 arrived;             // lanes
  void* operands[kWarpLanes];  // into the waiting lanes' stacks
};

struct Warp {
  u32 ready, alive, members;  // lane masks
  u32 index, index_in_block;  // index: within the cluster
  Block* block;
  u32 sync_place;  // the call of __syncthreads at which lanes of it wait, as tw_syncthreads is told
  Fiber* fibers[kWarpLanes];
  Rendezvous meeting;
};

struct Barrier {
  u32 arrived, needed;  // threads; needed is set by the first to arrive
  u32 waiting[kMaxThreadsPerBlock / kWarpLanes];  // lane masks, by warp of the block
};

struct Block {
  u32 rank, threads, warps, alive;
  u8* shared;
  u32 shared_bytes;  // dynamic shared memory of this launch
  Dim3 index;
  Warp* first_warp;
  Barrier barriers[kBarriers];
};

// A buffer that a kernel argument points to: rows of row_bytes, pitch apart. element_bytes is for reports.
struct Buffer { u64 base, row_bytes, pitch, rows, element_bytes; };

// What one TMA copy moves. global_bytes are those inside the tensor, read or written once; each of `destinations` blocks
// receives shared_bytes, zeros included.
struct BulkTraffic {
  u64 base;  // of the tensor
  u64 global_bytes, shared_bytes;
  u32 destinations;
};

// Whoever watches an execution: the tracer, the race detector, both, or nobody. Called on the current fiber's stack.
struct Observer {
  virtual void cluster_begin(Block* blocks, u32 count, u32 threads) = 0;
  virtual void cluster_end() = 0;
  // A compiler-instrumented access of kernel code, or one that a primitive makes on its behalf.
  virtual void access(u64 address, u32 bytes, bool write, u64 pc) = 0;
  virtual void atomic(u64 address, u32 bytes, u64 pc) = 0;
  // The same atomic also orders: it acquires what was released at that address, or releases what its thread did, or both.
  virtual void atomic_order(const void* /*address*/, Fiber*, bool /*acquire*/, bool /*release*/) {}
  // Any barrier: `key` names the barrier object. arrive by each; complete once by the last; leave by each that waited.
  // The last one calls leave for all that waited, right after complete: `fiber` need not be the current one.
  virtual void barrier_arrive(const void* key, Fiber* fiber) = 0;
  virtual void barrier_complete(const void* key) = 0;
  virtual void barrier_leave(const void* key, Fiber* fiber) = 0;
  // cp.async: the copy's shared range is written by an agent of the issuing thread until its group is waited for.
  virtual void cp_async_issue(Fiber* fiber, u64 shared_address, u64 global_address, u32 bytes, u32 valid, u64 pc) = 0;
  virtual void cp_async_commit(Fiber* fiber) = 0;
  virtual void cp_async_wait(Fiber* fiber, u32 newest_allowed) = 0;
  virtual void thread_exit(Fiber* fiber) = 0;

  // mbarriers, by their address: a thread arrives; the phase completes once all arrivals and bytes are in; each thread
  // whose wait succeeds leaves, with what the last completed phase gathered. `blocked`: it had to wait at all.
  virtual void mbarrier_init(const void*, Fiber*, u64 /*pc*/) {}
  virtual void mbarrier_use(const void*, Fiber*, u64 /*pc*/) {}  // any other operation of a thread on it, at its start
  virtual void mbarrier_arrive(const void*, Fiber*) {}
  virtual void mbarrier_complete(const void*) {}
  virtual void mbarrier_leave(const void*, Fiber*, bool /*blocked*/) {}
  virtual void fence_mbarrier_init(Fiber*) {}
  // fence.proxy.async: what this thread knows of generic accesses now holds for the async proxy too.
  virtual void fence_proxy_async(Fiber*) {}

  // A TMA copy, by a number that no other copy in flight has. At issue: begin, then one call for each range of shared
  // memory (of a block of the cluster) that it will write (load) or read (store). A load's bytes are `done` once for
  // each barrier that counts them, when they have landed and before that barrier's phase completes.
  virtual void bulk_begin(Fiber*, u32 /*copy*/, bool /*store*/, const BulkTraffic&, u64 /*pc*/) {}
  virtual void bulk_shared(u32 /*copy*/, u32 /*rank*/, u32 /*offset*/, u32 /*bytes*/) {}
  virtual void bulk_done(u32 /*copy*/, const void* /*mbarrier*/) {}
  virtual void bulk_end(u32 /*copy*/) {}  // the number is free again: nothing of the copy is left in flight
  virtual void bulk_commit(Fiber*) {}
  // The stores of all but the newest groups have read their shared memory.
  virtual void bulk_wait(Fiber*, u32 /*newest_allowed*/, bool /*read_only*/) {}

  // wgmma, warp by warp, called by the last lane to come. Ranges of shared memory are read by the async proxy from now
  // until the group that the next commit closes is waited for.
  virtual void wgmma_begin(Warp*, int /*m*/, int /*n*/, int /*k*/, u64 /*pc*/) {}
  virtual void wgmma_shared(Warp*, u32 /*offset*/, u32 /*bytes*/, bool /*of_a*/) {}
  virtual void wgmma_fence(Warp*) {}
  virtual void wgmma_commit(Warp*) {}
  virtual void wgmma_wait(Warp*, u32 /*newest_allowed*/) {}
  // ldmatrix and stmatrix: each lane's 16-byte row is reported by access(); mma.sync by its shape.
  virtual void mma(Warp*, int /*m*/, int /*n*/, int /*k*/) {}
};

extern Observer* g_observer;  // null: nobody

// A launch names the observer it wants ("trace", "race"); each observer makes itself known with one static of this.
struct ObserverEntry {
  const char* name;
  Observer* observer;
  ObserverEntry* next;
  ObserverEntry(const char* name, Observer* observer);
};

// Null outside a kernel.
inline Fiber* current_fiber() { return static_cast<Fiber*>(tw_current); }

// Ends the launch from any fiber with a report "<kind>: <text> [block x,y,z thread t]". Does not return.
[[noreturn]] void fault(const char* kind, const char* format, ...) __attribute__((format(printf, 2, 3)));

// Ends the launch when Ctrl-C was pressed. Asked at each fiber switch, and worth asking in a long observer.
extern volatile int g_interrupts;
[[noreturn]] void interrupted();
inline void poll_interrupts() {
  if (__builtin_expect(g_interrupts != 0, 0)) interrupted();
}

// The buffers registered for this launch, and lookups in them.
const Buffer* buffers(u32* count);
int buffer_of(u64 address);  // index, or -1
// Whether an address is the launch's own: the kernel's arguments, which its entry reads.
bool is_launch_state(u64 address);
}  // namespace tw
#pragma GCC visibility pop
