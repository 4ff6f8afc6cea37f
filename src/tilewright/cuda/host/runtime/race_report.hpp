// What the race detector has found, as Python reads it (backends/emulator_observer.py): keep the two in step.
#pragma once
#include "runtime.hpp"

namespace tw {
enum class RaceKind : u32 {
  kWriteWrite,
  kReadThenOverwrite,
  kWriteThenRead,
  kUninitialised,
  kUnfenced,  // ordered, but the first access is the generic proxy's, the second the async proxy's
  kExit,      // the block may have exited before the access was done
};

// Who accesses shared memory. kBlock: only as the second party of kExit.
enum class Agent : u32 { kThread, kCpAsync, kTmaLoad, kTmaStore, kWgmma, kBlock };

// Where, in place of a block's rank: in global memory, in the operand of this number.
enum : u32 { kInOperand = 1u << 31 };

// What it did. An mbarrier is initialised, and signalled by arrivals, waits and bytes that land.
enum class Deed : u32 { kRead, kWrote, kUpdated, kInitialised, kSignalled, kExited };

struct Party {
  u32 agent;
  u32 rank, index;  // block rank, and thread of that block: the one that issued it; of kWgmma the warp
  u32 deed;
  u64 pc;
};

// One finding. The first party acted earlier in this run; an uninitialised read has only a second.
struct RaceReport {
  u32 kind, rank, offset, bytes;  // where: block rank and byte of its shared memory, or kInOperand + its number and byte
  u32 block[3];                   // of the second party
  u32 times;                      // findings of this kind at these two places in the program
  Party first, second;
};

class RaceReports {
 public:
  void clear() { count_ = 0; }
  // Adds a finding, or counts it to an equal one.
  void add(const RaceReport& report);
  u32 copy(RaceReport* out, u32 room) const;

 private:
  enum : u32 { kRoom = 1024 };  // an unrolled loop has many places in the program for one line
  RaceReport reports_[kRoom];
  u32 count_ = 0;
};
}  // namespace tw
