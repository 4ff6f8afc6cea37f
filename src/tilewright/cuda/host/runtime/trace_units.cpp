// See trace_units.hpp.
#include "trace_units.hpp"

namespace tw {
namespace {
constexpr u32 kWarpgroupWarps = 4;
constexpr int kWarpgroupRows = 64;

// The warp that stands for its warpgroup. A warpgroup starts at a warp of the block that is a multiple of four.
bool leads(const Warp& warp) { return warp.index_in_block % kWarpgroupWarps == 0; }

template <class Record> u32 list(Table<Record>& table, Record* out, u32 room) {
  u32 count = 0;
  table.each([&](u64, Record& record) {
    if (count < room) out[count] = record;
    ++count;
  });
  return count;
}
}  // namespace

void UnitTracer::reset() {
  copies_.clear();
  shapes_.clear();
  waits_ = {};
  current_ = nullptr;
}

void UnitTracer::copy(bool store, const BulkTraffic& traffic, u64 pc) {
  const u32 operand = u32(buffer_of(traffic.base));  // -1 is kUnknownOperand
  CopyCounts& counts = copies_[pc << 16 | u64(operand & 0xfff) << 4 | u64(store)];
  counts.pc = pc;
  counts.operand = operand;
  counts.store = store;
  counts.copies += 1;
  counts.global_bytes += traffic.global_bytes;
  if (!store) counts.saved_bytes += traffic.global_bytes * (traffic.destinations - 1);
  counts.shared_bytes += traffic.shared_bytes * traffic.destinations;
}

MatrixCounts& UnitTracer::shape(int m, int n, int k) {
  MatrixCounts& counts = shapes_[u64(m) << 32 | u64(n) << 16 | u64(k)];
  counts.m = u32(m);
  counts.n = u32(n);
  counts.k = u32(k);
  return counts;
}

// Comes once a warp, and each warp tells its own 16 rows of A, but all of B. A warpgroup's instruction reads B once,
// for its four warps together.
void UnitTracer::wgmma(const Warp& warp, int n, int k) {
  current_ = &shape(kWarpgroupRows, n, k);
  if (leads(warp)) ++current_->instructions;
}

void UnitTracer::wgmma_operand(const Warp& warp, u32 bytes, bool of_a) {
  if (of_a)
    current_->a_bytes += bytes;
  else if (leads(warp))
    current_->b_bytes += bytes;
}

void UnitTracer::mbarrier_wait(bool blocked) {
  ++waits_.mbarrier_waits;
  if (blocked) ++waits_.blocked_waits;
}

u32 UnitTracer::copies(CopyCounts* out, u32 room) { return list(copies_, out, room); }
u32 UnitTracer::shapes(MatrixCounts* out, u32 room) { return list(shapes_, out, room); }
}  // namespace tw
