// Pairs of bf16 or fp16 in a word, and how four lanes trade them before they store: what sm80 and sm90 share.
// Of the -D defines it reads HALF (1: fp16, 0: bf16).
#pragma once
#include "integers.h"

__device__ __forceinline__ u32 pack(float low, float high) {
    u32 v;
    if constexpr (HALF) asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
    else asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
    return v;
}

__device__ __forceinline__ void add_packed(float& low, float& high, u32 v) {
    if constexpr (HALF) {
        float a, b;
        asm("{\n.reg .f16 l, h;\nmov.b32 {l, h}, %2;\ncvt.f32.f16 %0, l;\ncvt.f32.f16 %1, h;\n}"
            : "=f"(a), "=f"(b) : "r"(v));
        low += a;
        high += b;
    } else {
        low += __uint_as_float(v << 16);
        high += __uint_as_float(v & 0xffff0000u);
    }
}

// Four lanes hold a row of four fragments, a word of two elements of each. Afterwards each holds one fragment's eight:
// lane `q` of the four that of fragment q.
__device__ __forceinline__ void transpose_in_quad(u32 (&v)[4], int q) {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const u32 other = __shfl_xor_sync(0xffffffffu, q & 1 ? v[i] : v[i + 1], 1);
        if (q & 1) v[i] = other;
        else v[i + 1] = other;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const u32 other = __shfl_xor_sync(0xffffffffu, q & 2 ? v[i] : v[i + 2], 2);
        if (q & 2) v[i] = other;
        else v[i + 2] = other;
    }
}
