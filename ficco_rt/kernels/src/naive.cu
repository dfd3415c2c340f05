// The kernels that any GPU runs: the plain twin of the GEMMs, a sum, and a copy.
//
// Compiled by NVRTC or hipRTC with -DGEMM=…, -DREDUCE=…, -DQUANTIZE=… or -DCOPY=…, the name of the one kernel wanted, all
// but a copy also with -DIN=… -DOUT=… (the numbers of Type below; the operands' and the result's type), a product with -DRIGHT=…, if its
// right operand has another type, and -DSCALED, if both have scales, and with the function of their sums, if there is one
// (functions.cuh). No vendor's header is included, so the compiler alone suffices. With -DMARKS=1 they tell when their tiles waited, began and ended (marks.h).
//
// All take a table of works and walk their tiles in order, giving them out by block number. In a launch that both waits
// for flags and raises some a counter in memory gives them out, so that whatever comes earlier in the order has been
// taken by a block that runs: a block that waits for a flag never keeps out the block that raises it.

#include "functions.cuh"
#include "memory_order.h"
#include "works.h"

#ifdef COPY
#define THREADS 512
#define BLOCKS 1  // a multiprocessor, at least: how many registers a thread may have
#elif defined QUANTIZE
#define THREADS 256
#define BLOCKS 4
#else
#define THREADS 256
#define BLOCKS 2
#endif

// ---------------------------------------------------------------- what differs between vendors

#ifdef __HIP__
#define BOUNDS THREADS
typedef u32 Vector __attribute__((ext_vector_type(4)));  // an array of structs would be kept in scratch memory
__device__ __forceinline__ float half_to_float(unsigned short x) { return (float)__builtin_bit_cast(_Float16, x); }
__device__ __forceinline__ unsigned short float_to_half(float f) {
    return __builtin_bit_cast(unsigned short, (_Float16)f);
}
__device__ __forceinline__ void fence() { __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, ""); }
#define EARLY 0  // whether a launch may begin while the one before it on its stream ends
__device__ __forceinline__ void wait_launch_before() {}
__device__ __forceinline__ void let_next_launch() {}
// what another thread of the block has acquired
__device__ __forceinline__ void acquire() { __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, ""); }
#else
#define BOUNDS THREADS, BLOCKS
struct alignas(16) Vector { u32 x, y, z, w; };
__device__ __forceinline__ float half_to_float(unsigned short x) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(x));
    return f;
}
__device__ __forceinline__ unsigned short float_to_half(float f) {
    unsigned short x;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(x) : "f"(f));
    return x;
}
__device__ __forceinline__ void fence() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
#define EARLY 1
// A launch may begin while the one before it on its stream ends: until all of that is written
__device__ __forceinline__ void wait_launch_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// … and the next one may begin once every block has said so, or ended
__device__ __forceinline__ void let_next_launch() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void acquire() {}  // the block's barrier passes it on
#endif

// ---------------------------------------------------------------- numbers

