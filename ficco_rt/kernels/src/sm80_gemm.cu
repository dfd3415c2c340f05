// out (+)= left · right on tensor cores since Ampere: bf16 or fp16 operands, fp32 accumulation, output in either. Or,
// with ADDENDS, out = left · right + addends, all added in fp32. fp32 operands are multiplied by fmaf, or, with TF32,
// rounded to TF32 for the tensor cores.
//
// All warps load by cp.async into a ring of stages and multiply by mma.sync what has arrived. The grid is
// persistent: block b makes the tiles b, b + blocks, … of a table that the host writes (kernels/tile_table.py). Loads
// run ahead of the multiplication by a ring's length, over the ends of tiles too, unless a tile has flags to wait for.
//
// Compiled once for each variant, with
//   ENTRY                 the kernel's name
//   TILE_M, TILE_N        a block's tile, multiples of 64
//   WARPS_M, WARPS_N      how warps share it
//   RESIDENCY             blocks that a multiprocessor's registers must hold
//   ITEM                  bytes of an operand's element: 2, or 4 for fp32
//   TF32                  1: fp32 operands are rounded to TF32
//   ACCESS                bytes that loads of operands may take at once: 16, 4 or 2
//   HALF                  1: fp16, 0: bf16
//   OUT_FP32              1: the output is fp32, 0: as the operands
//   LEFT_T, RIGHT_T       1: the operand is stored transposed, left [K, M], right [N, K]
//   ADDENDS               1: works may have addends, of the operands' type or fp32
//   FUNCTION, FACTOR      of the sums (functions.cuh); left out: none
//   MARKS                 1: it tells when its tiles waited, began and ended (marks.h)
//
// Limits, checked on the host: bases, pitches, and where pieces begin along the dimension that lies together in memory
// are multiples of ACCESS bytes. Pieces end anywhere: what a load finds beyond is zero.
//
// NOTE cp.async takes 4 bytes at least, and 4 bytes take it as long as 16. With ACCESS < 16 loads go through registers:
// each third of a step's is stored to the ring while the next third is on its way.

#include "functions.cuh"
#include "half_floats.cuh"
#include "memory_order.h"
#include "tiles.h"

typedef PitchedParameters Parameters;

constexpr int TILE_K = 128 / ITEM;               // one row of the ring
constexpr bool PLAIN = ITEM == 4 && !TF32;       // no tensor cores
constexpr int WARPS = WARPS_M * WARPS_N;
constexpr int THREADS = 32 * WARPS;
constexpr int WARP_M = TILE_M / WARPS_M, WARP_N = TILE_N / WARPS_N;
constexpr int FRAGMENTS_M = WARP_M / 16, FRAGMENTS_N = WARP_N / 8;
constexpr int LEFT_BYTES = TILE_M * 128, RIGHT_BYTES = TILE_N * 128, STAGE_BYTES = LEFT_BYTES + RIGHT_BYTES;
constexpr int UNIT = ACCESS == 16 ? 16 : 4;      // bytes of a row of the ring that a thread fills at once
constexpr int ACROSS = 128 / UNIT;               // threads along a row
constexpr int HOP = THREADS / ACROSS;            // rows of the ring that the block fills at once
constexpr int LEFT_HOPS = TILE_M / HOP, RIGHT_HOPS = TILE_N / HOP;
constexpr int HOPS = LEFT_HOPS + RIGHT_HOPS;
constexpr int SUBSTEPS = 4;                      // 32 bytes of a row each

static_assert(TILE_M % 64 == 0 && TILE_N % 64 == 0, "the ring's atoms, TILE_K columns each");
static_assert(TILE_K % HOP == 0, "a hop stays in an atom");
static_assert(ACCESS >= ITEM && (ITEM == 2 || OUT_FP32), "what the host chooses");
static_assert(WARP_M == 32 || WARP_M == 64, "a warp's rows lie in one atom");
static_assert(WARP_N == 32 || WARP_N == 64, "and its columns");

// ---------------------------------------------------------------- PTX, one line each

