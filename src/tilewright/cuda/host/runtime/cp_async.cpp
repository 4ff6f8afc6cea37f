// See cp_async.hpp. A thread's copies are a queue; each carries the number of the group it is or will be committed in.
#include "cp_async.hpp"
#include <string.h>
#include "async.hpp"
#include "memory.hpp"

namespace tw {
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
  InFlight<Copy> copies;
  u32 open_group;  // number of the group that the next commit closes
};

CopyQueue g_queues[kMaxThreads];

CopyQueue& queue_of(const Fiber& fiber) { return g_queues[fiber.id]; }

void complete(Copy& copy) {
  if (copy.done) return;
  copy.done = true;
  memcpy(copy.destination, copy.source, copy.valid);
  memset(copy.destination + copy.valid, 0, size_t(copy.bytes - copy.valid));
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

void copies_begin_thread(const Fiber& fiber) {
  CopyQueue& queue = queue_of(fiber);
  queue.copies.count = queue.open_group = 0;
}

void copies_progress(const Fiber& fiber) {
  InFlight<Copy>& copies = queue_of(fiber).copies;
  for (u32 i = 0; i < copies.count; ++i)
    if (!copies.items[i].done && coin()) complete(copies.items[i]);
}

void check_copies_at_exit(const Fiber& fiber) {
  const CopyQueue& queue = queue_of(fiber);
  const u32 count = queue.copies.count;
  if (count == 0) return;
  u32 uncommitted = 0;
  for (u32 i = 0; i < count; ++i) uncommitted += queue.copies.items[i].group == queue.open_group;
  fault("cp.async", "the thread returns with %u copies it has not waited for, %u of them not committed", count,
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
  Copy& copy = queue.copies.add({destination, source, queue.open_group, u8(bytes), u8(valid), false});
  if (g_policy == AsyncPolicy::kEager)
    complete(copy);
  else
    memset(destination, kPoison, size_t(bytes));
  async_progress(fiber);
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
  async_progress(fiber);
  InFlight<Copy>& copies = queue.copies;
  u32 finished = 0;  // copies of all groups but the newest, which are the oldest in flight
  while (finished < copies.count && copies.items[finished].group + u32(newest_allowed) < queue.open_group)
    complete(copies.items[finished++]);
  copies.remove(0, finished);
  if (g_observer) g_observer->cp_async_wait(&fiber, u32(newest_allowed));
}
