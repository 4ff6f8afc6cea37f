// See wgmma.hpp. A warp's instructions are a queue, each with the number of the group it is or will be committed in;
// they are executed in the order of their issue. While one that is not executed has an accumulator, its values are
// parked here and the lanes' own arrays hold NaN.
#include "wgmma.hpp"
#include <stdlib.h>
#include "fault.hpp"
#include "memory.hpp"
#include "operand.hpp"
#include "signals.hpp"
#include "warp.hpp"
#include "warpgroup.hpp"

namespace tw {
namespace {
enum : u32 {
  kMaxWidth = 256,
  kMaxRegisters = 255,                // of a thread
  kMaxAccumulators = kMaxRegisters / 4,  // in flight: the narrowest has 4 registers
};

// An accumulator, from the issue of an instruction that has it until no such instruction is left to be waited for.
struct Accumulator {
  float* lanes[kWarpLanes];  // where the kernel has it
  float* parked;             // [lane][size]; kept for the next one
  u32 size;                  // registers a lane
  u32 in_flight;             // instructions that have it
  u32 to_execute;            // of these, those not executed
  bool is_parked;

  float* lane(u32 index) const { return is_parked ? parked + index * size : lanes[index]; }
};

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
  Instruction* instructions;
  u32 count, executed, room;
  u32 open_group;  // number of the group that the next commit closes
  bool fenced;     // since the last time that registers came back
  u32 accumulator_count;  // slots used so far
  Accumulator accumulators[kMaxAccumulators];
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

void* reserve(void* memory, u64 bytes) {
  set_leavable(false);  // Ctrl-C must not leave the C library's allocator half way
  memory = realloc(memory, bytes);
  set_leavable(true);
  if (!memory) fault("misuse", "the system has no memory for the wgmmas in flight in one warp");
  return memory;
}

void park(Accumulator& accumulator) {
  if (accumulator.is_parked) return;
  if (!accumulator.parked)
    accumulator.parked = static_cast<float*>(reserve(nullptr, kWarpLanes * kMaxWidth / 2 * sizeof(float)));
  const size_t bytes = accumulator.size * sizeof(float);
  for (u32 lane = 0; lane < kWarpLanes; ++lane) {
    memcpy(accumulator.parked + lane * accumulator.size, accumulator.lanes[lane], bytes);
    memset(accumulator.lanes[lane], kPoison, bytes);
  }
  accumulator.is_parked = true;
}

void unpark(const Warp& warp, Accumulator& accumulator) {
  if (!accumulator.is_parked) return;
  accumulator.is_parked = false;
  for (u32 lane = 0; lane < kWarpLanes; ++lane) {
    float* const to = accumulator.lanes[lane];
    for (u32 i = 0; i < accumulator.size; ++i) {
      if (host::bits_of(to[i]) == ~0u) continue;
      blame(warp.fibers[lane]);
      fault("wgmma", "accumulator register %u was written while a wgmma that has it was in flight", i);
    }
    memcpy(to, accumulator.parked + lane * accumulator.size, accumulator.size * sizeof(float));
  }
}

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
  const Instruction& next = queue.instructions[queue.executed++];
  execute(warp, next);
  // At random, what is done shows; at the latest it does once the instruction was waited for.
  if (--next.accumulator->to_execute == 0 && g_policy == AsyncPolicy::kRandom) unpark(warp, *next.accumulator);
}

// The slot of an accumulator, which may be in flight.
Accumulator& accumulator_of(Queue& queue, const Warp& warp, const Request& request) {
  const u32 size = u32(request.width) / 2;
  u32 registers = size;
  Accumulator* unused = nullptr;
  for (u32 i = 0; i < queue.accumulator_count; ++i) {
    Accumulator& other = queue.accumulators[i];
    if (other.in_flight == 0) {
      unused = &other;
      continue;
    }
    if (other.lanes[0] == request.d && other.size == size) return other;
    if (request.d < other.lanes[0] + other.size && other.lanes[0] < request.d + size)
      fault("misuse", "wgmma: its %u accumulator registers are in flight as part of %u others", size, other.size);
    registers += other.size;
  }
  if (registers > kMaxRegisters)
    fault("misuse", "wgmma: %u accumulator registers a thread in flight; it has %u", registers, kMaxRegisters);
  if (!queue.fenced) fault("misuse", "wgmma without a wgmma_fence since its warp began or got back accumulators");
  Accumulator& mine = unused ? *unused : queue.accumulators[queue.accumulator_count++];
  for (u32 lane = 0; lane < kWarpLanes; ++lane)
    mine.lanes[lane] = static_cast<Request*>(warp.meeting.operands[lane])->d;
  mine.size = size;
  mine.is_parked = false;
  return mine;
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

Instruction& append(Queue& queue) {
  if (queue.count == queue.room) {
    const u32 room = queue.room ? 2 * queue.room : 16;
    queue.instructions = static_cast<Instruction*>(reserve(queue.instructions, room * sizeof(Instruction)));
    queue.room = room;
  }
  return queue.instructions[queue.count++];
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
    g_observer->wgmma_begin(&warp, 64, request.width, kDepth,
                            static_cast<Request*>(warp.meeting.operands[current_fiber()->lane])->pc);
    if (!a_in_registers) report_ranges(a, first_slice, 2, warp, true);
    report_ranges(b, 0, width / 8, warp, false);
  }

  Queue& queue = queue_of(warp);
  Accumulator& accumulator = accumulator_of(queue, warp, request);
  Instruction& instruction = append(queue);
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
  park(accumulator);
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
  u32 finished = 0;  // instructions of all groups but the newest, which are the front of the queue
  for (; finished < queue.count && queue.instructions[finished].group + newest_allowed < queue.open_group; ++finished) {
    if (finished == queue.executed) execute_next(warp, queue);
    Accumulator& accumulator = *queue.instructions[finished].accumulator;
    if (--accumulator.in_flight != 0) continue;
    unpark(warp, accumulator);
    queue.fenced = false;
  }
  queue.count -= finished;
  queue.executed -= finished;
  if (finished && queue.count)
    memmove(queue.instructions, queue.instructions + finished, queue.count * sizeof(Instruction));
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
    for (u32 i = 0; i < queue.accumulator_count; ++i) queue.accumulators[i].in_flight = 0;
    queue.count = queue.executed = queue.open_group = 0;
    queue.fenced = false;
  }
}