__device__ __forceinline__ u32 count_up(u32* p) {
    u32 old;
    asm volatile("atom.acq_rel.sys.global.add.u32 %0, [%1], 1;" : "=r"(old) : "l"(p) : "memory");
    return old;
}
struct Quad { int x, y, z, w; };
__device__ __forceinline__ Quad load_quad(const void* p) {   // of what no one writes
    Quad q;
    asm("ld.global.nc.v4.s32 {%0, %1, %2, %3}, [%4];" : "=r"(q.x), "=r"(q.y), "=r"(q.z), "=r"(q.w) : "l"(p));
    return q;
}
__device__ __forceinline__ int this_thread() {   // volatile: read where it is used, not kept in a register
    int i;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(i));
    return i;
}
// 16 bytes, of which `size` are read and the rest are zero
__device__ __forceinline__ void copy_async(u32 dst, const u8* src, int size) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(size) : "memory");
}
// all of them, if `yes`. NOTE a predicate, no branch: the compiler schedules multiplications around it
__device__ __forceinline__ void copy_async_if(u32 dst, const u8* src, bool yes) {
    asm volatile("{\n.reg .pred yes;\nsetp.ne.b32 yes, %2, 0;\n"
                 "@yes cp.async.cg.shared.global.L2::128B [%0], [%1], 16;\n}" ::"r"(dst), "l"(src), "r"((int)yes)
                 : "memory");
}
// 2 or 4 bytes, or zeros
__device__ __forceinline__ void load_if(unsigned short& v, const u8* src, bool yes) {
    asm volatile("{\n.reg .pred yes;\nsetp.ne.b32 yes, %2, 0;\nmov.b16 %0, 0;\n@yes ld.global.b16 %0, [%1];\n}"
                 : "=h"(v) : "l"(src), "r"((int)yes) : "memory");
}
__device__ __forceinline__ void load_if(u32& v, const u8* src, bool yes) {
    asm volatile("{\n.reg .pred yes;\nsetp.ne.b32 yes, %2, 0;\nmov.b32 %0, 0;\n@yes ld.global.b32 %0, [%1];\n}"
                 : "=r"(v) : "l"(src), "r"((int)yes) : "memory");
}
__device__ __forceinline__ void store_unit(u32 dst, const u32 (&v)[1]) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(dst), "r"(v[0]) : "memory");
}
__device__ __forceinline__ void store_unit(u32 dst, const unsigned short (&v)[2]) {
    asm volatile("st.shared.v2.b16 [%0], {%1, %2};" ::"r"(dst), "h"(v[0]), "h"(v[1]) : "memory");
}
__device__ __forceinline__ void load_words(u32 address, float& a, float& b, float& c, float& d) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(a), "=f"(b), "=f"(c), "=f"(d) : "r"(address) : "memory");
}
__device__ __forceinline__ void load_words(u32 address, float& a, float& b) {
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(a), "=f"(b) : "r"(address) : "memory");
}
__device__ __forceinline__ float load_word(u32 address) {
    float a;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(a) : "r"(address) : "memory");
    return a;
}
__device__ __forceinline__ u32 to_tf32(float f) {
    u32 v;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(v) : "f"(f));
    return v;
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void wait_groups() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
// until the oldest of a ring's steps that are on their way has arrived
__device__ __forceinline__ void wait_step(int stages) {
    switch (stages) {
        case 2: wait_groups<0>(); break;
        case 3: wait_groups<1>(); break;
        case 4: wait_groups<2>(); break;
        case 5: wait_groups<3>(); break;
        case 6: wait_groups<4>(); break;
        case 7: wait_groups<5>(); break;
        default: wait_groups<6>(); break;
    }
}
template <bool TURNED> __device__ __forceinline__ void load_matrices(u32 (&r)[4], u32 address) {
    if (TURNED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
#if ITEM == 4
#define TYPES "m16n8k8.row.col.f32.tf32.tf32.f32 "
#elif HALF
#define TYPES "m16n8k16.row.col.f32.f16.f16.f32 "
#else
#define TYPES "m16n8k16.row.col.f32.bf16.bf16.f32 "
#endif
__device__ __forceinline__ void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned." TYPES "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---------------------------------------------------------------- loading

// Until every flag of the tile is up. Copy engines and peers write both flags and data: acquire at system scope.
__device__ __forceinline__ void wait_flags(const Parameters& p, int first, int count) {
    const u32 goal = p.table.epoch ? *(const volatile u32*)p.table.epoch : 1u;
    for (int i = 0; i < count; ++i) {
        const u32* flag = (const u32*)p.table.flags[first + i];
        u32 turns = 0;
        while ((int)(load_acquire(flag) - goal) < 0)
            if (p.table.abort && (++turns & 255) == 0 && *(const volatile u32*)p.table.abort) return;
    }
}

// One operand's way into the ring. A stage holds it as rows of 128 bytes, whose 16-byte units are swapped by the
// row's last three bits, so that eight rows of one unit lie in different banks. ALONG_K: a row is TILE_K deep, for one
// row (column) of the tile. Otherwise it is TILE_K rows (columns) at one depth, and TILE_K such make an atom.
template <bool ALONG_K> struct Side {
    const u8* at;   // this thread's first bytes of the next step
    int hop;        // bytes from a hop's stored row to the next hop's
    int limit;      // rows (columns) that there are, from this thread's first

    __device__ __forceinline__ void start(u64 base, i64 pitch, int first, int k, int there) {
        const int thread = this_thread(), unit = thread % ACROSS * (UNIT / ITEM), row = thread / ACROSS;
        at = (const u8*)base
             + (ALONG_K ? (first + row) * pitch + (i64)(k + unit) * ITEM : (k + row) * pitch + (i64)(first + unit) * ITEM);
        hop = (int)pitch * HOP;
        limit = there - (ALONG_K ? row : unit);
    }
    __device__ __forceinline__ const u8* source(int i) const {   // of hop i
        constexpr int PER_ATOM = TILE_K / HOP;
        return at + (i64)(ALONG_K ? i : i % PER_ATOM) * hop + (ALONG_K ? 0 : i / PER_ATOM * 128);
    }
    // lines and elements of hop i that there are, from this thread's first; `depth`: elements of K that are left
    __device__ __forceinline__ int there(int i, int depth, int most) const {
        constexpr int PER_ATOM = TILE_K / HOP;
        const int lines = (ALONG_K ? limit : depth) - (ALONG_K ? i : i % PER_ATOM) * HOP;
        const int elements = (ALONG_K ? depth : limit) - (ALONG_K ? 0 : i / PER_ATOM * TILE_K);
        return lines > 0 ? min(max(elements * ITEM, 0), most) : 0;
    }
    // hop i where the tile or K ends
    __device__ __forceinline__ void copy_edge(u32 dst, int i, int depth) const {
        copy_async(dst + i * HOP * 128, source(i), there(i, depth, 16));
    }
    __device__ __forceinline__ void advance() { at += ALONG_K ? (i64)128 : (i64)hop * (TILE_K / HOP); }
};

// ACCESS < 16: a third of a step's elements, 4 bytes for each hop, on their way to the ring.
constexpr int THIRD = ACCESS < 16 ? (HOPS + 2) / 3 : 1;
#if ACCESS == 2
typedef unsigned short Held[THIRD][2];
#else
typedef u32 Held[THIRD][1];
#endif

// Where hop i lies behind hop 0. NOTE with HOP < 8 the rows' swaps differ
__device__ __forceinline__ u32 hop_place(u32 dst, int i) { return (dst ^ (i * HOP & 7) << 4) + i * HOP * 128; }

// Where loads have got to: a tile, and a step of it.
struct Loader {
    int index;          // of the tile that is loaded next
    int steps;          // left of it; 0: there is none; less: its flags must be waited for first
    int piece, depth;   // of K, and the elements left of it
    bool full;          // no row or column of the tile is missing
    Side<!LEFT_T> left;
    Side<bool(RIGHT_T)> right;

    // the tile's first piece of K, or its next
    __device__ __forceinline__ void enter(const Parameters& p, bool next_piece) {
        const Tile* t = p.table.tiles + index;
        const Quad place = load_quad(t), size = load_quad(&t->rows), rest = load_quad(&t->operands);
        piece = next_piece ? piece + 1 : size.z;
        const Quad at = load_quad(p.table.depths + piece);
        const PitchedOperands& o = p.operands[rest.x];
        const int rows = min(size.x, o.rows - place.z);
        left.start(o.left, o.left_pitch, place.x, at.x, rows);
        right.start(o.right, o.right_pitch, place.y, at.y, size.y);
        depth = at.w;
        if (next_piece) return;
        full = rows == TILE_M && size.y == TILE_N;
        steps = size.w;
        if (rest.w > 0) {   // the block's tile before this one may have waited for the same
            const Quad before = load_quad(&p.table.tiles[max(0, index - (int)gridDim.x)].operands);
            if (before.w != rest.w || before.z != rest.z) steps = -steps;
        }
    }
    // this thread's place in the first hop
    static __device__ __forceinline__ u32 place(u32 slot) {
        const int thread = this_thread(), row = thread / ACROSS, at = thread % ACROSS * UNIT;
        return slot + row * 128 + ((at >> 4 ^ (row & 7)) << 4) + at % 16;
    }
    // hops of the step, into a slot of the ring, that substep `part` of three issues
    __device__ __forceinline__ void issue(u32 slot, int part, Held& held) const {
        const int thread = this_thread();
        const int down = depth - thread / ACROSS, along = depth - thread % ACROSS * (UNIT / ITEM);
        if constexpr (ACCESS < 16) {
#pragma unroll
            for (int j = 0; j < THIRD; ++j) {
                const int i = THIRD * part + j;
                if (i >= HOPS) break;
                const bool of_left = i < LEFT_HOPS;
                const u8* from = of_left ? left.source(i) : right.source(i - LEFT_HOPS);
                int there = of_left ? left.there(i, LEFT_T ? down : along, UNIT)
                                    : right.there(i - LEFT_HOPS, RIGHT_T ? along : down, UNIT);
                if (steps <= 0) there = 0;
                if constexpr (ACCESS == 2) {
                    load_if(held[j][0], from, there > 0);
                    load_if(held[j][1], from + 2, there > 2);
                } else {
                    load_if(held[j][0], from, there == 4);
                    if (ITEM == 2 && there == 2) held[j][0] = *(const unsigned short*)from;
                }
            }
        } else {
            const u32 dst = place(slot);
            const bool whole = full && depth >= TILE_K, yes = whole && steps > 0;
#pragma unroll
            for (int i = HOPS * part / 3; i < HOPS * (part + 1) / 3; ++i)
                copy_async_if(dst + i * HOP * 128, i < LEFT_HOPS ? left.source(i) : right.source(i - LEFT_HOPS), yes);
            if (part < 2 || whole || steps <= 0) return;
#pragma unroll
            for (int i = 0; i < LEFT_HOPS; ++i) left.copy_edge(dst, i, LEFT_T ? down : along);
#pragma unroll
            for (int i = 0; i < RIGHT_HOPS; ++i) right.copy_edge(dst + LEFT_BYTES, i, RIGHT_T ? along : down);
        }
    }
    // what `issue` has loaded to registers
    static __device__ __forceinline__ void land(u32 slot, int part, const Held& held) {
        if constexpr (ACCESS < 16) {
            const u32 dst = place(slot);
#pragma unroll
            for (int j = 0; j < THIRD; ++j)
                if (THIRD * part + j < HOPS) store_unit(hop_place(dst, THIRD * part + j), held[j]);
        }
    }
    __device__ __forceinline__ void advance(const Parameters& p) {
        commit();   // an empty group where nothing was issued: groups count steps
        if (steps <= 0) return;
        const bool ended = --steps == 0;
        if (ended) index += gridDim.x;
        depth -= TILE_K;
        if (ended ? index < p.tile_count : depth <= 0) {
            enter(p, !ended);
        } else {
            left.advance();
            right.advance();
        }
    }
};

// ---------------------------------------------------------------- multiplying

// Where a lane finds its part of a 16-wide fragment: addresses in a stage.
template <bool ALONG_K> struct Reader {
    u32 row, unit;
    // `first`: the warp's first row (column). Of a fragment's four 8×8 matrices the second lies 8 further in rows of the
    // ring and the third a unit further, or the other way round.
    __device__ __forceinline__ Reader(int first, bool second_in_rows) {
        const u32 lane = threadIdx.x & 31, second = lane >> 3 & 1, third = lane >> 4;
        const u32 in_rows = second_in_rows ? second : third, in_units = second_in_rows ? third : second;
        const u32 r = (lane & 7) + 8 * in_rows;
        row = ALONG_K ? (first + r) * 128 : first / 64 * 8192 + r * 128;
        const u32 from = ALONG_K ? 0 : first % 64 / 8;
        unit = ((from + in_units) ^ (lane & 7)) << 4;
    }
    // NOTE units are told by bits of their own: xor adds to them and swaps them
    __device__ __forceinline__ u32 at(u32 slot, int fragment, int k) const {
        return ALONG_K ? slot + row + fragment * 2048 + (unit ^ k << 5) : (slot + row + unit ^ fragment << 5) + k * 2048;
    }
};

typedef float Sums[FRAGMENTS_M][FRAGMENTS_N][4];
typedef u32 LeftFragments[FRAGMENTS_M][4];
typedef u32 RightFragments[FRAGMENTS_N / 2][4];

// A word of an fp32 operand that does not lie along K: of row (column) `first` + 8 · `i` + `row` of the tile at `depth`
// of the stage; `first`: the warp's. What `i` and `depth` add is known to the compiler but for the depth's last two bits.
__device__ __forceinline__ u32 word_at(u32 side, int first, int row, int i, int depth) {
    const u32 base = side + first * 128 + (depth & 3) * 128 + ((row >> 2 ^ (depth & 3)) << 4) + (row & 3) * 4;
    return (base ^ (i % 4 * 2 ^ (depth & 4)) << 4) + i / 4 * 4096 + (depth & ~3) * 128;
}

// Fragments of substep k
__device__ __forceinline__ void load_right(RightFragments& f, const Reader<bool(RIGHT_T)>& right, u32 slot, int k) {
    if constexpr (ITEM == 4 && !RIGHT_T) {
        const int lane = threadIdx.x & 31, first = (threadIdx.x >> 5) % WARPS_N * WARP_N;
#pragma unroll
        for (int n = 0; n < FRAGMENTS_N; ++n)
#pragma unroll
            for (int j = 0; j < 2; ++j)
                f[n / 2][n % 2 * 2 + j] = to_tf32(load_word(word_at(slot + LEFT_BYTES, first, lane >> 2, n, k * 8 + j * 4 + (lane & 3))));
    } else {
#pragma unroll
        for (int n = 0; n < FRAGMENTS_N / 2; ++n) {
            load_matrices<!RIGHT_T>(f[n], right.at(slot + LEFT_BYTES, n, k));
            if constexpr (ITEM == 4)
#pragma unroll
                for (int i = 0; i < 4; ++i) f[n][i] = to_tf32(__uint_as_float(f[n][i]));
        }
    }
}
__device__ __forceinline__ void load_left(u32 (&f)[4], const Reader<!LEFT_T>& left, u32 slot, int m, int k) {
    if constexpr (ITEM == 4 && LEFT_T) {
        const int lane = threadIdx.x & 31, first = (threadIdx.x >> 5) / WARPS_N * WARP_M;
#pragma unroll
        for (int i = 0; i < 4; ++i)
            f[i] = to_tf32(load_word(word_at(slot, first, lane >> 2, 2 * m + i % 2, k * 8 + i / 2 * 4 + (lane & 3))));
    } else {
        load_matrices<bool(LEFT_T)>(f, left.at(slot, m, k));
        if constexpr (ITEM == 4)
#pragma unroll
            for (int i = 0; i < 4; ++i) f[i] = to_tf32(__uint_as_float(f[i]));
    }
}

// Substep k of fp32 without tensor cores: a lane has the sums that it would have of fragments.
__device__ __forceinline__ void multiply_plain(Sums& d, u32 slot, int k) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, r = lane >> 2, q = lane & 3;
    const int first_m = warp / WARPS_N * WARP_M, first_n = warp % WARPS_N * WARP_N;
#pragma unroll
    for (int part = 0; part < 2; ++part) {   // 4 of K
        const int unit = k * 2 + part;
        float a[2 * FRAGMENTS_M][4];
#pragma unroll
        for (int i = 0; i < 2 * FRAGMENTS_M; ++i) {
            if constexpr (LEFT_T) {
#pragma unroll
                for (int j = 0; j < 4; ++j) a[i][j] = load_word(word_at(slot, first_m, r, i, unit * 4 + j));
            } else {
                load_words(slot + (first_m + r) * 128 + ((r ^ unit) << 4) + i * 1024, a[i][0], a[i][1], a[i][2], a[i][3]);
            }
        }
#pragma unroll
        for (int n = 0; n < FRAGMENTS_N; ++n) {
            float b[2][4];
            if constexpr (RIGHT_T) {
#pragma unroll
                for (int e = 0; e < 2; ++e)
                    load_words(slot + LEFT_BYTES + (first_n + q * 2 + e) * 128 + ((q * 2 + e ^ unit) << 4) + n * 1024,
                               b[e][0], b[e][1], b[e][2], b[e][3]);
            } else {
#pragma unroll
                for (int j = 0; j < 4; ++j) load_words(word_at(slot + LEFT_BYTES, first_n, q * 2, n, unit * 4 + j), b[0][j], b[1][j]);
            }
#pragma unroll
            for (int i = 0; i < 2 * FRAGMENTS_M; ++i)
#pragma unroll
                for (int e = 0; e < 2; ++e)
#pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        float& sum = d[i / 2][n][i % 2 * 2 + e];
                        sum = fmaf(a[i][j], b[e][j], sum);
                    }
        }
    }
}

