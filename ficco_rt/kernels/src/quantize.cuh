// out · scales = the sum of terms: the kernel of naive.cu, whose types and tables it uses.
//
// Bit for bit what vLLM's kernels store (graph/ops/quantize.py has the numpy twin). A thread takes 16 elements of a row at
// once; eight threads make 128 elements with one scale, a block of threads a row. What is one tensor, in accesses of 16
// bytes, is loaded for EACH such parts at once, and stays as it is stored until they are stored; anything else is made part
// by part, a row twice.

#pragma once

// The value of the thread whose number differs in these bits, of threads that execute together
#ifdef __HIP__
__device__ __forceinline__ float exchanged(float x, int bits) {
    const int lane = (int)threadIdx.x ^ bits;
    return __builtin_bit_cast(float, __builtin_amdgcn_ds_bpermute(lane * 4, __builtin_bit_cast(int, x)));
}
#else
__device__ __forceinline__ float exchanged(float x, int bits) { return __shfl_xor_sync(0xffffffffu, x, bits); }
#endif

constexpr int PART = 16, SHARE = THREADS * PART, EACH = sizeof(In) == 2 ? 2 : 1;
constexpr int WITH = 128 / PART, AT_ONCE = THREADS / WITH;  // threads of 128 elements; such groups of a block
struct Part { Vector of[sizeof(In)]; };  // as they are stored
constexpr float LARGEST = OUT == 3 ? 448.0f : 57344.0f;
static_assert(OUT == 3 || OUT == 4, "naive.cu quantizes to fp8");

// Adds 16 elements from `at` on of a term of type NUMBER
template <int NUMBER> __device__ __forceinline__ void add_part(u64 address, i64 at, float *sum, bool last) {
    struct alignas(16) Elements { typename Type<NUMBER>::Bits of[PART]; };
    const Elements term = *(const Elements *)((const typename Type<NUMBER>::Bits *)address + at);
#pragma unroll
    for (int i = 0; i < PART; i++) {
        const float x = Type<NUMBER>::widen(term.of[i]);
        sum[i] = FACTOR && last ? apply(sum[i]) * x : sum[i] + x;
    }
}
template <int NUMBER = 2> __device__ __forceinline__ void add_part(int type, u64 address, i64 at, float *sum, bool last) {
    if constexpr (NUMBER > 0)
        if (type != NUMBER) return add_part<NUMBER - 1>(type, address, at, sum, last);
    add_part<NUMBER>(address, at, sum, last);
}

// The values from `column` on of a row; zeros behind its end.
__device__ __forceinline__ void values(const Table &t, const Quantize &w, int row, int column, float *x) {
    const Term *terms = (const Term *)t.terms + w.first_term;
#pragma unroll
    for (int i = 0; i < PART; i++) x[i] = -0.0f;  // whose sum with -0 is -0
    if (row >= w.rows || column >= w.columns) return;
    for (int s = 0; s < w.terms; s++) {
        const u64 from = resolve(t, terms[s].place);
        const i64 at = row * terms[s].pitch + column;
        const bool last = s == w.terms - 1;
        if (w.vector > 1) add_part<IN>(from, at, x, last);
        else if (w.vector < 0) add_part(terms[s].type, from, at, x, last);
        else
#pragma unroll
            for (int i = 0; i < PART; i++)
                if (column + i < w.columns) {
                    const float term = element<2>(terms[s].type, from, at + i);
                    x[i] = FACTOR && last ? apply(x[i]) * term : x[i] + term;
                }
    }
    if (!FACTOR)
#pragma unroll
        for (int i = 0; i < PART; i++) x[i] = apply(x[i]);
}

__device__ __forceinline__ void widen(const Part &part, float *x) {
    constexpr int PACKED = 4 / sizeof(In);
#pragma unroll
    for (int v = 0; v < (int)sizeof(In); v++) {
        const u32 words[4] = {part.of[v].x, part.of[v].y, part.of[v].z, part.of[v].w};
#pragma unroll
        for (int i = 0; i < 4 * PACKED; i++)
            x[4 * PACKED * v + i] = Type<IN>::widen((In)(words[i / PACKED] >> i % PACKED * 8 * sizeof(In)));
    }
}

__device__ __forceinline__ float largest(const float *x, float size) {
#pragma unroll
    for (int i = 0; i < PART; i++) size = fmaxf(size, fabsf(x[i]));
    return size;
}

