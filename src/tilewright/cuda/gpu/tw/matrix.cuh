// Matrix instructions of one warp: 8x8 matrices between shared memory and registers, and mma.sync. GPU side.
#pragma once
#include <tw/memory.cuh>
#include <tw/types.cuh>
namespace tw {
// ldmatrix.m8n8.x4 (PTX ISA, "ldmatrix"): four 8x8 matrices of 16-bit elements. Lane 8 i + j gives the address of row j
// of matrix i; register i of a lane holds row lane / 4, columns 2 (lane % 4) and the next of matrix i, or of its
// transpose.
template <bool TRANSPOSED = false> __device__ __forceinline__ void ldmatrix_x4(u32 (&r)[4], const void* row) {
  const u32 address = shared_address(row);
  if constexpr (TRANSPOSED) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
  }
}
// ldmatrix.m8n8.x2: two matrices, rows from lanes 0 to 15.
template <bool TRANSPOSED = false> __device__ __forceinline__ void ldmatrix_x2(u32 (&r)[2], const void* row) {
  const u32 address = shared_address(row);
  if constexpr (TRANSPOSED) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1]) : "r"(address) : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1]) : "r"(address) : "memory");
  }
}
// stmatrix.m8n8.x4 (PTX ISA, "stmatrix"): the way back, registers and rows as for ldmatrix.
template <bool TRANSPOSED = false>
__device__ __forceinline__ void stmatrix_x4(void* row, u32 r0, u32 r1, u32 r2, u32 r3) {
  const u32 address = shared_address(row);
  if constexpr (TRANSPOSED) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};"
                 ::"r"(address), "r"(r0), "r"(r1), "r"(r2), "r"(r3) : "memory");
  } else {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};"
                 ::"r"(address), "r"(r0), "r"(r1), "r"(r2), "r"(r3) : "memory");
  }
}
// stmatrix.m8n8.x2: rows from lanes 0 to 15.
template <bool TRANSPOSED = false> __device__ __forceinline__ void stmatrix_x2(void* row, u32 r0, u32 r1) {
  const u32 address = shared_address(row);
  if constexpr (TRANSPOSED) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1,%2};"
                 ::"r"(address), "r"(r0), "r"(r1) : "memory");
  } else {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1,%2};"
                 ::"r"(address), "r"(r0), "r"(r1) : "memory");
  }
}

// mma.sync.m16n8k16 (PTX ISA, "mma"): d += a b in fp32; A is 16x16 row-major, B 16x8 column-major. Lane l holds
// d[0], d[1] = row l / 4, columns 2 (l % 4) and the next; d[2], d[3] = the same 8 rows below.
template <class T> __device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1);
template <> __device__ __forceinline__ void mma_m16n8k16<bf16>(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <> __device__ __forceinline__ void mma_m16n8k16<fp16>(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
}  // namespace tw
