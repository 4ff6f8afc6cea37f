// The matrices of a launch: where a kernel may read and write.
#include "memory.hpp"

namespace tw {
namespace {
const Buffer* g_buffers;
u32 g_buffer_count;
}  // namespace

void register_buffers(const Buffer* all, u32 count) {
  g_buffers = all;
  g_buffer_count = count;
}

const Buffer* buffers(u32* count) {
  *count = g_buffer_count;
  return g_buffers;
}

u64 extent_of(const Buffer& buffer) {
  return buffer.rows && buffer.row_bytes ? (buffer.rows - 1) * buffer.pitch + buffer.row_bytes : 0;
}

static bool holds(const Buffer& buffer, u64 address, u64 bytes) {
  const u64 extent = extent_of(buffer), offset = address - buffer.base;
  return offset < extent && extent - offset >= bytes;
}

int buffer_of(u64 address) {
  for (u32 i = 0; i < g_buffer_count; ++i)
    if (holds(g_buffers[i], address, 1)) return int(i);
  return -1;
}

bool in_one_buffer(u64 address, u32 bytes) {
  for (u32 i = 0; i < g_buffer_count; ++i)
    if (holds(g_buffers[i], address, bytes)) return true;
  return false;
}
}  // namespace tw
