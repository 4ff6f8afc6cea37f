// See wgmma.hpp. A warp's instructions are a queue, each with the number of the group it is or will be committed in;
// they are executed in the order of their issue.
#include "wgmma.hpp"
#include <string.h>
#include "accumulator.hpp"
#include "fault.hpp"
#include "operand.hpp"
#include "warp.hpp"
#include "warpgroup.hpp"

namespace tw {
namespace {
struct Instruction {
  Operand a, b;
  u32 a_registers[kWarpLanes][4];
  bool a_in_registers, accumulate;
  ElementType type;
  u32 width;  // N
  u32 group;
  Accumulator* accumulator;
};

struct Queue {
  InFlight<Instruction> instructions;
  u32 executed;    // of these
  u32 open_group;  // number of the group that the next commit closes
  bool fenced;     // since the last time that registers came back
  Accumulators accumulators;
};

// What a lane hands in.
struct Request {
  float* d;
  int width;
  const u32* a_registers;
  u64 a, b;
  bool accumulate;
  ElementType type;
  bool transpose_a, transpose_b;
  u64 pc;
};

Queue g_queues[kMaxWarps];

Queue& queue_of(const Warp& warp) { return g_queues[warp.index]; }

void execute(const Warp& warp, const Instruction& it) {
  const u8* shared = warp.block->shared;
  Rows rows;
  if (it.a_in_registers) {
    const u32* registers[kWarpLanes];
    for (u32 lane = 0; lane < kWarpLanes; ++lane) registers[lane] = it.a_registers[lane];
    rows_from_registers(it.type, registers, rows);
  } else {
    Slice upper, lower;
    load_slice(it.a, warp.index_in_block % 4 * 2, it.type, shared, upper);
    load_slice(it.a, warp.index_in_block % 4 * 2 + 1, it.type, shared, lower);
    rows.set(upper, lower);
  }
  float* lanes[kWarpLanes];
  for (u32 lane = 0; lane < kWarpLanes; ++lane) lanes[lane] = it.accumulator->lane(lane);
  for (u32 index = 0; index < it.width / 8; ++index) {
    Slice columns;
    load_slice(it.b, index, it.type, shared, columns);
    multiply_accumulate(rows, columns, it.accumulate, lanes, 4 * index);
  }
}

void execute_next(const Warp& warp, Queue& queue) {
  const Instruction& next = queue.instructions.items[queue.executed++];
  execute(warp, next);
  // At random, what is done shows; at the latest it does once the instruction was waited for.
  if (--next.accumulator->to_execute == 0 && g_policy == AsyncPolicy::kRandom) next.accumulator->unpark(warp);
}

Accumulator& accumulator_of(Queue& queue, const Warp& warp, const Request& request) {
  const u32 size = u32(request.width) / 2;
  if (Accumulator* known = queue.accumulators.find(request.d, size)) return *known;
  if (!queue.fenced) fault("misuse", "wgmma without a wgmma_fence since its warp began or got back accumulators");
  Accumulator& added = queue.accumulators.add(size);
  for (u32 lane = 0; lane < kWarpLanes; ++lane)
    added.lanes[lane] = static_cast<Request*>(warp.meeting.operands[lane])->d;
  return added;
}

// All lanes have to mean the same instruction.
void check_lanes(const Warp& warp, const Request& first) {
  for (u32 lane = 1; lane < kWarpLanes; ++lane) {
    const Request& other = *static_cast<Request*>(warp.meeting.operands[lane]);
    if (other.width == first.width && !other.a_registers == !first.a_registers && other.a == first.a &&
        other.b == first.b && other.accumulate == first.accumulate && other.type == first.type &&
        other.transpose_a == first.transpose_a && other.transpose_b == first.transpose_b)
      continue;
    blame(warp.fibers[lane]);
    fault("divergence", "wgmma of another shape, descriptor or flag than lane 0's");
  }
}

void issue(Warp& warp) {
  const Request& request = *static_cast<Request*>(warp.meeting.operands[0]);
  const bool a_in_registers = request.a_registers != nullptr;
  const u32 width = u32(request.width), first_slice = warp.index_in_block % 4 * 2;
  check_lanes(warp, request);
  const u32 flags = u32(request.type) << 4 | u32(a_in_registers) << 3 | u32(request.accumulate) << 2 |
                    u32(request.transpose_a) << 1 | u32(request.transpose_b);
  take_step(warp, {"wgmma of width", width, flags, request.a, request.b});

  const Operand a = a_in_registers ? Operand{} : decode(request.a, request.transpose_a, "A");
  const Operand b = decode(request.b, request.transpose_b, "B");
  if (!a_in_registers) check_bounds(a, first_slice, 2, *warp.block, "A");
  check_bounds(b, 0, width / 8, *warp.block, "B");
  if (g_observer) {
    g_observer->wgmma_begin(&warp, 64, request.width, kDepth, request.pc);
    if (!a_in_registers) report_ranges(a, first_slice, 2, warp, true);
    report_ranges(b, 0, width / 8, warp, false);
  }

  Queue& queue = queue_of(warp);
  Accumulator& accumulator = accumulator_of(queue, warp, request);
  Instruction& instruction = queue.instructions.add({});
  instruction.a = a, instruction.b = b;
  instruction.a_in_registers = a_in_registers;
  instruction.accumulate = request.accumulate;
  instruction.type = request.type;
  instruction.width = width;
  instruction.group = queue.open_group;
  instruction.accumulator = &accumulator;
  // Registers are read now: the compiler for the GPU keeps those of A as they are while they are needed, whereas here the
  // array of one step may lie where that of the step before lay.
  for (u32 lane = 0; lane < kWarpLanes && a_in_registers; ++lane)
    memcpy(instruction.a_registers[lane], static_cast<Request*>(warp.meeting.operands[lane])->a_registers,
           sizeof instruction.a_registers[lane]);
  ++accumulator.in_flight;
  ++accumulator.to_execute;
  if (g_policy == AsyncPolicy::kEager) return execute_next(warp, queue);
  accumulator.park();
  wgmma_progress(warp);
}

void fence(Warp& warp) {
  queue_of(warp).fenced = true;
  if (g_observer) g_observer->wgmma_fence(&warp);
}

void commit(Warp& warp) {
  ++queue_of(warp).open_group;
  if (g_observer) g_observer->wgmma_commit(&warp);
}

void wait(Warp& warp) {
  Queue& queue = queue_of(warp);
  const u32 newest_allowed = *static_cast<u32*>(warp.meeting.operands[0]);
  const InFlight<Instruction>& all = queue.instructions;
  u32 finished = 0;  // instructions of all groups but the newest, which are the front of the queue
  for (; finished < all.count && all.items[finished].group + newest_allowed < queue.open_group; ++finished) {
    if (finished == queue.executed) execute_next(warp, queue);
    Accumulator& accumulator = *all.items[finished].accumulator;
    if (--accumulator.in_flight != 0) continue;
    accumulator.unpark(warp);
    queue.fenced = false;
  }
  queue.instructions.remove(0, finished);
  queue.executed -= finished;
  if (g_observer) g_observer->wgmma_wait(&warp, newest_allowed);
}

void together(const char* instruction, void* operand, void (*work)(Warp&)) {
  need_whole_warp(*current_fiber()->warp, instruction);
  meet(instruction, operand, work);
}
}  // namespace

void wgmma_begin_block(const Block& block) {
  for (u32 w = 0; w < block.warps; ++w) {
    Queue& queue = queue_of(block.first_warp[w]);
    queue.accumulators.clear();
    queue.instructions.count = queue.executed = queue.open_group = 0;
    queue.fenced = false;
  }
}

void execute_some(Warp& warp) {
  Queue& queue = queue_of(warp);
  while (queue.executed < queue.instructions.count && coin()) execute_next(warp, queue);
}

void check_wgmma_at_exit(const Fiber& fiber) {
  const Queue& queue = queue_of(*fiber.warp);
  const InFlight<Instruction>& all = queue.instructions;
  if (all.count == 0) return;
  u32 uncommitted = 0;
  for (u32 i = 0; i < all.count; ++i) uncommitted += all.items[i].group == queue.open_group;
  fault("wgmma", "the warp returns with %u wgmmas it has not waited for, %u of them not committed", all.count,
        uncommitted);
}
}  // namespace tw

void tw_wgmma_fence() { tw::together("wgmma_fence", nullptr, tw::fence); }

void tw_wgmma(float* d, int n, const unsigned* a_registers, unsigned long long a, unsigned long long b, bool accumulate,
              int type, bool transpose_a, bool transpose_b) {
  const tw::u64 pc = tw::u64(__builtin_return_address(0));
  tw::Request request = {d, n, a_registers, a, b, accumulate, tw::ElementType(type), transpose_a, transpose_b, pc};
  tw::together("wgmma", &request, tw::issue);
}

void tw_wgmma_commit() { tw::together("wgmma_commit", nullptr, tw::commit); }

void tw_wgmma_wait(int newest_allowed) {
  tw::u32 allowed = tw::u32(newest_allowed);
  tw::together("wgmma_wait", &allowed, tw::wait);
}
