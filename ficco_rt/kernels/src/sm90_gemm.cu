// out (+)= left · right on Hopper: bf16 or fp16 operands, fp32 accumulation, output in either. Or, with TERMS,
// out = left · right + terms, all added in fp32.
//
// Two warps of one warp group feed shared memory by TMA, a third one looks for flags ahead of them; CONSUMERS other
// groups multiply with wgmma and store. The grid is persistent: cluster c makes the tiles c, c + clusters, … of a
// table that the host writes (kernels/sm90.py), so the order of tiles, the pieces of a fused operand, which way K is
// walked, splits of K and what a tile waits for are data, not code.
//
// Compiled once for each variant, with
//   ENTRY                      the kernel's name
//   TILE_N                     columns of a block's tile, a multiple of 16 up to 256
//   BLOCKS_M                   64-row blocks that a consumer makes; the tile has 64 · BLOCKS_M · CONSUMERS rows
//   CONSUMERS                  consumer warp groups, 1 or 2
//   PINGPONG                   1: the two consumers take the block's tiles by turns, of 64 · BLOCKS_M rows: while one
//                              stores, the other multiplies
//   CLUSTER                    1, or 2 blocks whose tiles share the right operand: each loads half of it for both
//   HALF                       1: fp16, 0: bf16
//   OUT_FP32                   1: the output is fp32, 0: as the operands
//   LEFT_T, RIGHT_T            1: the operand is stored transposed, left [K, M], right [N, K]
//   TERMS                      1: works may have terms, of the operands' type, that are added to the product
//   STAGING                    buffers of a storing warp, 1 or 2; 0: it stores from registers, and a stage more fits
//   PACED                      1: outputs may lie on peers. STAGING is then as many buffers as a warp's part of the tile
//                              takes, and they leave one by one among the next tile's steps: loads get through between
//   PRODUCER_REGS, CONSUMER_REGS   for setmaxnreg
//
// Limits, checked on the host: 16-byte bases and pitches, column pieces in multiples of 8 elements, K pieces in
// multiples of 64 but for one that ends where the operand does. Rows are free.

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;

constexpr int TILE_K = 64;                 // 128 bytes: one swizzle row
constexpr int GROUPS = PINGPONG ? 1 : CONSUMERS;   // that make a tile
constexpr int TILE_M = 64 * BLOCKS_M * GROUPS;
constexpr int THREADS = 128 * (CONSUMERS + 1);
constexpr int WARPS = 4 * GROUPS;          // that store a tile
constexpr int ATOM = 64 * 128;             // bytes of 64 swizzle rows
constexpr int LEFT_BYTES = TILE_M * TILE_K * 2;
constexpr int RIGHT_ATOMS = (TILE_N + 63) / 64;
constexpr int RIGHT_BYTES = RIGHT_T ? TILE_N * 128 : RIGHT_ATOMS * ATOM;
constexpr int STAGE_BYTES = LEFT_BYTES + RIGHT_BYTES;
constexpr int CHUNK_BYTES = 16 * 128;      // a warp stores 16 rows at a time, on its own: no barrier among warps
constexpr int MAX_STAGES = 16;
constexpr int ACC = TILE_N / 2;            // accumulators of a thread for each 64-row block
constexpr int CHUNK_COLS = OUT_FP32 ? 32 : 64;   // 128 bytes of a row of the output
constexpr int CHUNKS = (TILE_N + CHUNK_COLS - 1) / CHUNK_COLS;

// A step of the pipeline holds rows of a term in place of operands: those of the whole tile, or of one consumer; or, if
// they take tiles by turns, of a 64-row block.
constexpr int TERM_ATOMS = (TILE_N + 63) / 64;
constexpr int TERM_STEPS = TILE_M * TERM_ATOMS <= TILE_M + TILE_N ? 1 : CONSUMERS;   // that a term takes
constexpr int TERM_ROWS = TILE_M / TERM_STEPS;
constexpr int TERM_BYTES = TERM_ATOMS * TERM_ROWS * 128;

static_assert(TILE_N % 16 == 0 && TILE_N <= 256, "wgmma shapes");
static_assert(LEFT_BYTES % 1024 == 0 && RIGHT_BYTES % 1024 == 0, "swizzle atoms are 1024 bytes");
static_assert(!PACED || STAGING == BLOCKS_M * CHUNKS, "a buffer for each box that a warp stores");
static_assert(!TERMS || TERM_BYTES <= STAGE_BYTES, "a term's step fits a stage");
static_assert(!PINGPONG || (CONSUMERS == 2 && BLOCKS_M == 2 && !PACED), "two groups by turns, 128 rows each");
static_assert(!RIGHT_T || (TILE_N / CLUSTER) % 8 == 0, "a block's share of the right tile is whole atoms");

struct alignas(64) TensorMap { u8 opaque[128]; };

struct Operands { TensorMap left, right, out_map; };

struct Sides {              // what else there is to know of operands
    u8* out;
    long long out_pitch;    // elements
    u64 stage_bytes;        // that its loads bring into a stage: the left box may have fewer rows than the tile
    u64 constant;           // bits, 1 right, 2 left: nothing in the plan writes the operand, which may be read at once
};

struct alignas(64) Tile {
    int left_row, right_col;   // where its operands start
    int out_row, out_col;
    int rows, cols;            // what of it is stored
    int k_first, k_blocks;     // its pieces of K: Depth[k_first …], k_blocks · 64 deep in all
    int operands;              // index into Parameters.operands and .sides
    int accumulate;
    int wait_first, wait_count;   // Parameters.flags that must be up before it reads
    int signal;                // index into Parameters.signals, or -1
    int splits, split;         // it makes partial `split` of `splits`
    int slot;                  // partial and counter of split 0
};

struct Depth { int left, right, blocks, size; };   // where it starts in each; steps; size < 0: it is walked backwards
struct DepthWait { int first, count; };            // Parameters.flags that must be up before such a piece is read

struct Added {              // to a tile, beside the product
    int first, count;       // Parameters.terms
    int at, gap;            // steps of K before the first of their steps, and from one of them to the next
    int wait_first, wait_count;   // Parameters.flags that must be up before they are read
    int unused[2];
};

struct Term { int map, row, col, unused; };   // Parameters.term_maps, and where the tile's rows and columns start in it

struct Signal { u32 target, flag_first, flag_count, unused; };   // raised by the target-th warp that has stored its share

