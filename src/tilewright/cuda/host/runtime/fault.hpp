// The report of what ended a launch, and the ways to end one.
#pragma once
#include <stdarg.h>
#include "runtime.hpp"

#pragma GCC visibility push(hidden)
namespace tw {
struct Report {
  char kind[32];  // empty: no fault
  char text[8192];
  u32 length;

  void clear();
  void add(const char* format, ...) __attribute__((format(printf, 2, 3)));
  void add_list(const char* format, va_list arguments);
  // " [block x,y,z thread t]" of the running fiber, if there is one.
  void add_place();
};

extern Report g_report;

// The report will name this thread, whichever runs now; null: none. The launch has to end with it.
inline void blame(Fiber* fiber) { tw_current = fiber; }

void set_kind(const char* kind);
void* main_context();  // what to load to leave the launch
[[noreturn]] void end_launch();
}  // namespace tw
#pragma GCC visibility pop
