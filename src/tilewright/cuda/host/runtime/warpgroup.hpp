// What the four warps of a warpgroup have to do alike. Nothing here makes them wait for each other, as nothing on the
// hardware is promised to: each step of a warp is compared with the same step of the warp that came first.
#pragma once
#include "runtime.hpp"

namespace tw {
// One instruction of a warpgroup. Equal in all four warps.
struct Step {
  const char* instruction;  // a literal
  u32 value, flags;         // value: N of a wgmma, registers of a setmaxnreg
  u64 a, b;                 // descriptors
};

void warpgroups_begin_block(const Block& block);
void check_warpgroup_at_exit(const Fiber& fiber);

// Faults where lanes of the warp have returned or never were; the instruction is for all 32.
void need_whole_warp(const Warp& warp, const char* instruction);
// Called once a warp, with all lanes there. True for the first of the four.
bool take_step(const Warp& warp, const Step& step);
}  // namespace tw
