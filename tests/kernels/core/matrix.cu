// ldmatrix, stmatrix and mma.sync by one warp, and elect_one; used rightly (0 to 9) and in ways that are mistakes.
#include <tw/matrix.cuh>
#include <tw/warpgroup.cuh>

constexpr int PITCH = plan::PITCH / 2;  // from row to row, in elements

struct Shared { tw::u16 rows[32 * PITCH]; };

__device__ void load(tw::u32 (&r)[4], const void* row) {
  if constexpr (plan::MATRICES == 4) {
    tw::ldmatrix_x4<plan::TRANSPOSED != 0>(r, row);
  } else {
    tw::u32 two[2];
    tw::ldmatrix_x2<plan::TRANSPOSED != 0>(two, row);
    r[0] = two[0], r[1] = two[1];
  }
}

__device__ void store(void* row, const tw::u32 (&r)[4]) {
  if constexpr (plan::MATRICES == 4)
    tw::stmatrix_x4<plan::TRANSPOSED != 0>(row, r[0], r[1], r[2], r[3]);
  else
    tw::stmatrix_x2<plan::TRANSPOSED != 0>(row, r[0], r[1]);
}

extern "C" __global__ void tw_gemm(int gone, const tw::u16* in, const tw::u32* registers, tw::u32* out) {
  Shared& s = tw::shared<Shared>();
  const int lane = threadIdx.x;
  const int row = (lane * 5 + 3) % 32;  // any order of rows will do
  for (int i = 0; i < 8; ++i) s.rows[lane * PITCH + i] = in[lane * 8 + i];
  if (plan::CASE != 10) __syncthreads();
  tw::u32 r[4] = {registers[lane * 4], registers[lane * 4 + 1], registers[lane * 4 + 2], registers[lane * 4 + 3]};
  switch (plan::CASE) {
    case 0:
    case 10:  // without a barrier after the stores
      load(r, &s.rows[row * PITCH]);
      break;
    case 1:
      store(&s.rows[row * PITCH], r);
      __syncthreads();
      for (int i = 0; i < 4; ++i) r[i] = s.rows[lane * PITCH + 2 * i] | tw::u32(s.rows[lane * PITCH + 2 * i + 1]) << 16;
      break;
    case 2:  // the first lane that is still there
      if (lane < gone) return;
      r[0] = tw::elect_one();
      break;
    case 11:
      load(r, &s.rows[row * PITCH + (lane == 5)]);
      break;
    case 12:
      load(r, lane == 5 ? in : &s.rows[row * PITCH]);
      break;
    case 13:
      store(&s.rows[lane == 5 ? 32 * PITCH : row * PITCH], r);
      break;
    case 14:
      if (lane == 5) return;
      load(r, &s.rows[row * PITCH]);
      break;
    case 15:
      if (lane == 5)
        store(&s.rows[row * PITCH], r);
      else
        load(r, &s.rows[row * PITCH]);
      break;
    case 16:
      if (lane == 5)
        tw::ldmatrix_x4<true>(r, &s.rows[row * PITCH]);
      else
        tw::ldmatrix_x4<false>(r, &s.rows[row * PITCH]);
      break;
  }
  for (int i = 0; i < 4; ++i) out[lane * 4 + i] = r[i];
}
