// See accumulator.hpp.
#include "accumulator.hpp"
#include <stdlib.h>
#include <string.h>
#include "fault.hpp"
#include "memory.hpp"
#include "signals.hpp"

namespace tw {
static float* allocate_parked() {
  set_leavable(false);  // Ctrl-C must not leave the C library's allocator half way
  void* memory = malloc(kWarpLanes * kMaxAccumulatorSize * sizeof(float));
  set_leavable(true);
  if (!memory) fault("misuse", "the system has no memory for the accumulators of the wgmmas in flight");
  return static_cast<float*>(memory);
}

void Accumulator::park() {
  if (is_parked) return;
  if (!parked) parked = allocate_parked();
  for (u32 lane = 0; lane < kWarpLanes; ++lane) {
    memcpy(parked + lane * size, lanes[lane], size * sizeof(float));
    memset(lanes[lane], kPoison, size * sizeof(float));
  }
  is_parked = true;
}

void Accumulator::unpark(const Warp& warp) {
  if (!is_parked) return;
  is_parked = false;
  for (u32 lane = 0; lane < kWarpLanes; ++lane) {
    for (u32 i = 0; i < size; ++i) {
      if (host::bits_of(lanes[lane][i]) == kPoison * 0x01010101u) continue;
      blame(warp.fibers[lane]);
      fault("wgmma", "accumulator register %u was written while a wgmma that has it was in flight", i);
    }
    memcpy(lanes[lane], parked + lane * size, size * sizeof(float));
  }
}

void Accumulators::clear() {
  for (u32 i = 0; i < used; ++i) slots[i].in_flight = 0;
}

Accumulator* Accumulators::find(const float* lane_0, u32 size) {
  u32 registers = size;
  for (u32 i = 0; i < used; ++i) {
    Accumulator& other = slots[i];
    if (other.in_flight == 0) continue;
    const float* const begin = other.lanes[0];
    if (begin == lane_0 && other.size == size) return &other;
    if (lane_0 < begin + other.size && begin < lane_0 + size)
      fault("misuse", "wgmma: its %u accumulator registers are in flight as part of %u others", size, other.size);
    registers += other.size;
  }
  if (registers > kMaxRegisters)
    fault("misuse", "wgmma: %u accumulator registers a thread in flight; it has %u", registers, kMaxRegisters);
  return nullptr;
}

Accumulator& Accumulators::add(u32 size) {
  u32 slot = 0;
  while (slot < used && slots[slot].in_flight != 0) ++slot;
  if (slot == used) ++used;
  Accumulator& added = slots[slot];
  added.size = size;
  added.in_flight = added.to_execute = 0;
  added.is_parked = false;
  return added;
}
}  // namespace tw
