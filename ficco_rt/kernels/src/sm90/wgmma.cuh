// wgmma, for the one shape, types and layout of this variant.
#pragma once
#include "config.cuh"

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most N groups of multiplications are not done.
template <int N> __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// A shared-memory descriptor, 128-byte swizzle: `DESCRIPTOR`, with the address in 16 bytes, and from bit 16 on the bytes, in
// 16, from 64 columns to the next 64 of an operand that is stored along M or N; one that is stored along K does not use
// them. From 8 swizzle rows to the next 8 there are 1024 bytes.
constexpr u64 DESCRIPTOR = (u64)(1024 >> 4) << 32 | 1ull << 62;

// The instruction's text names each accumulator, so the preprocessor writes it: P64 names those of 64 columns, V64 gives
// them, and AT64 has the numbers of what follows: both descriptors and `use`.
#define TEXT(x) #x
#define TEXT_OF(x) TEXT(x)
#define JOIN(a, b) a##b
#define JOINED(a, b) JOIN(a, b)
#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define P8 "%0,%1,%2,%3"
#define P16 P8 ",%4,%5,%6,%7"
#define P24 P16 ",%8,%9,%10,%11"
#define P32 P24 ",%12,%13,%14,%15"
#define P40 P32 ",%16,%17,%18,%19"
#define P48 P40 ",%20,%21,%22,%23"
#define P56 P48 ",%24,%25,%26,%27"
#define P64 P56 ",%28,%29,%30,%31"
#define P72 P64 ",%32,%33,%34,%35"
#define P80 P72 ",%36,%37,%38,%39"
#define P88 P80 ",%40,%41,%42,%43"
#define P96 P88 ",%44,%45,%46,%47"
#define P104 P96 ",%48,%49,%50,%51"
#define P112 P104 ",%52,%53,%54,%55"
#define P120 P112 ",%56,%57,%58,%59"
#define P128 P120 ",%60,%61,%62,%63"
#define P136 P128 ",%64,%65,%66,%67"
#define P144 P136 ",%68,%69,%70,%71"
#define P152 P144 ",%72,%73,%74,%75"
#define P160 P152 ",%76,%77,%78,%79"
#define P168 P160 ",%80,%81,%82,%83"
#define P176 P168 ",%84,%85,%86,%87"
#define P184 P176 ",%88,%89,%90,%91"
#define P192 P184 ",%92,%93,%94,%95"
#define P200 P192 ",%96,%97,%98,%99"
#define P208 P200 ",%100,%101,%102,%103"
#define P216 P208 ",%104,%105,%106,%107"
#define P224 P216 ",%108,%109,%110,%111"
#define P232 P224 ",%112,%113,%114,%115"
#define P240 P232 ",%116,%117,%118,%119"
#define P248 P240 ",%120,%121,%122,%123"
#define P256 P248 ",%124,%125,%126,%127"
#define V8 D4(0)
#define V16 V8, D4(4)
#define V24 V16, D4(8)
#define V32 V24, D4(12)
#define V40 V32, D4(16)
#define V48 V40, D4(20)
#define V56 V48, D4(24)
#define V64 V56, D4(28)
#define V72 V64, D4(32)
#define V80 V72, D4(36)
#define V88 V80, D4(40)
#define V96 V88, D4(44)
#define V104 V96, D4(48)
#define V112 V104, D4(52)
#define V120 V112, D4(56)
#define V128 V120, D4(60)
#define V136 V128, D4(64)
#define V144 V136, D4(68)
#define V152 V144, D4(72)
#define V160 V152, D4(76)
#define V168 V160, D4(80)
#define V176 V168, D4(84)
#define V184 V176, D4(88)
#define V192 V184, D4(92)
#define V200 V192, D4(96)
#define V208 V200, D4(100)
#define V216 V208, D4(104)
#define V224 V216, D4(108)
#define V232 V224, D4(112)
#define V240 V232, D4(116)
#define V248 V240, D4(120)
#define V256 V248, D4(124)
#define AT8(of) of(4, 5, 6)
#define AT16(of) of(8, 9, 10)
#define AT24(of) of(12, 13, 14)
#define AT32(of) of(16, 17, 18)
#define AT40(of) of(20, 21, 22)
#define AT48(of) of(24, 25, 26)
#define AT56(of) of(28, 29, 30)
#define AT64(of) of(32, 33, 34)
#define AT72(of) of(36, 37, 38)
#define AT80(of) of(40, 41, 42)
#define AT88(of) of(44, 45, 46)
#define AT96(of) of(48, 49, 50)
#define AT104(of) of(52, 53, 54)
#define AT112(of) of(56, 57, 58)
#define AT120(of) of(60, 61, 62)
#define AT128(of) of(64, 65, 66)
#define AT136(of) of(68, 69, 70)
#define AT144(of) of(72, 73, 74)
#define AT152(of) of(76, 77, 78)
#define AT160(of) of(80, 81, 82)
#define AT168(of) of(84, 85, 86)
#define AT176(of) of(88, 89, 90)
#define AT184(of) of(92, 93, 94)
#define AT192(of) of(96, 97, 98)
#define AT200(of) of(100, 101, 102)
#define AT208(of) of(104, 105, 106)
#define AT216(of) of(108, 109, 110)
#define AT224(of) of(112, 113, 114)
#define AT232(of) of(116, 117, 118)
#define AT240(of) of(120, 121, 122)
#define AT248(of) of(124, 125, 126)
#define AT256(of) of(128, 129, 130)
#define ARGS_AT(left, right, use) "%" #left ", %" #right ", use, 1, 1"
#define USE_AT(left, right, use) "%" #use
#define ARGS JOINED(AT, WGMMA_N)(ARGS_AT)
#define USE JOINED(AT, WGMMA_N)(USE_AT)
#if FP8 && (SWAPPED ? RIGHT_E5M2 : LEFT_E5M2)
#define TYPES "k32.f32.e5m2.e4m3 "
#elif FP8 && (SWAPPED ? LEFT_E5M2 : RIGHT_E5M2)
#define TYPES "k32.f32.e4m3.e5m2 "
#elif FP8
#define TYPES "k32.f32.e4m3.e4m3 "
#elif HALF
#define TYPES "k16.f32.f16.f16 "
#else
#define TYPES "k16.f32.bf16.bf16 "
#endif
#if FP8
#define MAJOR ";"
#elif defined TILE_ROWS && RIGHT_T
#define MAJOR ", 0, 0;"
#elif defined TILE_ROWS
#define MAJOR ", 1, 0;"
#elif RIGHT_T
#define MAJOR ", " TEXT_OF(LEFT_T) ", 0;"
#else
#define MAJOR ", " TEXT_OF(LEFT_T) ", 1;"
#endif

// d = left · right + (use ? d : 0), 16 deep, of fp8 32; both operands by their descriptors. SWAPPED: the right operand comes first.
__device__ __forceinline__ void wgmma(float (&d)[ACC], u64 left, u64 right, int use) {
    asm volatile("{\n.reg .pred use;\nsetp.ne.b32 use, " USE ", 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n" TEXT_OF(WGMMA_N) TYPES "{" JOINED(P, WGMMA_N) "}, " ARGS MAJOR "\n}"
                 : JOINED(V, WGMMA_N)
                 : "l"(left), "l"(right), "r"(use));
}
