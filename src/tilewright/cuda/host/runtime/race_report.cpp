// See race_report.hpp; and how the detector names what it found.
#include "race_report.hpp"
#include "race.hpp"

namespace tw {
void RaceReports::add(const RaceReport& report) {
  const auto alike = [](const Party& a, const Party& b) { return a.pc == b.pc && a.agent == b.agent; };
  for (u32 i = 0; i < count_; ++i) {
    RaceReport& r = reports_[i];
    if (r.kind != report.kind || !alike(r.first, report.first) || !alike(r.second, report.second)) continue;
    ++r.times;
    return;
  }
  if (count_ < kRoom) reports_[count_++] = report;
}

u32 RaceReports::copy(RaceReport* out, u32 room) const {
  for (u32 i = 0; i < count_ && i < room; ++i) out[i] = reports_[i];
  return count_;
}

Deed RaceDetector::deed(Operation operation, u32 rank, u32 offset, u64 pc) {
  if (operation == Operation::kRead) return Deed::kRead;
  if (rank & kInOperand) return operation == Operation::kWrite ? Deed::kWrote : Deed::kUpdated;
  const u64 init_pc = mbarrier_at(rank, offset & ~7u).init_pc;
  if (operation == Operation::kWrite) return pc == init_pc ? Deed::kInitialised : Deed::kWrote;
  return init_pc != 0 ? Deed::kSignalled : Deed::kUpdated;
}

Party RaceDetector::party(u32 agent, Deed deed, u64 pc) {
  const auto by = [&](Agent kind, u32 slot) {
    return Party{u32(kind), slot / slots_per_block_, slot % slots_per_block_, u32(deed), pc};
  };
  if (agent < slots_) return by(Agent::kThread, agent);
  if (is_generic(agent)) return by(Agent::kCpAsync, agent - slots_);
  Party party = by(async(agent).kind, async(agent).owner);
  if (async(agent).kind == Agent::kWgmma) party.index /= kWarpLanes;
  return party;
}

void RaceDetector::report(RaceKind kind, u32 rank, u32 offset, const Event& first, const Event& second) {
  const auto named = [&](const Event& e) { return party(e.agent, deed(e.operation, rank, offset, e.pc), e.pc); };
  const bool alone = kind == RaceKind::kUninitialised;
  report(kind, rank, offset, alone ? Party{} : named(first), named(second));
}

void RaceDetector::report(RaceKind kind, u32 rank, u32 offset, const Party& first, const Party& second) {
  const Dim3 block = blocks_[second.rank].index;  // of who acted; of kExit, of who returned
  reports_.add({u32(kind), rank, offset, cell_bytes_, {block.x, block.y, block.z}, 1, first, second});
}
}  // namespace tw