struct Parameters {
    Operands operands[8];
    Sides sides[8];
    const Tile* tiles;
    const Depth* depths;
    const u64* flags;       // addresses of 32-bit words, here or on a peer
    const Signal* signals;
    u32* signal_counts;     // zero before the first launch, left zero by each
    u32* split_counts;      // likewise; see Splits
    float* partials;
    const u32* epoch;       // what an up flag holds at least; null: 1
    const u32* abort;       // not zero: stop waiting (the host's watchdog); null: never
    int tile_count;
    int stages;
    const Added* added;     // of each tile
    const Term* terms;
    u32* ended;             // blocks that wait for nothing any more; zero before the first launch, left zero by each
    int lowered_first, lowered;   // flags that go down then
    const DepthWait* depth_waits; // of each of `depths`; null: none waits
    TensorMap term_maps[4];
};
static_assert(sizeof(Parameters) == 3968, "what the host writes");

// ---------------------------------------------------------------- PTX, one line each

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void barrier_init(u32 bar, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count));
}
__device__ __forceinline__ void barrier_expect(u32 bar, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(u32 bar, u32 parity) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "again:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}" ::"r"(bar), "r"(parity)
        : "memory");
}
// arrive on the same barrier of block `cta` of the cluster
// NOTE no `.release.cluster`: it costs a fence of the whole GPU, and what is released are reads, already complete
__device__ __forceinline__ void barrier_arrive(u32 bar, u32 cta) {
#if CLUSTER > 1
    asm volatile(
        "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(bar), "r"(cta)
        : "memory");
#else
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
#endif
}
__device__ __forceinline__ void load_box(u32 dst, const TensorMap* map, int x, int y, u32 bar) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
        ::"r"(dst), "l"(map), "r"(x), "r"(y), "r"(bar)
        : "memory");
}
__device__ __forceinline__ void load_box_for_all(u32 dst, const TensorMap* map, int x, int y, u32 bar) {
#if CLUSTER > 1
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(dst), "l"(map), "r"(x), "r"(y), "r"(bar), "h"((u16)((1 << CLUSTER) - 1))
        : "memory");
#else
    load_box(dst, map, x, y, bar);
#endif
}
__device__ __forceinline__ void store_box(const TensorMap* map, int x, int y, u32 src) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];\n"
                 "cp.async.bulk.commit_group;" ::"l"(map), "r"(x), "r"(y), "r"(src)
                 : "memory");
}
__device__ __forceinline__ void fetch_map(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
__device__ __forceinline__ void wait_staging() {   // until the buffer to be written next is read; PACED: all
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(STAGING > 0 && !PACED ? STAGING - 1 : 0) : "memory");
}
__device__ __forceinline__ void wait_stores_done() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// A launch may begin while the one before it on its stream ends: until all of that is written
__device__ __forceinline__ void wait_launch_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// … and the next one may begin once every block has said so, or ended
__device__ __forceinline__ void let_next_launch() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

__device__ __forceinline__ u32 load_acquire(const u32* p) {
    u32 v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void store_relaxed(u32* p, u32 v) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
__device__ __forceinline__ u32 count_up(u32* p) {
    u32 old;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(old) : "l"(p) : "memory");
    return old;
}
__device__ __forceinline__ u32 load_acquire_gpu(const u32* p) {
    u32 v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
// a word of the block; both atomic, which is what compute-sanitizer takes for no race
__device__ __forceinline__ u32 load_acquire_shared(u32 at) {
    u32 v;
    asm volatile("atom.acquire.cta.shared::cta.or.b32 %0, [%1], 0;" : "=r"(v) : "r"(at) : "memory");
    return v;
}
__device__ __forceinline__ void count_shared(u32 at) {
    asm volatile("red.release.cta.shared::cta.add.u32 [%0], 1;" ::"r"(at) : "memory");
}
struct Pair { int x, y; };
__device__ __forceinline__ Pair load_pair(const void* p) {   // as below
    Pair q;
    asm volatile("ld.global.nc.v2.s32 {%0, %1}, [%2];" : "=r"(q.x), "=r"(q.y) : "l"(p));
    return q;
}
struct Quad { int x, y, z, w; };
__device__ __forceinline__ Quad load_quad(const void* p) {   // of what no one writes; volatile: here, not where it is used
    Quad q;
    asm volatile("ld.global.nc.v4.s32 {%0, %1, %2, %3}, [%4];" : "=r"(q.x), "=r"(q.y), "=r"(q.z), "=r"(q.w) : "l"(p));
    return q;
}
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async;" ::: "memory"); }
__device__ __forceinline__ void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

__device__ __forceinline__ u32 block_in_cluster() {
    u32 r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}
__device__ __forceinline__ void sync_cluster() {
#if CLUSTER > 1
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
    __syncthreads();
#endif
}

// not through L1: another multiprocessor has written it
__device__ __forceinline__ float4 load_partial(const float4* p) {
    float4 v;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p));
    return v;
}

// ---------------------------------------------------------------- wgmma, for the one shape of this variant

// shared-memory descriptor, 128-byte swizzle. Stored along K: `lead` is unused. Stored along M or N: `lead` is the
// step from 64 columns to the next 64. `step` goes from 8 swizzle rows to the next 8.
__device__ __forceinline__ u64 descriptor(u32 address, u32 lead, u32 step) {
    return ((u64)(address & 0x3ffff) >> 4) | ((u64)(lead >> 4) << 16) | ((u64)(step >> 4) << 32) | (1ull << 62);
}

#define TEXT(x) #x
#define TEXT_OF(x) TEXT(x)
#define P10(t) "%" #t "0,%" #t "1,%" #t "2,%" #t "3,%" #t "4,%" #t "5,%" #t "6,%" #t "7,%" #t "8,%" #t "9,"
#define D8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), \
              "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define D32(i) D8(i), D8(i + 8), D8(i + 16), D8(i + 24)
#if TILE_N == 256
#define PLACES P10() P10(1) P10(2) P10(3) P10(4) P10(5) P10(6) P10(7) P10(8) P10(9) P10(10) P10(11) \
               "%120,%121,%122,%123,%124,%125,%126,%127"
