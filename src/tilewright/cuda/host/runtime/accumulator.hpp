// The accumulators of a warp's wgmmas in flight. Parked, their values are kept here and the lanes' own arrays hold NaN,
// which is what a lane sees that looks too early.
#pragma once
#include "runtime.hpp"

namespace tw {
enum : u32 {
  kMaxAccumulatorSize = 128,  // registers a thread, of the widest wgmma
  kMaxRegisters = 255,  // of a thread
  kMaxAccumulators = kMaxRegisters / 4,  // the narrowest wgmma has 4
};

// One, from the issue of an instruction that has it until no such instruction is left to be waited for.
struct Accumulator {
  float* lanes[kWarpLanes];  // where the kernel has it
  float* parked;  // [lane][size]; the memory is kept for the next one
  u32 size;  // registers a thread
  u32 in_flight;  // instructions that have it
  u32 to_execute;  // of these, those not executed
  bool is_parked;

  float* lane(u32 index) const { return is_parked ? parked + index * size : lanes[index]; }
  void park();
  // Faults for a lane that wrote its registers meanwhile.
  void unpark(const Warp& warp);
};

struct Accumulators {
  Accumulator slots[kMaxAccumulators];
  u32 used;  // slots so far

  void clear();
  // The one of `size` registers that begins at `lane_0` in lane 0, if it is in flight; else null. Faults for one that
  // overlaps another in flight, or for which a thread has no registers left.
  Accumulator* find(const float* lane_0, u32 size);
  // A new one; the caller fills in where its lanes have it.
  Accumulator& add(u32 size);
};
}  // namespace tw
