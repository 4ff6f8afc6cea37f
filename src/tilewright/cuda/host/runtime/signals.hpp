// Hardware faults and Ctrl-C while a kernel runs.
#pragma once
#include "runtime.hpp"

namespace tw {
// From here to release_signals, a SIGSEGV, SIGBUS, SIGFPE, SIGILL or SIGTRAP of this OS thread ends the launch with a report. With
// `interrupts`, SIGINT ends it at the next fiber switch, and a second one at once.
void catch_signals(bool interrupts);
// Puts the handlers and the alternate stack back as they were.
void release_signals();
// Whether a launch may be left by a handler now: false outside the launch's own stacks.
void set_leavable(bool leavable);
}  // namespace tw