#define VALUES D32(0), D32(32), D32(64), D32(96)
#define ARGS "%128, %129, use, 1, 1, "
#define USE "%130"
#elif TILE_N == 192
#define PLACES P10() P10(1) P10(2) P10(3) P10(4) P10(5) P10(6) P10(7) P10(8) "%90,%91,%92,%93,%94,%95"
#define VALUES D32(0), D32(32), D32(64)
#define ARGS "%96, %97, use, 1, 1, "
#define USE "%98"
#elif TILE_N == 160
#define PLACES P10() P10(1) P10(2) P10(3) P10(4) P10(5) P10(6) "%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define VALUES D32(0), D32(32), D8(64), D8(72)
#define ARGS "%80, %81, use, 1, 1, "
#define USE "%82"
#elif TILE_N == 128
#define PLACES P10() P10(1) P10(2) P10(3) P10(4) P10(5) "%60,%61,%62,%63"
#define VALUES D32(0), D32(32)
#define ARGS "%64, %65, use, 1, 1, "
#define USE "%66"
#elif TILE_N == 64
#define PLACES P10() P10(1) P10(2) "%30,%31"
#define VALUES D32(0)
#define ARGS "%32, %33, use, 1, 1, "
#define USE "%34"
#else
#error "no wgmma for this TILE_N"
#endif
#if HALF
#define TYPES ".f32.f16.f16 "
#else
#define TYPES ".f32.bf16.bf16 "
#endif

// d = left · right + (use ? d : 0), 16 deep
__device__ __forceinline__ void wgmma(float (&d)[ACC], u64 left, u64 right, int use) {
#if RIGHT_T && LEFT_T
#define MAJOR "1, 0;"
#elif RIGHT_T
#define MAJOR "0, 0;"
#elif LEFT_T
#define MAJOR "1, 1;"
#else
#define MAJOR "0, 1;"
#endif
    asm volatile("{\n.reg .pred use;\nsetp.ne.b32 use, " USE ", 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n" TEXT_OF(TILE_N) "k16" TYPES "{" PLACES "}, " ARGS MAJOR "\n}"
                 : VALUES
                 : "l"(left), "l"(right), "r"(use));
}

// ---------------------------------------------------------------- numbers

__device__ __forceinline__ u32 pack(float low, float high) {
    u32 v;
#if HALF
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
#else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
#endif
    return v;
}
__device__ __forceinline__ void add_packed(float& low, float& high, u32 v) {
#if HALF
    float a, b;
    asm("{\n.reg .f16 l, h;\nmov.b32 {l, h}, %2;\ncvt.f32.f16 %0, l;\ncvt.f32.f16 %1, h;\n}" : "=f"(a), "=f"(b) : "r"(v));
    low += a;
    high += b;
#else
    low += __uint_as_float(v << 16);
    high += __uint_as_float(v & 0xffff0000u);
#endif
}

// ---------------------------------------------------------------- the kernel

// Until every flag of the tile is up, `lane` of `lanes` looking at its share: each look takes a microsecond. Copy engines
// and peers write both flags and data: acquire at system scope.
__device__ __forceinline__ void wait_flags(const Parameters& p, int first, int count, int lane, int lanes) {
    const u32 goal = p.epoch ? *(const volatile u32*)p.epoch : 1u;
    for (int i = lane; i < count; i += lanes) {
        const u32* flag = (const u32*)p.flags[first + i];
        u32 turns = 0;
        while ((int)(load_acquire(flag) - goal) < 0)
            if (p.abort && (++turns & 255) == 0 && *(const volatile u32*)p.abort) return;
    }
}

#if TERMS
// Where a tile's terms are, among its steps of K.
struct Steps {
    int left, at, gap;   // of the terms; steps of K before the next of them

    __device__ __forceinline__ Steps(int terms, int at, int gap) : left(terms * TERM_STEPS), at(at), gap(gap) {}
    __device__ __forceinline__ bool due(int b) const { return left > 0 && at == b + 1; }   // behind step b of K
    __device__ __forceinline__ int part() const { return (left - 1) % TERM_STEPS; }        // of the term, the last one first
    __device__ __forceinline__ void advance() { --left, at += gap; }
};
#endif

// This block's share of a step of the right operand, for all blocks of its cluster.
__device__ __forceinline__ void load_right(const TensorMap& map, u32 to, int col, int k, u32 me, u32 bar) {
    if (RIGHT_T) {   // a share is some of the columns
        constexpr int share = TILE_N / CLUSTER;
        load_box_for_all(to + me * share * 128, &map, k, col + me * share, bar);
    } else if (RIGHT_ATOMS % CLUSTER == 0) {   // a share is some of the 64-column atoms
        constexpr int share = RIGHT_ATOMS / CLUSTER;
#pragma unroll
        for (int i = 0; i < share; ++i)
            load_box_for_all(to + (me * share + i) * ATOM, &map, col + 64 * (me * share + i), k, bar);
    } else {                                   // a share is some of the depth of each
        constexpr int share = TILE_K / CLUSTER;
#pragma unroll
        for (int i = 0; i < RIGHT_ATOMS; ++i)
            load_box_for_all(to + i * ATOM + me * share * 128, &map, col + 64 * i, k + me * share, bar);
    }
}

// What the block waits for, in the order in which its tiles need it: for a tile's flags, for those of its pieces of K, for
// those of its terms, each where they are not the ones before. `seen` is how many of these are up. A look takes one to two
// microseconds, even at a flag that is up; ahead of the warps that feed it costs them nothing where it is up in time.
__device__ __forceinline__ void watch(const Parameters& p, u32 seen) {
    const int lane = threadIdx.x & 31;
    bool begun = false;
    auto look = [&](int first, int flags) {
        if (!begun) wait_launch_before();
        begun = true;
        wait_flags(p, first, flags, lane, 32);
        __syncwarp();   // all lanes have acquired theirs
        fence_async_proxy();   // NOTE what feeds loads by the async proxy: acquire alone does not order that
        if (lane == 0) count_shared(seen);
    };
    int waited = -1;
#if TERMS
    int terms_waited = -1;
#endif
    for (int index = blockIdx.x; index < p.tile_count; index += gridDim.x) {
        const Tile* t = p.tiles + index;
        const Quad wait = load_quad(&t->operands);   // operands · wait_first wait_count
        if (wait.w > 0 && wait.z != waited) look(waited = wait.z, wait.w);
        if (p.depth_waits) {
            const Quad more = load_quad(&t->rows);   // · · k_first k_blocks
            for (int piece = more.z, left = more.w; left > 0; ++piece) {
                const Pair w = load_pair(p.depth_waits + piece);
                if (w.y > 0) look(w.x, w.y);
                left -= load_quad(p.depths + piece).z;
            }
        }
#if TERMS
        const Pair flags = load_pair(&p.added[index].wait_first);
        if (flags.y > 0 && flags.x != terms_waited) look(terms_waited = flags.x, flags.y);
#endif
    }
    if (lane == 0 && p.lowered > 0 && atomicAdd(p.ended, 1u) == gridDim.x - 1) {
        *p.ended = 0;
        for (int i = 0; i < p.lowered; ++i) *(u32*)p.flags[p.lowered_first + i] = 0;
    }
}