// x / y, rounded once, of a y that is neither subnormal nor infinite, and its reciprocal, rounded once: one correction by
// what is left makes the quotient right (Markstein, "Computation of elementary functions on the IBM RISC System/6000",
// 1990), unless what is left is subnormal, and the quotient far too small for fp8.
__device__ __forceinline__ float quotient(float x, float y, float reciprocal) {
    const float q = x * reciprocal;
    const u32 size = __float_as_uint(fmaf(fmaf(-q, y, x), reciprocal, q)) & 0x7fffffffu;
    return __uint_as_float(size | (__float_as_uint(x) & 0x80000000u));  // a zero's sign would be lost
}
__device__ __forceinline__ float reciprocal_of(float y) {
    const float near = one_over(y);
    return fmaf(fmaf(-y, near, 1.0f), near, near);
}

struct Scale { float scale, reciprocal; };
constexpr float FINITE = 0x1.fffffep127f;  // at most

// That of elements of which this is the largest
__device__ __forceinline__ Scale scale_of(const Quantize &w, float size) {
    if (size > FINITE) return {size, 0};
    float scale = quotient(w.across ? fmaxf(size, 1e-10f) : size, LARGEST, 1.0f / LARGEST);
    if (!w.across) scale = fmaxf(scale, 1.0f / (LARGEST * 512.0f));
    if (w.pow2) {
        // 2 to the ceiling of log2 in fp32, which rounds what lies little above a power of two down to that power's number
        const u32 bits = __float_as_uint(fmaxf(scale, 1e-10f));
        const int exponent = (int)(bits >> 23) - 127;
        int size_of_log = (exponent < 0 ? -exponent - 1 : exponent) >> 1, digits = 0;
        while (size_of_log) size_of_log >>= 1, digits++;
        const u32 within = (355u << digits) >> 10;  // ln(2) / 2 · 2^digits
        scale = __uint_as_float(((bits >> 23) + ((bits & 0x7fffffu) > within)) << 23);
    }
    return {scale, reciprocal_of(scale)};
}

__device__ __forceinline__ u32 pair(float low, float high) {
#if !defined __HIP__ && __CUDA_ARCH__ >= 890
    unsigned short both;
    if (OUT == 3) asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(high), "f"(low));
    else asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(both) : "f"(high), "f"(low));
    return both;
#else
    return (u32)Type<OUT>::narrow(low) | (u32)Type<OUT>::narrow(high) << 8;
#endif
}

// Stores elements divided by a scale, or times the reciprocal of one that is given
__device__ __forceinline__ void store(const Table &t, const Quantize &w, int row, int column, Scale by, float *x) {
    if (row >= w.rows || column >= w.columns) return;
    const bool times = w.given || by.scale > FINITE;  // by which all is 0, or NaN
#pragma unroll
    for (int i = 0; i < PART; i++) {
        const float q = times ? x[i] * by.reciprocal : quotient(x[i], by.scale, by.reciprocal);
        // NOTE what becomes of NaN: fminf and fmaxf take the other number
        x[i] = w.across && !w.given ? fminf(fmaxf(q, -LARGEST), LARGEST) : fmaxf(fminf(q, LARGEST), -LARGEST);
    }
    u32 words[4];
#pragma unroll
    for (int i = 0; i < 4; i++) words[i] = pair(x[4 * i], x[4 * i + 1]) | pair(x[4 * i + 2], x[4 * i + 3]) << 16;
    Out *out = (Out *)resolve(t, w.out) + row * w.out_pitch + column;
    if (w.vector == 1) {
#pragma unroll
        for (int i = 0; i < PART; i++)
            if (column + i < w.columns) out[i] = (Out)(words[i / 4] >> i % 4 * 8);
        return;
    }
    const Vector v = {words[0], words[1], words[2], words[3]};
    *(Vector *)out = v;
}

// A part of 128 elements with one scale. All threads of a warp come here.
__device__ __forceinline__ void finish(const Table &t, const Quantize &w, int row, int column, Scale given, float *x) {
    float size = largest(x, 0);
#pragma unroll
    for (int bits = WITH / 2; bits; bits /= 2) size = fmaxf(size, exchanged(size, bits));
    const Scale by = w.given ? given : scale_of(w, size);
    store(t, w, row, column, by, x);
    if (row >= w.rows) return;
    const int lane = threadIdx.x % WITH, group = (column - lane * PART) / 128, groups = (w.columns + 127) / 128;
    float *line = (float *)resolve(t, w.scales) + row * w.scale_pitch;
    if (lane == 0) line[group] = by.scale;
    if (group == groups - 1 && groups + lane < w.scale_columns) line[groups + lane] = 0;
}

