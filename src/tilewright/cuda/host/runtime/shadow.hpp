// The race detector's memory of shared memory: who wrote each cell last, and who has read it since.
#pragma once
#include "runtime.hpp"

namespace tw {
enum class Operation : u8 { kRead, kWrite, kAtomic };

// Accesses of one cell by lanes of one group of agents, at one epoch and one place in the program.
struct Access {
  u64 pc;
  u32 epoch;
  u32 lanes;
  u32 group : 31;
  u32 atomic : 1;

  Operation operation() const { return atomic ? Operation::kAtomic : Operation::kRead; }
  bool same_event(const Access& other) const {
    return pc == other.pc && epoch == other.epoch && group == other.group && atomic == other.atomic;
  }
};

// Every lane of every group appears at most once as a reader and once as an atomic: its last access implies the
// earlier ones. So the list is bounded and nothing is ever dropped from it.
struct Cell {
  u64 writer_pc;
  u32 writer_epoch;  // 0: never written
  u32 writer;        // agent
  bool has_atomics;  // since the write
  Access latest;     // lanes == 0: no access since the write
  u32 older_count, older_capacity;
  Access* older;

  bool written() const { return writer_epoch != 0; }
  // Notes an access by one lane. Returns false when the very same was noted before.
  bool note(const Access& access) {
    if ((latest.lanes & access.lanes) != 0 && latest.same_event(access)) return false;
    add(access);
    return true;
  }
  void add(const Access& access);
  void forget_accesses() {
    latest.lanes = older_count = 0;
    has_atomics = false;
  }
  template <class Visit> void each_access(Visit visit) const {
    if (latest.lanes == 0) return;
    visit(latest);
    for (u32 i = 0; i < older_count; ++i) visit(older[i]);
  }
};

// The cells of one block's shared memory.
class Shadow {
 public:
  // Forgets everything and covers `bytes` bytes with cells of 1, 2 or 4 bytes.
  void begin(u32 bytes, u32 cell_bytes);
  Cell& operator[](u32 index) { return cells_[index]; }

 private:
  Cell* cells_ = nullptr;
  u32 count_ = 0;
};
}  // namespace tw