// Until `count` of what the block waits for is up.
__device__ __forceinline__ void wait_seen(u32 seen, u32 count) {
    while (load_acquire_shared(seen) < count) __nanosleep(32);
}

// What fills the ring: a warp for the right operand, and one for the left operand and terms, whose first lanes ask for
// boxes. Neither waits for the other, so that a right operand that nothing writes is on its way while the left one's
// flags are looked for.
template <bool RIGHT> __device__ __forceinline__ void feed(const Parameters& p, u32 ring, u32 full, u32 empty, u32 seen) {
    const u32 me = CLUSTER > 1 ? block_in_cluster() : 0;
    const int lane = threadIdx.x & 31;
    int stage = 0;   // this and what else changes in the loop over steps are the first lane's
    u32 phase = 0;
    int waited = -1;
    u32 count = 0;   // of what `watch` has looked for, up to here
    bool begun = false;   // what the launch before this one has written may be read
    auto begin = [&] {
        wait_launch_before();
        fence_async_proxy();
        begun = true;
    };
    // entries are read a tile ahead: their way from memory is longer than the ring is deep
    Quad place, more, wait, depth;   // left_row right_col · · | · · k_first k_blocks | operands · wait_first wait_count | Depth
    int index = blockIdx.x;
    if (index < p.tile_count) {
        const Tile* t = p.tiles + index;
        place = load_quad(t), more = load_quad(&t->rows), wait = load_quad(&t->operands);
        depth = load_quad(p.depths + more.z);
    }
#if TERMS
    Quad added, term;   // first count at gap | map row col ·
    int terms_waited = -1;
    if (index < p.tile_count) {
        added = load_quad(p.added + index);
        if (!RIGHT && added.y > 0) term = load_quad(p.terms + added.x);
    }
#endif
    while (index < p.tile_count) {
        const Operands* o = p.operands + wait.x;
        const Sides* side = p.sides + wait.x;
        const bool constant = side->constant & (RIGHT ? 1 : 2);
        const bool waits = wait.w > 0 && wait.z != waited;
        if (waits) ++count, waited = wait.z;
        // NOTE where a left operand is constant the tile waits all the same, for who still reads where it is stored
        if (!constant || (!RIGHT && wait.w > 0)) {
            if (!begun) begin();
            wait_seen(seen, count);
        }
        const int left_row = place.x, right_col = place.y, blocks = more.w;
        int piece = more.z, left_k = depth.x, right_k = depth.y, remain = depth.z, on = depth.w < 0 ? -TILE_K : TILE_K;
        bool looks = p.depth_waits && !constant;   // whether flags are to be looked for before the next step
#if TERMS
        Steps steps(added.y, added.z, added.w);
        int record = added.x;
        Quad now = term;
        const Pair flags = load_pair(&p.added[index].wait_first);   // NOTE pieces of K of a tile that has terms wait for none
        if (flags.y > 0 && flags.x != terms_waited) ++count, terms_waited = flags.x;
#endif
        index += gridDim.x;
        const bool another = index < p.tile_count;
        if (another) {
            const Tile* t = p.tiles + index;
            place = load_quad(t), more = load_quad(&t->rows), wait = load_quad(&t->operands);
#if TERMS
            added = load_quad(p.added + index);
#endif
        }
        for (int b = 0; lane == 0 && b < blocks; ++b) {
            if (remain == 0) {
                const Quad d = load_quad(p.depths + ++piece);
                left_k = d.x;
                right_k = d.y;
                remain = d.z;
                on = d.w < 0 ? -TILE_K : TILE_K;
                looks = p.depth_waits && !constant;
            }
            if (looks) {
                if (load_pair(p.depth_waits + piece).y > 0) wait_seen(seen, ++count);
                looks = false;
            }
            if (another && b == min(4, blocks - 1)) {
                depth = load_quad(p.depths + more.z);
#if TERMS
                if (!RIGHT && added.y > 0) term = load_quad(p.terms + added.x);
#endif
            }
            const u32 bar = full + 8 * stage, left = ring + stage * STAGE_BYTES;
            barrier_wait(empty + 8 * stage, phase ^ 1);
            if (RIGHT) {
                barrier_expect(bar, (u32)side->stage_bytes);   // both operands'
                load_right(o->right, left + LEFT_BYTES, right_col, right_k, me, bar);
            } else if (LEFT_T) {
#pragma unroll
                for (int i = 0; i < TILE_M / 64; ++i) load_box(left + i * ATOM, &o->left, left_row + 64 * i, left_k, bar);
            } else {
                load_box(left, &o->left, left_k, left_row, bar);
            }
            left_k += on;
            right_k += on;
            --remain;
            if (++stage == p.stages) {
                stage = 0;
                phase ^= 1;
            }
#if TERMS
            for (; steps.due(b); steps.advance()) {
                if (!RIGHT) {
                    if (!begun) begin();
                    wait_seen(seen, count);
                }
                // NOTE both wait, and both are waited for: barriers tell even turns from odd ones only
                barrier_wait(empty + 8 * stage, phase ^ 1);
                if (RIGHT) {
                    barrier_expect(full + 8 * stage, TERM_BYTES);
                } else {
#pragma unroll
                    for (int i = 0; i < TERM_ATOMS; ++i)
                        load_box(ring + stage * STAGE_BYTES + i * TERM_ROWS * 128, p.term_maps + now.x, now.z + 64 * i,
                                 now.y + steps.part() * TERM_ROWS, full + 8 * stage);
                    if (steps.part() == 0 && steps.left > 1) now = load_quad(p.terms + ++record);
                }
                if (++stage == p.stages) {
                    stage = 0;
                    phase ^= 1;
                }
            }
#endif
        }
        __syncwarp();
    }
    if (!RIGHT) let_next_launch();   // NOTE not before: it takes multiprocessors, which what this one waits for may need
}

#if PACED
// Boxes of a warp's part of a tile that are still to be stored: a bit for each buffer, and where the first one goes.
struct Boxes {
    u32 left;
    const TensorMap* map;
    int x, y;

