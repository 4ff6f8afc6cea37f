// See race.hpp: work that goes on while its thread does.
#include "race.hpp"

namespace tw {
// ---- cp.async: the shared write happens some time between the issue and the wait for its group ----

void RaceDetector::cp_async_issue(const Fiber& fiber, u32 rank, u32 offset, u32 bytes, u64 pc) {
  const Thread& thread = thread_of(fiber);
  write({thread.copies.agent, thread.copies.open, false, slot_of(fiber), &thread.known, 1}, rank, offset, bytes, pc);
}

void RaceDetector::cp_async_commit(const Fiber& fiber) { ++thread_of(fiber).copies.open; }

void RaceDetector::cp_async_wait(const Fiber& fiber, u32 newest_allowed) {
  thread_of(fiber).copies.wait(newest_allowed);
}

// ---- agents of the async proxy ----

u32 RaceDetector::new_agent(Agent kind, u32 owner) {
  if (async_count_ == async_room_) {
    async_room_ = async_room_ == 0 ? kGroup : 2 * async_room_;
    async_ = static_cast<AsyncAgent*>(realloc(async_, async_room_ * sizeof(AsyncAgent)));
    if (async_ == nullptr) fault("misuse", "the race detector ran out of memory");
  }
  clocks_.grow(2 * slots_ + async_room_);
  async_[async_count_] = {kind, owner, 0, 0, 0, 0};
  return 2 * slots_ + async_count_++;
}

void RaceDetector::note_last(const Actor& by, u32 rank, u32 offset, u64 pc) {
  AsyncAgent& agent = async(by.agent);
  agent.epoch = by.epoch;
  agent.rank = rank;
  agent.offset = offset;
  agent.pc = pc;
}

// ---- TMA ----

void RaceDetector::bulk_begin(const Fiber& fiber, u32 number, bool store, u64 pc) {
  Thread& thread = thread_of(fiber);
  if (store && thread.stores.agent == 0) thread.stores = {new_agent(Agent::kTmaStore, slot_of(fiber)), 1, 0};
  Copy& copy = copies_[u64(number) + 1];
  copy = {};
  copy.issuer = slot_of(fiber);
  copy.store = store;
  copy.pc = pc;
  copy.known = clocks_.hold(thread.known);
}

void RaceDetector::bulk_shared(u32 number, u32 rank, u32 offset, u32 bytes) {
  Copy& copy = copies_[u64(number) + 1];
  const Thread& issuer = threads_[copy.issuer];
  Actor by = {issuer.stores.agent, issuer.stores.open, true, copy.issuer, &issuer.known, 1};
  if (copy.store) {
    read(by, rank, offset, bytes, Operation::kRead, copy.pc);
  } else {
    if (copy.agents[rank] == 0) {
      u32& agent = destinations_[u64(rank) << 32 | (offset + 1)];
      if (agent == 0) agent = new_agent(Agent::kTmaLoad, copy.issuer);
      async(agent).owner = copy.issuer;
      copy.agents[rank] = agent;
      copy.epochs[rank] = async(agent).epoch + 1;
    }
    by.agent = copy.agents[rank];
    by.epoch = copy.epochs[rank];
    write(by, rank, offset, bytes, copy.pc);
  }
  note_last(by, rank, offset, copy.pc);
}

// The bytes are counted on the mbarrier: an update of it that the mbarrier has to be ready for at issue, and which
// publishes them, but nothing that the issuing thread did before (PTX ISA, "Asynchronous Operations").
void RaceDetector::bulk_done(u32 number, SharedPlace mbarrier) {
  Copy& copy = copies_[u64(number) + 1];
  const u32 agent = copy.agents[mbarrier.rank], epoch = copy.epochs[mbarrier.rank];
  if (agent == 0) return;  // nothing of it went to that block
  read({agent, epoch, false, copy.issuer, &copy.known, 1}, mbarrier.rank, mbarrier.offset, sizeof(u64),
       Operation::kAtomic, copy.pc);
  Barrier& barrier = mbarrier_at(mbarrier.rank, mbarrier.offset);
  open_phase(barrier);
  clocks_.raise(barrier.gathering, agent, epoch);
}

void RaceDetector::bulk_end(u32 number) {
  Copy& copy = copies_[u64(number) + 1];
  clocks_.release(copy.known);
  copy.known = nullptr;
}

void RaceDetector::bulk_commit(const Fiber& fiber) {
  Groups& stores = thread_of(fiber).stores;
  if (stores.agent != 0) ++stores.open;
}

void RaceDetector::bulk_wait(const Fiber& fiber, u32 newest_allowed) {
  Groups& stores = thread_of(fiber).stores;
  if (stores.agent != 0) stores.wait(newest_allowed);
}

// ---- wgmma ----

// Each lane has to know what the operands' bytes were written by: the instruction is issued by all of them. That its
// reads are done, a warp knows by its own wait; that the other warps of the warpgroup are as far is not relied on.
void RaceDetector::wgmma_begin(const Warp& warp, u64 pc) {
  const u32 slot = slot_of(warp);
  Groups& products = products_of(slot);
  if (products.agent == 0) products = {new_agent(Agent::kWgmma, slot), 1, 0};
  product_.rank = warp.block->rank;
  product_.slot = slot;
  product_.pc = pc;
  product_.known_count = 0;
  for (u32 lanes = warp.alive; lanes != 0; lanes &= lanes - 1) {
    const Clock* known = threads_[slot + u32(__builtin_ctz(lanes))].known;
    bool found = false;
    for (u32 i = 0; i < product_.known_count; ++i) found = found || product_.known[i] == known;
    if (!found) product_.known[product_.known_count++] = known;
  }
}

void RaceDetector::wgmma_shared(u32 offset, u32 bytes) {
  const Groups& products = products_of(product_.slot);
  const Actor by = {products.agent, products.open, true, kNobody, product_.known, product_.known_count};
  read(by, product_.rank, offset, bytes, Operation::kRead, product_.pc);
  note_last(by, product_.rank, offset, product_.pc);
}

void RaceDetector::wgmma_commit(const Warp& warp) {
  Groups& products = products_of(slot_of(warp));
  if (products.agent != 0) ++products.open;
}

void RaceDetector::wgmma_wait(const Warp& warp, u32 newest_allowed) {
  Groups& products = products_of(slot_of(warp));
  if (products.agent != 0) products.wait(newest_allowed);
}
}  // namespace tw
