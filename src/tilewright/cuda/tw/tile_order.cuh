// Which tile of C a cluster of a persistent grid computes when.
#pragma once
namespace tw {
// A block's tile: its first row and column of C. `rows` is BM, or half of it where a tile of the last wave was cut.
struct Tile { int row, col, rows; };

// Columns of C that a tile has: of a pair of Bs each fills half of B's tile.
constexpr int TILE_COLUMNS = plan::BN / (plan::PAIRED ? 2 : 1);

// Tiles of a whole cluster are numbered in super-rows of GROUP along M (or N), walked across the other axis: those that
// run at the same time then form a compact patch of C, and what they share of A and B stays in L2. Cluster c of `clusters`
// takes tiles c, c + clusters, ...
struct TileOrder {
  int tiles_m, tiles_n;  // of clusters
  int whole, items;      // tiles that are computed as they are; work items, halves included

  __device__ __forceinline__ TileOrder(int m, int n, int clusters)
      : tiles_m((m + plan::CLUSTER_M * plan::BM - 1) / (plan::CLUSTER_M * plan::BM)),
        tiles_n((n + plan::CLUSTER_N * TILE_COLUMNS - 1) / (plan::CLUSTER_N * TILE_COLUMNS)),
        whole(tiles_m * tiles_n),
        items(whole) {
    if (!plan::HALF_TAIL) return;
    const int last_wave = whole % clusters;
    if (2 * last_wave > clusters) return;
    whole -= last_wave;  // too few tiles for half of the clusters: cut them along M, and all of them have work
    items = whole + 2 * last_wave;
  }

  // What the block at (rank_m, rank_n) of the cluster does of an item.
  __device__ __forceinline__ Tile operator()(int item, int rank_m, int rank_n) const {
    const bool cut = plan::HALF_TAIL && item >= whole;
    const int half = cut ? (item - whole) % 2 : 0, tile = cut ? whole + (item - whole) / 2 : item;
    const int along = plan::ALONG_N ? tiles_n : tiles_m, across = plan::ALONG_N ? tiles_m : tiles_n;
    const int first = tile / (plan::GROUP * across) * plan::GROUP, in_group = tile % (plan::GROUP * across);
    const int width = along - first < plan::GROUP ? along - first : plan::GROUP;
    const int p = first + in_group % width, q = in_group / width;
    const int tile_m = plan::ALONG_N ? q : p, tile_n = plan::ALONG_N ? p : q;
    const int rows = cut ? plan::BM / 2 : plan::BM;
    return {(tile_m * plan::BM + half * rows) * plan::CLUSTER_M + rank_m * rows,
            (tile_n * plan::CLUSTER_N + rank_n) * TILE_COLUMNS, rows};
  }
};
}  // namespace tw
