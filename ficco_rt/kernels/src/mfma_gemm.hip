// out (+)= left · right on CDNA (gfx90a, gfx942): bf16 or fp16 operands, fp32 accumulation by MFMA, output in either. Or,
// with ADDENDS, out = left · right + addends, all added in fp32.
//
// Four waves make a tile. Each step of K goes from memory to registers while the step before it is multiplied, then
// to the other of two buffers in LDS. The grid is persistent: block b makes the tiles b, b + grid, … of a table that
// the host writes (kernels/tile_table.py), so the order of tiles, the pieces of a fused operand, splits of K and what
// a tile waits for are data, not code.
//
// Compiled once for each variant, with
//   ENTRY            the kernel's name
//   TILE_M, TILE_N   rows and columns of a block's tile
//   TILE_K           depth of a step, 32 or 64
//   SHAPE            32: v_mfma_f32_32x32x8, 16: v_mfma_f32_16x16x16
//   WAVES_M          waves along rows, 1, 2 or 4; the others are along columns
//   RESIDENCY        blocks of a compute unit that registers must leave room for
//   HALF             1: fp16, 0: bf16
//   OUT_FP32         1: the output is fp32, 0: as the operands
//   LEFT_T, RIGHT_T  1: the operand is stored transposed, left [K, M], right [N, K]
//   ADDENDS          1: works may have addends, of the operands' type or fp32
//   FUNCTION, FACTOR of the sums (functions.cuh); left out: none
//   MARKS            1: it tells when its tiles waited, began and ended (marks.h)
//
// Limits, checked on the host: 16-byte bases and pitches; pieces begin at multiples of 8 elements along the dimension
// that lies together in memory. They end anywhere. No header of HIP is included: hipRTC knows __global__, __device__ and
// __shared__ without one, and the rest are the compiler's own names.

#include "functions.cuh"
#include "memory_order.h"
#include "tiles.h"

typedef PitchedParameters Parameters;
typedef PitchedOperands Operands;
typedef u32 Words2 __attribute__((ext_vector_type(2)));
typedef u32 Words __attribute__((ext_vector_type(4)));    // 16 bytes: 8 elements
typedef float Floats __attribute__((ext_vector_type(4)));
#if HALF
typedef _Float16 Elements __attribute__((ext_vector_type(4)));
#else
typedef short Elements __attribute__((ext_vector_type(4)));
#endif
typedef float Sums __attribute__((ext_vector_type(SHAPE * SHAPE / 64)));

#define GLOBAL __attribute__((address_space(1)))   // NOTE loads of any other pointer hold up those of LDS

constexpr int THREADS = 256, WAVES = 4;
constexpr int TABLE_K = 64;                                 // what the table counts depth in
constexpr int WAVES_N = WAVES / WAVES_M;
constexpr int BLOCKS_M = TILE_M / WAVES_M / SHAPE, BLOCKS_N = TILE_N / WAVES_N / SHAPE;   // of SHAPE × SHAPE, a wave
constexpr int GROUPS = 64 / SHAPE;                          // lanes of a wave that hold one row's depth
constexpr int UNITS = TILE_K / 8;                           // 16-byte units of a row in LDS
constexpr int LEFT_UNITS = TILE_M * UNITS, RIGHT_UNITS = TILE_N * UNITS, STAGE_UNITS = LEFT_UNITS + RIGHT_UNITS;
constexpr int ITEM = OUT_FP32 ? 4 : 2;

static_assert(SHAPE == 16 || SHAPE == 32, "the MFMA instructions used");
static_assert(TABLE_K % TILE_K == 0 && TILE_K % (8 * GROUPS) == 0, "steps are whole");
static_assert(BLOCKS_M * WAVES_M * SHAPE == TILE_M && BLOCKS_N * WAVES_N * SHAPE == TILE_N, "waves are whole");

// ---------------------------------------------------------------- memory order

__device__ inline u32 load_now(const u32* p) { return __hip_atomic_load(p, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM); }
__device__ inline u32 count_up(u32* p) {   // of this GPU's memory, by this GPU
    return __hip_atomic_fetch_add(p, 1u, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_AGENT);
}