// The types by their numbers: the bits of an element, and to and from float, to nearest, ties to even. A number that is
// missing here does not compile.
constexpr int TYPES = 5;
template <int NUMBER> struct Type;
template <> struct Type<0> {  // bf16
    typedef unsigned short Bits;
    static __device__ __forceinline__ float widen(Bits x) { return __uint_as_float((u32)x << 16); }
    static __device__ __forceinline__ Bits narrow(float f) {
        u32 u = __float_as_uint(f);
        if ((u & 0x7fffffffu) > 0x7f800000u) return (Bits)(u >> 16 | 0x40);  // stays NaN
        return (Bits)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
    }
};
template <> struct Type<1> {  // fp16
    typedef unsigned short Bits;
    static __device__ __forceinline__ float widen(Bits x) { return half_to_float(x); }
    static __device__ __forceinline__ Bits narrow(float f) { return float_to_half(f); }
};
template <> struct Type<2> {  // fp32
    typedef u32 Bits;
    static __device__ __forceinline__ float widen(Bits x) { return __uint_as_float(x); }
    static __device__ __forceinline__ Bits narrow(float f) { return __float_as_uint(f); }
};
template <> struct Type<3> {  // fp8_e4m3: no infinity, one NaN of each sign, to which what is larger than 448 is rounded
    typedef unsigned char Bits;
    static __device__ __forceinline__ float widen(Bits x) {
        const u32 sign = (u32)(x & 0x80) << 24, size = x & 0x7f;
        if (size == 0x7f) return __uint_as_float(sign | 0x7fc00000u);
        return __uint_as_float(sign | __float_as_uint(__uint_as_float(size << 20) * 0x1p120f));
    }
    static __device__ __forceinline__ Bits narrow(float f) {
        const u32 u = __float_as_uint(f), sign = u >> 24 & 0x80;
        u32 size = u & 0x7fffffffu;
        if (size < 0x3c800000u) return (Bits)(sign | (__float_as_uint(__uint_as_float(size) + 0x1p14f) - 0x46800000u));  // subnormal
        size = size > 0x7f800000u ? 0x7f : (size + 0x7ffffu + (size >> 20 & 1u) - 0x3c000000u) >> 20;
        return (Bits)(sign | (size < 0x7f ? size : 0x7f));
    }
};
template <> struct Type<4> {  // fp8_e5m2: the upper half of fp16
    typedef unsigned char Bits;
    static __device__ __forceinline__ float widen(Bits x) { return half_to_float((unsigned short)(x << 8)); }
    static __device__ __forceinline__ Bits narrow(float f) {
        const u32 u = __float_as_uint(f), sign = u >> 24 & 0x80;
        u32 size = u & 0x7fffffffu;
        if (size > 0x7f800000u) return (Bits)(sign | 0x7e);
        if (size < 0x38800000u) return (Bits)(sign | (__float_as_uint(__uint_as_float(size) + 0x1p7f) - 0x43000000u));
        size = (size + 0xfffffu + (size >> 21 & 1u) - 0x38000000u) >> 21;
        return (Bits)(sign | (size < 0x7c ? size : 0x7c));
    }
};

#ifndef COPY
#ifndef RIGHT
#define RIGHT IN
#endif
static_assert(IN >= 0 && IN < TYPES && OUT >= 0 && OUT < TYPES, "naive.cu knows no type of this number");
typedef Type<IN>::Bits In;
typedef Type<RIGHT>::Bits Right;
typedef Type<OUT>::Bits Out;
#endif

// Element `at` of a tensor whose type only the table knows
template <int NUMBER = TYPES - 1> __device__ __forceinline__ float element(int type, u64 address, i64 at) {
    if constexpr (NUMBER > 0)
        if (type != NUMBER) return element<NUMBER - 1>(type, address, at);
    return Type<NUMBER>::widen(((const typename Type<NUMBER>::Bits *)address)[at]);
}

// The address of a place
__device__ __forceinline__ u64 resolve(const Table &t, u64 place) {
    return t.bases[place >> PLACE_BITS] + (place & ((1ull << PLACE_BITS) - 1));
}

// ---------------------------------------------------------------- tiles and flags

// The next tile of this block, or -1. `round` counts the block's tiles.
__device__ int next_tile(const Table &t, int round) {
    if (!t.ordered) {
        i64 tile = (i64)round * gridDim.x + blockIdx.x;
        return tile < t.tiles ? (int)tile : -1;
    }
    __shared__ int ticket;
    __syncthreads();
    if (threadIdx.x == 0) ticket = (int)atomicAdd((u32 *)t.counters, 1u);
    __syncthreads();
    return ticket < t.tiles ? ticket : -1;
}

// How every kernel begins. NOTE while a work may wait, the next launch must not take multiprocessors: what is waited for
// may need them.
__device__ __forceinline__ void let_next(const Table &t) {
    if (!t.waits) let_next_launch();
}
__device__ __forceinline__ void begin(const Table &t) {
    let_next(t);
    wait_launch_before();
}

// No thread of the block waits any more: how many blocks have said so before.
__device__ __forceinline__ u32 count_end(const Table &t) {
    return (t.ordered || t.reset_count) && threadIdx.x == 0 ? atomicAdd((u32 *)t.counters + 1, 1u) : ~0u;
}

// How every kernel ends. The last block resets flags, and leaves the counters as they were found: the next run finds
// zeros.
__device__ __forceinline__ void end(const Table &t, u32 before) {
    if (before != gridDim.x - 1) return;
    u32 *counters = (u32 *)t.counters;
    counters[0] = 0;
    counters[1] = 0;
    const u64 *flags = (const u64 *)t.flags + t.reset_first;
    for (int i = 0; i < t.reset_count; i++) *(u32 *)flags[i] = 0;
}

// The address of the first flag that this thread waits for.
__device__ __forceinline__ u64 first_awaited(const Table &t, const Sync &s) {
    return (int)threadIdx.x < s.waits ? ((const u64 *)t.flags)[s.first_wait + threadIdx.x] : 0;
}