void execute_some(Warp& warp) {
  Queue& queue = queue_of(warp);
  while (queue.executed < queue.count && coin()) execute_next(warp, queue);
}

void check_wgmma_at_exit(const Fiber& fiber) {
  const Queue& queue = queue_of(*fiber.warp);
  if (queue.count == 0) return;
  u32 uncommitted = 0;
  for (u32 i = 0; i < queue.count; ++i) uncommitted += queue.instructions[i].group == queue.open_group;
  fault("wgmma", "the warp returns with %u wgmmas it has not waited for, %u of them not committed", queue.count,
        uncommitted);
}
}  // namespace tw

unsigned tw_shared_address(const void* shared) {
  using namespace tw;
  const Fiber& fiber = *current_fiber();
  const u64 offset = u64(shared) - u64(fiber.shared);
  if (offset > fiber.owner->shared_bytes)
    fault("misuse", "the shared address of %p, which is not in this block's %u bytes of dynamic shared memory", shared,
          fiber.owner->shared_bytes);
  return u32(offset);
}

void tw_wgmma_fence() { tw::together("wgmma_fence", nullptr, tw::fence); }

void tw_wgmma(float* d, int n, const unsigned* a_registers, unsigned long long a, unsigned long long b, bool accumulate,
              int type, bool transpose_a, bool transpose_b) {
  tw::Request request = {d,
                         n,
                         a_registers,
                         a,
                         b,
                         accumulate,
                         tw::ElementType(type),
                         transpose_a,
                         transpose_b,
                         tw::u64(__builtin_return_address(0))};
  tw::together("wgmma", &request, tw::issue);
}

void tw_wgmma_commit() { tw::together("wgmma_commit", nullptr, tw::commit); }

void tw_wgmma_wait(int newest_allowed) {
  tw::u32 allowed = tw::u32(newest_allowed);
  tw::together("wgmma_wait", &allowed, tw::wait);
}