// All of the block's waves are here, and what they wrote is seen by each other.
__device__ inline void meet() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

// Until every flag is up. Copies and peers write both flags and data: acquire at system scope.
__device__ inline void spin(const Parameters& p, int first, int count) {
    const u32 goal = p.table.epoch ? load_now(p.table.epoch) : 1u;
    for (int i = 0; i < count; ++i) {
        const u32* flag = (const u32*)p.table.flags[first + i];
        u32 turns = 0;
        while ((int)(load_acquire(flag) - goal) < 0) {
            nap();
            if (p.table.abort && (++turns & 255) == 0 && load_now(p.table.abort)) break;
        }
    }
}

// The block's wait for what its tile reads.
__device__ inline void wait_flags(const Parameters& p, int first, int count) {
    if (__builtin_amdgcn_workitem_id_x() == 0) spin(p, first, count);
    meet();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "");   // for the waves that did not look at the flags themselves
}

// ---------------------------------------------------------------- numbers

__device__ inline u32 narrow(float f) {
#if HALF
    return __builtin_bit_cast(u16, (_Float16)f);
#else
    const u32 u = __builtin_bit_cast(u32, f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return u >> 16 | 0x40u;   // stays NaN
    return (u + 0x7fffu + (u >> 16 & 1u)) >> 16;                   // nearest, ties to even
#endif
}
__device__ inline float widen(u32 x) {
#if HALF
    return (float)__builtin_bit_cast(_Float16, (u16)x);
#else
    return __builtin_bit_cast(float, x << 16);
#endif
}

__device__ inline Sums multiply(Words2 a, Words2 b, Sums d) {
    const Elements x = __builtin_bit_cast(Elements, a), y = __builtin_bit_cast(Elements, b);
#if SHAPE == 32 && HALF
    return __builtin_amdgcn_mfma_f32_32x32x8f16(x, y, d, 0, 0, 0);
#elif SHAPE == 32
    return __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(x, y, d, 0, 0, 0);
#elif HALF
    return __builtin_amdgcn_mfma_f32_16x16x16f16(x, y, d, 0, 0, 0);
#else
    return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(x, y, d, 0, 0, 0);
#endif
}

// ---------------------------------------------------------------- a step of K: memory → registers → LDS

// Both operands lie in LDS along K, a row of TILE_K elements after the other, with a row's 16-byte units turned so
// that lanes which go down rows, or along them in steps of 8, meet in few banks.
__device__ inline int place(int row, int unit) {
    constexpr int lines = 8 / UNITS;   // rows that 128 bytes, all banks once, hold
    return row * UNITS + (unit ^ ((row / lines ^ row >> 3) % UNITS));
}

// `size` of the unit's elements belong to the piece of K; the others become zeros on both sides.
__device__ inline Words head(Words v, int size) {
    if (size >= 8) return v;
    for (int i = 0; i < 4; ++i) v[i] = size >= 2 * i + 2 ? v[i] : size == 2 * i + 1 ? v[i] & 0xffffu : 0u;
    return v;
}

__device__ inline int least(int a, int b) { return a < b ? a : b; }

// One operand's step on its way. ALONG_K: stored rows lie along K, a thread takes units of 8 elements of depth.
// Otherwise they lie across it, and a thread takes blocks of 4 stored rows, 8 elements each, which it turns.
template <bool ALONG_K, int COUNT> struct Side {
    static constexpr int HELD = ALONG_K ? COUNT * UNITS : COUNT / 8 * (TILE_K / 4);   // units, blocks
    static constexpr int EACH = (HELD + THREADS - 1) / THREADS;
    static_assert(!ALONG_K || HELD % THREADS == 0, "units are shared evenly");
    u32 offset[EACH];   // bytes, from where the tile's step starts
    Words held[ALONG_K ? EACH : 4 * EACH];

    // `count` rows (columns) belong to the tile. What is past them is read again from the last ones, and not stored.
    __device__ void aim(i64 pitch, int count) {
        const int thread = __builtin_amdgcn_workitem_id_x();
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int at = thread + i * THREADS;
            if (ALONG_K) {
                offset[i] = (u32)least(at / UNITS, count - 1) * (u32)pitch + at % UNITS * 16;
            } else {
                offset[i] = (u32)(at / (COUNT / 8) * 4) * (u32)pitch + least(at % (COUNT / 8), (count - 1) / 8) * 16;
            }
        }
    }

    // WHOLE: all of the step belongs to its piece of K. Otherwise `size` elements do, and the others are zero; NOTE they
    // are not read: they may be past the end of the memory.
    template <bool WHOLE> __device__ void load(u64 start, i64 pitch, int size) {
        const int thread = __builtin_amdgcn_workitem_id_x();
        const Words zero = {0, 0, 0, 0};
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int at = thread + i * THREADS;
            if (ALONG_K) {
                const int left = size - at % UNITS * 8;
                const GLOBAL Words* const from = (const GLOBAL Words*)((const GLOBAL char*)start + offset[i]);
                if (WHOLE) held[i] = *from;
                else held[i] = left > 0 ? head(*from, left) : zero;
            } else {
                const int deep = at / (COUNT / 8) * 4;   // of threads without a block: TILE_K or more
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const GLOBAL Words* const from = (const GLOBAL Words*)((const GLOBAL char*)(start + j * pitch) + offset[i]);
                    if (WHOLE && HELD % THREADS == 0) held[4 * i + j] = *from;
                    else held[4 * i + j] = deep + j < least(size, TILE_K) ? *from : zero;
                }
            }
        }
    }

    __device__ void store(Words* stage) const {
        const int thread = __builtin_amdgcn_workitem_id_x();
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int at = thread + i * THREADS;
            if (ALONG_K) {
                stage[place(at / UNITS, at % UNITS)] = held[i];
                continue;
            }
            const int column = at % (COUNT / 8) * 8, deep = at / (COUNT / 8) * 4;
            if (deep >= TILE_K) break;
            const Words* v = held + 4 * i;
#pragma unroll
            for (int c = 0; c < 8; ++c) {   // a column's four elements of depth: half a unit
                const int w = c / 2;
                Words2 four;
                if (c % 2) {
                    four = (Words2){v[0][w] >> 16 | (v[1][w] & 0xffff0000u), v[2][w] >> 16 | (v[3][w] & 0xffff0000u)};
                } else {
                    four = (Words2){(v[0][w] & 0xffffu) | v[1][w] << 16, (v[2][w] & 0xffffu) | v[3][w] << 16};
                }
                ((Words2*)(stage + place(column + c, deep / 8)))[deep / 4 % 2] = four;
            }
        }
    }
};

