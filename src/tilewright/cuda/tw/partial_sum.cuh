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

  // By a warpgroup, number `consumer` of a block of this `rank` in its cluster: whether acc is now the sum of all parts, so
  // that it is this one's to store. Parts have slots `slot`, slot + step, ...; `tile` is the tile's number among those that are
  // summed; `seen` is a word of shared memory and `barrier` a named barrier of the warpgroup's own.
  template <int BLOCKS>
  __device__ __forceinline__ bool operator()(float (&acc)[BLOCKS][plan::BN / 2], const Unit& unit, int tile, int slot, int step,
                                             int rank, int consumer, u32& seen, int barrier) const {
    constexpr int PLACES = plan::CLUSTER_M * plan::CLUSTER_N * plan::CONSUMERS, ELEMENTS = BLOCKS * 64 * plan::BN;
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
  template <int BLOCKS>
  __device__ __forceinline__ bool gather(float (&acc)[BLOCKS][plan::BN / 2], int self, int count, u32 at, u32 apart, u32* counter,
                                         u32& seen, int barrier) const {
    constexpr int ROW = plan::BN / 8, VECTORS = BLOCKS * ROW, STRIDE = 128 * 4;  // 16 bytes of 128 threads
    constexpr int AT_ONCE = VECTORS > 32 ? 4 : 16;                               // loads, for which there are registers
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

    const auto take = [&](const float* from, auto combine) {
#pragma unroll
      for (int first = 0; first < VECTORS; first += AT_ONCE) {
        Vec<float, 4> v[AT_ONCE];  // on their way at the same time
#pragma unroll
        for (int j = 0; j < AT_ONCE; ++j)
          if (first + j < VECTORS) v[j] = load<4>(from + (first + j) * STRIDE);
#pragma unroll
        for (int j = 0; j < AT_ONCE; ++j) {
          if (first + j >= VECTORS) continue;
          float* d = acc[(first + j) / ROW] + (first + j) % ROW * 4;
#pragma unroll
          for (int e = 0; e < 4; ++e) d[e] = combine(d[e], v[j].data[e]);
        }
      }
    };
    // In the order of K, whoever is last: so the bits do not depend on it. The first two commute. Who holds a later one
    // begins anew, and reads its own back.
    const bool anew = self >= 2;
    if (anew) take(partials + at, [](float, float part) { return part; });
#pragma unroll 1
    for (int i = anew; i < count; ++i)
      if (anew || i != self) take(partials + (at + i * apart), [](float sum, float part) { return sum + part; });
    return true;
  }
};
}  // namespace tw
