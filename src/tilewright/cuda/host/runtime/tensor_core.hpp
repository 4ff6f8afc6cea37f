// The arithmetic of the tensor-core instructions, for one warp: its 16 rows of A, 16 deep, times B, two columns at a
// time. The 16 products of an element are added up in fp32 and then added to d: products of 16-bit elements are exact
// in fp32, so that small integers are.
#pragma once
#include <string.h>
#include "runtime.hpp"

namespace tw {
enum : u32 { kDepth = 16 };  // K of one instruction

// What one lane holds of two columns of an accumulator: row r of both, then row r + 8 of both, r = lane / 4. Every lane
// does the same with it, so it is also what a vector register holds here.
typedef float Quad __attribute__((vector_size(16)));
typedef float QuadInMemory __attribute__((vector_size(16), aligned(4), may_alias));

// Eight rows of A or columns of B, 16 deep, as floats. Chunks of 8 elements as memory has them: along K or across it.
struct Slice {
  float elements[8 * kDepth];
  u32 step, depth_step;  // from one row of A or column of B to the next, and from one k to the next

  void set_order(bool along_k) {
    step = along_k ? u32(kDepth) : 1;
    depth_step = along_k ? 1 : 8;
  }
  float at(u32 index, u32 k) const { return elements[index * step + k * depth_step]; }
};

inline void widen(ElementType type, const u16* from, u32 count, float* to) {
  if (type == kBf16)
    for (u32 i = 0; i < count; ++i) to[i] = host::bf16_to_float(from[i]);
  else
    for (u32 i = 0; i < count; ++i) to[i] = host::fp16_to_float(from[i]);
}

// A as the lanes' quads want it: row r twice, then row r + 8 twice.
struct Rows {
  Quad quads[kDepth][8];

  void set(const Slice& upper, const Slice& lower) {
    for (u32 k = 0; k < kDepth; ++k)
      for (u32 r = 0; r < 8; ++r) quads[k][r] = Quad{upper.at(r, k), upper.at(r, k), lower.at(r, k), lower.at(r, k)};
  }
};

// Multiplies all rows by columns 2 q and 2 q + 1 of a slice; sums[r] is for lane 4 r + q.
inline void multiply(const Rows& a, const Slice& b, u32 q, Quad (&sums)[8]) {
  Quad s0 = {}, s1 = {}, s2 = {}, s3 = {}, s4 = {}, s5 = {}, s6 = {}, s7 = {};
  for (u32 k = 0; k < kDepth; ++k) {
    const float left = b.at(2 * q, k), right = b.at(2 * q + 1, k);
    const Quad pair = {left, right, left, right};
    const Quad(&column)[8] = a.quads[k];
    s0 += column[0] * pair;
    s1 += column[1] * pair;
    s2 += column[2] * pair;
    s3 += column[3] * pair;
    s4 += column[4] * pair;
    s5 += column[5] * pair;
    s6 += column[6] * pair;
    s7 += column[7] * pair;
  }
  sums[0] = s0, sums[1] = s1, sums[2] = s2, sums[3] = s3;
  sums[4] = s4, sums[5] = s5, sums[6] = s6, sums[7] = s7;
}

// d = a b + (accumulate ? d : 0) for the eight columns of a slice; `lanes` are where each lane holds its four of them.
inline void multiply_accumulate(const Rows& a, const Slice& b, bool accumulate, float* const* lanes, u32 offset) {
  for (u32 q = 0; q < 4; ++q) {
    Quad sums[8];
    multiply(a, b, q, sums);
    for (u32 r = 0; r < 8; ++r) {
      QuadInMemory* d = reinterpret_cast<QuadInMemory*>(lanes[4 * r + q] + offset);
      *d = accumulate ? *d + sums[r] : sums[r];
    }
  }
}

// A slice from two registers of each lane: lane 4 r + t holds of row r columns 2 t and 2 t + 1 in register `low`, and
// those 8 further in `high`.
void slice_from_registers(ElementType type, const u32* const* registers, u32 low, u32 high, Slice& slice);
// A from the four registers of m16n8k16: rows 0 to 7 in registers 0 and 2, the others in 1 and 3.
void rows_from_registers(ElementType type, const u32* const* registers, Rows& rows);
}  // namespace tw