struct Step {
    Side<!LEFT_T, TILE_M> left;
    Side<RIGHT_T, TILE_N> right;

    __device__ void aim(const Operands& o, const Tile& t) {
        left.aim(o.left_pitch, t.rows ? t.rows : 1);   // of a tile without rows a row that is there
        right.aim(o.right_pitch, t.cols);
    }
    __device__ void load(const Operands& o, const Tile& t, const Depth& k) {
        const u64 from_left = o.left + (LEFT_T ? k.left : t.left_row) * o.left_pitch + (LEFT_T ? t.left_row : k.left) * 2;
        const u64 from_right =
            o.right + (RIGHT_T ? t.right_col : k.right) * o.right_pitch + (RIGHT_T ? k.right : t.right_col) * 2;
        if (k.size >= TILE_K) {
            left.template load<true>(from_left, o.left_pitch, k.size);
            right.template load<true>(from_right, o.right_pitch, k.size);
        } else {
            left.template load<false>(from_left, o.left_pitch, k.size);
            right.template load<false>(from_right, o.right_pitch, k.size);
        }
    }
    __device__ void store(Words* stage) const {
        left.store(stage);
        right.store(stage + LEFT_UNITS);
    }
};

// ---------------------------------------------------------------- LDS → MFMA

// A lane reads 8 elements along K and gives 4 to each of two instructions: which K they take together does not
// matter, as left and right take the same. The right operand is the instruction's first: then a lane's results
// are 4 neighbours of a row of the output.
__device__ inline void multiply_step(Sums (&d)[BLOCKS_M][BLOCKS_N], const Words* stage, int row, int column) {
    const int lane = __builtin_amdgcn_workitem_id_x() % 64, line = lane % SHAPE, group = lane / SHAPE;
#pragma unroll
    for (int k = 0; k < UNITS; k += GROUPS) {
        Words left[BLOCKS_M], right[BLOCKS_N];
#pragma unroll
        for (int m = 0; m < BLOCKS_M; ++m) left[m] = stage[place(row + m * SHAPE + line, k + group)];
#pragma unroll
        for (int n = 0; n < BLOCKS_N; ++n) right[n] = stage[LEFT_UNITS + place(column + n * SHAPE + line, k + group)];
#pragma unroll
        for (int m = 0; m < BLOCKS_M; ++m)
#pragma unroll
            for (int n = 0; n < BLOCKS_N; ++n) d[m][n] = multiply(right[n].lo, left[m].lo, d[m][n]);
#pragma unroll
        for (int m = 0; m < BLOCKS_M; ++m)
#pragma unroll
            for (int n = 0; n < BLOCKS_N; ++n) d[m][n] = multiply(right[n].hi, left[m].hi, d[m][n]);
    }
}

