// See race.hpp: the agents, and what orders them. Threads have slots, 32 a warp even where a warp has fewer.
#include "race.hpp"

namespace tw {
void RaceDetector::reset(u32 cell_bytes) {
  cell_bytes_ = cell_bytes;
  finer_cell_bytes_ = 0;
  reports_.clear();
}

void RaceDetector::cluster_begin(Block* blocks, u32 count, u32 threads) {
  blocks_ = blocks;
  block_count_ = count;
  slots_per_block_ = (threads + kGroup - 1) / kGroup * kGroup;
  slots_ = count * slots_per_block_;
  clocks_.begin(2 * slots_);
  barriers_.clear();
  copies_.clear();
  destinations_.clear();
  remote_.clear();
  global_.each([](u64, Cell& cell) { free(cell.older); });
  global_.clear();
  async_count_ = 0;
  joined_ = fenced_ = {};
  for (u32 rank = 0; rank < count; ++rank) {
    shadows_[rank].begin(blocks[rank].shared_bytes, cell_bytes_);
    exited_[rank] = nullptr;
  }
  if (slots_ > thread_room_) {
    free(threads_);
    free(products_);
    threads_ = static_cast<Thread*>(allocate(slots_, sizeof(Thread)));
    products_ = static_cast<Groups*>(allocate(slots_ / kWarpLanes, sizeof(Groups)));
    thread_room_ = slots_;
  }
  Clock* start = clocks_.zero();
  for (u32 slot = 0; slot < slots_; ++slot) {
    // A slot without a thread never acts: everything it does is known.
    if (slot % slots_per_block_ >= threads) start->epoch[slot] = kAlways;
    threads_[slot] = {};
    threads_[slot].known = clocks_.hold(start);
    threads_[slot].epoch = 1;
    threads_[slot].copies = {slots_ + slot, 1, 0};
    products_of(slot) = {};
  }
  clocks_.publish(start);
  clocks_.release(start);
}

// ---- what is known ----

// The groups of a thread, or of its warp, that are this agent's; null: it is somebody else's.
const RaceDetector::Groups* RaceDetector::groups_of(u32 slot, u32 agent) const {
  const Thread& thread = threads_[slot];
  if (agent == thread.copies.agent) return &thread.copies;
  if (agent == thread.stores.agent) return &thread.stores;
  return agent == products_of(slot).agent ? &products_of(slot) : nullptr;
}

bool RaceDetector::happened(const Actor& by, u32 agent, u32 epoch) const {
  bool told = true;
  for (u32 i = 0; i < by.known_count; ++i) told = told && epoch <= by.known[i]->epoch[agent];
  if (told || by.slot == agent) return true;
  const Groups* own = by.slot != kNobody ? groups_of(by.slot, agent) : nullptr;
  return own != nullptr && epoch <= own->known;
}

bool RaceDetector::is_fenced(const Actor& by, u32 agent, u32 epoch) const {
  if (!is_generic(agent)) return true;
  bool told = true;
  for (u32 i = 0; i < by.known_count; ++i)
    told = told && by.known[i]->fences && epoch <= by.known[i]->fenced[agent];
  if (told || by.slot == kNobody) return told;
  const Thread& self = threads_[by.slot];
  return (agent == by.slot && epoch <= self.fenced) || (agent == self.copies.agent && epoch <= self.copies_fenced);
}

RaceDetector::Order RaceDetector::order(const Actor& by, u32 agent, u32 epoch) const {
  if (!happened(by, agent, epoch)) return Order::kNone;
  return by.async_proxy && !is_fenced(by, agent, epoch) ? Order::kUnfenced : Order::kFull;
}

// Of all lanes of an access: that of the first for which it is not kFull, whose agent this names.
RaceDetector::Order RaceDetector::order(const Actor& by, const Access& access, u32* first_agent) const {
  const bool fence_needed = by.async_proxy && is_generic(access.group * kGroup);
  bool all = true;
  for (u32 i = 0; i < by.known_count && all; ++i) {
    const Clock& clock = *by.known[i];
    all = !fence_needed ? access.epoch <= clock.earliest[access.group]
                        : clock.fences && access.epoch <= clock.all_fenced[access.group];
  }
  if (all) return Order::kFull;
  for (u32 lanes = access.lanes; lanes != 0; lanes &= lanes - 1) {
    *first_agent = access.group * kGroup + u32(__builtin_ctz(lanes));
    const Order found = order(by, *first_agent, access.epoch);
    if (found != Order::kFull) return found;
  }
  return Order::kFull;
}

void RaceDetector::set_known(Thread& thread, Clock* clock) {
  clocks_.hold(clock);
  clocks_.release(thread.known);
  thread.known = clock;
}

// Adds what a clock knows to what a thread knows.
void RaceDetector::learn(Thread& thread, Clock* clock) {
  if (thread.known == clock) return;
  if (joined_.known != thread.known || joined_.learned != clock) {
    clocks_.release(joined_.known);
    clocks_.release(joined_.learned);
    clocks_.release(joined_.both);
    joined_ = {clocks_.hold(thread.known), clocks_.hold(clock), clocks_.copy(thread.known)};
    clocks_.join(joined_.both, clock);
    clocks_.publish(joined_.both);
  }
  set_known(thread, joined_.both);
}

// ---- barriers ----

void RaceDetector::add_groups(Clock* clock, u32 slot) const {
  const Thread& thread = threads_[slot];
  const auto add = [&](const Groups& own) {
    if (own.agent != 0) clocks_.raise(clock, own.agent, own.known);
  };
  add(thread.copies);
  add(thread.stores);
  add(products_of(slot));
}

// Adds what a thread knows and did to a phase. What it does from now on is a new epoch.
void RaceDetector::gather(Barrier& barrier, u32 slot) {
  Thread& thread = threads_[slot];
  if (barrier.gathering == nullptr) {
    barrier.gathering = clocks_.copy(thread.known);
  } else if (barrier.joined_last != thread.known) {
    clocks_.join(barrier.gathering, thread.known);
  }
  if (barrier.joined_last != thread.known) {
    clocks_.hold(thread.known);
    clocks_.release(barrier.joined_last);
    barrier.joined_last = thread.known;
  }
  barrier.gathering->epoch[slot] = thread.epoch++;
  clocks_.raise_fenced(barrier.gathering, slot, thread.fenced);
  clocks_.raise_fenced(barrier.gathering, thread.copies.agent, thread.copies_fenced);
  add_groups(barrier.gathering, slot);
}

void RaceDetector::arrive(const void* key, const Fiber& fiber) {
  Thread& thread = thread_of(fiber);
  Barrier& barrier = barriers_[u64(key)];
  gather(barrier, slot_of(fiber));
  clocks_.hold(barrier.gathering);
  clocks_.hold(thread.known);
  clocks_.release(thread.arrived_phase);
  clocks_.release(thread.arrived_with);
  thread.arrived_at = key;
  thread.arrived_phase = barrier.gathering;
  thread.arrived_with = thread.known;
}

void RaceDetector::complete(const void* key) {
  Barrier& barrier = barriers_[u64(key)];
  if (barrier.gathering == nullptr) return;  // nobody arrived: a barrier of exited threads
  clocks_.publish(barrier.gathering);
  clocks_.release(barrier.completed);
  clocks_.release(barrier.joined_last);
  barrier.completed = barrier.gathering;
  barrier.gathering = barrier.joined_last = nullptr;
}

void RaceDetector::leave(const void* key, const Fiber& fiber) {
  Thread& thread = thread_of(fiber);
  // A thread that arrived leaves with its own phase, even when the barrier has gone on since.
  Clock* phase = thread.arrived_at == key ? thread.arrived_phase : barriers_[u64(key)].completed;
  if (phase == nullptr) return;
  if (thread.arrived_at == key && thread.arrived_with == thread.known)
    set_known(thread, phase);  // which has it all
  else
    learn(thread, phase);
}

// ---- atomics that order ----

void RaceDetector::atomic_order(const void* address, const Fiber& fiber, bool acquire, bool release) {
  Barrier& word = barriers_[u64(address)];
  if (acquire && word.completed != nullptr) learn(thread_of(fiber), word.completed);
  if (!release) return;
  open_phase(word);  // it goes on with what the atomics before it released
  gather(word, slot_of(fiber));
  complete(address);
}

// A plain store to the word: whoever reads that does not learn what atomics before it released.
void RaceDetector::forget_released(u32 rank, u32 offset) {
  if (!(rank & kInOperand)) return;
  u32 count;
  Barrier& word = barriers_[buffers(&count)[rank & ~kInOperand].base + offset];
  clocks_.release(word.completed);
  word.completed = nullptr;
}

// ---- mbarriers ----

// PTX's fence.mbarrier_init is for cluster barriers with relaxed arrivals. Here all arrivals are releases: what has to come
// between this and another thread's use is a barrier.
void RaceDetector::mbarrier_init(const Fiber& fiber, SharedPlace at, u64 pc) {
  mbarrier_at(at.rank, at.offset).init_pc = pc;
  access(fiber, at.rank, at.offset, sizeof(u64), Operation::kWrite, pc);
}

void RaceDetector::mbarrier_use(const Fiber& fiber, SharedPlace at, u64 pc) {
  access(fiber, at.rank, at.offset, sizeof(u64), Operation::kAtomic, pc);
}

// Arrivals are atomic updates of one word, each of which goes on with what the ones before released, in earlier phases,
// too (PTX ISA, "Observation Order"): a phase knows what the phase before knew.
void RaceDetector::open_phase(Barrier& barrier) {
  if (barrier.gathering == nullptr)
    barrier.gathering = barrier.completed != nullptr ? clocks_.copy(barrier.completed) : clocks_.zero();
}

void RaceDetector::mbarrier_arrive(const void* mbarrier, const Fiber& fiber) {
  Barrier& barrier = barriers_[u64(mbarrier)];
  open_phase(barrier);
  gather(barrier, slot_of(fiber));
}

void RaceDetector::mbarrier_leave(const void* mbarrier, const Fiber& fiber) {
  Clock* phase = barriers_[u64(mbarrier)].completed;
  if (phase != nullptr) learn(thread_of(fiber), phase);  // null: it waited for the phase before the first
}

void RaceDetector::fence_proxy_async(const Fiber& fiber) {
  Thread& thread = thread_of(fiber);
  thread.fenced = thread.epoch++;
  thread.copies_fenced = thread.copies.known;
  if (fenced_.both == thread.known) return;
  if (fenced_.known != thread.known) {
    clocks_.release(fenced_.known);
    clocks_.release(fenced_.both);
    fenced_ = {clocks_.hold(thread.known), nullptr, clocks_.copy(thread.known)};
    clocks_.fence(fenced_.both);
    clocks_.publish(fenced_.both);
  }
  set_known(thread, fenced_.both);
}

// ---- the end ----

void RaceDetector::thread_exit(const Fiber& fiber) {
  // What others do after this return is not known to it, so it is no use noting it when nobody has done anything yet.
  if (async_count_ == 0 && remote_.count() == 0) return;
  Clock*& exited = exited_[fiber.owner->rank];
  if (exited == nullptr) exited = clocks_.zero();
  clocks_.join(exited, thread_of(fiber).known);
  add_groups(exited, slot_of(fiber));
}

// A block's shared memory is there until its last thread returns: accesses by others have to come before one of these.
void RaceDetector::cluster_end() {
  const auto outlived = [&](u32 rank, u32 offset, u32 agent, u32 epoch, Deed deed, u64 pc) {
    if (exited_[rank] != nullptr && epoch <= exited_[rank]->epoch[agent]) return;
    report(RaceKind::kExit, rank, offset, party(agent, deed, pc), {u32(Agent::kBlock), rank, 0, u32(Deed::kExited), 0});
  };
  for (u32 i = 0; i < async_count_; ++i) {
    const AsyncAgent& last = async_[i];
    outlived(last.rank, last.offset, 2 * slots_ + i, last.epoch,
             last.kind == Agent::kTmaLoad ? Deed::kWrote : Deed::kRead, last.pc);
  }
  remote_.each([&](u64 key, const RemoteAccess& last) {
    outlived(u32(key >> 32), last.offset, u32(key) - 1, last.epoch, last.deed, last.pc);
  });
}
}  // namespace tw
