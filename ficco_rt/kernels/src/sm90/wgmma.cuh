// wgmma, for the one shape, types and layout of this variant.
#pragma once
#include "config.cuh"

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most N groups of multiplications are not done.
template <int N> __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// A shared-memory descriptor, 128-byte swizzle. `step` goes from 8 swizzle rows to the next 8. `lead` goes from 64
// columns to the next 64 of an operand that is stored along M or N; one that is stored along K does not use it.
__device__ __forceinline__ u64 descriptor(u32 address, u32 lead, u32 step) {
    return ((u64)(address & 0x3ffff) >> 4) | ((u64)(lead >> 4) << 16) | ((u64)(step >> 4) << 32) | (1ull << 62);
}

// The instruction's text names each accumulator, so the preprocessor writes it.
#define TEXT(x) #x
#define TEXT_OF(x) TEXT(x)
#define P10(t) "%" #t "0,%" #t "1,%" #t "2,%" #t "3,%" #t "4,%" #t "5,%" #t "6,%" #t "7,%" #t "8,%" #t "9,"
#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D8(i) D4(i), D4(i + 4)
#define D32(i) D8(i), D8(i + 8), D8(i + 16), D8(i + 24)
#if WGMMA_N == 256
#define PLACES P10() P10(1) P10(2) P10(3) P10(4) P10(5) P10(6) P10(7) P10(8) P10(9) P10(10) P10(11) \
               "%120,%121,%122,%123,%124,%125,%126,%127"
#define VALUES D32(0), D32(32), D32(64), D32(96)
#define ARGS "%128, %129, use, 1, 1"
#define USE "%130"
#elif WGMMA_N == 240
#define PLACES P10() P10(1) P10(2) P10(3) P10(4) P10(5) P10(6) P10(7) P10(8) P10(9) P10(10) \
               "%110,%111,%112,%113,%114,%115,%116,%117,%118,%119"
#define VALUES D32(0), D32(32), D32(64), D8(96), D8(104), D8(112)
#define ARGS "%120, %121, use, 1, 1"
#define USE "%122"
#elif WGMMA_N == 224
#define PLACES P10() P10(1) P10(2) P10(3) P10(4) P10(5) P10(6) P10(7) P10(8) P10(9) P10(10) "%110,%111"
#define VALUES D32(0), D32(32), D32(64), D8(96), D8(104)
#define ARGS "%112, %113, use, 1, 1"
#define USE "%114"
#elif WGMMA_N == 216
#define PLACES P10() P10(1) P10(2) P10(3) P10(4) P10(5) P10(6) P10(7) P10(8) P10(9) \
               "%100,%101,%102,%103,%104,%105,%106,%107"
#define VALUES D32(0), D32(32), D32(64), D8(96), D4(104)
#define ARGS "%108, %109, use, 1, 1"
#define USE "%110"
#elif WGMMA_N == 208
#define PLACES P10() P10(1) P10(2) P10(3) P10(4) P10(5) P10(6) P10(7) P10(8) P10(9) "%100,%101,%102,%103"
#define VALUES D32(0), D32(32), D32(64), D8(96)
#define ARGS "%104, %105, use, 1, 1"
#define USE "%106"
#elif WGMMA_N == 192
#define PLACES P10() P10(1) P10(2) P10(3) P10(4) P10(5) P10(6) P10(7) P10(8) "%90,%91,%92,%93,%94,%95"
#define VALUES D32(0), D32(32), D32(64)
#define ARGS "%96, %97, use, 1, 1"
#define USE "%98"
#elif WGMMA_N == 176
#define PLACES P10() P10(1) P10(2) P10(3) P10(4) P10(5) P10(6) P10(7) "%80,%81,%82,%83,%84,%85,%86,%87"
#define VALUES D32(0), D32(32), D8(64), D8(72), D8(80)
#define ARGS "%88, %89, use, 1, 1"
#define USE "%90"
#elif WGMMA_N == 168
#define PLACES P10() P10(1) P10(2) P10(3) P10(4) P10(5) P10(6) P10(7) "%80,%81,%82,%83"
#define VALUES D32(0), D32(32), D8(64), D8(72), D4(80)
#define ARGS "%84, %85, use, 1, 1"
#define USE "%86"
#elif WGMMA_N == 160
#define PLACES P10() P10(1) P10(2) P10(3) P10(4) P10(5) P10(6) "%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define VALUES D32(0), D32(32), D8(64), D8(72)
#define ARGS "%80, %81, use, 1, 1"
#define USE "%82"
#elif WGMMA_N == 152
#define PLACES P10() P10(1) P10(2) P10(3) P10(4) P10(5) P10(6) "%70,%71,%72,%73,%74,%75"
#define VALUES D32(0), D32(32), D8(64), D4(72)
#define ARGS "%76, %77, use, 1, 1"
#define USE "%78"
#elif WGMMA_N == 144
#define PLACES P10() P10(1) P10(2) P10(3) P10(4) P10(5) P10(6) "%70,%71"
#define VALUES D32(0), D32(32), D8(64)
#define ARGS "%72, %73, use, 1, 1"
#define USE "%74"
#elif WGMMA_N == 128
#define PLACES P10() P10(1) P10(2) P10(3) P10(4) P10(5) "%60,%61,%62,%63"
#define VALUES D32(0), D32(32)
#define ARGS "%64, %65, use, 1, 1"
#define USE "%66"
#elif WGMMA_N == 112
#define PLACES P10() P10(1) P10(2) P10(3) P10(4) "%50,%51,%52,%53,%54,%55"
#define VALUES D32(0), D8(32), D8(40), D8(48)
#define ARGS "%56, %57, use, 1, 1"
#define USE "%58"
#elif WGMMA_N == 64
#define PLACES P10() P10(1) P10(2) "%30,%31"
#define VALUES D32(0)
#define ARGS "%32, %33, use, 1, 1"
#define USE "%34"
#else
#error "no wgmma for this WGMMA_N"
#endif
#if FP8 && LEFT_E5M2
#define TYPES "k32.f32.e5m2.e4m3 "
#elif FP8 && RIGHT_E5M2
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
                 "wgmma.mma_async.sync.aligned.m64n" TEXT_OF(WGMMA_N) TYPES "{" PLACES "}, " ARGS MAJOR "\n}"
                 : VALUES
                 : "l"(left), "l"(right), "r"(use));
}