#if OUT_FP32
typedef float Out;
typedef Floats Four;
__device__ inline void store_one(GLOBAL Out* at, float v, int accumulate) { *at = accumulate ? *at + v : v; }
__device__ inline void store_four(GLOBAL Four* at, Floats v, int accumulate) { *at = accumulate ? *at + v : v; }
#else
typedef u16 Out;
typedef Words2 Four;
__device__ inline void store_one(GLOBAL Out* at, float v, int accumulate) {
    *at = (u16)narrow(accumulate ? widen(*at) + v : v);
}
__device__ inline void store_four(GLOBAL Four* at, Floats v, int accumulate) {
    if (accumulate) {
        const Words2 old = *at;
        v += (Floats){widen(old[0] & 0xffffu), widen(old[0] >> 16), widen(old[1] & 0xffffu), widen(old[1] >> 16)};
    }
    *at = (Words2){narrow(v[0]) | narrow(v[1]) << 16, narrow(v[2]) | narrow(v[3]) << 16};
}
#endif

__device__ inline void store_tile(const Operands& o, const Tile& t, Sums (&d)[BLOCKS_M][BLOCKS_N], int row, int column) {
    const int lane = __builtin_amdgcn_workitem_id_x() % 64;
#pragma unroll
    for (int m = 0; m < BLOCKS_M; ++m) {
        const int r = row + m * SHAPE + lane % SHAPE;
        if (r >= t.rows) continue;
        const u64 line = o.out + (t.out_row + r) * o.out_pitch + t.out_col * ITEM;
#pragma unroll
        for (int n = 0; n < BLOCKS_N; ++n)
#pragma unroll
            for (int i = 0; i < SHAPE * SHAPE / 64; i += 4) {
                const int c = column + n * SHAPE + i * GROUPS + lane / SHAPE * 4;
                const Floats v = {d[m][n][i], d[m][n][i + 1], d[m][n][i + 2], d[m][n][i + 3]};
                if (c + 4 <= t.cols) {
                    store_four((GLOBAL Four*)(line + c * ITEM), v, t.accumulate);
                } else {
#pragma unroll
                    for (int j = 0; j < 3; ++j)
                        if (c + j < t.cols) store_one((GLOBAL Out*)(line + (c + j) * ITEM), v[j], t.accumulate);
                }
            }
    }
}

