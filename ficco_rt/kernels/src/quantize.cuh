// out · scales = the sum of terms: the kernel of naive.cu, whose types and tables it uses.
//
// Bit for bit what vLLM's kernels store (graph/ops/quantize.py has the numpy twin). A part is 8 elements of a row; eight
// threads with two parts each make 128 elements with one scale, a block of threads a row. A thread loads PARTS parts of a
// tensor, or of a function's argument and factor, at once, in accesses of 16 bytes, and keeps what they hold until it is
// stored; a row that is longer is read twice, and anything else is loaded term by term.

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

constexpr int PART = 8, EACH = sizeof(In) == 2 ? 2 : 1, PARTS = 2 * EACH, SHARE = THREADS * PART;
constexpr int WITH = 128 / (2 * PART), AT_ONCE = THREADS / WITH;  // threads of 128 elements; such groups of a block
constexpr int TERMS = FACTOR ? 2 : 1, ACCESSES = sizeof(In) / 2;  // of 16 bytes, of a part
constexpr float LARGEST = OUT == 3 ? 448.0f : 57344.0f;
static_assert(OUT == 3 || OUT == 4, "naive.cu quantizes to fp8");

// Adds the elements of a part from `at` on of a term of type NUMBER
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

// A part of a sum, term by term
__device__ __forceinline__ void add_terms(const Table &t, const Quantize &w, int row, int column, float *x) {
    const Term *terms = (const Term *)t.terms + w.first_term;
#pragma unroll
    for (int i = 0; i < PART; i++) x[i] = -0.0f;  // whose sum with -0 is -0
    if (row >= w.rows || column >= w.columns) return;
    for (int s = 0; s < w.terms; s++) {
        const u64 from = resolve(t, terms[s].place);
        const i64 at = row * terms[s].pitch + column;
        const bool last = s == w.terms - 1;
        if (w.vector != 1) add_part(terms[s].type, from, at, x, last);
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

__device__ __forceinline__ void widen(const Vector *of, float *x) {
    constexpr int PACKED = 4 / sizeof(In);
#pragma unroll
    for (int v = 0; v < ACCESSES; v++) {
        const u32 words[4] = {of[v].x, of[v].y, of[v].z, of[v].w};
#pragma unroll
        for (int i = 0; i < 4 * PACKED; i++)
            x[4 * PACKED * v + i] = Type<IN>::widen((In)(words[i / PACKED] >> i % PACKED * 8 * sizeof(In)));
    }
}

// The values of a thread's parts of TERMS terms alike. `row(p)` and `column(p)` are where part p begins; it is there, as a
// branch would keep one load from being issued beside the others.
template <class Row, class Column>
__device__ __forceinline__ void values(const Table &t, const Quantize &w, Row row, Column column, float *x) {
    constexpr int TOGETHER = PARTS / TERMS;  // parts, of which all is loaded at once: so many registers there are
    const Term *terms = (const Term *)t.terms + w.first_term;
#pragma unroll
    for (int first = 0; first < PARTS; first += TOGETHER) {
        Vector loaded[TERMS][TOGETHER][ACCESSES];
#pragma unroll
        for (int s = 0; s < TERMS; s++) {
            const In *from = (const In *)resolve(t, terms[s].place);
            const u32 pitch = (u32)terms[s].pitch;
#pragma unroll
            for (int i = 0; i < TOGETHER * ACCESSES; i++) {
                const int p = first + i / ACCESSES;
                const In *part = from + ((u64)pitch * (u32)row(p) + (u32)column(p));
                loaded[s][i / ACCESSES][i % ACCESSES] = ((const Vector *)part)[i % ACCESSES];
            }
        }
#pragma unroll
        for (int p = 0; p < TOGETHER; p++) {
            float *to = x + (first + p) * PART, factor[PART];
            widen(loaded[0][p], to);
            if (FACTOR) widen(loaded[TERMS - 1][p], factor);
#pragma unroll
            for (int i = 0; i < PART; i++) to[i] = FACTOR ? apply(to[i]) * factor[i] : apply(to[i]);
        }
    }
}

template <int COUNT> __device__ __forceinline__ float largest(const float *x, float size) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) size = fmaxf(size, fabsf(x[i]));
    return size;
}

// x / y, rounded once, of a y that is neither subnormal nor infinite, and its reciprocal, rounded once: one correction by
// what is left makes the quotient right (Markstein, "Computation of elementary functions on the IBM RISC System/6000",
// 1990), unless what is left is subnormal, and the quotient far too small for fp8. Signs as they are: -0 stays -0.
__device__ __forceinline__ float quotient(float x, float y, float reciprocal) {
    const float q = x * reciprocal;
    return fmaf(-fmaf(q, y, -x), reciprocal, q);
}
__device__ __forceinline__ float reciprocal_of(float y) {
    const float near = one_over(y);
    return fmaf(fmaf(-y, near, 1.0f), near, near);
}

