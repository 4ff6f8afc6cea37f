// What the lanes of a warp do together.
#pragma once
#include "runtime.hpp"

namespace tw {
// Waits until every live lane of the warp is here with the same operation; then `work` has been done once for all of
// them. `operand` may point into the caller's stack. Lanes with different operations are a fault: divergence.
void meet(const char* operation, void* operand, void (*work)(Warp& warp));
}  // namespace tw