__device__ void wait_for(const Table &t, const Sync &s, u64 first) {
    if (!s.waits) return;
    const u64 *flags = (const u64 *)t.flags + s.first_wait;
    for (int i = threadIdx.x; i < s.waits; i += THREADS) {
        const u32 *flag = (const u32 *)(i < THREADS ? first : flags[i]);
        while (load_acquire(flag) == 0) nap();
    }
    __syncthreads();
    acquire();
}

__device__ __forceinline__ u64 first_flag(const Table &t, const Sync &s) {
    return s.signals ? ((const u64 *)t.flags)[s.first_signal] : 0;
}

// A tile of the work is written; who writes its last tile raises its flags. `first` is the address of the first one, which
// has been loaded while there was something else to wait for.
__device__ void tile_done(const Table &t, const Sync &s, int counter, int tiles, u64 first) {
    if (!s.signals) return;
    __syncthreads();
    if (threadIdx.x) return;
    u32 *done = (u32 *)t.counters + 2 + counter;
    fence();
    if (tiles > 1) {
        if (atomicAdd(done, 1u) != (u32)tiles - 1) return;
        *done = 0;
        fence();
    }
    const u64 *flags = (const u64 *)t.flags + s.first_signal;
    store_relaxed((u32 *)first, 1u);  // released by the fence
    for (int i = 1; i < s.signals; i++) store_relaxed((u32 *)flags[i], 1u);
}

template <class Work> __device__ int find(const Work *works, int count, int tile) {
    int low = 0, high = count - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (works[middle].first_tile <= tile) low = middle;
        else high = middle - 1;
    }
    return low;
}

__device__ __forceinline__ i64 place(const Run *runs, Map map, i64 index) {
    const Run *r = runs + map.first;
    for (int i = 1; i < map.count && index >= r->end; i++) r++;
    return index + r->shift;
}

// ---------------------------------------------------------------- out (+)= left · right (+ addends), or a function of it
//
// 256 threads make a tile of 128 × 128, 32 deep, 8 × 8 outputs each, summed in fp32. Any strides, any runs of
// rows, columns and depth on every operand and addend. Dynamic shared memory: 256 · 32 elements of In; of scaled operands
// products with their scales, fp32.

#ifdef GEMM
constexpr int TILE = 128, DEPTH = 32;

#ifdef SCALED
typedef float InTile, RightTile;
#define WIDEN(NUMBER, x) (x)

template <int NUMBER> __device__ __forceinline__ float read(const Table &t, const Scales *s, u64 line, i64 at, int mn, int k) {
    const Run *runs = (const Run *)t.runs;
    const float scale = ((const float *)resolve(t, s->place))[place(runs, s->map_mn, mn >> s->by) * s->mn +
                                                              place(runs, s->map_k, k >> s->by_k) * s->k];
    return Type<NUMBER>::widen(((const typename Type<NUMBER>::Bits *)line)[at]) * scale;
}
#else
typedef In InTile;
typedef Right RightTile;
#define WIDEN(NUMBER, x) Type<NUMBER>::widen(x)

