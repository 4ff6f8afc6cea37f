// ldmatrix, stmatrix and mma.sync: what the 32 lanes of a warp do with their registers together.
#include "fault.hpp"
#include "tensor_core.hpp"
#include "warp.hpp"
#include "warpgroup.hpp"

namespace tw {
namespace {
enum : u32 { kRowBytes = 16 };  // of an 8x8 matrix

// What one lane hands to ldmatrix or stmatrix.
struct Rows8x8 {
  u8* row;         // of the lanes that name one
  u32* registers;  // [matrices]
  u32 matrices;
  bool transposed;
};

Rows8x8& rows_of(Warp& warp, u32 lane) { return *static_cast<Rows8x8*>(warp.meeting.operands[lane]); }

void check_row(const Fiber& fiber, const char* name, const u8* row) {
  const u64 offset = u64(row - fiber.shared), bytes = fiber.owner->shared_bytes;
  if (offset > bytes || bytes - offset < kRowBytes)
    fault("out-of-bounds", "%s: the row at %p is not in this block's %llu bytes of dynamic shared memory", name,
          static_cast<const void*>(row), (unsigned long long)bytes);
  if (offset % kRowBytes)
    fault("misaligned", "%s: the row at shared+%llu is not 16-byte aligned", name, (unsigned long long)offset);
}

// Element [lane / 4][2 (lane % 4)] and the next of a matrix, or of its transpose, are what a lane's register holds: calls
// visit(register, its address in shared memory, shift) for each of these halves.
template <class Visit> void each_half(Warp& warp, Visit visit) {
  const Rows8x8& first = rows_of(warp, 0);
  for (u32 lane = 0; lane < kWarpLanes; ++lane) {
    const Rows8x8& mine = rows_of(warp, lane);
    if (mine.matrices != first.matrices || mine.transposed != first.transposed) {
      blame(warp.fibers[lane]);
      fault("divergence", "%s of another shape or order than lane 0's", warp.meeting.operation);
    }
    for (u32 matrix = 0; matrix < mine.matrices; ++matrix)
      for (u32 half = 0; half < 2; ++half) {
        const u32 outer = lane / 4, inner = 2 * (lane % 4) + half;
        const u32 row = mine.transposed ? inner : outer, column = mine.transposed ? outer : inner;
        visit(mine.registers[matrix], rows_of(warp, 8 * matrix + row).row + column * sizeof(u16), half * 16);
      }
  }
}

void load(Warp& warp) {
  each_half(warp, [](u32& to, const u8* element, u32 shift) {
    u16 bits;
    memcpy(&bits, element, sizeof bits);
    to = shift == 0 ? bits : to | u32(bits) << shift;
  });
}

void store(Warp& warp) {
  each_half(warp, [](u32 from, u8* element, u32 shift) {
    const u16 bits = u16(from >> shift);
    memcpy(element, &bits, sizeof bits);
  });
}

void move(const char* name, Rows8x8 rows, bool write, u64 pc, void (*work)(Warp&)) {
  const Fiber& fiber = *current_fiber();
  need_whole_warp(*fiber.warp, name);
  if (fiber.lane < 8 * rows.matrices) {
    check_row(fiber, name, rows.row);
    if (g_observer) g_observer->access(u64(rows.row), kRowBytes, write, pc);
  }
  meet(name, &rows, work);
}

struct Mma {
  float* d;
  const u32 *a, *b;
  ElementType type;
};

void mma(Warp& warp) {
  const u32 *a[kWarpLanes], *b[kWarpLanes];
  float* d[kWarpLanes];
  const ElementType type = static_cast<Mma*>(warp.meeting.operands[0])->type;
  for (u32 lane = 0; lane < kWarpLanes; ++lane) {
    const Mma& mine = *static_cast<Mma*>(warp.meeting.operands[lane]);
    a[lane] = mine.a, b[lane] = mine.b, d[lane] = mine.d;
    if (mine.type != type) fault("divergence", "mma of another type than lane 0's");
  }
  Rows rows;
  rows_from_registers(type, a, rows);
  Slice columns;  // lane 4 n + t holds of column n what of A's row r lane 4 r + t does
  slice_from_registers(type, b, 0, 1, columns);
  multiply_accumulate(rows, columns, true, d, 0);
  if (g_observer) g_observer->mma(&warp, 16, 8, kDepth);
}
}  // namespace

void slice_from_registers(ElementType type, const u32* const* registers, u32 low, u32 high, Slice& slice) {
  u16 bits[8 * kDepth];
  for (u32 lane = 0; lane < kWarpLanes; ++lane) {
    u16* at = bits + lane / 4 * kDepth + 2 * (lane % 4);
    memcpy(at, &registers[lane][low], sizeof(u32));
    memcpy(at + 8, &registers[lane][high], sizeof(u32));
  }
  slice.set_order(true);
  widen(type, bits, 8 * kDepth, slice.elements);
}

void rows_from_registers(ElementType type, const u32* const* registers, Rows& rows) {
  Slice upper, lower;
  slice_from_registers(type, registers, 0, 2, upper);
  slice_from_registers(type, registers, 1, 3, lower);
  rows.set(upper, lower);
}
}  // namespace tw

void tw_ldmatrix(unsigned* registers, const void* row, int matrices, bool transposed) {
  tw::u8* const from = static_cast<tw::u8*>(const_cast<void*>(row));
  tw::move("ldmatrix", {from, registers, tw::u32(matrices), transposed}, false, tw::u64(__builtin_return_address(0)),
           tw::load);
}

void tw_stmatrix(void* row, const unsigned* registers, int matrices, bool transposed) {
  tw::u32* const from = const_cast<tw::u32*>(registers);
  tw::move("stmatrix", {static_cast<tw::u8*>(row), from, tw::u32(matrices), transposed}, true,
           tw::u64(__builtin_return_address(0)), tw::store);
}

void tw_mma_m16n8k16(float* d, const unsigned* a, const unsigned* b, int type) {
  tw::need_whole_warp(*tw::current_fiber()->warp, "mma");
  tw::Mma operands = {d, a, b, tw::ElementType(type)};
  tw::meet("mma", &operands, tw::mma);
}
