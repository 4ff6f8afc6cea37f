// See fault.hpp.
#include "fault.hpp"
#include <stdio.h>
#include <string.h>
#include "scheduler.hpp"

namespace tw {
Report g_report;
volatile int g_interrupts;

void Report::clear() {
  kind[0] = text[0] = 0;
  length = 0;
}

void Report::add_list(const char* format, va_list arguments) {
  const u32 room = sizeof text - length;
  const int wanted = vsnprintf(text + length, room, format, arguments);
  if (wanted > 0) length += u32(wanted) < room ? u32(wanted) : room - 1;
}

void Report::add(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  add_list(format, arguments);
  va_end(arguments);
}

void Report::add_place() {
  if (const Fiber* fiber = current_fiber())
    add(" [block %u,%u,%u thread %u]", fiber->block.x, fiber->block.y, fiber->block.z, fiber->thread_in_block);
}

void set_kind(const char* kind) { snprintf(g_report.kind, sizeof g_report.kind, "%s", kind); }

void fault(const char* kind, const char* format, ...) {
  set_kind(kind);
  va_list arguments;
  va_start(arguments, format);
  g_report.add_list(format, arguments);
  va_end(arguments);
  g_report.add_place();
  end_launch();
}

void interrupted() { fault("interrupted", "Ctrl-C"); }
}  // namespace tw