struct Scale { float scale, reciprocal; };
// What is divided by infinity is 0, or NaN
__device__ __forceinline__ Scale divisor(Scale by) { return {by.reciprocal > 0 ? by.scale : 1.0f, by.reciprocal}; }
constexpr float FINITE = 0x1.fffffep127f;  // at most

// The one that is given, or that of elements of which this is the largest
__device__ __forceinline__ Scale scale_of(const Table &t, const Quantize &w, bool of_block, float size) {
    if (w.given) {
        const float scale = *(const float *)resolve(t, w.by);
        return {scale, 1.0f / scale};
    }
    if (size > FINITE) return {size, 0};
    float scale = quotient(of_block ? fmaxf(size, 1e-10f) : size, LARGEST, 1.0f / LARGEST);
    if (!of_block) scale = fmaxf(scale, 1.0f / (LARGEST * 512.0f));
    if (w.pow2) {
        // 2 to the ceiling of log2 in fp32, which rounds what lies little above a power of two down to that power's number
        const u32 bits = __float_as_uint(fmaxf(scale, 1e-10f));
        const int exponent = (int)(bits >> 23) - 127;
        const int size_of_log = (exponent < 0 ? -exponent - 1 : exponent) >> 1;
        const int digits = size_of_log ? (int)(__float_as_uint((float)size_of_log) >> 23) - 126 : 0;
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

// A value that is NaN or too large for fp8, or may be
__device__ __forceinline__ float limited(const Quantize &w, bool of_block, float x, Scale by, float q) {
    if (w.given) return fmaxf(fminf(x * by.reciprocal, LARGEST), -LARGEST);
    return q != q ? (of_block ? -LARGEST : LARGEST) : fmaxf(fminf(q, LARGEST), -LARGEST);
}

// Stores a part divided by a scale, or times the reciprocal of one that is given. PLAIN: in one access
template <bool PLAIN, bool OF_BLOCK>
__device__ __forceinline__ void store(const Quantize &w, int row, int column, Scale by, const float *x) {
    if (row >= w.rows || column >= w.columns) return;
    float q[PART];
#pragma unroll
    for (int i = 0; i < PART; i++) q[i] = quotient(x[i], by.scale, by.reciprocal);
    u32 words[2];
#pragma unroll
    for (int i = 0; i < 2; i++) words[i] = pair(q[4 * i], q[4 * i + 1]) | pair(q[4 * i + 2], q[4 * i + 3]) << 16;
    // An element whose exponent and mantissa are all ones, of fp8_e5m2 whose exponent is
    constexpr u32 NONE = 0x7f7f7f7fu, LAST = OUT == 3 ? 0x01010101u : 0x04040404u;
    if (w.given || (((words[0] & NONE) + LAST) | ((words[1] & NONE) + LAST)) & 0x80808080u) {
#pragma unroll
        for (int i = 0; i < PART; i++) q[i] = limited(w, OF_BLOCK, x[i], by, q[i]);
#pragma unroll
        for (int i = 0; i < 2; i++) words[i] = pair(q[4 * i], q[4 * i + 1]) | pair(q[4 * i + 2], q[4 * i + 3]) << 16;
    }
    Out *out = (Out *)w.out + ((u64)(u32)w.out_pitch * (u32)row + (u32)column);
    if (PLAIN || w.vector != 1) *(u64 *)out = (u64)words[1] << 32 | words[0];
    else
#pragma unroll
        for (int i = 0; i < PART; i++)
            if (column + i < w.columns) out[i] = (Out)(words[i / 4] >> i % 4 * 8);
}

// Two parts, of 128 elements with one scale. All threads of a warp come here.
template <bool PLAIN>
__device__ __forceinline__ void finish(const Table &t, const Quantize &work, const Quantize &w, int row, int column, const float *x) {
    float size = largest<2 * PART>(x, 0);
#pragma unroll
    for (int bits = WITH / 2; bits; bits /= 2) size = fmaxf(size, exchanged(size, bits));
    const Scale by = scale_of(t, work, true, size);
#pragma unroll
    for (int p = 0; p < 2; p++) store<PLAIN, true>(w, row, column + p * 64, divisor(by), x + p * PART);
    if (row >= w.rows) return;
    const int lane = threadIdx.x % WITH, group = column / 128, groups = (w.columns + 127) / 128;
    float *line = (float *)resolve(t, work.scales) + row * work.scale_pitch;
    if (lane == 0) line[group] = by.scale;
    if (group == groups - 1 && groups + lane < work.scale_columns) line[groups + lane] = 0;
}

// The largest of a row, of what each thread has found. Rows take turns of memory: when a thread comes to the row after the
// next, all have read this one's.
__device__ __forceinline__ float of_row(float size, int round) {
    __shared__ float found[2][THREADS / 32];
    float *largest_of = found[round % 2];
#pragma unroll
    for (int bits = 16; bits; bits /= 2) size = fmaxf(size, exchanged(size, bits));
    if (threadIdx.x % 32 == 0) largest_of[threadIdx.x / 32] = size;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < THREADS / 32; i++) size = fmaxf(size, largest_of[i]);
    return size;
}

__device__ __forceinline__ void quantize(const Table &t IF_MARKS(, Mark *marks)) {
    begin(t);
    for (int round = 0, tile; (tile = next_tile(t, round)) >= 0; round++) {
        const Quantize &work = ((const Quantize *)t.works)[find((const Quantize *)t.works, t.count, tile)];
        IF_MARKS(const u64 came = device_time();)
        wait_for(t, work.sync, first_awaited(t, work.sync));
        IF_MARKS(if (threadIdx.x == 0) mark_begin(marks + tile, came);)
        Quantize w = work;  // in registers: what is stored might be the table
        w.out = resolve(t, w.out);
        const bool plain = TERMS * ACCESSES < 4 && w.terms == TERMS && w.vector > 1;
        if (w.across && w.rows) {
            // NOTE in 32 bits: 2³² groups are more than any device holds
            const u32 groups = (u32)(w.columns + 127) / 128;
            const u32 first = (u32)(tile - w.first_tile) * EACH * AT_ONCE + threadIdx.x / WITH;
            const auto row = [&](int e) { return (int)((first + e * AT_ONCE) / groups); };
            const auto column = [&](int e, int row) {
                return (int)(first + e * AT_ONCE - row * groups) * 128 + (int)threadIdx.x % WITH * PART;
            };
            if (plain) {
                int rows[EACH], columns[EACH];
#pragma unroll
                for (int e = 0; e < EACH; e++) rows[e] = row(e), columns[e] = column(e, rows[e]);
                float x[PARTS * PART];
                const auto there = [&](int p) {  // behind the end of a row, the first part of the same 128 elements
                    const int at = columns[p / 2] + p % 2 * 64;
                    return at < w.columns ? at : at & ~127;
                };
                values(t, w, [&](int p) { return rows[p / 2] < w.rows ? rows[p / 2] : 0; }, there, x);
#pragma unroll
                for (int e = 0; e < EACH; e++) finish<true>(t, work, w, rows[e], columns[e], x + 2 * e * PART);
            } else
#pragma unroll 1
                for (int e = 0; e < EACH; e++) {
                    const int r = row(e), c = column(e, r);
                    float x[2 * PART];
#pragma unroll
                    for (int p = 0; p < 2; p++) add_terms(t, w, r, c + p * 64, x + p * PART);
                    finish<false>(t, work, w, r, c, x);
                }
        } else if (const int row = tile - w.first_tile; row < w.rows) {
            float size = 0;
            Scale by;
            const int own = threadIdx.x * PART;
            if (plain) {
                constexpr int AT_ONCE = PARTS * SHARE;
                const int last = (w.columns - 1) / AT_ONCE * AT_ONCE;
                int first = w.given ? last : 0;  // of the columns that x holds
                const auto column = [&](int p) { return first + own + p * SHARE; };
                const auto there = [&](int p) { return column(p) < w.columns ? column(p) : 0; };
                float x[PARTS * PART];
#pragma unroll 1
                for (;; first += AT_ONCE) {
                    values(t, w, [&](int) { return row; }, there, x);
                    size = largest<PARTS * PART>(x, size);
                    if (first == last) break;
                }
                by = scale_of(t, work, false, w.given ? 0 : of_row(size, round));
#pragma unroll 1
                for (;;) {  // what is held first
#pragma unroll
                    for (int p = 0; p < PARTS; p++) store<true, false>(w, row, column(p), divisor(by), x + p * PART);
                    if (first == 0) break;
                    first -= AT_ONCE;
                    values(t, w, [&](int) { return row; }, there, x);
                }
            } else {
                float x[PART];
#pragma unroll 1
                for (int at = own; at < w.columns; at += SHARE) {
                    add_terms(t, w, row, at, x);
                    size = largest<PART>(x, size);
                }
                by = scale_of(t, work, false, w.given ? 0 : of_row(size, round));
#pragma unroll 1
                for (int at = own; at < w.columns; at += SHARE) {
                    add_terms(t, w, row, at, x);
                    store<false, false>(w, row, at, divisor(by), x);
                }
            }
            if (threadIdx.x == 0) ((float *)resolve(t, work.scales))[row * work.scale_pitch] = by.scale;
        }
        IF_MARKS(if (threadIdx.x % 32 == 0) mark_end(marks + tile);)
        tile_done(t, work.sync, work.work, work.work_tiles, first_flag(t, work.sync));
    }
    end(t, count_end(t));
}