    // All lanes: the first one leaves.
    __device__ __forceinline__ void send(u32 staging) {
        const int i = __ffs(left) - 1;
        left &= left - 1;
        if ((threadIdx.x & 31) == 0)
            store_box(map, x + i % CHUNKS * CHUNK_COLS, y + i / CHUNKS * 64, staging + i * CHUNK_BYTES);
        __syncwarp();
    }
    __device__ __forceinline__ void send_all(u32 staging) {
        while (left) send(staging);
    }
};
#endif

// 16 rows of a warp: to shared memory, 128 bytes of each row at a time, and out. `row`: the first, in the tile;
// `lanes`: a bit for each of those whose rows are stored; `turn`: the buffer to write next. PACED: whole boxes do not go
// out, and their bits are set in `turn`.
__device__ __forceinline__ void store_rows(const Parameters& p, const Tile& t, float (&d)[ACC], int row, u32 lanes,
                                           u32 staging, u32& turn) {
    const Sides& side = p.sides[t.operands];
    const int lane = threadIdx.x & 31;
    const bool mine = lanes >> lane & 1;
    const int rows = min(16, t.rows - row), tile_cols = t.cols, out_row = t.out_row + row, out_col = t.out_col;
    if (rows <= 0 || lanes == 0) return;
    constexpr int item = OUT_FP32 ? 4 : 2;
    u8* const corner = side.out + ((long long)out_row * side.out_pitch + out_col) * item;
    const long long pitch = side.out_pitch * item;
    if (t.accumulate) {
        // the accumulators' own places: 8 rows of 4 threads, two neighbours each
        const int r = lane >> 2, c = (lane & 3) * 2;
#pragma unroll
        for (int j = 0; j < ACC / 4; ++j) {
            if (mine && 8 * j + c < tile_cols) {
                const u8* at = corner + r * pitch + (8 * j + c) * item;
#if OUT_FP32
                if (r < rows) { float2 v = __ldcg((const float2*)at); d[4 * j] += v.x; d[4 * j + 1] += v.y; }
                if (r + 8 < rows) { float2 v = __ldcg((const float2*)(at + 8 * pitch)); d[4 * j + 2] += v.x; d[4 * j + 3] += v.y; }
#else
                if (r < rows) add_packed(d[4 * j], d[4 * j + 1], __ldcg((const u32*)at));
                if (r + 8 < rows) add_packed(d[4 * j + 2], d[4 * j + 3], __ldcg((const u32*)(at + 8 * pitch)));
#endif
            }
        }
    }
#if STAGING == 0
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int r = (lane >> 2) + 8 * h, q = lane & 3;
        u8* const to = corner + r * pitch;
#if OUT_FP32
#pragma unroll
        for (int j = 0; j < ACC / 4; ++j)
            if (mine && r < rows && 8 * j < tile_cols)
                *(float2*)(to + (8 * j + 2 * q) * item) = make_float2(d[4 * j + 2 * h], d[4 * j + 2 * h + 1]);
#else
        static_assert(TILE_N % 32 == 0, "four fragments at a time");
#pragma unroll
        for (int j = 0; j < ACC / 4; j += 4) {
            // four lanes hold a row of four fragments, two elements of each; turned, eight of one
            u32 v[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) v[i] = pack(d[4 * (j + i) + 2 * h], d[4 * (j + i) + 2 * h + 1]);
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
            const int col = (j + q) * 8;
            if (mine && r < rows && col < tile_cols) *(uint4*)(to + col * item) = make_uint4(v[0], v[1], v[2], v[3]);
        }
#endif
    }
#else
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        const int cols = min(CHUNK_COLS, tile_cols - c * CHUNK_COLS);
        if (cols <= 0) break;
#if PACED
        const u32 buffer = staging + c * CHUNK_BYTES;
#else
        const u32 buffer = staging + turn * CHUNK_BYTES;
        turn = (turn + 1) % STAGING;
        if (lane == 0) wait_staging();
        __syncwarp();
#endif
#if OUT_FP32
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int k = (4 * c + j) * 4;
            if (k >= ACC) break;
            const u32 r = lane >> 2, unit = 2 * j + ((lane & 3) >> 1), half = (lane & 1) * 8;
            const u32 at = buffer + r * 128 + ((unit ^ r) << 4) + half;
            asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(d[k]), "f"(d[k + 1]) : "memory");
            asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at + 1024), "f"(d[k + 2]), "f"(d[k + 3]) : "memory");
        }
#else
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
            const int k = (8 * c + j) * 4;
            if (k >= ACC) break;
            const u32 r = lane & 15, unit = j + (lane >> 4);
            const u32 at = buffer + r * 128 + ((unit ^ (r & 7)) << 4);
            asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at),
                         "r"(pack(d[k], d[k + 1])), "r"(pack(d[k + 2], d[k + 3])), "r"(pack(d[k + 4], d[k + 5])),
                         "r"(pack(d[k + 6], d[k + 7]))
                         : "memory");
        }
#endif
        fence_async_shared();
        __syncwarp();
        if (rows == 16 && cols == CHUNK_COLS && lanes == ~0u) {
#if PACED
            turn |= 1u << c;
#else
            if (lane == 0) store_box(&p.operands[t.operands].out_map, out_col + c * CHUNK_COLS, out_row, buffer);
#endif
        } else {   // a piece ends inside, or others store the rest: only what belongs to it
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const u32 r = (lane >> 3) + 4 * i, unit = lane & 7;
                if (r < rows && unit * (16 / item) < cols && (lanes >> 4 * (r & 7) & 1)) {
                    uint4 v;
                    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                                 : "r"(buffer + r * 128 + ((unit ^ (r & 7)) << 4)) : "memory");
                    *(uint4*)(corner + r * pitch + c * 128 + unit * 16) = v;
                }
            }
            // NOTE an empty group keeps the count of groups equal to the count of chunks
            if (!PACED && lane == 0) asm volatile("cp.async.bulk.commit_group;" ::: "memory");
            __syncwarp();
        }
    }
#endif
}

#if TERMS
// 64 rows of a term, the m-th of those in a stage from `rows` on, to a group's sums: 16 of them a warp.
__device__ __forceinline__ void add_term(float (&d)[ACC], u32 rows, int m) {
    const u32 lane = threadIdx.x & 31, r = lane & 15, warp = threadIdx.x >> 5 & 3;
#pragma unroll
    for (int j = 0; j < ACC / 4; j += 2) {   // as stmatrix puts them in store_rows
        const u32 unit = j % 8 + (lane >> 4);
        const u32 at = rows + j / 8 * TERM_ROWS * 128 + (m * 64 + warp * 16 + r) * 128 + ((unit ^ (r & 7)) << 4);
        u32 v[4];
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(at) : "memory");
#pragma unroll
        for (int i = 0; i < 4; ++i) add_packed(d[4 * j + 2 * i], d[4 * j + 2 * i + 1], v[i]);
    }
}
#endif

