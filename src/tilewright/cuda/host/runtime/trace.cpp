// See trace.hpp.
#include "trace.hpp"
#include "wavefronts.hpp"
#include <string.h>

namespace tw {
namespace {
constexpr u32 kBytesShift = 56;  // user addresses have at most 56 bits on x86-64 and aarch64
constexpr u64 kAddressMask = (u64(1) << kBytesShift) - 1;
}  // namespace

void RequestBuffer::grow() {
  RequestBuffer bigger = {room == 0 ? 16 : 2 * room, nullptr, nullptr};
  bigger.lanes = static_cast<u32*>(allocate(bigger.room, sizeof(u32)));
  bigger.accesses = static_cast<u64*>(allocate(32 * bigger.stride(), sizeof(u64)));
  if (room != 0) memcpy(bigger.lanes, lanes, room * sizeof(u32));
  for (u32 lane = 0; lane < 32 && room != 0; ++lane)
    memcpy(&bigger.access(lane, 0), &access(lane, 0), room * sizeof(u64));
  free();
  *this = bigger;
}

void RequestBuffer::free() {
  ::free(lanes);
  ::free(accesses);
}

void Tracer::reset() {
  sites_.each([](u64, Site& site) {
    for (Window* window : site.windows) {
      if (window == nullptr) continue;
      window->requests.free();
      free(window);
    }
    site.spare.free();
  });
  sites_.clear();
  for (Recent& recent : recent_) recent = {};
}

Tracer::Recent Tracer::find(u64 key, const Warp& warp) {
  Site& site = sites_[key];
  Window*& window = site.windows[warp.index];
  if (window == nullptr) {
    window = static_cast<Window*>(allocate(1, sizeof(Window)));
    window->members = warp.members;
  }
  return {key, &warp, &site, window};
}

void Tracer::access(const Fiber& fiber, const Place& place, u64 address, u32 bytes, Kind kind, u64 pc) {
  const bool shared = place.space == Space::kShared;
  // One place in the program may reach several operands, and reads and writes when it is a copy.
  const u64 key = pc << 16 | u64(shared ? 0xfff : place.index) << 4 | kind;
  Recent& recent = recent_[(pc ^ pc >> 4) % kRecent];
  if (recent.key != key || recent.warp != fiber.warp) recent = find(key, *fiber.warp);
  Site& site = *recent.site;
  Window& w = *recent.window;
  if (site.counts.pc == 0) {
    site.counts.pc = pc;
    site.counts.shared = shared;
    site.counts.operand = shared ? 0 : place.index;
    site.counts.write = kind == kWrite || kind == kCopyWrite;
    site.counts.atomic = kind == kAtomic;
    site.counts.async_copy = kind >= kCopyRead;
  }

  const u32 index = w.times[fiber.lane]++ - w.first;
  if (index >= w.used) open(site, w, index);
  w.requests.access(fiber.lane, index) = (address & kAddressMask) | u64(bytes) << kBytesShift;
  w.requests.lanes[index] |= 1u << fiber.lane;
  if (w.requests.lanes[index] != w.members) return;
  tally(site, w, index);
  if (++w.whole < w.used) return;
  w.first += w.used;
  w.used = w.whole = 0;
  if (site.spare.room == 0) {
    site.spare = w.requests;
    w.requests = {};
  }
}

// Makes room for requests up to `index`.
void Tracer::open(Site& site, Window& w, u32 index) {
  if (w.requests.room == 0) {
    w.requests = site.spare;
    site.spare = {};
  }
  while (index >= w.requests.room) w.requests.grow();
  for (; w.used <= index; ++w.used) w.requests.lanes[w.used] = 0;
}

void Tracer::tally(Site& site, const Window& w, u32 index) {
  SiteCounts& counts = site.counts;
  const u32 active = w.requests.lanes[index];
  u64 addresses[32];
  u32 bytes[32], widest = 0;
  for (u32 lanes = active; lanes != 0; lanes &= lanes - 1) {
    const u32 lane = u32(__builtin_ctz(lanes));
    const u64 access = w.requests.access(lane, index);
    addresses[lane] = access & kAddressMask;
    bytes[lane] = u32(access >> kBytesShift);
    if (bytes[lane] > widest) widest = bytes[lane];
    counts.bytes += bytes[lane];
  }
  counts.requests += 1;
  counts.lanes += u32(__builtin_popcount(active));
  const Cost cost = counts.shared ? shared_wavefronts(addresses, active, widest, counts.write != 0)
                                  : global_sectors(addresses, bytes, active);
  counts.cost += cost.actual;
  counts.ideal += cost.ideal;
}

// The requests that some lanes never joined: predicated off, or past the edge of the problem.
void Tracer::finish(Site& site, Window& w) {
  u32 most = 0;
  for (const u32 times : w.times) most = times > most ? times : most;
  for (const u32 times : w.times)
    if (times != 0 && times != most) site.counts.approximate = 1;
  for (u32 i = 0; i < w.used; ++i)
    if (w.requests.lanes[i] != w.members) tally(site, w, i);
  memset(w.times, 0, sizeof w.times);
  w.first = w.used = w.whole = 0;
}

void Tracer::cluster_end() {
  sites_.each([this](u64, Site& site) {
    for (Window* window : site.windows)
      if (window != nullptr) finish(site, *window);
  });
}

u32 Tracer::sites(SiteCounts* out, u32 room) {
  u32 count = 0;
  sites_.each([&](u64, Site& site) {
    if (count < room) out[count] = site.counts;
    ++count;
  });
  return count;
}
}  // namespace tw
