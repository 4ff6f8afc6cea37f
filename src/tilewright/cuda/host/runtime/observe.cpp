// The one observer that the runtime knows: finds out where each access lies, which checks its bounds, and passes it to
// the tracer and the race detector as the launch asked for. The TW_API functions are for Python.
#include "places.hpp"
#include "race.hpp"
#include "trace.hpp"
#include "trace_units.hpp"

namespace tw {
namespace {
enum Mode : u32 { kBoundsOnly = 0, kTrace = 1, kRace = 2 };

RaceDetector g_race;
Tracer g_tracer;
UnitTracer g_units;

class Watcher final : public Observer {
 public:
  constexpr explicit Watcher(u32 mode) : mode(mode) {}

  void cluster_begin(Block* blocks, u32 count, u32 threads) override {
    places_begin(blocks, count);
    if (mode & kRace) g_race.cluster_begin(blocks, count, threads);
  }
  void cluster_end() override {
    if (mode & kTrace) g_tracer.cluster_end();
    if (mode & kRace) g_race.cluster_end();
  }

  void access(u64 address, u32 bytes, bool write, u64 pc) override {
    const Fiber* fiber = current_fiber();
    if (fiber == nullptr) return;
    const Place place = locate(*fiber, address, bytes, write, pc);
    watch(*fiber, place, address, bytes, write ? Tracer::kWrite : Tracer::kRead,
          write ? Operation::kWrite : Operation::kRead, pc);
  }
  void atomic(u64 address, u32 bytes, u64 pc) override {
    const Fiber* fiber = current_fiber();
    if (fiber == nullptr) return;
    const Place place = locate(*fiber, address, bytes, true, pc);
    watch(*fiber, place, address, bytes, Tracer::kAtomic, Operation::kAtomic, pc);
  }

  void atomic_order(const void* address, Fiber* fiber, bool acquire, bool release) override {
    if (mode & kRace) g_race.atomic_order(address, *fiber, acquire, release);
  }

  void barrier_arrive(const void* key, Fiber* fiber) override {
    if (mode & kRace) g_race.arrive(key, *fiber);
  }
  void barrier_complete(const void* key) override {
    if (mode & kRace) g_race.complete(key);
  }
  void barrier_leave(const void* key, Fiber* fiber) override {
    if (mode & kRace) g_race.leave(key, *fiber);
  }

  void cp_async_issue(Fiber* fiber, u64 shared_address, u64 global_address, u32 bytes, u32 valid, u64 pc) override {
    const Place to = locate(*fiber, shared_address, bytes, true, pc);
    if (to.space != Space::kShared)
      fault("cp.async", "the destination is not in shared memory, pc 0x%llx", (unsigned long long)pc);
    if (valid != 0) {
      const Place from = locate(*fiber, global_address, valid, false, pc);
      if (from.space != Space::kGlobal)
        fault("cp.async", "the source is not in global memory, pc 0x%llx", (unsigned long long)pc);
      if (mode & kTrace) g_tracer.access(*fiber, from, global_address, valid, Tracer::kCopyRead, pc);
    }
    if (mode & kTrace) g_tracer.access(*fiber, to, shared_address, bytes, Tracer::kCopyWrite, pc);
    if (mode & kRace) g_race.cp_async_issue(*fiber, to.index, to.offset, bytes, pc);
  }
  void cp_async_commit(Fiber* fiber) override {
    if (mode & kRace) g_race.cp_async_commit(*fiber);
  }
  void cp_async_wait(Fiber* fiber, u32 newest_allowed) override {
    if (mode & kRace) g_race.cp_async_wait(*fiber, newest_allowed);
  }
  void thread_exit(Fiber* fiber) override {
    if (mode & kRace) g_race.thread_exit(*fiber);
  }

  void mbarrier_init(const void* key, Fiber* fiber, u64 pc) override {
    if (mode & kRace) g_race.mbarrier_init(*fiber, shared_place(key), pc);
  }
  void mbarrier_use(const void* key, Fiber* fiber, u64 pc) override {
    if (mode & kRace) g_race.mbarrier_use(*fiber, shared_place(key), pc);
  }
  void mbarrier_arrive(const void* key, Fiber* fiber) override {
    if (mode & kRace) g_race.mbarrier_arrive(key, *fiber);
  }
  void mbarrier_complete(const void* key) override {
    if (mode & kRace) g_race.complete(key);
  }
  void mbarrier_leave(const void* key, Fiber* fiber, bool blocked) override {
    if (mode & kTrace) g_units.mbarrier_wait(blocked);
    if (mode & kRace) g_race.mbarrier_leave(key, *fiber);
  }
  void fence_proxy_async(Fiber* fiber) override {
    if (mode & kTrace) g_units.proxy_fence();
    if (mode & kRace) g_race.fence_proxy_async(*fiber);
  }