template <int NUMBER>
__device__ __forceinline__ typename Type<NUMBER>::Bits read(const Table &, const Scales *, u64 line, i64 at, int, int) {
    return ((const typename Type<NUMBER>::Bits *)line)[at];
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS) GEMM(Table t IF_MARKS(, Mark *marks)) {
    alignas(16) extern __shared__ unsigned char dynamic[];
    InTile *left_tile = (InTile *)dynamic;
    RightTile *right_tile = (RightTile *)(left_tile + TILE * DEPTH);
    __shared__ u64 at_m[TILE], at_n[TILE];  // addresses
    const Run *runs = (const Run *)t.runs;
    const Addend *all_addends = (const Addend *)t.terms;
    const int thread = threadIdx.x, tx = thread % 16, ty = thread / 16;

    begin(t);
    for (int round = 0, tile; (tile = next_tile(t, round)) >= 0; round++) {
        const Gemm &w = ((const Gemm *)t.works)[find((const Gemm *)t.works, t.count, tile)];
        const int row = (tile - w.first_tile) / w.columns * TILE, column = (tile - w.first_tile) % w.columns * TILE;
        IF_MARKS(const u64 came = device_time();)
        wait_for(t, w.sync, first_awaited(t, w.sync));
        IF_MARKS(if (threadIdx.x == 0) mark_begin(marks + tile, came);)
        __syncthreads();  // the last tile's places are not read any more
        if (thread < TILE) {
            if (row + thread < w.m) at_m[thread] = resolve(t, w.left) + place(runs, w.map_left_m, row + thread) * w.left_m * sizeof(In);
        } else if (column + thread - TILE < w.n) {
            at_n[thread - TILE] =
                resolve(t, w.right) + place(runs, w.map_right_n, column + thread - TILE) * w.right_n * sizeof(Right);
        }
        const Scales *scales = (const Scales *)(all_addends + w.first_addend + w.addends);
        __syncthreads();

        float sum[8][8] = {};
        for (int k0 = 0; k0 < w.k; k0 += DEPTH) {
            // lanes run along whichever dimension lies together in memory; (m ^ k) spreads both over the banks
            const bool left_by_k = w.left_k == 1, right_by_k = w.right_k == 1;
#pragma unroll 4
            for (int i = thread; i < TILE * DEPTH; i += THREADS) {
                int k = left_by_k ? i % DEPTH : i / TILE, m = left_by_k ? i / DEPTH : i % TILE;
                InTile v = 0;
                if (row + m < w.m && k0 + k < w.k)
                    v = read<IN>(t, scales, at_m[m], place(runs, w.map_left_k, k0 + k) * w.left_k, row + m, k0 + k);
                left_tile[k * TILE + (m ^ k)] = v;
                k = right_by_k ? i % DEPTH : i / TILE;
                int n = right_by_k ? i / DEPTH : i % TILE;
                RightTile r = 0;
                if (column + n < w.n && k0 + k < w.k)
                    r = read<RIGHT>(t, scales + 1, at_n[n], place(runs, w.map_right_k, k0 + k) * w.right_k, column + n, k0 + k);
                right_tile[k * TILE + (n ^ k)] = r;
            }
            __syncthreads();
#pragma unroll 4
            for (int k = 0; k < DEPTH; k++) {
                float a[8], b[8];
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    a[i] = WIDEN(IN, left_tile[k * TILE + ((ty + 16 * i) ^ k)]);
                    b[i] = WIDEN(RIGHT, right_tile[k * TILE + ((tx + 16 * i) ^ k)]);
                }
#pragma unroll
                for (int i = 0; i < 8; i++)
#pragma unroll
                    for (int j = 0; j < 8; j++) sum[i][j] = fmaf(a[i], b[j], sum[i][j]);
            }
            __syncthreads();
        }

        Out *out = (Out *)resolve(t, w.out);
        for (int i = 0; i < 8; i++) {
            const int m = row + ty + 16 * i;
            if (m >= w.m) break;
            Out *line = out + place(runs, w.map_out_m, m) * w.out_m;
            for (int j = 0; j < 8; j++) {
                const int n = column + tx + 16 * j;
                if (n >= w.n) break;
                Out *to = line + place(runs, w.map_out_n, n) * w.out_n;
                float value = 0;
#pragma unroll
                for (int a = 0; a < 8; a++)
#pragma unroll
                    for (int b = 0; b < 8; b++)
                        if (a == i && b == j) value = sum[a][b];  // keeps the sums in registers
                if (w.accumulate) value += Type<OUT>::widen(*to);
                for (int s = 0; s < w.addends; s++) {
                    const Addend &a = all_addends[w.first_addend + s];
                    const i64 at = place(runs, a.map_m, m) * a.m + place(runs, a.map_n, n) * a.n;
                    const float added = element(a.type, resolve(t, a.place), at);
                    value = FACTOR && s == w.addends - 1 ? apply(value) * added : value + added;
                }
                *to = Type<OUT>::narrow(FACTOR ? value : apply(value));
            }
        }
        IF_MARKS(if (threadIdx.x % 32 == 0) mark_end(marks + tile);)
        tile_done(t, w.sync, w.counter, w.tiles, first_flag(t, w.sync));
    }
    end(t, count_end(t));
}

#endif

// ---------------------------------------------------------------- out = the sum of terms, in fp32
//
// A job is rows × columns of one pitch. A tile is 512 accesses, two a thread, of 16 bytes where every address,
// pitch and width allows it. Four terms are on their way at once: they may lie on peers. Terms of several types are read
// one after another, of each as many elements as 16 bytes of the result hold.

#ifdef REDUCE
// Elements in a word of 32 bits
constexpr int PACKED = 4 / sizeof(Out);

__device__ __forceinline__ void add(const Vector &v, float *sum, bool last) {
    const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4 * PACKED; i++) {
        const float term = Type<OUT>::widen((Out)(words[i / PACKED] >> i % PACKED * 8 * sizeof(Out)));
        sum[i] = FACTOR && last ? apply(sum[i]) * term : sum[i] + term;
    }
}

