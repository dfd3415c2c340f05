// bf16, fp16 and fp8 to and from float: nearest, ties to even.
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

// fp8: bits of exponent and of mantissa. fp8_e4m3 has no infinity, and one NaN of each sign.
static float of_fp8(Type t, uint8_t x) {
    if (t == FP8_E5M2) return half_to_float((uint16_t)(x << 8));
    int exponent = x >> 3 & 15, mantissa = x & 7;
    float size = exponent ? ldexpf((float)(8 + mantissa), exponent - 10) : ldexpf((float)mantissa, -9);
    if ((x & 0x7F) == 0x7F) size = NAN;
    return x & 0x80 ? -size : size;
}
static uint8_t to_fp8(Type t, float f) {
    int mantissa = t == FP8_E4M3 ? 3 : 2, least = t == FP8_E4M3 ? -6 : -14, top = t == FP8_E4M3 ? 0x7F : 0x7C;
    uint8_t sign = signbit(f) ? 0x80 : 0;
    if (isnan(f)) return (uint8_t)(sign | (t == FP8_E4M3 ? 0x7F : 0x7E));
    if (isinf(f)) return (uint8_t)(sign | top);
    int exponent;
    frexpf(f, &exponent);                                          // |f| in [½, 1) · 2^exponent
    exponent = f != 0 && exponent - 1 > least ? exponent - 1 : least;
    long units = lrintf(ldexpf(fabsf(f), mantissa - exponent));    // of the last place: ties to even
    long code = units + ((long)(exponent - least) << mantissa);    // the leading one is the exponent's lowest bit
    return (uint8_t)(sign | (code < top ? code : top));
}

float number_load(Type t, const void *at) {
    if (t > FP32) return of_fp8(t, *(const uint8_t *)at);
    if (t == FP32) return *(const float *)at;
    uint16_t h = *(const uint16_t *)at;
    return t == BF16 ? of_bits((uint32_t)h << 16) : half_to_float(h);
}

void number_store(Type t, void *at, float value) {
    if (t > FP32) {
        *(uint8_t *)at = to_fp8(t, value);
        return;
    }
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