// ---------------------------------------------------------------- storing

// Two elements of 2 bytes, or one with a zero beside it
__device__ __forceinline__ u32 load_pair(const u8* at, bool both) {
    const unsigned short* p = (const unsigned short*)at;
    if constexpr (ACCESS >= 4) return both ? __ldcg((const u32*)at) : (u32)__ldcg(p);
    else return (u32)__ldcg(p) | (both ? (u32)__ldcg(p + 1) << 16 : 0u);
}

// A part of a matrix, fp32 if WIDE, to a warp's sums: of a lane two neighbours of rows r and r + 8 in each 16 × 8 fragment.
// MULTIPLY: it multiplies the sums.
template <bool WIDE, bool MULTIPLY = false>
__device__ __forceinline__ void add_part(Sums& d, const u8* corner, i64 pitch, int rows, int cols) {
    const int thread = this_thread(), r = (thread & 31) >> 2, c = (thread & 3) * 2;
    constexpr int item = WIDE ? 4 : 2;
#pragma unroll
    for (int m = 0; m < FRAGMENTS_M; ++m)
#pragma unroll
        for (int n = 0; n < FRAGMENTS_N; ++n)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int row = m * 16 + h * 8 + r, col = n * 8 + c;
                if (row >= rows || col >= cols) continue;
                const u8* at = corner + row * pitch + col * item;
                const bool both = col + 1 < cols;
                if (MULTIPLY) {
                    float v[2] = {};
                    if (WIDE) {
                        v[0] = __ldcg((const float*)at);
                        if (both) v[1] = __ldcg((const float*)at + 1);
                    } else {
                        add_packed(v[0], v[1], load_pair(at, both));
                    }
                    d[m][n][2 * h] *= v[0];
                    d[m][n][2 * h + 1] *= v[1];
                } else if (WIDE) {
                    d[m][n][2 * h] += __ldcg((const float*)at);
                    if (both) d[m][n][2 * h + 1] += __ldcg((const float*)at + 1);
                } else {
                    add_packed(d[m][n][2 * h], d[m][n][2 * h + 1], load_pair(at, both));
                }
            }
}

