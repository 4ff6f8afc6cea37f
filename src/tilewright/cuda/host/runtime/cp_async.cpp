// See cp_async.hpp. A thread's copies are a queue; each carries the number of the group it is or will be committed in.
#include "cp_async.hpp"
#include <stdlib.h>
#include <string.h>
#include "memory.hpp"
#include "signals.hpp"

namespace tw {
bool g_copies_at_random;

namespace {
struct Copy {
  u8* destination;
  const u8* source;
  u32 group;
  u8 bytes, valid;
  bool done;
};

// A thread that copies nothing costs its launch no more than these fields.
struct CopyQueue {
  Copy* copies;
  u32 count, room;
  u32 open_group;  // number of the group that the next commit closes
};

CopyQueue g_queues[kMaxThreads];
AsyncPolicy g_policy;
u64 g_random;

CopyQueue& queue_of(const Fiber& fiber) { return g_queues[fiber.id]; }

void complete(Copy& copy) {
  if (copy.done) return;
  copy.done = true;
  memcpy(copy.destination, copy.source, copy.valid);
  memset(copy.destination + copy.valid, 0, size_t(copy.bytes - copy.valid));
}

// Hardware has no limit of copies in flight, so here is none.
[[gnu::noinline]] void grow(CopyQueue& queue) {
  const u32 room = queue.room ? 2 * queue.room : 16;
  set_leavable(false);  // Ctrl-C must not leave the C library's allocator half way
  void* copies = realloc(queue.copies, room * sizeof(Copy));
  set_leavable(true);
  if (!copies) fault("misuse", "the system has no memory for %u copies in flight in one thread", room);
  queue.copies = static_cast<Copy*>(copies);
  queue.room = room;
}

void check(const Fiber& fiber, const u8* destination, const u8* source, int bytes, int valid) {
  if (u64(destination) % u64(bytes))
    fault("cp.async", "the shared destination is not %d-byte aligned: shared+%lld", bytes,
          (long long)(destination - fiber.shared));
  if (u64(source) % u64(bytes))
    fault("cp.async", "the global source %p is not %d-byte aligned", (const void*)source, bytes);
  const u64 offset = u64(destination - fiber.shared);
  if (offset > fiber.owner->shared_bytes || fiber.owner->shared_bytes - offset < u64(bytes))
    fault("cp.async", "the destination %p is not in this block's %u bytes of dynamic shared memory",
          (const void*)destination, fiber.owner->shared_bytes);
  if (valid < 0 || valid > bytes) fault("cp.async", "%d valid bytes of a copy of %d", valid, bytes);
  u32 count;
  buffers(&count);
  if (valid > 0 && count > 0 && !in_one_buffer(u64(source), u32(valid))) {
    g_report.add("cp.async reads %d bytes at ", valid);
    describe_address(g_report, u64(source));
    fault("out-of-bounds", "%s", "");
  }
}
}  // namespace

// xorshift64* (Marsaglia 2003; Vigna 2016): only its top bit is used.
bool coin() {
  g_random ^= g_random >> 12;
  g_random ^= g_random << 25;
  g_random ^= g_random >> 27;
  return g_random * 0x2545F4914F6CDD1Dull >> 63;
}

void copies_begin_launch(AsyncPolicy policy, u64 seed) {
  g_policy = policy;
  g_copies_at_random = policy == AsyncPolicy::kRandom;
  g_random = (seed + 1) * 0x9E3779B97F4A7C15ull | 1;  // any seed gives a state that is not zero
}

void copies_begin_thread(const Fiber& fiber) { queue_of(fiber).count = queue_of(fiber).open_group = 0; }

void complete_some(const Fiber& fiber) {
  CopyQueue& queue = queue_of(fiber);
  for (u32 i = 0; i < queue.count; ++i)
    if (!queue.copies[i].done && coin()) complete(queue.copies[i]);
}

void check_copies_at_exit(const Fiber& fiber) {
  const CopyQueue& queue = queue_of(fiber);
  if (queue.count == 0) return;
  u32 uncommitted = 0;
  for (u32 i = 0; i < queue.count; ++i) uncommitted += queue.copies[i].group == queue.open_group;
  fault("cp.async", "the thread returns with %u copies it has not waited for, %u of them not committed", queue.count,
        uncommitted);
}
}  // namespace tw

void tw_cp_async(void* shared_dst, const void* global_src, int bytes, int valid) {
  using namespace tw;
  Fiber& fiber = *current_fiber();
  u8* destination = static_cast<u8*>(shared_dst);
  const u8* source = static_cast<const u8*>(global_src);
  check(fiber, destination, source, bytes, valid);
  if (g_observer)
    g_observer->cp_async_issue(&fiber, u64(destination), u64(source), u32(bytes), u32(valid),
                               u64(__builtin_return_address(0)));
  CopyQueue& queue = queue_of(fiber);
  if (queue.count == queue.room) grow(queue);
  Copy& copy = queue.copies[queue.count++];
  copy = {destination, source, queue.open_group, u8(bytes), u8(valid), false};
  if (g_policy == AsyncPolicy::kEager)
    complete(copy);
  else
    memset(destination, kPoison, size_t(bytes));
  copies_progress(fiber);
}

void tw_cp_async_commit() {
  using namespace tw;
  Fiber& fiber = *current_fiber();
  ++queue_of(fiber).open_group;
  if (g_observer) g_observer->cp_async_commit(&fiber);
}

void tw_cp_async_wait(int newest_allowed) {
  using namespace tw;
  Fiber& fiber = *current_fiber();
  CopyQueue& queue = queue_of(fiber);
  copies_progress(fiber);
  u32 finished = 0;  // copies of all groups but the newest, which are the front of the queue
  while (finished < queue.count && queue.copies[finished].group + u32(newest_allowed) < queue.open_group)
    complete(queue.copies[finished++]);
  queue.count -= finished;
  if (finished && queue.count) memmove(queue.copies, queue.copies + finished, queue.count * sizeof(Copy));
  if (g_observer) g_observer->cp_async_wait(&fiber, u32(newest_allowed));
}
