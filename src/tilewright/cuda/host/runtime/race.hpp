// Finds accesses of shared memory that nothing orders, and reads of shared memory that was never written.
//
// Happens-before by vector clocks: each agent counts epochs, a thread one per release (arrival at a barrier, proxy
// fence); a thread knows of every other agent the latest epoch that barriers have told it of. Two accesses of a cell, one
// of them a write, race when the later one's agent does not know the earlier one's epoch. What the schedule happened to
// do does not matter, so one run suffices for one set of inputs. (FastTrack, Flanagan and Freund, PLDI 2009, with
// readers kept in full.)
//
// Copies and matrix instructions that go on while their thread does are agents of their own, checked at issue with what
// the issuing thread knows then (PTX ISA, "Asynchronous Operations": they come after it, and order nothing themselves).
// Of a thread's cp.async, of its TMA stores and of a warp's wgmma, the epochs are groups, known by waiting for them. TMA
// loads into one place of shared memory are one agent; its epochs are known through the mbarriers that count the bytes.
//
// TMA and wgmma access shared memory through the async proxy. Between an access by the generic proxy and a later one by
// the async proxy there has to be a proxy fence as well, anywhere on the path that orders the two: by the thread of the
// first, by one that learned of it, or by the one that issues the second. PTX ISA, "Causality Order": proxy-preserved
// order holds within one proxy only, for reads before writes, too (its example of clusterlaunchcontrol.try_cancel fences
// a generic read before an asynchronous write). The other way round needs none: completion implies it ("Async Proxy").
// Operations on mbarriers are the generic proxy's. Scopes are not looked at: each order holds for all that run together.
//
// Where several blocks run together, a cluster's or others, their ordinary accesses of operands in global memory are
// watched in the same way; what TMA and cp.async do there is not. An atomic with an order releases to its address what
// its thread knows, and acquires what atomics before it released there, until somebody stores to it (PTX ISA, "Release
// and Acquire Patterns").
#pragma once
#include "clock.hpp"
#include "places.hpp"
#include "race_report.hpp"
#include "shadow.hpp"
#include "table.hpp"

namespace tw {
class RaceDetector {
 public:
  // Forgets the reports. Shared memory is watched in cells of 1, 2 or 4 bytes.
  void reset(u32 cell_bytes);
  void cluster_begin(Block* blocks, u32 count, u32 threads);
  void cluster_end();
  void thread_exit(const Fiber& fiber);

  void access(const Fiber& fiber, u32 rank, u32 offset, u32 bytes, Operation operation, u64 pc);
  void global_access(const Fiber& fiber, u32 operand, u32 offset, u32 bytes, Operation operation, u64 pc);
  void atomic_order(const void* address, const Fiber& fiber, bool acquire, bool release);

  // Barriers of a block, a warp or a cluster.
  void arrive(const void* barrier, const Fiber& fiber);
  void complete(const void* barrier);
  void leave(const void* barrier, const Fiber& fiber);

  // mbarriers: 8 bytes of shared memory, which complete() knows by their address, too. Each operation is a use of the
  // word; arrivals and waits that succeed are told as such besides.
  void mbarrier_init(const Fiber& fiber, SharedPlace at, u64 pc);
  void mbarrier_use(const Fiber& fiber, SharedPlace at, u64 pc);
  void mbarrier_arrive(const void* mbarrier, const Fiber& fiber);
  void mbarrier_leave(const void* mbarrier, const Fiber& fiber);
  void fence_proxy_async(const Fiber& fiber);

  void cp_async_issue(const Fiber& fiber, u32 rank, u32 offset, u32 bytes, u64 pc);
  void cp_async_commit(const Fiber& fiber);
  void cp_async_wait(const Fiber& fiber, u32 newest_allowed);

  void bulk_begin(const Fiber& fiber, u32 copy, bool store, u64 pc);
  void bulk_shared(u32 copy, u32 rank, u32 offset, u32 bytes);
  void bulk_done(u32 copy, SharedPlace mbarrier);
  void bulk_end(u32 copy);
  void bulk_commit(const Fiber& fiber);
  void bulk_wait(const Fiber& fiber, u32 newest_allowed);

  void wgmma_begin(const Warp& warp, u64 pc);
  void wgmma_shared(u32 offset, u32 bytes);
  void wgmma_commit(const Warp& warp);
  void wgmma_wait(const Warp& warp, u32 newest_allowed);

  u32 reports(RaceReport* out, u32 room) const { return reports_.copy(out, room); }
  // The cell size that an access needed which was finer than the cells; 0: none was.
  u32 finer_cell_bytes() const { return finer_cell_bytes_; }