// The largest of a row, of what each thread has found
__device__ __forceinline__ float of_row(float size) {
    __shared__ float largest_of[THREADS / 32];
#pragma unroll
    for (int bits = 16; bits; bits /= 2) size = fmaxf(size, exchanged(size, bits));
    __syncthreads();  // those of the row before have been read
    if (threadIdx.x % 32 == 0) largest_of[threadIdx.x / 32] = size;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < THREADS / 32; i++) size = fmaxf(size, largest_of[i]);
    return size;
}

__device__ __forceinline__ void quantize(const Table &t IF_MARKS(, Mark *marks)) {
    begin(t);
    for (int round = 0, tile; (tile = next_tile(t, round)) >= 0; round++) {
        const Quantize &w = ((const Quantize *)t.works)[find((const Quantize *)t.works, t.count, tile)];
        const Term *term = (const Term *)t.terms + w.first_term;
        IF_MARKS(const u64 came = device_time();)
        wait_for(t, w.sync, first_awaited(t, w.sync));
        IF_MARKS(if (threadIdx.x == 0) mark_begin(marks + tile, came);)
        Scale given = {w.given ? *(const float *)resolve(t, w.by) : 1, 1};
        if (w.given) given.reciprocal = 1.0f / given.scale;
        const bool plain = !FUNCTION && w.terms == 1 && w.vector > 1;
        const In *from = (const In *)resolve(t, term->place);
        const i64 pitch = term->pitch;
        Part parts[EACH];
        float x[PART];
        if (w.across) {
            const int groups = (w.columns + 127) / 128;
            const i64 first = (i64)(tile - w.first_tile) * EACH * AT_ONCE + threadIdx.x / WITH;
            const auto row = [&](int e) {
                const i64 i = first + e * AT_ONCE;
                return (i64)w.rows * groups <= 0x7fffffff ? (int)((u32)i / (u32)groups) : (int)(i / groups);
            };
            const auto column = [&](int e) {
                return (int)(first + e * AT_ONCE - (i64)row(e) * groups) * 128 + (int)threadIdx.x % WITH * PART;
            };
            if (plain) {
#pragma unroll
                for (int e = 0; e < EACH; e++) {
                    parts[e] = {};
                    if (row(e) < w.rows && column(e) < w.columns) parts[e] = *(const Part *)(from + row(e) * pitch + column(e));
                }
#pragma unroll
                for (int e = 0; e < EACH; e++) {
                    widen(parts[e], x);
                    finish(t, w, row(e), column(e), given, x);
                }
            } else
#pragma unroll 1
                for (int e = 0; e < EACH; e++) {
                    values(t, w, row(e), column(e), x);
                    finish(t, w, row(e), column(e), given, x);
                }
        } else if (const int row = tile - w.first_tile; row < w.rows) {
            const int own = threadIdx.x * PART;
            const bool kept = plain && w.columns <= EACH * SHARE;
            float size = 0;
            if (kept) {
#pragma unroll
                for (int e = 0; e < EACH; e++) {
                    parts[e] = {};
                    if (own + e * SHARE < w.columns) parts[e] = *(const Part *)(from + row * pitch + own + e * SHARE);
                }
#pragma unroll
                for (int e = 0; e < EACH; e++) {
                    widen(parts[e], x);
                    size = largest(x, size);
                }
            } else if (!w.given)
                for (int at = own; at < w.columns; at += SHARE) {
                    values(t, w, row, at, x);
                    size = largest(x, size);
                }
            const Scale by = w.given ? given : scale_of(w, of_row(size));
            if (kept) {
#pragma unroll
                for (int e = 0; e < EACH; e++) {
                    widen(parts[e], x);
                    store(t, w, row, own + e * SHARE, by, x);
                }
            } else
                for (int at = own; at < w.columns; at += SHARE) {
                    values(t, w, row, at, x);
                    store(t, w, row, at, by, x);
                }
            if (threadIdx.x == 0) ((float *)resolve(t, w.scales))[row * w.scale_pitch] = by.scale;
        }
        IF_MARKS(if (threadIdx.x % 32 == 0) mark_end(marks + tile);)
        tile_done(t, w.sync, w.work, w.work_tiles, first_flag(t, w.sync));
    }
    end(t, count_end(t));
}
