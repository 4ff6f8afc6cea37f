// A copy of matrices whose elements lie anywhere, in lines that begin on 16-byte boundaries and lie one after another.
#include <tw/batch.cuh>
#include <tw/memory.cuh>
#include <tw/types.cuh>

using tw::i64;
using namespace plan;

constexpr int V = 16 / sizeof(T), CHUNKS = ALONG / V;
constexpr int PAD = 4 / sizeof(T);  // of an odd number of words from line to line: what a warp stores across lines finds all banks
struct Shared { T elements[LINES][ALONG + PAD]; };

// Lanes read neighbours along a line or, with ACROSS, the same element of neighbouring lines, whichever lie closer together.
constexpr int WALK = ACROSS ? LINES : ALONG, STEP = THREADS / WALK, ROUNDS = (ACROSS ? ALONG : LINES) / STEP;
static_assert(STEP * WALK == THREADS && LINES * CHUNKS % THREADS == 0, "the threads do not divide a tile");

// Strides count elements and may be anything: 0, negative, the same in several directions.
struct Strided {
  const T* first;
  i64 line, along;
  tw::BatchStrides batch;
};

// `to` has, matrix after matrix of the batch, `lines` lines of `length` elements, ld apart, those up to ld zero.
extern "C" __global__ void __launch_bounds__(THREADS)
tw_gemm(const __grid_constant__ Strided from, const tw::BatchSizes sizes, T* to, i64 ld, int lines, int length) {
  Shared& s = tw::shared<Shared>();
  const int across = (length + ALONG - 1) / ALONG, down = (lines + LINES - 1) / LINES;
  const tw::u32 tile = blockIdx.x / across, number = tile / down;
  const int at0 = int(blockIdx.x % across) * ALONG, line0 = int(tile % down) * LINES, t = threadIdx.x;

  const int lane = t % WALK, first = t / WALK;
  const i64 step = ACROSS ? from.along : from.line;
  const T* p = from.first + from.batch(sizes(number)) + line0 * from.line + at0 * from.along + first * step +
               lane * (ACROSS ? from.line : from.along);
  const bool mine = lane < (ACROSS ? lines - line0 : length - at0);
  const int rounds = (ACROSS ? length - at0 : lines - line0) - first;  // in steps of STEP
  T read[ROUNDS];
#pragma unroll
  for (int i = 0; i < ROUNDS; ++i) {
    read[i] = {};
    if (mine && i * STEP < rounds) read[i] = p[i * STEP * step];
  }
#pragma unroll
  for (int i = 0; i < ROUNDS; ++i) {
    const int other = first + i * STEP;
    s.elements[ACROSS ? lane : other][ACROSS ? other : lane] = read[i];
  }
  __syncthreads();

  T* out = to + (i64(number) * lines + line0) * ld + at0;
#pragma unroll
  for (int i = t; i < LINES * CHUNKS; i += THREADS) {
    const int line = i / CHUNKS, at = i % CHUNKS * V;
    if (line0 + line >= lines || at0 + at >= length) continue;
    tw::Vec<T, V> chunk;
#pragma unroll
    for (int word = 0; word < V; word += PAD) {
      const auto part = tw::load<PAD>(&s.elements[line][at + word]);
#pragma unroll
      for (int e = 0; e < PAD; ++e) chunk[word + e] = part[e];
    }
    tw::store<V>(out + line * ld + at, chunk);
  }
}
