// An array of 16-bit elements that an epilogue reads, in the slabs by which C leaves: copied there 16 bytes a thread while the
// accumulators before are finished, read back as stmatrix will write C over it. (Read 4 bytes a thread where they are needed, and
// with longer functions, bias, gelu and residual behind 4096x4096x4096 took 238 us on an H200 instead of 228.)
#pragma once
#include <tw/cp_async.cuh>
#include <tw/epilogue_operand.cuh>
#include <tw/matrix.cuh>
#include <tw/slab.cuh>
#include <tw/sync.cuh>
#include <tw/tile_order.cuh>
#include <tw/tma.cuh>
#include <tw/types.cuh>
namespace tw {
// How far ahead it is staged, of WIDTH columns of C: in slabs, AHEAD while others leave; FIRST of a tile before its accumulators
// are there. 0 where it is not.
template <int WIDTH, class Finish> struct Staging {
  static constexpr int SLABS = plan::EPILOGUE_SLABS, ACROSS = WIDTH / plan::EPILOGUE_COLUMNS;
  static constexpr int AHEAD = !Finish::STAGED || sizeof(plan::Out) != 2 ? 0 : SLABS / 2 < ACROSS ? SLABS / 2 : ACROSS;
  static constexpr int FIRST = AHEAD == 0 ? 0 : SLABS < ACROSS ? SLABS : ACROSS;
};

// What lies under slab `s` of a tile's first WIDTH columns, the tile's first element at (row, col), into slab `to` of the ring.
template <int WIDTH, class Finish>
__device__ __forceinline__ void stage_slab(SlabRing& ring, int to, int s, int row, int col, int m, int n, const Finish& finish) {
  constexpr int COLUMNS = plan::EPILOGUE_COLUMNS, CHUNKS = COLUMNS / 8, ACROSS = WIDTH / COLUMNS;
  const auto& array = staged(finish.args);  // of namespace epilogue, which has it where Finish::STAGED
  Slab& slab = ring.slabs[to < plan::EPILOGUE_SLABS ? to : to - plan::EPILOGUE_SLABS];
  const int thread = int(threadIdx.x) % 128, line = thread / CHUNKS, chunk = thread % CHUNKS;
  const Place at = {row + s / ACROSS * 64 + line, col + s % ACROSS * COLUMNS + chunk * 8, m, n, finish.batch, true};
  const auto* from = epilogue_at<Along::kFull>(array, at);
#pragma unroll
  for (int i = 0; i < 64; i += 128 / CHUNKS) {
    const bool there = at.row + i < m && at.col < n;
    cp_async<16>(slab.elements + Slab::chunk_at(line + i, chunk), there ? from + i * array.row : array.pointer, there ? 16 : 0);
  }
}

// Slabs [FROM, TO) of a tile, of which store_slabs will use `next` first, when at most PENDING stores to C are on their way.
template <int WIDTH, int FROM, int TO, int PENDING, class Out, class Finish>
__device__ __forceinline__ void stage_slabs(const Out& out, SlabRing& ring, int next, int row, int col, int barrier,
                                            const Finish& finish) {
  if constexpr (FROM < TO) {
    if (threadIdx.x % 128 == 0) tma_store_wait_read<PENDING>();
    barrier_sync(barrier, 128);
#pragma unroll
    for (int s = FROM; s < TO; ++s) {
      stage_slab<WIDTH>(ring, next + s, s, row, col, out.m, out.whole(), finish);
      cp_async_commit();
    }
  }
}
// At the start of a tile what the tile before may not keep, and while its last wgmmas run the rest of what there is room for.
template <int WIDTH = TILE_COLUMNS, class Out, class Finish, class S = Staging<WIDTH, Finish>>
__device__ __forceinline__ void stage_first(const Out& out, SlabRing& ring, int next, int row, int col, int barrier,
                                            const Finish& finish) {
  stage_slabs<WIDTH, 0, S::AHEAD, S::SLABS - S::AHEAD>(out, ring, next, row, col, barrier, finish);
}
template <int WIDTH = TILE_COLUMNS, class Out, class Finish, class S = Staging<WIDTH, Finish>>
__device__ __forceinline__ void stage_rest(const Out& out, SlabRing& ring, int next, int row, int col, int barrier,
                                           const Finish& finish) {
  stage_slabs<WIDTH, S::AHEAD, S::FIRST, S::SLABS - S::FIRST>(out, ring, next, row, col, barrier, finish);
}
}  // namespace tw
