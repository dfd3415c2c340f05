// bf16 and fp16 to and from float: nearest, ties to even.
#include "standin.h"

#include <math.h>
#include <string.h>

static float of_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, 4);
    return f;
}
static uint32_t bits_of(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return bits;
}

static float half_to_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
    if (exponent == 31) return of_bits(sign | 0x7F800000 | fraction << 13);
    if (exponent) return of_bits(sign | (exponent + 112) << 23 | fraction << 13);
    float tiny = (float)fraction * 0x1p-24f;
    return sign ? -tiny : tiny;
}

static uint16_t float_to_half(float f) {
    uint32_t bits = bits_of(f), sign = bits >> 16 & 0x8000, size = bits & 0x7FFFFFFF;
    if (size > 0x7F800000) return (uint16_t)(sign | 0x7E00);
    if (size >= 0x477FF000) return (uint16_t)(sign | 0x7C00);      // rounds to more than 65504
    if (size < 0x38800000) {                                       // subnormal: units of 2⁻²⁴
        float scaled = of_bits(size) + 0.5f;                       // 0.5's last place is 2⁻²⁴
        return (uint16_t)(sign | (bits_of(scaled) - 0x3F000000));
    }
    size += 0xFFF + (size >> 13 & 1);
    return (uint16_t)(sign | ((size - 0x38000000) >> 13));
}

float number_load(Type t, const void *at) {
    if (t == FP32) return *(const float *)at;
    uint16_t h = *(const uint16_t *)at;
    return t == BF16 ? of_bits((uint32_t)h << 16) : half_to_float(h);
}

void number_store(Type t, void *at, float value) {
    if (t == FP32) {
        *(float *)at = value;
        return;
    }
    if (t == FP16) {
        *(uint16_t *)at = float_to_half(value);
        return;
    }
    uint32_t bits = bits_of(value);
    if ((bits & 0x7FFFFFFF) > 0x7F800000) *(uint16_t *)at = (uint16_t)(bits >> 16 | 0x40);
    else *(uint16_t *)at = (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

Applied function_named(const char *entry) {
    static const char *const names[] = {"", "_gelu", "_gelu_tanh", "_silu", "_silu_mul"};
    Applied found = NO_FUNCTION;
    for (int f = GELU; f <= SILU_MUL; f++)   // a name that goes on stands behind the shorter one
        if (strstr(entry, names[f])) found = (Applied)f;
    return found;
}

float number_applied(Applied function, float sum) {
    double x = sum;
    if (function == GELU) return (float)(0.5 * x * erfc(-x * M_SQRT1_2));
    if (function == GELU_TANH) return (float)(0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))));
    return function ? (float)(x / (1 + exp(-x))) : sum;
}
