// Counts what a kernel's accesses cost, call site by call site.
//
// A request is what a warp's 32 lanes do at one place in the program at one time. Lanes run one after another here, so
// the k-th access of each lane at a site is taken for the k-th request. Sites that lanes came by unequally often are
// flagged `approximate`. Equally often need not mean at the same time, which nothing here shows: where each lane takes
// its turn (for (i...) if (i == lane) ...) a GPU makes 32 requests, and one is counted.
#pragma once
#include "places.hpp"
#include "table.hpp"

namespace tw {
// Counts of one site in one space. Read by Python (backends/emulator_trace.py): keep the two in step.
struct SiteCounts {
  u64 pc;
  u32 shared;       // else global
  u32 operand;      // of a global access
  u32 write, atomic;
  u32 async_copy;   // one side of a cp.async
  u32 approximate;
  u64 requests, lanes, bytes;
  u64 cost, ideal;  // shared: wavefronts; global: 32-byte sectors
};

// Accesses lane by lane, because that is the order in which they come.
struct RequestBuffer {
  u32 room;
  u32* lanes;     // [room]: which lanes have come by
  u64* accesses;  // [32][stride()]: address, and bytes in the top 8 bits

  // Not a power of two, or one request's 32 accesses would compete for one cache set.
  u32 stride() const { return room + 8; }
  u64& access(u32 lane, u32 index) const { return accesses[lane * stride() + index]; }
  void grow();
  void free();
};

class Tracer {
 public:
  void reset();
  void cluster_begin() {}
  void cluster_end();

  enum Kind : u32 { kRead = 0, kWrite = 1, kAtomic = 2, kCopyRead = 4, kCopyWrite = 5 };
  void access(const Fiber& fiber, const Place& place, u64 address, u32 bytes, Kind kind, u64 pc);

  u32 sites(SiteCounts* out, u32 room);

 private:
  // Requests of one warp at one site that still miss lanes: number first, first + 1, ... Of the `used`, `whole` have
  // all lanes by now; when all are whole, the window starts again.
  struct Window {
    u32 times[32];  // accesses of each lane
    u32 members, first, used, whole;
    RequestBuffer requests;
  };
  struct Site {
    SiteCounts counts;
    RequestBuffer spare;  // goes from warp to warp, to stay in the cache
    Window* windows[kMaxThreads / 32];
  };

  // The site and window that a warp used last, of a few sites: an inner loop goes round a handful.
  struct Recent {
    u64 key;
    const Warp* warp;
    Site* site;
    Window* window;
  };
  enum : u32 { kRecent = 16 };

  Recent find(u64 key, const Warp& warp);
  void open(Site& site, Window& window, u32 index);
  void tally(Site& site, const Window& window, u32 index);
  void finish(Site& site, Window& window);

  Table<Site> sites_;
  Recent recent_[kRecent] = {};
};
}  // namespace tw