// An addend, fp32 if WIDE, to the sums of some of the rows that the wave is to store. What is past the tile is read again
// from its end, or lies in the last 16 bytes of a row that the tile has a part of: it is added to what is not stored.
// MULTIPLY: it multiplies the function of the sums.
template <bool WIDE, bool MULTIPLY = false>
__device__ inline void add_addend(u64 row, const Tile& t, Sums (&d)[BLOCKS_N], int column) {
    const int lane = __builtin_amdgcn_workitem_id_x() % 64;
#pragma unroll
    for (int n = 0; n < BLOCKS_N; ++n)
#pragma unroll
        for (int i = 0; i < SHAPE * SHAPE / 64; i += 4) {
            const int c = least(column + n * SHAPE + i * GROUPS + lane / SHAPE * 4, (t.cols - 1) / 4 * 4);
            Floats v;
            if (WIDE) {
                v = *(const GLOBAL Floats*)(row + c * 4);
            } else {
                const Words2 w = *(const GLOBAL Words2*)(row + c * 2);
                v = (Floats){widen(w[0] & 0xffffu), widen(w[0] >> 16), widen(w[1] & 0xffffu), widen(w[1] >> 16)};
            }
#pragma unroll
            for (int j = 0; j < 4; ++j) d[n][i + j] = MULTIPLY ? apply(d[n][i + j]) * v[j] : d[n][i + j] + v[j];
        }
}

__device__ inline void add_addends(const Parameters& p, const Tile& t, int index, Sums (&d)[BLOCKS_M][BLOCKS_N], int row,
                                 int column IF_MARKS(, Mark* mark)) {
    const int lane = __builtin_amdgcn_workitem_id_x() % 64;
    const TileAddends a = p.tile_addends[index];
    IF_MARKS(const u64 from = device_time();)
    if (a.wait_count) spin(p, a.wait_first, a.wait_count);   // NOTE each wave: those of a split tile do not all come here
    IF_MARKS(if (__builtin_amdgcn_workitem_id_x() == 0) mark_wait(mark, from);)
#pragma unroll
    for (int m = 0; m < BLOCKS_M; ++m) {
        const int r = t.rows ? least(row + m * SHAPE + lane % SHAPE, t.rows - 1) : 0;
#pragma unroll 1
        for (int k = 0; k < a.count; ++k) {   // NOTE inside: with all sums in one loop the compiler spills
            const Addend from = p.addends[a.first + k];
            const PitchedMatrix matrix = p.addend_matrices[from.matrix];
            const u64 start = matrix.address + ((t.rows ? from.row : 0) + r) * matrix.pitch + from.col * matrix.item;
            if (FACTOR && k == a.count - 1) {
                if (matrix.item == 4) add_addend<true, true>(start, t, d[m], column);
                else add_addend<false, true>(start, t, d[m], column);
            } else if (matrix.item == 4) add_addend<true>(start, t, d[m], column);
            else add_addend<false>(start, t, d[m], column);
        }
    }
}

// ---------------------------------------------------------------- the kernel

// Leaves the wave's part; true for the wave that comes last of a tile's splits, which then holds the sum of all
// parts, added in their order.
__device__ inline bool last_of_splits(const Parameters& p, const Tile& t, Sums (&d)[BLOCKS_M][BLOCKS_N], int wave) {
    constexpr int part = BLOCKS_M * BLOCKS_N * 64;   // Sums of a wave
    const int lane = __builtin_amdgcn_workitem_id_x() % 64;
    Sums* const first = (Sums*)p.table.partials + ((long long)t.slot * WAVES + wave) * part + lane;
    Sums* mine = first + (long long)t.split * WAVES * part;
#pragma unroll
    for (int m = 0; m < BLOCKS_M; ++m)
#pragma unroll
        for (int n = 0; n < BLOCKS_N; ++n) mine[(m * BLOCKS_N + n) * 64] = d[m][n];
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");
    u32* const counter = p.table.split_counts + t.slot * WAVES + wave;
    int before = 0;
    if (lane == 0) before = (int)count_up(counter);
    if (__builtin_amdgcn_readfirstlane(before) != t.splits - 1) return false;
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");
    if (lane == 0) *counter = 0;
#pragma unroll
    for (int m = 0; m < BLOCKS_M; ++m)
#pragma unroll
        for (int n = 0; n < BLOCKS_N; ++n) {
            d[m][n] = first[(m * BLOCKS_N + n) * 64];
#pragma unroll 1
            for (int s = 1; s < t.splits; ++s) d[m][n] += first[(long long)s * WAVES * part + (m * BLOCKS_N + n) * 64];
        }
    return true;
}

