// wgmma: matrix multiply-accumulate of a warpgroup, operands in shared memory. GPU side.
// Written by scripts/generate_wgmma.py.
#pragma once
#include <tw/types.cuh>
namespace tw {
// wgmma.fence (PTX ISA, "wgmma.fence"): before the first wgmma, and when registers were touched that the next one uses.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// wgmma.commit_group: close the group of wgmmas issued since the last commit.
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// wgmma.wait_group N: wait until at most N of the newest groups are still in flight.
template <int N> __device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
// The accumulators are read or written here and not before: the compiler knows nothing of wgmma_wait.
template <int N> __device__ __forceinline__ void wgmma_pin(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

namespace detail {
// d = a b + (accumulate ? d : 0). TA and TB: the operand is MN-major.
template <class T, int N> struct Wgmma;
}  // namespace detail

// wgmma.mma_async m64nNk16 in fp32, A and B in shared memory by descriptor (tw/operand_tile.cuh). Thread t of the
// warpgroup holds d[4 j], d[4 j + 1] = row 16 (t / 32) + t % 32 / 4, columns 8 j + 2 (t % 4) and the next;
// d[4 j + 2], d[4 j + 3] = the same 8 rows below.
template <class T, int N, bool TRANSPOSE_A, bool TRANSPOSE_B>
__device__ __forceinline__ void wgmma(float (&d)[N / 2], u64 a, u64 b, bool accumulate) {
  detail::Wgmma<T, N>::template shared<TRANSPOSE_A, TRANSPOSE_B>(d, a, b, accumulate);
}
// The same with A in registers: the fragment of mma_m16n8k16, each warp its 16 rows.
template <class T, int N, bool TRANSPOSE_B>
__device__ __forceinline__ void wgmma(float (&d)[N / 2], const u32 (&a)[4], u64 b, bool accumulate) {
  detail::Wgmma<T, N>::template registers<TRANSPOSE_B>(d, a, b, accumulate);
}

namespace detail {
// TW_R<i>: the registers %0 to %i - 1. TW_D<i>: the accumulators as operands.
#define TW_R4 "%0,%1,%2,%3"
#define TW_D4 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define TW_R8 TW_R4 ",%4,%5,%6,%7"
#define TW_D8 TW_D4, "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define TW_R12 TW_R8 ",%8,%9,%10,%11"
#define TW_D12 TW_D8, "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11])
#define TW_R16 TW_R12 ",%12,%13,%14,%15"
#define TW_D16 TW_D12, "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define TW_R20 TW_R16 ",%16,%17,%18,%19"
#define TW_D20 TW_D16, "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19])
#define TW_R24 TW_R20 ",%20,%21,%22,%23"
#define TW_D24 TW_D20, "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
#define TW_R28 TW_R24 ",%24,%25,%26,%27"
#define TW_D28 TW_D24, "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27])
#define TW_R32 TW_R28 ",%28,%29,%30,%31"
#define TW_D32 TW_D28, "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define TW_R36 TW_R32 ",%32,%33,%34,%35"
#define TW_D36 TW_D32, "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35])
#define TW_R40 TW_R36 ",%36,%37,%38,%39"
#define TW_D40 TW_D36, "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
#define TW_R44 TW_R40 ",%40,%41,%42,%43"
#define TW_D44 TW_D40, "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43])
#define TW_R48 TW_R44 ",%44,%45,%46,%47"
#define TW_D48 TW_D44, "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define TW_R52 TW_R48 ",%48,%49,%50,%51"
#define TW_D52 TW_D48, "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51])
#define TW_R56 TW_R52 ",%52,%53,%54,%55"
#define TW_D56 TW_D52, "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55])
#define TW_R60 TW_R56 ",%56,%57,%58,%59"
#define TW_D60 TW_D56, "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59])
#define TW_R64 TW_R60 ",%60,%61,%62,%63"
#define TW_D64 TW_D60, "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define TW_R68 TW_R64 ",%64,%65,%66,%67"
#define TW_D68 TW_D64, "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67])
#define TW_R72 TW_R68 ",%68,%69,%70,%71"
#define TW_D72 TW_D68, "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71])
#define TW_R76 TW_R72 ",%72,%73,%74,%75"
#define TW_D76 TW_D72, "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75])
#define TW_R80 TW_R76 ",%76,%77,%78,%79"
#define TW_D80 TW_D76, "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
#define TW_R84 TW_R80 ",%80,%81,%82,%83"
#define TW_D84 TW_D80, "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83])
#define TW_R88 TW_R84 ",%84,%85,%86,%87"
#define TW_D88 TW_D84, "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87])
#define TW_R92 TW_R88 ",%88,%89,%90,%91"
#define TW_D92 TW_D88, "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91])
#define TW_R96 TW_R92 ",%92,%93,%94,%95"
#define TW_D96 TW_D92, "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
#define TW_R100 TW_R96 ",%96,%97,%98,%99"
#define TW_D100 TW_D96, "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99])
#define TW_R104 TW_R100 ",%100,%101,%102,%103"
#define TW_D104 TW_D100, "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103])
#define TW_R108 TW_R104 ",%104,%105,%106,%107"
#define TW_D108 TW_D104, "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107])
#define TW_R112 TW_R108 ",%108,%109,%110,%111"
#define TW_D112 TW_D108, "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111])
#define TW_R116 TW_R112 ",%112,%113,%114,%115"
#define TW_D116 TW_D112, "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115])
#define TW_R120 TW_R116 ",%116,%117,%118,%119"
#define TW_D120 TW_D116, "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119])
#define TW_R124 TW_R120 ",%120,%121,%122,%123"
#define TW_D124 TW_D120, "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123])
#define TW_R128 TW_R124 ",%124,%125,%126,%127"
#define TW_D128 TW_D124, "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])

// P0, P1, ...: the numbers of the operands behind the accumulators.
#define TW_WGMMA(T, KIND, N, HALF, P0, P1, P2, P3, P4, P5, P6)                                                      \
  template <> struct Wgmma<T, N> {                                                                                  \
    template <bool TA, bool TB>                                                                                     \
    static __device__ __forceinline__ void shared(float (&d)[HALF], u64 a, u64 b, int accumulate) {                 \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P2 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16.f32."  \
                   #KIND "." #KIND " {" TW_R##HALF "}, %" #P0 ", %" #P1 ", p, 1, 1, %" #P3 ", %" #P4 ";\n}"         \
                   : TW_D##HALF : "l"(a), "l"(b), "r"(accumulate), "n"(int(TA)), "n"(int(TB)));                     \
    }                                                                                                               \
    template <bool TB>                                                                                              \
    static __device__ __forceinline__ void registers(float (&d)[HALF], const u32 (&a)[4], u64 b, int accumulate) {  \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P5 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16.f32."  \
                   #KIND "." #KIND " {" TW_R##HALF "}, {%" #P0 ", %" #P1 ", %" #P2 ", %" #P3 "}, %" #P4             \
                   ", p, 1, 1, %" #P6 ";\n}"                                                                        \
                   : TW_D##HALF                                                                                     \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(int(TB)));            \
    }                                                                                                               \
  };
TW_WGMMA(bf16, bf16, 8, 4, 4, 5, 6, 7, 8, 9, 10)
TW_WGMMA(fp16, f16, 8, 4, 4, 5, 6, 7, 8, 9, 10)
TW_WGMMA(bf16, bf16, 16, 8, 8, 9, 10, 11, 12, 13, 14)
TW_WGMMA(fp16, f16, 16, 8, 8, 9, 10, 11, 12, 13, 14)
TW_WGMMA(bf16, bf16, 24, 12, 12, 13, 14, 15, 16, 17, 18)
TW_WGMMA(fp16, f16, 24, 12, 12, 13, 14, 15, 16, 17, 18)
TW_WGMMA(bf16, bf16, 32, 16, 16, 17, 18, 19, 20, 21, 22)
TW_WGMMA(fp16, f16, 32, 16, 16, 17, 18, 19, 20, 21, 22)
TW_WGMMA(bf16, bf16, 40, 20, 20, 21, 22, 23, 24, 25, 26)
TW_WGMMA(fp16, f16, 40, 20, 20, 21, 22, 23, 24, 25, 26)
TW_WGMMA(bf16, bf16, 48, 24, 24, 25, 26, 27, 28, 29, 30)
TW_WGMMA(fp16, f16, 48, 24, 24, 25, 26, 27, 28, 29, 30)
TW_WGMMA(bf16, bf16, 56, 28, 28, 29, 30, 31, 32, 33, 34)
TW_WGMMA(fp16, f16, 56, 28, 28, 29, 30, 31, 32, 33, 34)
TW_WGMMA(bf16, bf16, 64, 32, 32, 33, 34, 35, 36, 37, 38)
TW_WGMMA(fp16, f16, 64, 32, 32, 33, 34, 35, 36, 37, 38)
TW_WGMMA(bf16, bf16, 72, 36, 36, 37, 38, 39, 40, 41, 42)
TW_WGMMA(fp16, f16, 72, 36, 36, 37, 38, 39, 40, 41, 42)
TW_WGMMA(bf16, bf16, 80, 40, 40, 41, 42, 43, 44, 45, 46)
TW_WGMMA(fp16, f16, 80, 40, 40, 41, 42, 43, 44, 45, 46)
TW_WGMMA(bf16, bf16, 88, 44, 44, 45, 46, 47, 48, 49, 50)
TW_WGMMA(fp16, f16, 88, 44, 44, 45, 46, 47, 48, 49, 50)
TW_WGMMA(bf16, bf16, 96, 48, 48, 49, 50, 51, 52, 53, 54)
TW_WGMMA(fp16, f16, 96, 48, 48, 49, 50, 51, 52, 53, 54)
TW_WGMMA(bf16, bf16, 104, 52, 52, 53, 54, 55, 56, 57, 58)
TW_WGMMA(fp16, f16, 104, 52, 52, 53, 54, 55, 56, 57, 58)
TW_WGMMA(bf16, bf16, 112, 56, 56, 57, 58, 59, 60, 61, 62)
TW_WGMMA(fp16, f16, 112, 56, 56, 57, 58, 59, 60, 61, 62)
TW_WGMMA(bf16, bf16, 120, 60, 60, 61, 62, 63, 64, 65, 66)
TW_WGMMA(fp16, f16, 120, 60, 60, 61, 62, 63, 64, 65, 66)
TW_WGMMA(bf16, bf16, 128, 64, 64, 65, 66, 67, 68, 69, 70)
TW_WGMMA(fp16, f16, 128, 64, 64, 65, 66, 67, 68, 69, 70)
TW_WGMMA(bf16, bf16, 136, 68, 68, 69, 70, 71, 72, 73, 74)
TW_WGMMA(fp16, f16, 136, 68, 68, 69, 70, 71, 72, 73, 74)
TW_WGMMA(bf16, bf16, 144, 72, 72, 73, 74, 75, 76, 77, 78)
TW_WGMMA(fp16, f16, 144, 72, 72, 73, 74, 75, 76, 77, 78)
TW_WGMMA(bf16, bf16, 152, 76, 76, 77, 78, 79, 80, 81, 82)
TW_WGMMA(fp16, f16, 152, 76, 76, 77, 78, 79, 80, 81, 82)
TW_WGMMA(bf16, bf16, 160, 80, 80, 81, 82, 83, 84, 85, 86)
TW_WGMMA(fp16, f16, 160, 80, 80, 81, 82, 83, 84, 85, 86)
TW_WGMMA(bf16, bf16, 168, 84, 84, 85, 86, 87, 88, 89, 90)
TW_WGMMA(fp16, f16, 168, 84, 84, 85, 86, 87, 88, 89, 90)
TW_WGMMA(bf16, bf16, 176, 88, 88, 89, 90, 91, 92, 93, 94)
TW_WGMMA(fp16, f16, 176, 88, 88, 89, 90, 91, 92, 93, 94)
TW_WGMMA(bf16, bf16, 184, 92, 92, 93, 94, 95, 96, 97, 98)
TW_WGMMA(fp16, f16, 184, 92, 92, 93, 94, 95, 96, 97, 98)
TW_WGMMA(bf16, bf16, 192, 96, 96, 97, 98, 99, 100, 101, 102)
TW_WGMMA(fp16, f16, 192, 96, 96, 97, 98, 99, 100, 101, 102)
TW_WGMMA(bf16, bf16, 200, 100, 100, 101, 102, 103, 104, 105, 106)
TW_WGMMA(fp16, f16, 200, 100, 100, 101, 102, 103, 104, 105, 106)
TW_WGMMA(bf16, bf16, 208, 104, 104, 105, 106, 107, 108, 109, 110)
TW_WGMMA(fp16, f16, 208, 104, 104, 105, 106, 107, 108, 109, 110)
TW_WGMMA(bf16, bf16, 216, 108, 108, 109, 110, 111, 112, 113, 114)
TW_WGMMA(fp16, f16, 216, 108, 108, 109, 110, 111, 112, 113, 114)
TW_WGMMA(bf16, bf16, 224, 112, 112, 113, 114, 115, 116, 117, 118)
TW_WGMMA(fp16, f16, 224, 112, 112, 113, 114, 115, 116, 117, 118)
TW_WGMMA(bf16, bf16, 232, 116, 116, 117, 118, 119, 120, 121, 122)
TW_WGMMA(fp16, f16, 232, 116, 116, 117, 118, 119, 120, 121, 122)
TW_WGMMA(bf16, bf16, 240, 120, 120, 121, 122, 123, 124, 125, 126)
TW_WGMMA(fp16, f16, 240, 120, 120, 121, 122, 123, 124, 125, 126)
TW_WGMMA(bf16, bf16, 248, 124, 124, 125, 126, 127, 128, 129, 130)
TW_WGMMA(fp16, f16, 248, 124, 124, 125, 126, 127, 128, 129, 130)
TW_WGMMA(bf16, bf16, 256, 128, 128, 129, 130, 131, 132, 133, 134)
TW_WGMMA(fp16, f16, 256, 128, 128, 129, 130, 131, 132, 133, 134)
#undef TW_R4
#undef TW_D4
#undef TW_R8
#undef TW_D8
#undef TW_R12
#undef TW_D12
#undef TW_R16
#undef TW_D16
#undef TW_R20
#undef TW_D20
#undef TW_R24
#undef TW_D24
#undef TW_R28
#undef TW_D28
#undef TW_R32
#undef TW_D32
#undef TW_R36
#undef TW_D36
#undef TW_R40
#undef TW_D40
#undef TW_R44
#undef TW_D44
#undef TW_R48
#undef TW_D48
#undef TW_R52
#undef TW_D52
#undef TW_R56
#undef TW_D56
#undef TW_R60
#undef TW_D60
#undef TW_R64
#undef TW_D64
#undef TW_R68
#undef TW_D68
#undef TW_R72
#undef TW_D72
#undef TW_R76
#undef TW_D76
#undef TW_R80
#undef TW_D80
#undef TW_R84
#undef TW_D84
#undef TW_R88
#undef TW_D88
#undef TW_R92
#undef TW_D92
#undef TW_R96
#undef TW_D96
#undef TW_R100
#undef TW_D100
#undef TW_R104
#undef TW_D104
#undef TW_R108
#undef TW_D108
#undef TW_R112
#undef TW_D112
#undef TW_R116
#undef TW_D116
#undef TW_R120
#undef TW_D120
#undef TW_R124
#undef TW_D124
#undef TW_R128
#undef TW_D128
#undef TW_WGMMA
}  // namespace detail
}  // namespace tw
