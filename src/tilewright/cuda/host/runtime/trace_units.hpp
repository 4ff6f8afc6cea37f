// Counts what is no request of 32 lanes: TMA copies, matrix instructions, waits at mbarriers and proxy fences.
#pragma once
#include "runtime.hpp"
#include "table.hpp"

namespace tw {
// The TMA copies of one call site and one tensor. Read by Python (backends/emulator_observer.py), as are the two below:
// keep them in step.
struct CopyCounts {
  u64 pc;
  u32 operand;  // kUnknownOperand where the tensor is no matrix of the launch
  u32 store;
  u64 copies;
  u64 global_bytes;  // read or written once, however many blocks receive them
  u64 saved_bytes;   // read the more if each block that receives them had to ask for itself
  u64 shared_bytes;  // written to shared memory (zeros too) in all blocks that receive them, or read from it
};
enum : u32 { kUnknownOperand = ~0u };

// The matrix instructions of one shape: a warpgroup's wgmma (m 64) or a warp's mma.sync (m 16).
struct MatrixCounts {
  u32 m, n, k, padding;
  u64 instructions;
  u64 a_bytes, b_bytes;  // read from shared memory by the instructions themselves
};

struct WaitCounts { u64 mbarrier_waits, blocked_waits, proxy_fences; };

class UnitTracer {
 public:
  void reset();

  void copy(bool store, const BulkTraffic& traffic, u64 pc);
  void mma(int m, int n, int k) { ++shape(m, n, k).instructions; }
  void wgmma(const Warp& warp, int n, int k);
  void wgmma_operand(const Warp& warp, u32 bytes, bool of_a);
  void mbarrier_wait(bool blocked);
  void proxy_fence() { ++waits_.proxy_fences; }

  u32 copies(CopyCounts* out, u32 room);
  u32 shapes(MatrixCounts* out, u32 room);
  const WaitCounts& waits() const { return waits_; }

 private:
  MatrixCounts& shape(int m, int n, int k);

  Table<CopyCounts> copies_;
  Table<MatrixCounts> shapes_;
  WaitCounts waits_ = {};
  MatrixCounts* current_ = nullptr;  // of the wgmma whose operands are being told
};
}  // namespace tw