  void bulk_begin(Fiber* fiber, u32 copy, bool store, const BulkTraffic& traffic, u64 pc) override {
    if (mode & kTrace) g_units.copy(store, traffic, pc);
    if (mode & kRace) g_race.bulk_begin(*fiber, copy, store, pc);
  }
  void bulk_shared(u32 copy, u32 rank, u32 offset, u32 bytes) override {
    if (mode & kRace) g_race.bulk_shared(copy, rank, offset, bytes);
  }
  void bulk_done(u32 copy, const void* mbarrier) override {
    if (mode & kRace) g_race.bulk_done(copy, shared_place(mbarrier));
  }
  void bulk_end(u32 copy) override {
    if (mode & kRace) g_race.bulk_end(copy);
  }
  void bulk_commit(Fiber* fiber) override {
    if (mode & kRace) g_race.bulk_commit(*fiber);
  }
  void bulk_wait(Fiber* fiber, u32 newest_allowed, bool) override {
    if (mode & kRace) g_race.bulk_wait(*fiber, newest_allowed);
  }

  void wgmma_begin(Warp* warp, int, int n, int k, u64 pc) override {
    if (mode & kTrace) g_units.wgmma(*warp, n, k);
    if (mode & kRace) g_race.wgmma_begin(*warp, pc);
  }
  void wgmma_shared(Warp* warp, u32 offset, u32 bytes, bool of_a) override {
    if (mode & kTrace) g_units.wgmma_operand(*warp, bytes, of_a);
    if (mode & kRace) g_race.wgmma_shared(offset, bytes);
  }
  void wgmma_commit(Warp* warp) override {
    if (mode & kRace) g_race.wgmma_commit(*warp);
  }
  void wgmma_wait(Warp* warp, u32 newest_allowed) override {
    if (mode & kRace) g_race.wgmma_wait(*warp, newest_allowed);
  }
  void mma(Warp*, int m, int n, int k) override {
    if (mode & kTrace) g_units.mma(m, n, k);
  }

 private:
  const u32 mode;

  void watch(const Fiber& fiber, const Place& place, u64 address, u32 bytes, Tracer::Kind kind, Operation operation,
             u64 pc) {
    const bool shared = place.space == Space::kShared;
    if (!shared && place.space != Space::kGlobal) return;
    if (mode & kTrace) g_tracer.access(fiber, place, address, bytes, kind, pc);
    if (!(mode & kRace)) return;
    if (shared)
      g_race.access(fiber, place.index, place.offset, bytes, operation, pc);
    else
      g_race.global_access(fiber, place.index, place.offset, bytes, operation, pc);
  }
};

Watcher g_bounds(kBoundsOnly), g_trace(kTrace), g_races(kRace), g_both(kTrace | kRace);
ObserverEntry g_entries[] = {{"bounds", &g_bounds}, {"trace", &g_trace}, {"race", &g_races}, {"trace+race", &g_both}};
}  // namespace
}  // namespace tw

// Forgets what earlier launches were found to do. Races are looked for in cells of 1, 2 or 4 bytes of shared memory.
TW_API void tw_observe_reset(uint32_t race_cell_bytes) {
  tw::g_tracer.reset();
  tw::g_units.reset();
  tw::g_race.reset(race_cell_bytes);
}
// All of these return how many there are; they fill at most `room`.
TW_API uint32_t tw_trace_sites(tw::SiteCounts* out, uint32_t room) { return tw::g_tracer.sites(out, room); }
TW_API uint32_t tw_trace_copies(tw::CopyCounts* out, uint32_t room) { return tw::g_units.copies(out, room); }
TW_API uint32_t tw_trace_shapes(tw::MatrixCounts* out, uint32_t room) { return tw::g_units.shapes(out, room); }
TW_API uint32_t tw_race_reports(tw::RaceReport* out, uint32_t room) { return tw::g_race.reports(out, room); }
TW_API void tw_trace_waits(tw::WaitCounts* out) { *out = tw::g_units.waits(); }
// The cell size that the last launch needed when it was refused for finer accesses than the cells; else 0.
TW_API uint32_t tw_race_finer_cell_bytes() { return tw::g_race.finer_cell_bytes(); }
