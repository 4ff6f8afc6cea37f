// Finds accesses of shared memory that no barrier orders, and reads of shared memory that was never written.
//
// Happens-before by vector clocks: each thread counts epochs, one per release (arrival at a barrier); it knows of every
// other agent the latest epoch that a barrier has told it of. Two accesses of a cell, one of them a write, race when the
// later one's thread does not know the earlier one's epoch. What the schedule happened to do does not matter, so one
// run suffices for one set of inputs. (FastTrack, Flanagan and Freund, PLDI 2009, with readers kept in full.)
#pragma once
#include "clock.hpp"
#include "shadow.hpp"
#include "table.hpp"

namespace tw {
enum class RaceKind : u32 { kWriteWrite, kReadThenOverwrite, kWriteThenRead, kUninitialised };
enum class Operation : u8 { kRead, kWrite, kAtomic };

// One finding. Read by Python (backends/emulator_trace.py): keep the two in step. The first party acted earlier in this
// run; an uninitialised read has only a second.
struct RaceReport {
  u32 kind, rank, offset, bytes;  // where: block rank and byte of its shared memory
  u32 block[3];  // of the second party
  u32 first_rank, first_thread, first_is_copy;
  u32 second_rank, second_thread, second_is_copy;
  u32 times;  // findings of this kind at these two places in the program
  u64 first_pc, second_pc;
};

class RaceDetector {
 public:
  // Forgets the reports. Shared memory is watched in cells of 1, 2 or 4 bytes.
  void reset(u32 cell_bytes);
  void cluster_begin(Block* blocks, u32 count, u32 threads);

  void access(const Fiber& fiber, u32 rank, u32 offset, u32 bytes, Operation operation, u64 pc);

  void arrive(const void* barrier, const Fiber& fiber);
  void complete(const void* barrier);
  void leave(const void* barrier, const Fiber& fiber);

  void copy_issue(const Fiber& fiber, u32 rank, u32 offset, u32 bytes, u64 pc);
  void copy_commit(const Fiber& fiber);
  void copy_wait(const Fiber& fiber, u32 newest_allowed);

  u32 reports(RaceReport* out, u32 room) const;
  // The cell size that an access needed which was finer than the cells; 0: none was.
  u32 finer_cell_bytes() const { return finer_cell_bytes_; }

 private:
  struct Thread {
    Clock* known;  // of all agents but itself and its own copies
    u32 epoch;  // its own, now
    u32 copies_known;  // groups of its cp.async known complete
    u32 copies_open;  // the group that its next cp.async joins
    const void* arrived_at;  // the barrier it arrived at last,
    Clock* arrived_phase;  // the clock gathered there, and
    Clock* arrived_with;  // what it knew then
  };
  struct Barrier {
    Clock* gathering;  // this phase's arrivals so far; null: none
    Clock* joined_last;  // the last clock joined into it
    Clock* completed;  // the phase before
  };
  // Who makes an access, and what it knows.
  struct Actor {
    const Thread& thread;
    u32 slot, agent, epoch;
  };

  u32 slot_of(const Fiber& fiber) const;
  u32 copy_agent(u32 slot) const { return slots_ + slot; }
  bool knows(const Actor& actor, u32 agent, u32 epoch) const;
  bool knows_all(const Actor& actor, const Access& access, u32* unknown_agent) const;
  void set_known(Thread& thread, Clock* clock);
  void read(Cell& cell, const Actor& actor, u32 rank, u32 offset, bool atomic, u64 pc);
  void write(Cell& cell, const Actor& actor, u32 rank, u32 offset, u64 pc);
  void report(RaceKind kind, u32 rank, u32 offset, u32 first_agent, u64 first_pc, const Actor& second, u64 pc);
  template <class Visit> void each_cell(u32 rank, u32 offset, u32 bytes, Visit visit);

  enum : u32 { kMaxReports = 1024 };  // an unrolled loop has many places in the program for one line
  u32 cell_bytes_ = 4, finer_cell_bytes_ = 0, slots_ = 0, slots_per_block_ = 0;
  Block* blocks_ = nullptr;
  Clocks clocks_;
  Shadow shadows_[kMaxClusterBlocks];
  Thread* threads_ = nullptr;
  u32 thread_room_ = 0;
  Table<Barrier> barriers_;
  RaceReport reports_[kMaxReports];
  u32 report_count_ = 0;
};
}  // namespace tw
