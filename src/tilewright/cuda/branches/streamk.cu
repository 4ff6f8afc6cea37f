// branch: streamk
// name: stream-k
// title: The last wave is shared by all
// idea: Whole waves of tiles as before; the K blocks of the tiles that are left go to all blocks in equal shares.
#include <tw/epilogue.cuh>
#include <tw/part_gemm.cuh>

// The tiles that are left are one row of K blocks, tile after tile, cut into a share for each cluster. A share has at most
// two parts of tiles, the end of one and the beginning of another, and any number of whole tiles between them.
struct StreamK {
  int k_blocks, cluster, clusters, waves, whole;  // waves of whole tiles, and the tiles in them
  int even, more;                                 // K blocks of a share: `more` of them have one in addition
  int begin, end, units;

  __device__ __forceinline__ StreamK(int tiles, int k_blocks, int clusters, int cluster)
      : k_blocks(k_blocks), cluster(cluster), clusters(clusters) {
    waves = tiles / clusters;
    if (plan::TWO_TILES && waves > 0 && tiles % clusters != 0) --waves;  // a full one goes into the shared part
    whole = waves * clusters;
    const int shared = (tiles - whole) * k_blocks;
    even = shared / clusters, more = shared % clusters;
    begin = share_begin(cluster), end = share_begin(cluster + 1);
    units = waves + (end > begin ? (end - 1) / k_blocks - begin / k_blocks + 1 : 0);
  }
  __device__ __forceinline__ int share_begin(int of) const { return of * even + (of < more ? of : more); }
  // The cluster whose share has a K block of the row.
  __device__ __forceinline__ int owner(int block) const {
    const int larger = more * (even + 1);
    return block < larger ? block / (even + 1) : more + (block - larger) / even;
  }

  __device__ __forceinline__ tw::Unit unit(int i) const {
    const int turn = plan::SHARED_FIRST ? i - (units - waves) : i;  // among the waves of whole tiles
    if (turn >= 0 && turn < waves) return {cluster + turn * clusters, 0, 1, k_blocks, 0, 1};
    const int tile = begin / k_blocks + (plan::SHARED_FIRST ? i : i - waves), from = tile * k_blocks;
    const int first = begin > from ? begin - from : 0, last = end < from + k_blocks ? end - from : k_blocks;
    const int head = owner(from);
    return {whole + tile, first, 1, last - first, cluster - head, owner(from + k_blocks - 1) - head + 1};
  }
  // A share lies in two tiles, or in three where it is longer than one: their numbers tell its slots apart.
  __device__ __forceinline__ int step() const { return plan::TWO_TILES ? 3 : 2; }
  __device__ __forceinline__ int slot(const tw::Unit& unit) const { return (cluster - unit.part) * step() + number(unit) % step(); }
  __device__ __forceinline__ int slots() const { return clusters * step(); }
  __device__ __forceinline__ int number(const tw::Unit& unit) const { return unit.tile - whole; }
};

// C[m, n] = A[m, k] B[k, n]; the maps are A, B and C.
extern "C" __global__ void __launch_bounds__(plan::THREADS, 1)
tw_gemm(const __grid_constant__ tw::TensorMap a_map, const __grid_constant__ tw::TensorMap b_map,
        const __grid_constant__ tw::TensorMap c_map, int m, int n, int k, plan::Out* c, tw::i64 ldc, float* partials,
        tw::u32* counters, const __grid_constant__ epilogue::Args epilogue_args) {
  tw::part_gemm<StreamK>(tw::shared<tw::PartShared>(), a_map, b_map, c_map, m, n, k, c, ldc, partials, counters,
                     tw::Epilogue{epilogue_args});
}