// One lane of a warp whose part of a tile is stored: counts it, and raises the work's flags if it is the last one.
__device__ __forceinline__ void stored(const Parameters& p, int signal) {
    const Quad s = load_quad(p.signals + signal);   // target, first flag, flags
    wait_stores_done();
    fence_async_proxy();
    if (count_up(p.signal_counts + signal) + 1 != (u32)s.x) return;
    p.signal_counts[signal] = 0;
    const u32 value = p.epoch ? *(const volatile u32*)p.epoch : 1u;
    __threadfence_system();   // releases all the flags: a fence for each would take a microsecond more
    for (int i = 0; i < s.z; ++i) store_relaxed((u32*)p.flags[s.y + i], value);
}

// Splits of K. Of each warp's sums, split s adds up and stores a share: some of every eight rows, which are a lane's
// own. Of the rest it leaves its part in memory, then counts itself, and waits a while for the others. A word for each
// warp of a tile carries who has come. It ends at zero, and needs no answer but for the first of these additions:
//
//   COME   each split, when its part is left
//   SEEN   each that has waited, when it has seen that all have come
//   -(splits · COME + SEEN · waiting + GONE of those gone)   the last one to come: negative until the last has seen
//   GONE << s   split s, tired of waiting, while not all have come: it has left its own share too, for the last one
//
// Nobody waits for ever, so that a grid that is not all on the device comes to its end too.
constexpr u32 COME = 1, SEEN = 1 << 5, GONE = 1 << 8;
constexpr int SHARES = 8;          // of a tile, at most
constexpr int PATIENCE = 128;      // looks at the word

__device__ __forceinline__ bool all_come(u32 state, u32 splits) { return (int)state < 0 || state % SEEN == splits; }

__device__ __forceinline__ void leave_part(const float (&d)[BLOCKS_M][ACC], float4* to, int high) {
#pragma unroll
    for (int m = 0; m < BLOCKS_M; ++m)
        if ((int)(threadIdx.x >> 2 & 7) < high - 64 * m)
#pragma unroll
            for (int i = 0; i < ACC / 4; ++i)
                __stcg(to + (m * (ACC / 4) + i) * 32,
                       make_float4(d[m][4 * i], d[m][4 * i + 1], d[m][4 * i + 2], d[m][4 * i + 3]));
}

// A part to the lane's sums; `first`: they start with it.
__device__ __forceinline__ void add_part(float (&d)[BLOCKS_M][ACC], const float4* from, int high, bool first) {
#pragma unroll
    for (int m = 0; m < BLOCKS_M; ++m)
        if ((int)(threadIdx.x >> 2 & 7) < high - 64 * m)
#pragma unroll
            for (int i = 0; i < ACC / 4; ++i) {
                const float4 v = load_partial(from + (m * (ACC / 4) + i) * 32);
                d[m][4 * i] = first ? v.x : d[m][4 * i] + v.x;
                d[m][4 * i + 1] = first ? v.y : d[m][4 * i + 1] + v.y;
                d[m][4 * i + 2] = first ? v.z : d[m][4 * i + 2] + v.z;
                d[m][4 * i + 3] = first ? v.w : d[m][4 * i + 3] + v.w;
            }
}

// The warp's share of the tile, of `high` rows from its first on: the lanes, a bit each, whose sums are whole now.
__device__ __forceinline__ u32 add_splits(const Parameters& p, const Tile& t, float (&d)[BLOCKS_M][ACC], int warp,
                                          int high) {
    constexpr int part = WARPS * BLOCKS_M * ACC / 4 * 32;   // from a split's to the next one's
    const u32 lane = threadIdx.x & 31, splits = t.splits, split = t.split;
    const u32 shares = min(splits, SHARES), owner = (lane >> 2) * shares / SHARES;
    float4* const parts = (float4*)p.partials + (long long)t.slot * part + warp * (part / WARPS) + lane;
    u32* const word = p.split_counts + t.slot * WARPS + warp;
    if (owner != split) leave_part(d, parts + split * part, high);
    __syncwarp();
    u32 mine = 1 << split;   // shares that are this split's to store, a bit each
    bool tired = false;
    if (lane == 0) {
        u32 state = count_up(word) + COME;
        if (state % SEEN == splits) {
            const u32 gone = state / GONE, waiting = shares - (split < shares) - __popc(gone);
            atomicAdd(word, -(splits * COME + SEEN * waiting + GONE * gone));
            mine |= gone;
        } else if (split >= shares) {
            mine = 0;
        } else {
            for (int i = 0; i < PATIENCE && !all_come(state, splits); ++i) state = load_acquire_gpu(word);
            tired = !all_come(state, splits);
            if (!tired) atomicAdd(word, SEEN);
        }
    }
    if (__any_sync(~0u, tired)) {
        if (owner == split) leave_part(d, parts + split * part, high);
        __syncwarp();
        if (lane == 0) {
            __threadfence();
            u32 state = load_acquire_gpu(word), before;
            while (!all_come(state, splits) && (before = atomicCAS(word, state, state | GONE << split)) != state)
                state = before;
            if (all_come(state, splits)) {
                __threadfence();
                atomicAdd(word, SEEN);
            } else {
                mine = 0;
            }
        }
    }
    __syncwarp();   // what lane 0 has seen, all have
    mine = __shfl_sync(~0u, mine, 0);
    const bool whole = mine >> owner & 1;
    if (whole) {   // always in the same order: the owner's part, and the next ones', the first behind the last
        if (owner != split) add_part(d, parts + owner * part, high, true);
        u32 s = owner;
#pragma unroll 1
        for (u32 i = 1; i < splits; ++i) {
            s = s + 1 < splits ? s + 1 : 0;
            add_part(d, parts + s * part, high, false);
        }
    }
    return __ballot_sync(~0u, whole);
}

#if PINGPONG
// Steps of the ring that a tile takes.
__device__ __forceinline__ int steps_of(const Parameters& p, int index) {
    if (index >= p.tile_count) return 0;
#if TERMS
    return __ldg(&p.tiles[index].k_blocks) + __ldg(&p.added[index].count) * TERM_STEPS;
#else
    return __ldg(&p.tiles[index].k_blocks);
#endif
}