// Adds elements from `at` on of a term whose type only the table knows
template <int NUMBER = TYPES - 1>
__device__ __forceinline__ void add(int type, u64 address, i64 at, float *sum, bool last) {
    if constexpr (NUMBER > 0)
        if (type != NUMBER) return add<NUMBER - 1>(type, address, at, sum, last);
    typedef typename Type<NUMBER>::Bits Bits;
    struct alignas(sizeof(Bits) < sizeof(Out) ? 8 : 16) Elements { Bits of[4 * PACKED]; };
    const Elements term = *(const Elements *)((const Bits *)address + at);
#pragma unroll
    for (int i = 0; i < 4 * PACKED; i++) {
        const float x = Type<NUMBER>::widen(term.of[i]);
        sum[i] = FACTOR && last ? apply(sum[i]) * x : sum[i] + x;
    }
}

__device__ __forceinline__ void store(const float *sum, Out *out) {
    u32 words[4] = {};
#pragma unroll
    for (int i = 0; i < 4 * PACKED; i++)
        words[i / PACKED] |= (u32)Type<OUT>::narrow(FACTOR ? sum[i] : apply(sum[i])) << i % PACKED * 8 * sizeof(Out);
    const Vector v = {words[0], words[1], words[2], words[3]};
    *(Vector *)out = v;
}

// What a tile needs of the table: its work, the first terms' places, and the first flags' addresses.
struct SumTile {
    static constexpr int TERMS = 4;
    Reduce w;
    u64 from[TERMS];
    i64 pitch[TERMS];
    u64 raised, awaited;

    __device__ __forceinline__ void read(const Table &t, int tile) {
        w = ((const Reduce *)t.works)[find((const Reduce *)t.works, t.count, tile)];
        const Term *terms = (const Term *)t.terms + w.first_term;
        raised = first_flag(t, w.sync), awaited = first_awaited(t, w.sync);
#pragma unroll
        for (int s = 0; s < TERMS; s++) {
            from[s] = resolve(t, terms[s < w.terms ? s : 0].place);
            pitch[s] = terms[s < w.terms ? s : 0].pitch;
        }
    }
};

extern "C" __global__ void __launch_bounds__(BOUNDS) REDUCE(Table t IF_MARKS(, Mark *marks)) {
    constexpr int WIDE = 4 * PACKED, EACH = 2, TERMS = SumTile::TERMS;

    // Nothing writes the table: the block's first tile is read while the launch before ends. Two reads of memory stand
    // one after another in it.
    SumTile now;
    u32 before = ~0u;  // blocks that have ended before this one
    let_next(t);
    const bool ahead = EARLY && !t.ordered;
    if (ahead) now.read(t, blockIdx.x);
    wait_launch_before();
    for (int round = 0, tile; (tile = next_tile(t, round)) >= 0; round++) {
        if (!ahead || round) now.read(t, tile);
        const Reduce &w = now.w;
        const Term *terms = (const Term *)t.terms + w.first_term;
        u64 *from = now.from;
        i64 *pitch = now.pitch;
        IF_MARKS(const u64 came = device_time();)
        wait_for(t, w.sync, now.awaited);
        IF_MARKS(if (threadIdx.x == 0) mark_begin(marks + tile, came);)
        // in the block's last tile nothing is left to be waited for: the count comes back while terms are read
        if (!t.ordered && tile + (i64)gridDim.x >= t.tiles) before = count_end(t);
        Out *out = (Out *)resolve(t, w.out);
        const i64 begin = (i64)(tile - w.first_tile) * THREADS * EACH + threadIdx.x;
        if (w.vector > 1) {
            const i64 width = w.columns / WIDE, count = w.rows * width;
            float sum[EACH][WIDE] = {};
            i64 c[EACH];
            int r[EACH];
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                const i64 i = begin + e * THREADS;
                r[e] = w.rows == 1 ? 0 : count <= 0x7fffffff ? (int)((u32)i / (u32)width) : (int)(i / width);
                c[e] = (i - r[e] * width) * WIDE;
            }
            for (int first = 0; first < w.terms; first += TERMS) {
                Vector v[TERMS][EACH];
#pragma unroll
                for (int s = 0; s < TERMS; s++) {
                    const bool there = first + s < w.terms;
                    if (there && first) {
                        from[s] = resolve(t, terms[first + s].place);
                        pitch[s] = terms[first + s].pitch;
                    }
#pragma unroll
                    for (int e = 0; e < EACH; e++)
                        if (there && begin + e * THREADS < count)
                            v[s][e] = *(const Vector *)((const Out *)from[s] + r[e] * pitch[s] + c[e]);
                }
#pragma unroll
                for (int s = 0; s < TERMS; s++) {
#pragma unroll
                    for (int e = 0; e < EACH; e++)
                        if (first + s < w.terms && begin + e * THREADS < count)
                            add(v[s][e], sum[e], first + s == w.terms - 1);
                }
            }
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                if (begin + e * THREADS >= count) break;
                store(sum[e], out + r[e] * w.out_pitch + c[e]);
            }
        } else if (w.vector < 0) {
            const i64 width = w.columns / WIDE, count = w.rows * width;
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                const i64 i = begin + e * THREADS;
                if (i >= count) break;
                const i64 row = i / width, column = (i - row * width) * WIDE;
                float sum[WIDE] = {};
                for (int s = 0; s < w.terms; s++)
                    add(terms[s].type, resolve(t, terms[s].place), row * terms[s].pitch + column, sum, s == w.terms - 1);
                store(sum, out + row * w.out_pitch + column);
            }
        } else {
            const i64 count = w.rows * w.columns;
            for (int e = 0; e < EACH; e++) {
                const i64 i = begin + e * THREADS;
                if (i >= count) break;
                const i64 row = i / w.columns, column = i % w.columns;
                float sum = 0;
                for (int s = 0; s < w.terms; s++) {
                    const float term = element(terms[s].type, resolve(t, terms[s].place), row * terms[s].pitch + column);
                    sum = FACTOR && s == w.terms - 1 ? apply(sum) * term : sum + term;
                }
                out[row * w.out_pitch + column] = Type<OUT>::narrow(FACTOR ? sum : apply(sum));
            }
        }
        IF_MARKS(if (threadIdx.x % 32 == 0) mark_end(marks + tile);)
        tile_done(t, w.sync, w.counter, w.work_tiles, now.raised);
    }
    end(t, t.ordered || (int)blockIdx.x >= t.tiles ? count_end(t) : before);
}
#endif

