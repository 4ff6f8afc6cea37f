// Switching between stacks, the one thing here that C++ cannot say.
#pragma once
#include "runtime.hpp"

#pragma GCC visibility push(hidden)
extern "C" {
// Saves the registers a function must preserve on the current stack, its address in *save, and goes on where `load` was
// saved. A label behind the saving half serves a signal handler, which has nothing to save.
void tw_context_switch(void** save, void* load);
void tw_context_resume();
}
#pragma GCC visibility pop

namespace tw {
// What to load for `entry` to start on a stack that ends at `top`. `entry` never returns.
void* make_context(u8* top, void (*entry)());

// Makes the code that a signal interrupted go on at `saved` once the handler returns. `frame` is the handler's
// ucontext_t.
void resume_after_signal(void* frame, void* saved);

// "read", "write", or "access" where the machine does not say.
const char* access_kind(void* frame);
}  // namespace tw