// So many steps on in the ring.
__device__ __forceinline__ void pass(int& stage, u32& phase, int steps, int stages) {
    stage += steps;
    phase ^= stage / stages & 1;
    stage %= stages;
}

// NOTE A group looks at the ring only when the other one has seen the last step of the tile before it come: barriers tell
// even turns from odd ones, and a full barrier that is a turn behind would look like one that is done. By then all
// steps before the group's own have come, one by one (each group sees all of its own, in order); so a full barrier is at
// most the group's own turn behind, and never ahead of it: its stage is filled again only when the group gives it back.
//
// Nobody waits for ever: a tile's turn comes with the last load of the tile before, which waits for stages of earlier
// tiles, given back at the end of each one's loop, and for flags, never for a tile's stores but through a signal; and a
// signal is counted right behind its tile's stores, by a group that waits for no turn and no load meanwhile. Tile i + 1
// of a block is waited for exactly where there is one and said exactly then, once each, and one group cannot say it
// twice: between the two it has waited for a turn of its own. Blocks of a cluster make as many tiles, of as many steps
// each (kernels/tiles.py), so that the groups that give a stage back are those that read it, one of each block.
__device__ __forceinline__ void wait_turn(int group) { asm volatile("bar.sync %0, 256;" ::"r"(3 + group) : "memory"); }
__device__ __forceinline__ void give_turn(int group) { asm volatile("bar.arrive %0, 256;" ::"r"(4 - group) : "memory"); }
#endif

__device__ __forceinline__ void consume(const Parameters& p, u32 ring, u32 staging, u32 full, u32 empty) {
    const int thread = threadIdx.x - 128, lane = thread & 31, self = thread >> 7;
    const int group = PINGPONG ? 0 : self, warp = PINGPONG ? thread >> 5 & 3 : thread >> 5;   // of those that make a tile
    int stage = 0;
    u32 phase = 0, turn = 0;
    staging += (thread >> 5) * STAGING * CHUNK_BYTES;
    // where this group's rows start in a stage
    const u32 left_base = ring + group * BLOCKS_M * ATOM;
    constexpr u32 left_step = LEFT_T ? 2048 : 32, right_step = RIGHT_T ? 32 : 2048;   // bytes, 16 deep
    const u32 start = blockIdx.x + (PINGPONG ? self * gridDim.x : 0), stride = (PINGPONG ? 2 : 1) * gridDim.x;
    int blocks = start < p.tile_count ? __ldg(&p.tiles[start].k_blocks) : 0;
#if PINGPONG
    if (self > 0) pass(stage, phase, steps_of(p, blockIdx.x), p.stages);
#endif
#if PACED
    Boxes boxes = {};
#endif
    int pending = -1;   // the signal of a stored tile that is not counted yet: its stores end behind the next tile's loads
    for (int index = start; index < p.tile_count; index += stride) {
        float d[BLOCKS_M][ACC];
        const int next = index + stride;
        // asked for now, needed after the loop; by turns while its last step is multiplied, for registers are few
        const Tile* entry = p.tiles + index;
        Quad place, size, rest, end;
        auto ask = [&] {
            place = load_quad(entry), size = load_quad(&entry->rows);
            rest = load_quad(&entry->operands), end = load_quad(&entry->signal);
        };
        if (!PINGPONG) ask();
        const int next_blocks = !PINGPONG && next < p.tile_count ? __ldg(&p.tiles[next].k_blocks) : 0;
#if PINGPONG
        const int others = steps_of(p, index + gridDim.x);   // of the other group's tile; 0: there is none
        if (index >= gridDim.x) wait_turn(self);
#endif
        int next_waits = next >= p.tile_count;   // blocks of a cluster load for each other: any of their tiles counts
#pragma unroll
        for (int c = 0, first = next - next % CLUSTER; c < CLUSTER; ++c)
            if (first + c < p.tile_count) next_waits |= __ldg(&p.tiles[first + c].wait_count);
#if TERMS
        const Quad added = load_quad(p.added + index);   // · count at gap
        Steps steps(added.y, added.z, added.w);
        int before = -1;   // the stage that is to be given back
#else
        int before = 0;
#endif
        // behind which step of K the tile before is counted: its stores have ended by then, or soon. NOTE before the
        // first of the terms is waited for: that may be for this very signal
        int count_at = PACED ? blocks - 1 : 3;
#if TERMS
        if (__ldg(&p.added[index].wait_count) > 0) count_at = min(count_at, added.z - 1);
#endif
#if PACED
        const int pace = max(1, blocks / STAGING);
        int send_at = 0;
#endif
        for (int b = 0; b < blocks; ++b) {
            barrier_wait(full + 8 * stage, phase);
            const u32 left = left_base + stage * STAGE_BYTES;
            const u64 right = descriptor(ring + stage * STAGE_BYTES + LEFT_BYTES, ATOM, 1024);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < TILE_K / 16; ++k)
#pragma unroll
                for (int m = 0; m < BLOCKS_M; ++m)
                    wgmma(d[m], descriptor(left + m * ATOM, ATOM, 1024) + k * (left_step >> 4),
                          right + k * (right_step >> 4), k > 0 ? 1 : b);
            wgmma_commit();
            wgmma_wait<1>();   // the stage before this one is read
            if ((TERMS ? before >= 0 : b > 0) && (thread & 127) < CLUSTER) barrier_arrive(empty + 8 * before, thread & 127);
            before = stage;
            if (++stage == p.stages) {
                stage = 0;
                phase ^= 1;
            }
#if PACED
            if (boxes.left && b >= send_at) {
                boxes.send(staging);
                send_at += pace;
            }
#endif
            if (!PINGPONG && b == count_at && pending >= 0) {
#if PACED
                boxes.send_all(staging);
#endif
                if (lane == 0) stored(p, pending);
                __syncwarp();
                pending = -1;
            }
#if TERMS && !PINGPONG
            for (; steps.due(b); steps.advance()) {
                if (TERM_STEPS == 1 || steps.part() == group) {
                    wgmma_wait<0>();
                    if (before >= 0 && (thread & 127) < CLUSTER) barrier_arrive(empty + 8 * before, thread & 127);
                    before = -1;
                    barrier_wait(full + 8 * stage, phase);
                    const u32 rows = ring + stage * STAGE_BYTES + (TERM_STEPS == 1 ? group * BLOCKS_M * ATOM : 0);
#pragma unroll
                    for (int m = 0; m < BLOCKS_M; ++m) add_term(d[m], rows, m);
                } else {
                    if (steps.gap == 0 || p.stages == 2) {   // NOTE the next step of K may come to the stage that is kept
                        wgmma_wait<0>();
                        if (before >= 0 && (thread & 127) < CLUSTER) barrier_arrive(empty + 8 * before, thread & 127);
                        before = -1;
                    }
                    barrier_wait(full + 8 * stage, phase);   // NOTE not given back before it comes: barriers count turns
                }
                // all warps of the group have read it. NOTE or seen it come: one that counted a signal meanwhile would
                // find it two turns on, and wait for ever
                asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory");
                if ((thread & 127) < CLUSTER) barrier_arrive(empty + 8 * stage, thread & 127);
                if (++stage == p.stages) {
                    stage = 0;
                    phase ^= 1;
                }
            }
#endif
        }
#if PINGPONG && TERMS
        const int ahead = min(steps.left, p.stages / 2);   // the last steps: all have come before the first is added
        if (ahead == 0 && others > 0) give_turn(self);
#elif PINGPONG
        if (others > 0) give_turn(self);   // the last step is still being multiplied
#endif
        if (PINGPONG && !TERMS) ask();
        wgmma_wait<0>();
        if ((!TERMS || before >= 0) && (thread & 127) < CLUSTER) barrier_arrive(empty + 8 * before, thread & 127);
#if PINGPONG && TERMS
        while (steps.left > 0) {
#pragma unroll
            for (int part = TERM_STEPS - 1; part >= 0; --part, --steps.left) {   // as Steps::part counts them
                barrier_wait(full + 8 * stage, phase);
                if (steps.left == ahead) {
                    int last = stage;
                    u32 then = phase;
#pragma unroll 1
                    for (int i = 1; i < ahead; ++i) {
                        pass(last, then, 1, p.stages);
                        barrier_wait(full + 8 * last, then);
                    }
                    if (others > 0) give_turn(self);
                }
                const u32 rows = ring + stage * STAGE_BYTES;
#pragma unroll
                for (int m = 0; m < BLOCKS_M / TERM_STEPS; ++m) add_term(d[part + m], rows, m);
                asm volatile("bar.sync %0, 128;" ::"r"(1 + self) : "memory");   // all warps of the group have read it
                if ((thread & 127) < CLUSTER) barrier_arrive(empty + 8 * stage, thread & 127);
                pass(stage, phase, 1, p.stages);
            }
        }
        ask();
#endif
#if PINGPONG
        pass(stage, phase, others, p.stages);
#endif
        blocks = next_blocks;
#if PACED
        boxes.send_all(staging);
#endif
        if (!PINGPONG && pending >= 0) {   // too few steps to do it among them
            if (lane == 0) stored(p, pending);
            __syncwarp();
            pending = -1;
        }

        const Tile t = {place.x, place.y, place.z, place.w, size.x, size.y, size.z, size.w,
                        rest.x,  rest.y,  rest.z,  rest.w,  end.x,  end.y,  end.z,  end.w};
        u32 lanes = ~0u;
        if (index == start) wait_launch_before();   // NOTE it may still read or write what is written from here on
        if (t.splits > 1) {
            const int high = t.rows - group * 64 * BLOCKS_M - (warp & 3) * 16;
            if (high > 0) lanes = add_splits(p, t, d, warp, high);
        }
        if (t.accumulate && t.wait_count > 0) {   // what it adds to may have been written in this very launch
            wait_flags(p, t.wait_first, t.wait_count, lane, 32);
            __syncwarp();
        }
#if PACED
        if (lane == 0) wait_staging();
        __syncwarp();
        boxes.map = &p.operands[t.operands].out_map;
        boxes.x = t.out_col, boxes.y = t.out_row + group * 64 * BLOCKS_M + (warp & 3) * 16;
#endif
#pragma unroll
        for (int m = 0; m < BLOCKS_M; ++m) {
#if PACED
            turn = 0;
#endif
            store_rows(p, t, d[m], (group * BLOCKS_M + m) * 64 + (warp & 3) * 16, lanes,
                       staging + (PACED ? m * CHUNKS * CHUNK_BYTES : 0), turn);
#if PACED
            boxes.left |= turn << (m * CHUNKS);
#endif
        }
        __syncwarp();   // all lanes' stores, before lane 0 counts them
        pending = t.signal;
        // NOTE a tile that waits may wait for this very signal: then it must not stay behind. By turns, none is: the other
        // group multiplies meanwhile, and its tile comes next
        if (pending >= 0 && (PINGPONG || next_waits > 0)) {
#if PACED
            boxes.send_all(staging);
#endif
            if (lane == 0) stored(p, pending);
            __syncwarp();
            pending = -1;
        }
        if (PINGPONG && next < p.tile_count) blocks = __ldg(&p.tiles[next].k_blocks);   // a register less until here
    }
