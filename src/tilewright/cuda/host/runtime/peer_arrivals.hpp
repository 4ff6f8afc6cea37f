// Arrivals of other blocks' warps that a block has not been told of: it must not return before.
//
// A block is told by a thread's wait for a phase in which they arrived, or by the cluster's barrier if they came there
// later. What a warp did before an arrival that the block knows of has happened, too.
#pragma once
#include "runtime.hpp"

#pragma GCC visibility push(hidden)
namespace tw {
// Of the cluster's warps.
struct WarpSet {
  u64 words[kMaxWarps / 64];

  void add(u32 warp) { words[warp / 64] |= u64(1) << warp % 64; }
  void add(const WarpSet& other) {
    for (u32 i = 0; i < kMaxWarps / 64; ++i) words[i] |= other.words[i];
  }
  void remove(const WarpSet& other) {
    for (u32 i = 0; i < kMaxWarps / 64; ++i) words[i] &= ~other.words[i];
  }
  int first() const {  // -1: none
    for (u32 i = 0; i < kMaxWarps / 64; ++i)
      if (words[i]) return int(i * 64) + __builtin_ctzll(words[i]);
    return -1;
  }
};

void peer_arrivals_begin_cluster();
void peer_arrived(u32 rank, const Fiber& from);
void told_of_arrivals(u32 rank, const WarpSet& from);
// The cluster's barrier has completed.
void cluster_orders_arrivals();
// Faults when there are some.
void check_peer_arrivals_at_exit(const Block& block);
}  // namespace tw
#pragma GCC visibility pop