// The function of the sums
__device__ __forceinline__ void apply_all(Sums& d) {
#pragma unroll
    for (int m = 0; m < FRAGMENTS_M; ++m)
#pragma unroll
        for (int n = 0; n < FRAGMENTS_N; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) d[m][n][i] = apply(d[m][n][i]);
}

__device__ __forceinline__ void add_addends(const Parameters& p, int index, Sums& d, int warp_m, int warp_n, int rows,
                                            int cols IF_MARKS(, Mark* mark)) {
    const Quad added = load_quad(p.tile_addends + index), waits = load_quad(&p.tile_addends[index].wait_first);
    if (waits.y > 0) {
        IF_MARKS(const u64 from = device_time();)
        if ((this_thread() & 31) == 0) wait_flags(p, waits.x, waits.y);
        __syncwarp();
        IF_MARKS(if (this_thread() == 0) mark_wait(mark, from);)
    }
#pragma unroll 1
    for (int i = 0; i < added.y; ++i) {
        const Quad addend = load_quad(p.addends + added.x + i);
        const PitchedMatrix& m = p.addend_matrices[addend.x];
        const i64 pitch = m.pitch;
        const u64 item = m.item;
        const u8* corner = (const u8*)m.address + (addend.y + warp_m) * pitch + (addend.z + warp_n) * (i64)item;
        if (FACTOR && i == added.y - 1) {
            apply_all(d);
            if (item == 4) add_part<true, true>(d, corner, pitch, rows, cols);
            else add_part<false, true>(d, corner, pitch, rows, cols);
        } else if (item == 4) add_part<true>(d, corner, pitch, rows, cols);
        else add_part<false>(d, corner, pitch, rows, cols);
    }
}