#ifdef QUANTIZE
#include "quantize.cuh"

extern "C" __global__ void __launch_bounds__(BOUNDS) QUANTIZE(Table t IF_MARKS(, Mark *marks)) {
    quantize(t IF_MARKS(, marks));
}
#endif

// ---------------------------------------------------------------- to = from, bit by bit
//
// Either side may lie on a peer. The table has an entry for each tile: rows of one pitch, some kilobytes.

#ifdef COPY
template <class Unit> __device__ __forceinline__ void move(const Copy &w) {
    constexpr int EACH = 8;
    const int count = w.rows * w.units;
    for (int begin = threadIdx.x; begin < count; begin += THREADS * EACH) {
        Unit v[EACH];
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int own = begin + e * THREADS, i = own < count ? own : count - 1;  // a load in any case: no branch
            const int r = w.rows == 1 ? 0 : i / w.units;
            v[e] = ((const Unit *)(w.from + r * w.from_pitch))[i - r * w.units];
        }
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int i = begin + e * THREADS, r = w.rows == 1 ? 0 : i / w.units;
            if (i < count) ((Unit *)(w.to + r * w.to_pitch))[i - r * w.units] = v[e];
        }
    }
}

extern "C" __global__ void __launch_bounds__(BOUNDS) COPY(Table t IF_MARKS(, Mark *marks)) {
    begin(t);
    for (int round = 0, tile; (tile = next_tile(t, round)) >= 0; round++) {
        Copy w = ((const Copy *)t.works)[tile];
        w.to = resolve(t, w.to), w.from = resolve(t, w.from);
        const u64 flag = first_flag(t, w.sync);
        IF_MARKS(const u64 came = device_time();)
        wait_for(t, w.sync, first_awaited(t, w.sync));
        IF_MARKS(if (threadIdx.x == 0) mark_begin(marks + tile, came);)
        if (w.unit == 16) move<Vector>(w);
        else if (w.unit == 8) move<u64>(w);
        else if (w.unit == 4) move<u32>(w);
        else if (w.unit == 2) move<unsigned short>(w);
        else move<unsigned char>(w);
        IF_MARKS(if (threadIdx.x % 32 == 0) mark_end(marks + tile);)
        tile_done(t, w.sync, w.work, w.work_tiles, flag);
    }
    end(t, count_end(t));
}
#endif
