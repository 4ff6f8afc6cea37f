// The cost rules of wavefronts.hpp, and the only place that knows them.
#include "wavefronts.hpp"

namespace tw {
namespace {
constexpr u32 kBanks = 32, kWordBytes = 4, kSectorBytes = 32;
// Whether every pair of lanes `distance` apart touches one address; a lane that takes no part agrees with any.
bool paired(const u64 (&addresses)[32], u32 active, u32 distance) {
  for (u32 lane = 0; lane < 32; ++lane) {
    const u32 other = lane ^ distance;
    if ((active >> lane & active >> other & 1) != 0 && addresses[lane] != addresses[other]) return false;
  }
  return true;
}

// How many neighbouring lanes one wavefront serves at best: 32 of up to 4 bytes, 16 of 8, 8 of 16. A wide load serves
// twice as many when lanes one apart, or lanes two apart, all share their addresses pairwise; a store never does.
u32 lanes_together(const u64 (&addresses)[32], u32 active, u32 bytes, bool write) {
  if (bytes <= 4) return 32;
  const bool merged = !write && (paired(addresses, active, 1) || paired(addresses, active, 2));
  return (bytes <= 8 ? 16 : 8) * (merged ? 2 : 1);
}

// The distinct words that a group asks of each bank; lanes that touch the same word share it.
struct Banks {
  u64 words[kBanks][32];
  u8 depth[kBanks];  // of the banks in `used`
  u32 used = 0, deepest = 0;

  void touch(u64 word) {
    const u32 bank = u32(word % kBanks);
    if ((used >> bank & 1) == 0) {
      used |= 1u << bank;
      depth[bank] = 0;
    }
    for (u32 i = 0; i < depth[bank]; ++i)
      if (words[bank][i] == word) return;
    words[bank][depth[bank]++] = word;
    if (depth[bank] > deepest) deepest = depth[bank];
  }
};
}  // namespace

Cost shared_wavefronts(const u64 (&addresses)[32], u32 active, u32 bytes, bool write) {
  Cost cost = {0, 0};
  const u32 group = lanes_together(addresses, active, bytes, write);
  for (u32 first = 0; first < 32; first += group) {
    Banks banks;
    for (u32 lane = first; lane < first + group; ++lane) {
      if ((active >> lane & 1) == 0) continue;
      const u64 last_word = (addresses[lane] + bytes - 1) / kWordBytes;
      for (u64 word = addresses[lane] / kWordBytes; word <= last_word; ++word) banks.touch(word);
    }
    cost.actual += banks.deepest;
    cost.ideal += banks.deepest != 0;
  }
  return cost;
}

Cost global_sectors(const u64 (&addresses)[32], const u32 (&bytes)[32], u32 active) {
  // Sort the lanes by address (they mostly are), then sweep once over the union of their ranges.
  u32 order[32], count = 0;
  for (u32 lane = 0; lane < 32; ++lane) {
    if ((active >> lane & 1) == 0) continue;
    u32 at = count++;
    for (; at > 0 && addresses[order[at - 1]] > addresses[lane]; --at) order[at] = order[at - 1];
    order[at] = lane;
  }
  u64 sectors = 0, distinct_bytes = 0, swept_to = 0, next_sector = 0;
  for (u32 i = 0; i < count; ++i) {
    u64 begin = addresses[order[i]];
    const u64 end = begin + bytes[order[i]];
    u64 first_sector = begin / kSectorBytes;
    const u64 end_sector = (end + kSectorBytes - 1) / kSectorBytes;
    if (first_sector < next_sector) first_sector = next_sector;
    if (first_sector < end_sector) {
      sectors += end_sector - first_sector;
      next_sector = end_sector;
    }
    if (begin < swept_to) begin = swept_to;
    if (begin < end) {
      distinct_bytes += end - begin;
      swept_to = end;
    }
  }
  return {u32(sectors), u32((distinct_bytes + kSectorBytes - 1) / kSectorBytes)};
}
}  // namespace tw

// For tests: the shared-memory rule alone.
TW_API void tw_shared_wavefronts(const uint64_t* addresses, uint32_t active, uint32_t bytes, bool write,
                                 uint32_t* actual, uint32_t* ideal) {
  tw::u64 lanes[32];
  for (int i = 0; i < 32; ++i) lanes[i] = addresses[i];
  const tw::Cost cost = tw::shared_wavefronts(lanes, active, bytes, write);
  *actual = cost.actual;
  *ideal = cost.ideal;
}
