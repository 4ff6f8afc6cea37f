// See peer_arrivals.hpp.
#include "peer_arrivals.hpp"
#include <string.h>
#include "cluster.hpp"
#include "scheduler.hpp"

namespace tw {
namespace {
// By block: warps of others whose arrivals it does not know of; and those of them whose thread had arrived at the
// cluster's barrier before, so that this one will not tell.
WarpSet g_unknown[kMaxClusterBlocks], g_unordered[kMaxClusterBlocks];
}  // namespace

void peer_arrivals_begin_cluster() {
  memset(g_unknown, 0, sizeof g_unknown);
  memset(g_unordered, 0, sizeof g_unordered);
}

void peer_arrived(u32 rank, const Fiber& from) {
  g_unknown[rank].add(from.warp->index);
  if (has_arrived_at_cluster(from)) g_unordered[rank].add(from.warp->index);
}

void told_of_arrivals(u32 rank, const WarpSet& from) {
  g_unknown[rank].remove(from);
  g_unordered[rank].remove(from);
}

void cluster_orders_arrivals() {
  memcpy(g_unknown, g_unordered, sizeof g_unknown);
  memset(g_unordered, 0, sizeof g_unordered);
}

void check_peer_arrivals_at_exit(const Block& block) {
  const int warp = g_unknown[block.rank].first();
  if (warp < 0) return;
  const Warp& from = g_cluster.warps[warp];
  fault("misuse",
        "traffic in flight at exit: the block returns, and nothing has told it that the arrivals of block rank %u warp "
        "%u at its mbarriers have come",
        from.block->rank, from.index_in_block);
}
}  // namespace tw
