// See race.hpp. Agents: thread slots first (32 a warp, even where a warp has fewer threads), then the cp.async agent of
// each slot. A copy agent's epochs are the numbers of its groups, so waiting for a group is knowing an epoch.
#include "race.hpp"

namespace tw {
void RaceDetector::reset(u32 cell_bytes) {
  cell_bytes_ = cell_bytes;
  finer_cell_bytes_ = report_count_ = 0;
}

void RaceDetector::cluster_begin(Block* blocks, u32 count, u32 threads) {
  blocks_ = blocks;
  slots_per_block_ = (threads + kGroup - 1) / kGroup * kGroup;
  slots_ = count * slots_per_block_;
  clocks_.begin(2 * slots_);
  barriers_.clear();
  for (u32 rank = 0; rank < count; ++rank) shadows_[rank].begin(blocks[rank].shared_bytes, cell_bytes_);
  if (slots_ > thread_room_) {
    free(threads_);
    threads_ = static_cast<Thread*>(allocate(slots_, sizeof(Thread)));
    thread_room_ = slots_;
  }
  Clock* start = clocks_.zero();
  for (u32 slot = 0; slot < slots_; ++slot) {
    // A slot without a thread never acts: everything it does is known.
    if (slot % slots_per_block_ >= threads) start->epoch[slot] = kAlways;
    threads_[slot] = {clocks_.hold(start), 1, 0, 1, nullptr, nullptr, nullptr};
  }
  clocks_.publish(start);
  clocks_.release(start);
}

u32 RaceDetector::slot_of(const Fiber& fiber) const {
  return fiber.owner->rank * slots_per_block_ + fiber.thread_in_block;
}

// ---- order ----

bool RaceDetector::knows(const Actor& actor, u32 agent, u32 epoch) const {
  if (agent == actor.slot) return true;
  if (agent == copy_agent(actor.slot)) return epoch <= actor.thread.copies_known;
  return epoch <= actor.thread.known->epoch[agent];
}

bool RaceDetector::knows_all(const Actor& actor, const Access& access, u32* unknown_agent) const {
  if (access.epoch <= actor.thread.known->earliest[access.group]) return true;
  for (u32 lanes = access.lanes; lanes != 0; lanes &= lanes - 1) {
    *unknown_agent = access.group * kGroup + u32(__builtin_ctz(lanes));
    if (!knows(actor, *unknown_agent, access.epoch)) return false;
  }
  return true;
}

void RaceDetector::set_known(Thread& thread, Clock* clock) {
  clocks_.hold(clock);
  clocks_.release(thread.known);
  thread.known = clock;
}

void RaceDetector::arrive(const void* key, const Fiber& fiber) {
  const u32 slot = slot_of(fiber);
  Thread& thread = threads_[slot];
  Barrier& barrier = barriers_[u64(key)];
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
  u32& copies = barrier.gathering->epoch[copy_agent(slot)];
  if (copies < thread.copies_known) copies = thread.copies_known;

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
  Thread& thread = threads_[slot_of(fiber)];
  // A thread that arrived leaves with its own phase, even when the barrier has gone on since.
  Clock* phase = thread.arrived_at == key ? thread.arrived_phase : barriers_[u64(key)].completed;
  if (phase == nullptr) return;
  if (thread.arrived_at == key && thread.arrived_with == thread.known) {
    set_known(thread, phase);
    return;
  }
  Clock* both = clocks_.copy(thread.known);
  clocks_.join(both, phase);
  clocks_.publish(both);
  set_known(thread, both);
  clocks_.release(both);
}

// ---- accesses ----

template <class Visit> void RaceDetector::each_cell(u32 rank, u32 offset, u32 bytes, Visit visit) {
  const u32 granule = offset | bytes;
  if ((granule & (cell_bytes_ - 1)) != 0) {
    finer_cell_bytes_ = granule & -granule;
    fault("misuse", "the race detector watches cells of %u bytes; an access of %u bytes at shared+%u needs finer ones",
          cell_bytes_, bytes, offset);
  }
  for (u32 at = offset; at < offset + bytes; at += cell_bytes_) visit(shadows_[rank][at / cell_bytes_], at);
}

void RaceDetector::access(const Fiber& fiber, u32 rank, u32 offset, u32 bytes, Operation operation, u64 pc) {
  const u32 slot = slot_of(fiber);
  const Actor actor = {threads_[slot], slot, slot, threads_[slot].epoch};
  each_cell(rank, offset, bytes, [&](Cell& cell, u32 at) {
    if (operation == Operation::kWrite)
      write(cell, actor, rank, at, pc);
    else
      read(cell, actor, rank, at, operation == Operation::kAtomic, pc);
  });
}

// A read, or an atomic: both conflict with plain writes; atomics conflict with reads, but not with each other.
void RaceDetector::read(Cell& cell, const Actor& actor, u32 rank, u32 offset, bool atomic, u64 pc) {
  const Access mine = {pc, actor.epoch, 1u << actor.agent % kGroup, actor.agent / kGroup, atomic};
  if (!cell.note(mine)) return;
  if (!cell.written()) return report(RaceKind::kUninitialised, rank, offset, actor.agent, 0, actor, pc);
  if (!knows(actor, cell.writer, cell.writer_epoch))
    report(RaceKind::kWriteThenRead, rank, offset, cell.writer, cell.writer_pc, actor, pc);
  if (!atomic && !cell.has_atomics) return;
  cell.has_atomics = cell.has_atomics || atomic;
  cell.each_access([&](const Access& other) {
    u32 agent;
    if (bool(other.atomic) == atomic || knows_all(actor, other, &agent)) return;
    report(atomic ? RaceKind::kReadThenOverwrite : RaceKind::kWriteThenRead, rank, offset, agent, other.pc, actor, pc);
  });
}

void RaceDetector::write(Cell& cell, const Actor& actor, u32 rank, u32 offset, u64 pc) {
  if (cell.written() && !knows(actor, cell.writer, cell.writer_epoch))
    report(RaceKind::kWriteWrite, rank, offset, cell.writer, cell.writer_pc, actor, pc);
  cell.each_access([&](const Access& other) {
    u32 agent;
    if (knows_all(actor, other, &agent)) return;
    report(other.atomic ? RaceKind::kWriteWrite : RaceKind::kReadThenOverwrite, rank, offset, agent, other.pc, actor,
           pc);
  });
  cell.writer = actor.agent;
  cell.writer_epoch = actor.epoch;
  cell.writer_pc = pc;
  cell.forget_accesses();
}

// ---- cp.async: the shared write happens some time between the issue and the wait for its group ----

void RaceDetector::copy_issue(const Fiber& fiber, u32 rank, u32 offset, u32 bytes, u64 pc) {
  const u32 slot = slot_of(fiber);
  const Actor actor = {threads_[slot], slot, copy_agent(slot), threads_[slot].copies_open};
  each_cell(rank, offset, bytes, [&](Cell& cell, u32 at) { write(cell, actor, rank, at, pc); });
}

void RaceDetector::copy_commit(const Fiber& fiber) { ++threads_[slot_of(fiber)].copies_open; }

void RaceDetector::copy_wait(const Fiber& fiber, u32 newest_allowed) {
  Thread& thread = threads_[slot_of(fiber)];
  const u32 committed = thread.copies_open - 1;
  if (committed > newest_allowed && committed - newest_allowed > thread.copies_known)
    thread.copies_known = committed - newest_allowed;
}

// ---- reports ----

void RaceDetector::report(RaceKind kind, u32 rank, u32 offset, u32 first_agent, u64 first_pc, const Actor& second,
                          u64 pc) {
  for (u32 i = 0; i < report_count_; ++i) {
    RaceReport& r = reports_[i];
    if (r.kind == u32(kind) && r.first_pc == first_pc && r.second_pc == pc) {
      ++r.times;
      return;
    }
  }
  if (report_count_ == kMaxReports) return;
  const auto rank_of = [&](u32 agent) { return agent % slots_ / slots_per_block_; };
  const auto thread_of = [&](u32 agent) { return agent % slots_ % slots_per_block_; };
  const Dim3 block = blocks_[rank_of(second.agent)].index;
  RaceReport& r = reports_[report_count_++];
  r = {};
  r.kind = u32(kind);
  r.rank = rank;
  r.offset = offset;
  r.bytes = cell_bytes_;
  r.block[0] = block.x, r.block[1] = block.y, r.block[2] = block.z;
  r.first_rank = rank_of(first_agent);
  r.first_thread = thread_of(first_agent);
  r.first_is_copy = first_agent >= slots_;
  r.second_rank = rank_of(second.agent);
  r.second_thread = thread_of(second.agent);
  r.second_is_copy = second.agent >= slots_;
  r.times = 1;
  r.first_pc = first_pc;
  r.second_pc = pc;
}

u32 RaceDetector::reports(RaceReport* out, u32 room) const {
  for (u32 i = 0; i < report_count_ && i < room; ++i) out[i] = reports_[i];
  return report_count_;
}
}  // namespace tw
