// See warpgroup.hpp; setmaxnreg and elect.sync.
#include "warpgroup.hpp"
#include "fault.hpp"
#include "warp.hpp"

namespace tw {
namespace {
enum : u32 {
  kWarps = 4,
  kGroups = kMaxThreadsPerBlock / kWarpLanes / kWarps,  // of one block
  kSteps = 256,  // remembered; a warp further behind than that is not compared
};
constexpr u32 kRegisters = 64 << 10;  // of an SM (CUDA C++ Programming Guide, "Compute Capabilities")

struct Warpgroup {
  u32 steps[kWarps];  // taken so far
  u32 most;           // of the warp that is first
  u32 first;          // which that is
  u32 registers;      // a thread's, by its last setmaxnreg; 0: as the launch gave
  Step log[kSteps];
};
Warpgroup g_groups[kMaxClusterBlocks][kGroups];

Warpgroup& group_of(const Warp& warp) { return g_groups[warp.block->rank][warp.index_in_block / kWarps]; }

bool equal(const Step& a, const Step& b) {
  return a.instruction == b.instruction && a.value == b.value && a.flags == b.flags && a.a == b.a && a.b == b.b;
}

[[noreturn]] void diverged(const Warp& warp, u32 number, const Step& mine, u32 other, const Step& theirs) {
  const bool alike = mine.instruction == theirs.instruction && mine.value == theirs.value;
  fault("divergence", "instruction %u of the warpgroup is %s %u in warp %u, and %s %u%s in warp %u", number,
        mine.instruction, mine.value, warp.index_in_block, theirs.instruction, theirs.value,
        alike ? " of other operands" : "", other);
}

void need_warpgroup(const Warp& warp, const Step& step) {
  const Block& block = *warp.block;
  const u32 first = warp.index_in_block / kWarps * kWarps;
  if ((first + kWarps) * kWarpLanes > block.threads)
    fault("divergence", "%s %u in warp %u, whose warpgroup the block's %u threads do not fill", step.instruction,
          step.value, warp.index_in_block, block.threads);
}

// Registers are in one pool: as many as the launch gave all threads, which is at most what the SM has for them.
void set_registers(const Warp& warp, u32 wanted, bool increase) {
  const Block& block = *warp.block;
  const u32 groups = block.warps / kWarps;
  const u32 share = kRegisters / (block.warps * kWarpLanes) / 8 * 8, launched = share < 256 ? share : 256;
  u32& mine = group_of(warp).registers;
  const u32 before = mine ? mine : increase ? 0 : launched;
  if (increase ? wanted < before : wanted > before)
    fault("misuse", "setmaxnreg %s %u registers a thread, of %s%u", increase ? "increases to" : "decreases to", wanted,
          mine ? "" : "at most ", before);
  mine = wanted;
  u32 total = 0;
  for (u32 g = 0; g < groups; ++g) total += g_groups[block.rank][g].registers;
  if (total > groups * launched)
    fault("misuse", "setmaxnreg: warpgroups with %u registers a thread in all; a block of %u threads has at most %u",
          total, block.threads, groups * launched);
}

struct NewRegisters {
  int registers;
  bool increase;
};

void change_registers(Warp& warp) {
  const NewRegisters& wanted = *static_cast<NewRegisters*>(warp.meeting.operands[0]);
  const Step step = {wanted.increase ? "setmaxnreg.inc" : "setmaxnreg.dec", u32(wanted.registers), 0, 0, 0};
  if (take_step(warp, step)) set_registers(warp, step.value, wanted.increase);
}
}  // namespace

void need_whole_warp(const Warp& warp, const char* instruction) {
  if (warp.alive == ~0u) return;
  fault("divergence", "%s needs the 32 lanes of warp %u, of which 0x%08x are there", instruction, warp.index_in_block,
        warp.alive);
}

bool take_step(const Warp& warp, const Step& step) {
  need_warpgroup(warp, step);
  Warpgroup& group = group_of(warp);
  const u32 index = warp.index_in_block % kWarps, number = group.steps[index]++;
  const Warp* warps = &warp - index;
  if (number < group.most) {
    const Step& first = group.log[number % kSteps];
    if (group.most - number <= kSteps && !equal(step, first))
      diverged(warp, number, step, warps[group.first].index_in_block, first);
    return false;
  }
  for (u32 w = 0; w < kWarps; ++w)
    if (warps[w].alive == 0 && group.steps[w] <= number)
      fault("divergence", "instruction %u of the warpgroup is %s %u, for which warp %u is not there: it has returned",
            number, step.instruction, step.value, warps[w].index_in_block);
  group.log[number % kSteps] = step;
  group.most = number + 1;
  group.first = index;
  return true;
}

void warpgroups_begin_block(const Block& block) {
  for (u32 g = 0; g < kGroups; ++g) {
    Warpgroup& group = g_groups[block.rank][g];
    for (u32& steps : group.steps) steps = 0;
    group.most = group.first = group.registers = 0;
  }
}

void check_warpgroup_at_exit(const Fiber& fiber) {
  const Warp& warp = *fiber.warp;
  const Warpgroup& group = group_of(warp);
  const u32 number = group.steps[warp.index_in_block % kWarps];
  if (number == group.most) return;
  const Step& missed = group.log[group.most - number <= kSteps ? number % kSteps : (group.most - 1) % kSteps];
  fault("divergence", "warp %u returns after %u instructions of its warpgroup; warp %u went on to %s %u",
        warp.index_in_block, number, warp.index_in_block / kWarps * kWarps + group.first, missed.instruction,
        missed.value);
}
}  // namespace tw

bool tw_elect_one() {
  bool elected = false;
  tw::meet("elect_one", &elected, [](tw::Warp& warp) {
    *static_cast<bool*>(warp.meeting.operands[__builtin_ctz(warp.meeting.arrived)]) = true;
  });
  return elected;
}

void tw_setmaxnreg(int registers, bool increase) {
  using namespace tw;
  if (registers < 24 || registers > 256 || registers % 8)
    fault("misuse", "setmaxnreg to %d registers: 24 to 256 in steps of 8 are possible", registers);
  need_whole_warp(*current_fiber()->warp, "setmaxnreg");
  NewRegisters wanted = {registers, increase};
  meet("setmaxnreg", &wanted, change_registers);
}
