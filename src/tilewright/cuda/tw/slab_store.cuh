// A warpgroup's accumulators to C through shared memory: stmatrix, then TMA stores that drain under the next tile.
#pragma once
#include <tw/batch.cuh>
#include <tw/cp_async.cuh>
#include <tw/fence.cuh>
#include <tw/fragment.cuh>
#include <tw/matrix.cuh>
#include <tw/slab.cuh>
#include <tw/staged.cuh>
#include <tw/sync.cuh>
#include <tw/tile_order.cuh>
#include <tw/tma.cuh>
#include <tw/types.cuh>
#include <tw/warpgroup.cuh>
namespace tw {
// C as it is stored: `map` ends with the last whole 16-byte chunk of a row, for TMA writes whole chunks and would write
// on into the columns that follow; those of the last chunk go to `c` one by one.
template <class At = OneMatrix> struct Output {
  const TensorMap& map;
  plan::Out* c;
  i64 ldc;
  int m, n;
  At at = {};  // of a batch the matrix; `c` is that one's
  __device__ __forceinline__ int whole() const { return n / 8 * 8; }
};

template <CacheHint HINT> __device__ __forceinline__ void store_slab(const Output<>& out, const Slab& slab, int x, int y) {
  tma_store_2d<HINT>(out.map, slab.elements, x, y);
}
template <CacheHint HINT>
__device__ __forceinline__ void store_slab(const Output<MatrixAt>& out, const Slab& slab, int x, int y) {
  tma_store_5d<HINT>(out.map, slab.elements, x, y, out.at.z, out.at.w, out.at.v);
}

// The columns of the last chunk, where a tile has them: from the accumulators, under one test a tile. (From each slab,
// under a test of its own, it was more than half of the kernel.)
template <int BLOCKS, int WIDTH, class At, int ALL, int COUNT, class Finish>
__device__ __forceinline__ void store_rest(const Output<At>& out, int row, int col, const float (&acc)[ALL][COUNT],
                                           const Finish& finish) {
  const int whole = out.whole(), rest = whole - col;
  if (whole == out.n || rest < 0 || rest >= WIDTH) return;
#pragma unroll
  for (int i = 0; i < BLOCKS; ++i) {
    constexpr int PARTS = Finish::PAIRED ? 2 : 1;
    float d[4 * PARTS] = {};
#pragma unroll
    for (int e = 0; e < WIDTH / 2 * PARTS; ++e) {
      const int part = e / (WIDTH / 2), to = 4 * part + e % 4;
      d[to] = e % (WIDTH / 2) / 4 == rest / 8 ? acc[i][part * (COUNT / 2) + e % (WIDTH / 2)] : d[to];
    }
    store_fragment(out.c, out.ldc, row + i * 64 + int(threadIdx.x) % 128 / 32 * 16, whole, out.m, out.n, d, false,
                   finish);
  }
}

// The first WIDTH columns of BLOCKS blocks of 64 rows, the first element at (row, col). `next` is the slab to use next, `barrier` a named barrier of
// this warpgroup's own.
template <int BLOCKS, int WIDTH, class At, int ALL, int COUNT, class Finish>
__device__ __forceinline__ void store_slabs(const Output<At>& out, SlabRing& ring, int& next, int row, int col,
                                            const float (&acc)[ALL][COUNT], int barrier, const Finish& finish) {
  constexpr int COLUMNS = plan::EPILOGUE_COLUMNS, ACROSS = WIDTH / COLUMNS, AHEAD = Staging<WIDTH, Finish>::AHEAD, FIRST = Staging<WIDTH, Finish>::FIRST;
  static_assert(ACROSS * COLUMNS == WIDTH && WIDTH <= COUNT * 2, "whole slabs");
  constexpr CacheHint HINT = plan::STORE_EVICT_FIRST ? CacheHint::kEvictFirst : CacheHint::kNone;
  const int thread = int(threadIdx.x) % 128, lane = thread % 32;
  // stmatrix.x4 takes rows 0-15 of columns 0-7 from lanes 0-15, of columns 8-15 from the others.
  const int line = thread / 32 * 16 + lane % 16, upper = lane / 16;
  store_rest<BLOCKS, WIDTH>(out, row, col, acc, finish);
  if (!Finish::NONE && out.n < 8) return cp_async_wait<0>();  // of no whole chunk there is nothing that an epilogue may read
  const int first = out.n < 8 ? col + 8 : col;  // with no whole chunk, past the one column that the map has
#pragma unroll
  for (int s = 0; s < BLOCKS * ACROSS; ++s) {
    Slab& slab = ring.slabs[next];
    float v[COLUMNS / 4][2];
    const auto finished = [&](int p, const auto& with) {
      finish_pair(v[p], acc[s / ACROSS], s % ACROSS * (COLUMNS / 2) + 2 * p,
                  row + s / ACROSS * 64 + thread / 32 * 16 + lane / 4 + p % 2 * 8,
                  col + s % ACROSS * COLUMNS + p / 2 * 8 + lane % 4 * 2, out.m, out.whole(), true, with);
    };
    if constexpr (AHEAD > 0) {
      if (thread == 0) tma_store_wait_read<plan::EPILOGUE_SLABS - AHEAD - 1>();  // the store that last used the slab to fill
      cp_async_wait<AHEAD - 1>();
      barrier_sync(barrier, 128);
      if (s + AHEAD >= FIRST && s + AHEAD < BLOCKS * ACROSS)
        stage_slab<WIDTH>(ring, next + AHEAD, s + AHEAD, row, col, out.m, out.whole(), finish);
      cp_async_commit();
#pragma unroll
      for (int j = 0; j < COLUMNS / 16; ++j) {
        u32 under[4];
        ldmatrix_x4(under, slab.elements + Slab::chunk_at(line, 2 * j + upper));
#pragma unroll
        for (int i = 0; i < 4; ++i) finished(4 * j + i, StagedEpilogue{finish, under[i]});
      }
      __syncwarp();  // C takes its place
    } else {
#pragma unroll
      for (int p = 0; p < COLUMNS / 4; ++p) finished(p, finish);  // before the barrier, so that what it reads is on its way at once
      if (thread == 0) tma_store_wait_read<plan::EPILOGUE_SLABS - 1>();  // the store that last used this slab
      barrier_sync(barrier, 128);
    }
#pragma unroll
    for (int j = 0; j < COLUMNS / 16; ++j)
      stmatrix_x4(slab.elements + Slab::chunk_at(line, 2 * j + upper), pack<plan::Out>(v[4 * j][0], v[4 * j][1]),
                  pack<plan::Out>(v[4 * j + 1][0], v[4 * j + 1][1]), pack<plan::Out>(v[4 * j + 2][0], v[4 * j + 2][1]),
                  pack<plan::Out>(v[4 * j + 3][0], v[4 * j + 3][1]));
    fence_proxy_async();
    barrier_sync(barrier, 128);
    const int x = first + s % ACROSS * COLUMNS, y = row + s / ACROSS * 64;
    if (thread == 0) {
      store_slab<HINT>(out, slab, x, y);
      tma_store_commit();
    }
    next = next + 1 == plan::EPILOGUE_SLABS ? 0 : next + 1;
  }
}

// The same whatever C's type: elements of 32 bits, which no slab holds, go straight to it.
template <int BLOCKS, int WIDTH = TILE_COLUMNS, class At, int ALL, int COUNT, class Finish>
__device__ __forceinline__ void store_tile(const Output<At>& out, SlabRing& ring, int& next, int row, int col,
                                           const float (&acc)[ALL][COUNT], int barrier, const Finish& finish) {
  if constexpr (sizeof(plan::Out) == 2) {
    store_slabs<BLOCKS, WIDTH>(out, ring, next, row, col, acc, barrier, finish);
  } else {
    const int first = row + warp_index() % 4 * 16;
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b) {
      const auto& d = reinterpret_cast<const float(&)[WIDTH / 2 * (Finish::PAIRED ? 2 : 1)]>(acc[b]);
      store_fragment(out.c, out.ldc, first + b * 64, col, out.m, out.n, d, true, finish);
    }
  }
}
}  // namespace tw
