// branch: splitk
// name: split-k
// title: Several blocks to a tile, each with a part of K
// idea: Where tiles are few and K is long, each tile's K is cut into even parts; whoever comes last to a tile adds them up.
#include <tw/epilogue.cuh>
#include <tw/part_gemm.cuh>

// Part after part, all tiles of one together: those that run at the same time read the same K of A and B.
struct SplitK {
  int tiles, parts, k_blocks, cluster, clusters, units;

  __device__ __forceinline__ SplitK(int tiles, int k_blocks, int clusters, int cluster)
      : tiles(tiles),
        parts(plan::SPLITS * plan::CLUSTER_K <= k_blocks ? plan::SPLITS
              : plan::CLUSTER_K <= k_blocks            ? k_blocks / plan::CLUSTER_K
                                                       : 1),
        k_blocks(k_blocks),
        cluster(cluster),
        clusters(clusters),
        units((tiles * parts + clusters - 1 - cluster) / clusters) {}

  __device__ __forceinline__ tw::Unit unit(int i) const {
    const int number = cluster + i * clusters, part = number / tiles, even = k_blocks / parts, more = k_blocks % parts;
    const int count = even + (part < more), first = part * even + (part < more ? part : more);
    if (plan::INTERLEAVE_K) return {number % tiles, part, parts, count, part, parts};
    return {number % tiles, first, 1, count, part, parts};
  }
  // One a part of each tile.
  __device__ __forceinline__ int slot(const tw::Unit& unit) const { return unit.tile; }
  __device__ __forceinline__ int step() const { return tiles; }
  __device__ __forceinline__ int slots() const { return tiles * parts; }
  __device__ __forceinline__ int number(const tw::Unit& unit) const { return unit.tile; }
};

// C[m, n] = A[m, k] B[k, n]; the maps are A, B and C.
extern "C" __global__ void __launch_bounds__(plan::THREADS, 1)
tw_gemm(const __grid_constant__ tw::TensorMap a_map, const __grid_constant__ tw::TensorMap b_map,
        const __grid_constant__ tw::TensorMap c_map, int m, int n, int k, plan::Out* c, tw::i64 ldc, float* partials,
        tw::u32* counters, const __grid_constant__ epilogue::Args epilogue_args) {
  tw::part_gemm<SplitK>(tw::shared<tw::PartShared>(), a_map, b_map, c_map, m, n, k, c, ldc, partials, counters,
                     tw::Epilogue{epilogue_args});
}
