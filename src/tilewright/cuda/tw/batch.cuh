// Which matrix of a batch: up to three batch dimensions, the last innermost.
#pragma once
namespace tw {
struct BatchIndex { int at[3]; };
}  // namespace tw