__device__ inline void raise(const Parameters& p, int signal) {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "");   // waits for all of the wave's stores
    if (__builtin_amdgcn_workitem_id_x() % 64) return;
    const Signal s = p.table.signals[signal];
    if (count_up(p.table.signal_counts + signal) + 1 != s.target) return;
    p.table.signal_counts[signal] = 0;
    const u32 value = p.table.epoch ? load_now(p.table.epoch) : 1u;
    for (u32 i = 0; i < s.flag_count; ++i) store_release((u32*)p.table.flags[s.flag_first + i], value);
}

extern "C" __attribute__((amdgpu_flat_work_group_size(THREADS, THREADS), amdgpu_waves_per_eu(RESIDENCY)))
__global__ void ENTRY(const Parameters p IF_MARKS(, Mark* marks)) {
    extern __shared__ Words dynamic[];
    const int wave = __builtin_amdgcn_readfirstlane(__builtin_amdgcn_workitem_id_x() / 64);
    const int row = wave % WAVES_M * BLOCKS_M * SHAPE, column = wave / WAVES_M * BLOCKS_N * SHAPE;
    const int blocks = __builtin_amdgcn_grid_size_x() / THREADS;
    for (int index = __builtin_amdgcn_workgroup_id_x(); index < p.tile_count; index += blocks) {
        Tile t = p.table.tiles[index];
        const Operands& o = p.operands[t.operands];
        t.rows = least(t.rows, o.rows - t.out_row);
        if (t.rows <= 0) t.rows = t.left_row = 0;   // it still signals
        IF_MARKS(const u64 came = device_time();)
        if (t.wait_count) wait_flags(p, t.wait_first, t.wait_count);
        IF_MARKS(if (__builtin_amdgcn_workitem_id_x() == 0) mark_begin(marks + index, came);)
        Sums d[BLOCKS_M][BLOCKS_N] = {};
        Step step;
        step.aim(o, t);
        const int steps = t.k_blocks * (TABLE_K / TILE_K);
        int piece = t.k_first;
        Depth k = p.table.depths[piece];
        int remain = k.blocks * (TABLE_K / TILE_K);
        step.load(o, t, k);
        step.store(dynamic);
        meet();
        for (int s = 1; s <= steps; ++s) {
            const Words* const now = dynamic + (s + 1) % 2 * STAGE_UNITS;
            if (s < steps) {
                k.left += TILE_K;
                k.right += TILE_K;
                k.size -= TILE_K;
                if (--remain == 0) {
                    k = p.table.depths[++piece];
                    remain = k.blocks * (TABLE_K / TILE_K);
                }
                step.load(o, t, k);
                __builtin_amdgcn_sched_barrier(0);   // the loads are under way before the first MFMA
            }
            multiply_step(d, now, row, column);
            if (s < steps) step.store(dynamic + s % 2 * STAGE_UNITS);
            meet();
        }
        IF_MARKS(if (__builtin_amdgcn_workitem_id_x() % 64 == 0) mark_end(marks + index);)
        if (t.splits > 1 && !last_of_splits(p, t, d, wave)) continue;
        if constexpr (ADDENDS) add_addends(p, t, index, d, row, column IF_MARKS(, marks + index));
        if constexpr (FUNCTION && !FACTOR) {
#pragma unroll
            for (int m = 0; m < BLOCKS_M; ++m)
#pragma unroll
                for (int n = 0; n < BLOCKS_N; ++n)
#pragma unroll
                    for (int i = 0; i < SHAPE * SHAPE / 64; ++i) d[m][n][i] = apply(d[m][n][i]);
        }
        store_tile(o, t, d, row, column);
        IF_MARKS(if (__builtin_amdgcn_workitem_id_x() % 64 == 0) mark_end(marks + index);)
        if (t.signal >= 0) raise(p, t.signal);
    }
}