 private:
  // Asynchronous work of one thread or warp that it commits in groups and waits for, oldest first.
  struct Groups {
    u32 agent;  // 0: none so far
    u32 open;   // the group that the next operation joins: its epoch
    u32 known;  // groups known complete
    void wait(u32 newest_allowed) {
      const u32 committed = open - 1;
      if (committed > newest_allowed && committed - newest_allowed > known) known = committed - newest_allowed;
    }
  };
  struct Thread {
    Clock* known;  // of all agents but itself and its own groups
    u32 epoch;     // its own, now
    u32 fenced, copies_fenced;  // epochs of its own and of its cp.async groups that its last proxy fence followed
    Groups copies, stores;      // cp.async; TMA
    const void* arrived_at;     // the barrier it arrived at last,
    Clock* arrived_phase;       // the clock gathered there, and
    Clock* arrived_with;        // what it knew then
  };
  struct Barrier {
    Clock* gathering;    // this phase's arrivals so far; null: none
    Clock* joined_last;  // the last clock joined into it
    Clock* completed;    // the phase before
    u64 init_pc;         // of an mbarrier
  };
  // Who makes an access, and what it knows: what all of its clocks do, and what the thread of `slot` did itself.
  enum : u32 { kNobody = ~0u };
  struct Actor {
    u32 agent, epoch;
    bool async_proxy;
    u32 slot;
    const Clock* const* known;
    u32 known_count;
  };
  struct Event {
    u32 agent;
    Operation operation;
    u64 pc;
  };
  enum class Order : u8 { kNone, kUnfenced, kFull };
  // An agent of the async proxy, as reports name it, and its last access, which its block has to outlive.
  struct AsyncAgent {
    Agent kind;
    u32 owner;  // slot of the thread that issued it, the first one of a warp
    u32 epoch, rank, offset;
    u64 pc;
  };
  // A TMA copy in flight.
  struct Copy {
    u32 issuer;  // slot
    bool store;
    u64 pc;
    Clock* known;  // by the issuer, then
    u32 agents[kMaxClusterBlocks], epochs[kMaxClusterBlocks];  // of a load, by destination
  };
  // The last access that a thread made in another block.
  struct RemoteAccess {
    u32 epoch, offset;
    Deed deed;
    u64 pc;
  };
  // Threads that know the same and learn the same share the outcome. Holds what it points to.
  struct Outcome {
    Clock *known, *learned, *both;
  };

  // race.cpp: who is who, and order
  u32 slot_of(const Fiber& fiber) const { return fiber.owner->rank * slots_per_block_ + fiber.thread_in_block; }
  u32 slot_of(const Warp& warp) const { return warp.block->rank * slots_per_block_ + warp.index_in_block * kWarpLanes; }
  Thread& thread_of(const Fiber& fiber) { return threads_[slot_of(fiber)]; }
  Groups& products_of(u32 slot) { return products_[slot / kWarpLanes]; }
  const Groups& products_of(u32 slot) const { return products_[slot / kWarpLanes]; }
  bool is_generic(u32 agent) const { return agent < 2 * slots_; }
  AsyncAgent& async(u32 agent) { return async_[agent - 2 * slots_]; }
  Barrier& mbarrier_at(u32 rank, u32 offset) { return barriers_[u64(blocks_[rank].shared) + offset]; }
  const Groups* groups_of(u32 slot, u32 agent) const;
  bool happened(const Actor& by, u32 agent, u32 epoch) const;
  bool is_fenced(const Actor& by, u32 agent, u32 epoch) const;
  Order order(const Actor& by, u32 agent, u32 epoch) const;
  Order order(const Actor& by, const Access& access, u32* first_agent) const;
  void set_known(Thread& thread, Clock* clock);
  void learn(Thread& thread, Clock* clock);
  void add_groups(Clock* clock, u32 slot) const;
  void gather(Barrier& barrier, u32 slot);
  void open_phase(Barrier& barrier);
  void forget_released(u32 rank, u32 offset);

  // race_access.cpp: what happens to cells
  template <class Visit> void each_cell(u32 rank, u32 offset, u32 bytes, Visit visit);
  void read(const Actor& by, u32 rank, u32 offset, u32 bytes, Operation operation, u64 pc);
  void write(const Actor& by, u32 rank, u32 offset, u32 bytes, u64 pc);

  // race_async.cpp
  u32 new_agent(Agent kind, u32 owner);
  void note_last(const Actor& by, u32 rank, u32 offset, u64 pc);

  // race_report.cpp
  Deed deed(Operation operation, u32 rank, u32 offset, u64 pc);
  Party party(u32 agent, Deed deed, u64 pc);
  void report(RaceKind kind, u32 rank, u32 offset, const Event& first, const Event& second);
  void report(RaceKind kind, u32 rank, u32 offset, const Party& first, const Party& second);

  u32 cell_bytes_ = 4, finer_cell_bytes_ = 0, slots_ = 0, slots_per_block_ = 0, block_count_ = 0;
  Block* blocks_ = nullptr;
  Clocks clocks_;
  Shadow shadows_[kMaxClusterBlocks];
  Table<Cell> global_;  // by address / cell_bytes_
  Thread* threads_ = nullptr;
  Groups* products_ = nullptr;  // wgmma of each warp
  u32 thread_room_ = 0;
  AsyncAgent* async_ = nullptr;
  u32 async_count_ = 0, async_room_ = 0;
  Table<Barrier> barriers_;
  Table<Copy> copies_;       // by number + 1
  Table<u32> destinations_;  // agents of TMA loads, by the place they write to
  Table<RemoteAccess> remote_;
  Outcome joined_ = {}, fenced_ = {};
  Clock* exited_[kMaxClusterBlocks] = {};  // what each block's threads knew when they returned; null: none has yet
  struct {
    u32 rank, slot;
    const Clock* known[kWarpLanes];  // by its lanes, each once
    u32 known_count;
    u64 pc;
  } product_ = {};  // the wgmma whose operands are being reported
  RaceReports reports_;
};
}  // namespace tw