__device__ __forceinline__ void store_sums(const Sums& d, u8* corner, i64 pitch, int rows, int cols) {
    const int lane = this_thread() & 31, r = lane >> 2, q = lane & 3;
    if constexpr (OUT_FP32 || ACCESS < 16) {
#pragma unroll
        for (int m = 0; m < FRAGMENTS_M; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int row = m * 16 + h * 8 + r;
                float* to = (float*)(corner + row * pitch);
#pragma unroll
                for (int n = 0; n < FRAGMENTS_N; ++n) {
                    const int col = n * 8 + q * 2;
                    if (row >= rows || col >= cols) continue;
                    const float v = d[m][n][2 * h], w = d[m][n][2 * h + 1];
                    const bool both = col + 1 < cols;
                    if constexpr (!OUT_FP32) {
                        const u32 pair = pack(v, w);
                        unsigned short* at = (unsigned short*)to + col;
                        if (ACCESS == 4 && both) {
                            __stcg((u32*)at, pair);
                        } else {
                            __stcg(at, (unsigned short)pair);
                            if (both) __stcg(at + 1, (unsigned short)(pair >> 16));
                        }
                    } else if (ACCESS == 16 && both) {
                        *(float2*)(to + col) = make_float2(v, w);
                    } else {
                        __stcg(to + col, v);
                        if (both) __stcg(to + col + 1, w);
                    }
                }
            }
    } else {
#pragma unroll
        for (int m = 0; m < FRAGMENTS_M; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int row = m * 16 + h * 8 + r;
                u8* to = corner + row * pitch;
#pragma unroll
                for (int g = 0; g < FRAGMENTS_N; g += 4) {
                    u32 v[4];
#pragma unroll
                    for (int j = 0; j < 4; ++j) v[j] = pack(d[m][g + j][2 * h], d[m][g + j][2 * h + 1]);
                    transpose_in_quad(v, q);
                    const int col = (g + q) * 8;
                    if (row >= rows || col >= cols) continue;
                    if (col + 8 <= cols) {
                        *(uint4*)(to + col * 2) = make_uint4(v[0], v[1], v[2], v[3]);
                    } else {
#pragma unroll
                        for (int j = 0; j < 8; ++j)
                            if (col + j < cols)
                                *(unsigned short*)(to + (col + j) * 2) = (unsigned short)(v[j / 2] >> j % 2 * 16);
                    }
                }
            }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENCY) ENTRY(const __grid_constant__ Parameters p IF_MARKS(, Mark* marks)) {
    extern __shared__ __align__(128) u8 dynamic[];
    const u32 ring = (u32)__cvta_generic_to_shared(dynamic), end = ring + p.stages * STAGE_BYTES;
    const Reader<!LEFT_T> left((threadIdx.x >> 5) / WARPS_N * WARP_M, !LEFT_T);
    const Reader<bool(RIGHT_T)> right((threadIdx.x >> 5) % WARPS_N * WARP_N, !RIGHT_T);
    u32 slot = ring;

    Loader loader;
    Held held;
    loader.index = blockIdx.x;
    if (loader.index >= p.tile_count) return;
    loader.enter(p, false);
    loader.steps = -abs(loader.steps);   // nothing is on its way yet

    for (int index = blockIdx.x; index < p.tile_count; index += gridDim.x) {
        IF_MARKS(const u64 came = device_time();)
        if (loader.steps < 0 && loader.index == index) {   // what was written before has been signalled: it may wait
            const Quad rest = load_quad(&p.table.tiles[index].operands);
            if (this_thread() == 0) wait_flags(p, rest.z, rest.w);
            __syncthreads();
            loader.steps = -loader.steps;
            u32 dst = slot;
            for (int s = 1; s < p.stages; ++s) {
#pragma unroll
                for (int part = 0; part < 3; ++part) {
                    loader.issue(dst, part, held);
                    loader.land(dst, part, held);
                }
                loader.advance(p);
                dst = dst + STAGE_BYTES == end ? ring : dst + STAGE_BYTES;
            }
        }
        IF_MARKS(if (this_thread() == 0) mark_begin(marks + index, came);)
        Sums d = {};
        LeftFragments a;
        RightFragments b[2];
        wait_step(p.stages);
        __syncthreads();
        if constexpr (!PLAIN) {
            load_right(b[0], right, slot, 0);
#pragma unroll
            for (int m = 0; m < FRAGMENTS_M; ++m) load_left(a[m], left, slot, m, 0);
        }
        for (int steps = __ldg(&p.table.tiles[index].k_blocks); steps > 0; --steps) {
            const u32 read = slot == ring ? end - STAGE_BYTES : slot - STAGE_BYTES;   // by the step before
#pragma unroll
            for (int k = 0; k < SUBSTEPS; ++k) {
                const int ahead = (k + 1) % SUBSTEPS;   // whose fragments are loaded; behind a tile's end they are not used
                if (k > 0) loader.land(read, k - 1, held);
                if (k < SUBSTEPS - 1) {
                    loader.issue(read, k, held);
                    if (k == SUBSTEPS - 2) loader.advance(p);
                }
                if constexpr (PLAIN) multiply_plain(d, slot, k);
                if (k == SUBSTEPS - 1) {
                    slot = slot + STAGE_BYTES == end ? ring : slot + STAGE_BYTES;
                    wait_step(p.stages);
                    __syncthreads();
                }
                if constexpr (PLAIN) continue;
                load_right(b[ahead % 2], right, slot, ahead);
#pragma unroll
                for (int m = 0; m < FRAGMENTS_M; ++m) {
#pragma unroll
                    for (int i = 0; i < FRAGMENTS_N; ++i) {
                        const int n = m % 2 ? FRAGMENTS_N - 1 - i : i;   // there and back: an operand is used twice in a row
                        multiply(d[m][n], a[m], b[k % 2][n / 2][n % 2 * 2], b[k % 2][n / 2][n % 2 * 2 + 1]);
                    }
                    load_left(a[m], left, slot, m, ahead);
                }
            }
        }

        const int thread = this_thread(), warp = thread >> 5, lane = thread & 31;
        const int warp_m = warp / WARPS_N * WARP_M, warp_n = warp % WARPS_N * WARP_N;
        const Tile* tile = p.table.tiles + index;
        const Quad place = load_quad(tile), size = load_quad(&tile->rows);
        const Quad rest = load_quad(&tile->operands), last = load_quad(&tile->signal);
        const int splits = last.y, split = last.z;
        const PitchedOperands& o = p.operands[rest.x];
        const int rows = min(size.x, o.rows - place.z) - warp_m, cols = size.y - warp_n;   // of this warp's part
        if (splits > 1) {
            // every split leaves its part; the warp that comes last adds them in order and goes on
            constexpr int vectors = FRAGMENTS_M * FRAGMENTS_N;   // of a thread
            float4* mine = (float4*)p.table.partials + ((i64)(last.w + split) * WARPS + warp) * vectors * 32 + lane;
            const bool any = rows > 0 && cols > 0;
            if (any) {
#pragma unroll
                for (int m = 0; m < FRAGMENTS_M; ++m)
#pragma unroll
                    for (int n = 0; n < FRAGMENTS_N; ++n)
                        __stcg(mine + (m * FRAGMENTS_N + n) * 32, make_float4(d[m][n][0], d[m][n][1], d[m][n][2], d[m][n][3]));
            }
            __threadfence();
            __syncwarp();
            u32 old = 0;
            if (lane == 0) old = atomicAdd(p.table.split_counts + last.w * WARPS + warp, 1u);
            old = __shfl_sync(0xffffffffu, old, 0);
            IF_MARKS(if (lane == 0) mark_end(marks + index);)
            if (old != splits - 1) continue;
            __threadfence();
            if (lane == 0) p.table.split_counts[last.w * WARPS + warp] = 0;
            if (any) {
                const float4* part = (const float4*)p.table.partials + ((i64)last.w * WARPS + warp) * vectors * 32 + lane;
#pragma unroll
                for (int m = 0; m < FRAGMENTS_M; ++m)
#pragma unroll
                    for (int n = 0; n < FRAGMENTS_N; ++n)
#pragma unroll
                        for (int i = 0; i < 4; ++i) d[m][n][i] = 0.0f;
#pragma unroll 1
                for (int s = 0; s < splits; ++s, part += WARPS * vectors * 32) {
#pragma unroll
                    for (int m = 0; m < FRAGMENTS_M; ++m) {
                        __syncwarp();   // NOTE no more loads at once than there are registers for
#pragma unroll
                        for (int n = 0; n < FRAGMENTS_N; ++n) {
                            const float4 v = __ldcg(part + (m * FRAGMENTS_N + n) * 32);
                            d[m][n][0] += v.x;
                            d[m][n][1] += v.y;
                            d[m][n][2] += v.z;
                            d[m][n][3] += v.w;
                        }
                    }
                }
            }
        }
        const i64 pitch = o.out_pitch;
        u8* const corner = (u8*)o.out + (place.z + warp_m) * pitch
                           + (i64)(place.w + warp_n) * (OUT_FP32 ? 4 : 2);
        if (rest.y) add_part<bool(OUT_FP32)>(d, corner, pitch, rows, cols);   // the block has waited for it, too
        if constexpr (ADDENDS) add_addends(p, index, d, warp_m, warp_n, rows, cols IF_MARKS(, marks + index));
        if constexpr (FUNCTION && !FACTOR) apply_all(d);
        store_sums(d, corner, pitch, rows, cols);
        IF_MARKS(if (lane == 0) mark_end(marks + index);)
        if (last.x >= 0) {
            __threadfence_system();
            __syncwarp();
            if (lane == 0) {
                const Signal s = p.table.signals[last.x];
                if (count_up(p.table.signal_counts + last.x) + 1 == s.target) {
                    p.table.signal_counts[last.x] = 0;
                    const u32 value = p.table.epoch ? *(const volatile u32*)p.table.epoch : 1u;
                    for (u32 i = 0; i < s.flag_count; ++i) store_release((u32*)p.table.flags[s.flag_first + i], value);
                }
            }
            __syncwarp();
        }
    }
    wait_groups<0>();
}
