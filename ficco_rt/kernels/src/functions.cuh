// The function of a finished sum, in fp32: -DFUNCTION=1 gelu, 2 gelu by tanh, 3 silu, or 0, which makes no code; with
// -DFACTOR=1 its value is multiplied by the last of the addends or terms. graph/functions.py has its twin in numpy, and
// the error that is allowed.
#pragma once

#ifndef FUNCTION
#define FUNCTION 0
#define FACTOR 0
#endif

static_assert(FUNCTION >= 0 && FUNCTION <= 3 && (FUNCTION > 0 || !FACTOR), "functions.cuh knows no such function");

#if FUNCTION > 0 || defined QUANTIZE
#ifdef __HIP__
__device__ inline float power_of_2(float x) { return __builtin_exp2f(x); }
__device__ inline float one_over(float x) { return __builtin_amdgcn_rcpf(x); }
#else
__device__ __forceinline__ float power_of_2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float one_over(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#endif
#endif

__device__ __forceinline__ float apply(float x) {
#if FUNCTION == 1
    // erfc by Abramowitz and Stegun, 7.1.26: its error is 1.5e-7 at most
    const float size = x < 0.0f ? -x : x, t = one_over(1.0f + 0.23164189f * size);
    const float p = t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
    return (x > 0.0f ? x : 0.0f) - 0.5f * size * p * power_of_2(-0.72134752f * x * x);
#elif FUNCTION == 2
    // (1 + tanh(y)) / 2 is a sigmoid of 2y, e^-2y a power of 2
    return x * one_over(1.0f + power_of_2(-2.3022082f * (x + 0.044715f * x * x * x)));
#elif FUNCTION == 3
    return x * one_over(1.0f + power_of_2(-1.4426950f * x));
#else
    return x;
#endif
}
