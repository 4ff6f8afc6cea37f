// See race.hpp: what an access finds in the cells it touches.
#include "race.hpp"

namespace tw {
template <class Visit> void RaceDetector::each_cell(u32 rank, u32 offset, u32 bytes, Visit visit) {
  const u32 granule = offset | bytes;
  if ((granule & (cell_bytes_ - 1)) != 0) {
    finer_cell_bytes_ = granule & -granule;
    fault("misuse", "the race detector watches cells of %u bytes; an access of %u bytes at shared+%u needs finer ones",
          cell_bytes_, bytes, offset);
  }
  if (rank & kInOperand) {
    u32 count;
    const u64 base = buffers(&count)[rank & ~kInOperand].base;
    for (u32 at = offset; at < offset + bytes; at += cell_bytes_) visit(global_[(base + at) / cell_bytes_], at);
    return;
  }
  for (u32 at = offset; at < offset + bytes; at += cell_bytes_) visit(shadows_[rank][at / cell_bytes_], at);
}

void RaceDetector::access(const Fiber& fiber, u32 rank, u32 offset, u32 bytes, Operation operation, u64 pc) {
  const u32 slot = slot_of(fiber);
  const Thread& thread = threads_[slot];
  const Actor by = {slot, thread.epoch, false, slot, &thread.known, 1};
  if (operation == Operation::kWrite)
    write(by, rank, offset, bytes, pc);
  else
    read(by, rank, offset, bytes, operation, pc);
  if (rank != fiber.owner->rank && !(rank & kInOperand))
    remote_[u64(rank) << 32 | (slot + 1)] = {thread.epoch, offset, deed(operation, rank, offset, pc), pc};
}

// Of one block alone nothing is watched: its operands were written before the launch, and C is as large as they are.
void RaceDetector::global_access(const Fiber& fiber, u32 operand, u32 offset, u32 bytes, Operation operation, u64 pc) {
  if (block_count_ > 1) access(fiber, kInOperand | operand, offset, bytes, operation, pc);
}

// A read, or an atomic: both conflict with plain writes; atomics conflict with reads, but not with each other.
void RaceDetector::read(const Actor& by, u32 rank, u32 offset, u32 bytes, Operation operation, u64 pc) {
  const bool atomic = operation == Operation::kAtomic;
  const Access mine = {pc, by.epoch, 1u << by.agent % kGroup, by.agent / kGroup, atomic};
  each_cell(rank, offset, bytes, [&](Cell& cell, u32 at) {
    if (!cell.note(mine)) return;
    const Event now = {by.agent, operation, pc};
    // Global memory may have been written before the launch.
    if (!cell.written() && !(rank & kInOperand)) return report(RaceKind::kUninitialised, rank, at, {}, now);
    const Order after_write = cell.written() ? order(by, cell.writer, cell.writer_epoch) : Order::kFull;
    if (after_write != Order::kFull)
      report(after_write == Order::kNone ? RaceKind::kWriteThenRead : RaceKind::kUnfenced, rank, at,
             {cell.writer, Operation::kWrite, cell.writer_pc}, now);
    if (!atomic && !cell.has_atomics) return;
    cell.has_atomics = cell.has_atomics || atomic;
    cell.each_access([&](const Access& other) {
      u32 agent;
      if (bool(other.atomic) == atomic || order(by, other, &agent) == Order::kFull) return;
      report(atomic ? RaceKind::kReadThenOverwrite : RaceKind::kWriteThenRead, rank, at,
             {agent, other.operation(), other.pc}, now);
    });
  });
}

void RaceDetector::write(const Actor& by, u32 rank, u32 offset, u32 bytes, u64 pc) {
  each_cell(rank, offset, bytes, [&](Cell& cell, u32 at) {
    const Event now = {by.agent, Operation::kWrite, pc};
    if (cell.written()) {
      const Order after_write = order(by, cell.writer, cell.writer_epoch);
      if (after_write != Order::kFull)
        report(after_write == Order::kNone ? RaceKind::kWriteWrite : RaceKind::kUnfenced, rank, at,
               {cell.writer, Operation::kWrite, cell.writer_pc}, now);
    }
    cell.each_access([&](const Access& other) {
      u32 agent;
      const Order after = order(by, other, &agent);
      if (after == Order::kFull) return;
      const RaceKind unordered = other.atomic ? RaceKind::kWriteWrite : RaceKind::kReadThenOverwrite;
      report(after == Order::kNone ? unordered : RaceKind::kUnfenced, rank, at, {agent, other.operation(), other.pc},
             now);
    });
    if (cell.has_atomics) forget_released(rank, at);
    cell.writer = by.agent;
    cell.writer_epoch = by.epoch;
    cell.writer_pc = pc;
    cell.forget_accesses();
  });
}
}  // namespace tw