#if PACED
    boxes.send_all(staging);
#endif
    if (lane == 0) wait_stores_done();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) ENTRY(const __grid_constant__ Parameters p) {
    extern __shared__ u8 dynamic[];
    __shared__ alignas(8) u64 barriers[2 * MAX_STAGES];
    __shared__ u32 waits_seen;
    const u32 ring = (shared_address(dynamic) + 1023) & ~1023u;
    const u32 staging = ring + p.stages * STAGE_BYTES;
    const u32 full = shared_address(barriers), empty = full + 8 * MAX_STAGES, seen = shared_address(&waits_seen);
    if (threadIdx.x == 128) {
        fetch_map(&p.operands[0].left);
        fetch_map(&p.operands[0].right);
        fetch_map(&p.operands[0].out_map);
#if TERMS
        fetch_map(p.term_maps);
#endif
    }
    if (threadIdx.x == 0) {
        waits_seen = 0;
        for (int i = 0; i < p.stages; ++i) {
            barrier_init(full + 8 * i, 1);
            barrier_init(empty + 8 * i, GROUPS * CLUSTER);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    sync_cluster();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGS));
        if (threadIdx.x < 32) feed<false>(p, ring, full, empty, seen);
        else if (threadIdx.x < 64) feed<true>(p, ring, full, empty, seen);
        else if (threadIdx.x < 96) watch(p, seen);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGS));
        consume(p, ring, staging, full, empty);
    }
#if CLUSTER > 1
    __syncwarp();
    sync_cluster();   // a block must not go while its neighbour still arrives on its barriers
#endif
}
