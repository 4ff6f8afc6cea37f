// The sum of several blocks' accumulators of one tile, through global memory: whoever comes last adds them up.
#pragma once
#include <tw/memory.cuh>
#include <tw/sync.cuh>
#include <tw/types.cuh>
namespace tw {
// K blocks first, first + step, ... of a tile: `count` of them, the `part`-th of `parts` that the tile has been cut into.
struct Unit { int tile, first, step, count, part, parts; };

// Nobody waits for another block, so that any number of them may be resident. All parts of a tile meet at once, or those of
// each group of FAN_IN, and then whoever has added one group up meets those of the others. `counters` are zero before the kernel and after it:
// the last one at each puts it back.
struct PartialSum {
  float* partials;  // slots of a tile each, as fragments lie in the registers: 16 bytes a thread, thread after thread
  u32* counters;    // a word a warpgroup: who adds up its rows need not wait for who holds the others
  int slots;
  static constexpr int WIDTH = plan::BN / plan::CLUSTER_K;  // columns that are a block's to add up: its first accumulators

  // By a warpgroup, number `consumer` of a block of this `rank` in its cluster: whether acc is now the sum of all parts, so
  // that it is this one's to store. Parts have slots `slot`, slot + step, ...; `tile` is the tile's number among those that are
  // summed; `seen` is a word of shared memory and `barrier` a named barrier of the warpgroup's own.
  template <int BLOCKS, int COUNT>
  __device__ __forceinline__ bool operator()(float (&acc)[BLOCKS][COUNT], const Unit& unit, int tile, int slot, int step,
                                             int rank, int consumer, u32& seen, int barrier) const {
    constexpr int PLACES = plan::CLUSTER_M * plan::CLUSTER_N * plan::CLUSTER_K * plan::CONSUMERS;
    constexpr int ELEMENTS = BLOCKS * 64 * WIDTH;
    const int place = rank * plan::CONSUMERS + consumer;
    // `count` parts or sums of groups, from that of part `first` on, `apart` from one to the next: this one's is `self`.
    const auto meet = [&](int first, int apart, int count, int self, int number) {
      if (count == 1) return true;
      const u32 at = u32((slot + first * step) * PLACES + place) * ELEMENTS + threadIdx.x % 128 * 4;
      return gather(acc, self, count, at, u32(apart * step * PLACES) * ELEMENTS, counters + number * PLACES + place, seen, barrier);
    };
    if constexpr (plan::FAN_IN == 0) {
      return meet(0, 1, unit.parts, unit.part, slot);
    } else {
#pragma unroll 1
      for (int level = 0; level < 2; ++level) {
        constexpr int FAN = plan::FAN_IN > 0 ? plan::FAN_IN : 1;
        const int group = unit.part / FAN, first = group * FAN, left = unit.parts - first < FAN ? unit.parts - first : FAN;
        // A group's sum takes the place of its first part, which only this thread has read there.
        if (!meet(level ? 0 : first, level ? FAN : 1, level ? (unit.parts + FAN - 1) / FAN : left, level ? group : unit.part - first,
                  level ? slots + tile : slot + first * step))
          return false;
      }
      return true;
    }
  }

 private:
  // acc is number `self` of `count`, which lie `apart` elements from each other: whether it is now their sum.
  template <int BLOCKS, int COUNT>
  __device__ __forceinline__ bool gather(float (&acc)[BLOCKS][COUNT], int self, int count, u32 at, u32 apart, u32* counter,
                                         u32& seen, int barrier) const {
    constexpr int ROW = WIDTH / 8, VECTORS = BLOCKS * ROW, STRIDE = 128 * 4;  // 16 bytes of 128 threads
    constexpr int AT_ONCE = VECTORS > 32 ? 4 : 16;  // loads, for which there are registers: of one part, or of several
    constexpr int SIZE = VECTORS < AT_ONCE ? VECTORS : AT_ONCE, TOGETHER = AT_ONCE / SIZE;
    float* own = partials + (at + self * apart);
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
      const float* d = acc[v / ROW] + v % ROW * 4;
      store_accumulators(own + v * STRIDE, d[0], d[1], d[2], d[3]);
    }
    barrier_sync(barrier, 128);
    if (threadIdx.x % 128 == 0) seen = atomic_add<Order::kAcquireRelease>(counter, 1);
    barrier_sync(barrier, 128);
    if (seen != u32(count - 1)) return false;
    if (threadIdx.x % 128 == 0) *counter = 0;

    // In the order of K, whoever is last: so the bits do not depend on it. The first two commute. Who holds a later one
    // begins anew, and reads its own back.
    const bool anew = self >= 2;
    const auto take = [&](int i, auto combine) {
      const float* from[TOGETHER];
#pragma unroll
      for (int p = 0; p < TOGETHER; ++p) from[p] = partials + (at + (p == 0 && i == 1 && !anew ? 1 - self : i + p) * apart);
#pragma unroll
      for (int first = 0; first < VECTORS; first += SIZE) {
        Vec<float, 4> v[TOGETHER][SIZE];  // on their way at the same time
#pragma unroll
        for (int j = 0; j < TOGETHER * SIZE; ++j)
          if (first + j % SIZE < VECTORS && (j < SIZE || i + j / SIZE < count))
            v[j / SIZE][j % SIZE] = load<4>(from[j / SIZE] + (first + j % SIZE) * STRIDE);
#pragma unroll
        for (int j = 0; j < TOGETHER * SIZE; ++j) {
          const int vector = first + j % SIZE;
          if (vector >= VECTORS || (j >= SIZE && i + j / SIZE >= count)) continue;
          float* d = acc[vector / ROW] + vector % ROW * 4;
#pragma unroll
          for (int e = 0; e < 4; ++e) d[e] = combine(d[e], v[j / SIZE][j % SIZE].data[e]);
        }
      }
    };
    const auto add = [](float sum, float part) { return sum + part; };
    if constexpr (TOGETHER == 1) {
      if (anew) take(0, [](float, float part) { return part; });
#pragma unroll 1
      for (int i = 1; i < count; ++i) take(i, add);
    } else {
#pragma unroll
      for (int e = 0; e < VECTORS * 4; ++e)
        if (anew) acc[e / (ROW * 4)][e % (ROW * 4)] = -0.0f;  // the only one that leaves the bits of all that is added to it
#pragma unroll 1
      for (int i = !anew; i < count; i += TOGETHER) take(i, add);
    }
    return true;
  }
};
}  // namespace tw
