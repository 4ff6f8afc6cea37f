// Matrix instructions of one warp: 8x8 matrices between shared memory and registers, and mma.sync. Host side.
#pragma once
#include <tw/memory.cuh>
#include <tw/types.cuh>
namespace tw {
// Four 8x8 matrices of 16-bit elements. Lane 8 i + j gives the address of row j of matrix i; register i of a lane holds
// row lane / 4, columns 2 (lane % 4) and the next of matrix i, or of its transpose.
template <bool TRANSPOSED = false> __device__ __forceinline__ void ldmatrix_x4(u32 (&r)[4], const void* row) {
  tw_ldmatrix(r, row, 4, TRANSPOSED);
}
// Two matrices, rows from lanes 0 to 15.
template <bool TRANSPOSED = false> __device__ __forceinline__ void ldmatrix_x2(u32 (&r)[2], const void* row) {
  tw_ldmatrix(r, row, 2, TRANSPOSED);
}
// The way back, registers and rows as for ldmatrix.
template <bool TRANSPOSED = false>
__device__ __forceinline__ void stmatrix_x4(void* row, u32 r0, u32 r1, u32 r2, u32 r3) {
  const u32 r[4] = {r0, r1, r2, r3};
  tw_stmatrix(row, r, 4, TRANSPOSED);
}
// Two matrices, rows from lanes 0 to 15.
template <bool TRANSPOSED = false> __device__ __forceinline__ void stmatrix_x2(void* row, u32 r0, u32 r1) {
  const u32 r[2] = {r0, r1};
  tw_stmatrix(row, r, 2, TRANSPOSED);
}

// d += a b in fp32; A is 16x16 row-major, B 16x8 column-major. Lane l holds d[0], d[1] = row l / 4, columns 2 (l % 4)
// and the next; d[2], d[3] = the same 8 rows below.
template <class T> __device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1);
template <> __device__ __forceinline__ void mma_m16n8k16<bf16>(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  const u32 b[2] = {b0, b1};
  tw_mma_m16n8k16(d, a, b, kBf16);
}
template <> __device__ __forceinline__ void mma_m16n8k16<fp16>(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  const u32 b[2] = {b0, b1};
  tw_mma_m16n8k16(d, a, b, kFp16);
}
}  // namespace tw
