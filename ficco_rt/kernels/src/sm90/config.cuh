// A variant's shapes, made once from its -D defines (see sm90_gemm.cu), and the layout of shared memory.
#pragma once
#include "../tiles.h"

#ifndef FP8
#define FP8 0
#define SCALES 0
#define FAST 0
#endif
#ifndef LEFT_SHARED
#define LEFT_SHARED 0
#endif
#ifndef BOX_ROWS
#define BOX_ROWS 16
#endif

#if SCALES == 2
typedef ScaledParameters Parameters;
#else
typedef MappedParameters Parameters;
#endif

constexpr int TILE_K = FP8 ? 128 : 64;             // elements: 128 bytes, one swizzle row
constexpr int GROUPS = PINGPONG ? 1 : CONSUMERS;   // consumer groups that make a tile together
#ifdef TILE_ROWS
// The operands are exchanged: wgmma makes the transposed tile, 64 columns of the right operand for each of its blocks. So
// the tile may have any multiple of 8 rows.
#define SWAPPED 1
#ifndef PARTS
#define PARTS 1
#endif
constexpr int TILE_M = TILE_ROWS;
#define WGMMA_N TILE_ROWS
#else
#define SWAPPED 0
#define PARTS 1
constexpr int TILE_M = 64 * BLOCKS_M * GROUPS;
#define WGMMA_N TILE_N
#endif
constexpr int THREADS = 128 * (CONSUMERS + 1);
constexpr int WARPS = 4 * GROUPS;                  // that store a tile
constexpr int ACC = WGMMA_N / 2;                   // a thread's accumulators of a block of 64

// A stage of the ring holds a step of both operands.
constexpr int ATOM = 64 * 128;                     // bytes of 64 swizzle rows
constexpr int LEFT_BYTES = TILE_M * 128;
constexpr int RIGHT_ATOMS = (TILE_N + 63) / 64;
constexpr int RIGHT_BYTES = RIGHT_T ? TILE_N * 128 : RIGHT_ATOMS * ATOM;
constexpr int STAGE_BYTES = LEFT_BYTES + RIGHT_BYTES;
// RIGHT_T: columns that a block of the cluster loads for all of them, whole swizzle atoms. If they are more than its
// share, neighbours load the columns between twice, to the same place.
constexpr int RIGHT_SLICE = LEFT_SHARED ? TILE_N : (TILE_N / CLUSTER + 7) / 8 * 8;
constexpr int MAX_STAGES = 16;

// Or it holds rows of an addend: those of the whole tile, or of one consumer; with PINGPONG, of a 64-row block.
constexpr int ADDEND_ATOMS = (TILE_N + 63) / 64;
constexpr int ADDEND_STEPS = TILE_M * ADDEND_ATOMS <= TILE_M + TILE_N ? 1 : CONSUMERS;   // stages that an addend takes
constexpr int ADDEND_ROWS = TILE_M / ADDEND_STEPS;
constexpr int ADDEND_BYTES = ADDEND_ATOMS * ADDEND_ROWS * 128;

// Scales of blocks, see ScaleFeeder. Tiles start at multiples of UNIFORM columns, and touch at most SPANNED blocks of 128
// columns of the right operand.
constexpr bool PROMOTED = FP8 && !FAST;            // sums of a step are added to others in registers
constexpr bool BLOCK_SCALES = SCALES == 2;
// Loads begin before the warp groups part.
constexpr bool EARLY = !ADDENDS && ((CLUSTER == 1 && (BLOCKS_M * ACC <= 64 || !(FP8 || PARTS > 1))) ||
                                    (BLOCK_SCALES && CONSUMERS == 2 && !SWAPPED && (CLUSTER == 1 || LEFT_SHARED)));
constexpr bool UNROLLED = PROMOTED && !THROTTLED && !ADDENDS;   // by four steps
// A step is multiplied while the one before is added. NOTE with scales of rows the compiler would wait for each wgmma
constexpr bool OVERLAPPED = UNROLLED && BLOCK_SCALES && BLOCKS_M == 1 && ACC <= (CONSUMERS == 2 && !SWAPPED ? 64 : 32);
// A tile's last step has code of its own. NOTE with 128 rows of sums a consumer has no registers for that
constexpr int LAST_APART = UNROLLED && BLOCK_SCALES && !OVERLAPPED && BLOCKS_M == 1;
constexpr int UNIFORM = TILE_N % 128 == 0 ? 128 : TILE_N % 64 == 0 ? 64 : TILE_N % 32 == 0 ? 32 : 16;
constexpr int SPANNED = (TILE_N + 255 - UNIFORM) / 128;
constexpr int SLOTS = 2;                           // of scales of some steps, or of a tile
// NOTE few rows are read by all blocks at once: in one piece of 64 bytes each, because L2 answers slowly to so many who ask
// for the same lines, and all loads wait behind; 80 bytes take it longer still
constexpr int SLOT_STEPS = TILE_M <= 64 ? 16 : 8;  // whose scales a box brings, if it starts with them: at a multiple of four
constexpr int SLOT_PITCH = 4 * SLOT_STEPS;         // of rows, bytes; those of 64 are swizzled
constexpr int ORDER_BYTES = 8 * SLOT_STEPS + 16;   // of a slot, behind the rows of all: scales of columns, and the order
constexpr int SLOT_BYTES = TILE_M * SLOT_PITCH + ORDER_BYTES;
constexpr int SCALE_BYTES = SLOTS * (BLOCK_SCALES ? SLOT_BYTES : SCALES ? (TILE_M + TILE_N) * 4 : 0);

// PARTS: what a block holds of the others' sums, four of a lane at a time: those of its share of the tile's rows.
constexpr int EIGHTS = ACC / 4;                    // of a tile's rows, SWAPPED
constexpr int PART_SHARES = PARTS < EIGHTS ? PARTS : EIGHTS;
constexpr int HELD = (EIGHTS + PART_SHARES - 1) / PART_SHARES;   // of them, at most, that are a block's to store
constexpr int HELD_BYTES = HELD * 512;             // of 64 columns, for a warp

// A warp stores 16 rows at a time, a chunk of 128 bytes of each, from buffers of its own: no barrier among warps. BOX_ROWS
// 64: a group stores whole tiles, in boxes that its four warps fill together, and each warp copies what is left of others.
constexpr bool GROUP_BOXES = BOX_ROWS == 64;
constexpr int TURNED = 32;                         // SWAPPED: rows that a group turns at once …
constexpr bool IN_LINES = TILE_N > 64 && TILE_M > 16;   // … and stores together
constexpr int CHUNK_BYTES = (SWAPPED ? TURNED / 4 : 16) * 128;
constexpr int CHUNK_COLS = OUT_FP32 ? 32 : 64;
constexpr int CHUNKS = (TILE_N + CHUNK_COLS - 1) / CHUNK_COLS;
constexpr int OUT_ITEM = OUT_FP32 ? 4 : 2;         // bytes of an element of the output

static_assert(sizeof(Parameters) <= (BLOCK_SCALES ? 32764 : 4096), "what a launch may be given");
static_assert(WGMMA_N % 8 == 0 && WGMMA_N <= 256, "wgmma shapes");
static_assert(!SWAPPED || (TILE_N == 64 * BLOCKS_M * GROUPS && STAGING == 1), "whole blocks of columns, a buffer a warp");
static_assert(!SWAPPED || !(LEFT_T || OUT_FP32 || ADDENDS || PINGPONG || THROTTLED), "the plain product alone");
static_assert(LEFT_BYTES % 1024 == 0 && RIGHT_BYTES % 1024 == 0, "swizzle atoms are 1024 bytes");
static_assert(!THROTTLED || STAGING == BLOCKS_M * CHUNKS, "a buffer for each box that a warp stores");
static_assert(!GROUP_BOXES || (STAGING == BLOCKS_M * CHUNKS && STAGING <= 4 && TILE_N % CHUNK_COLS == 0 && !PINGPONG),
              "a box for a warp at most");
static_assert(PARTS == 1 || CLUSTER == 1, "blocks of a cluster share an operand, or a tile");
static_assert(!LEFT_SHARED || (FP8 && TILE_M % (8 * CLUSTER) == 0), "each block loads whole swizzle atoms");
static_assert(!FP8 || (RIGHT_T && !LEFT_T), "fp8: both operands along K");
static_assert(!PROMOTED || !PINGPONG, "sums of two tiles and of a step do not fit the registers");
static_assert(!BLOCK_SCALES || (PROMOTED && SPANNED <= (SWAPPED ? 1 : 2)), "scales of two blocks of columns at most");
static_assert(!ADDENDS || ADDEND_BYTES <= STAGE_BYTES, "an addend's step fits a stage");
static_assert(!PINGPONG || (CONSUMERS == 2 && BLOCKS_M == 2 && !THROTTLED), "two groups in turn, 128 rows each");

// Where the parts of a block's shared memory start: 32-bit addresses of the shared window.
struct SharedMemory {
    u32 ring;      // the stages
    u32 staging;   // the storing warps' buffers
    u32 scales;    // slots of ScaleSlot, or of TileScales
    u32 parts;     // PARTS: the other blocks' sums, and …
    u32 come;      // … a barrier: these have come
    u32 full;      // a barrier for each stage: its loads have come
    u32 empty;     // a barrier for each stage: all that read it have given it back
    u32 seen;      // a word: how many of the waits that the flag warp goes through have ended
    IF_MARKS(Mark* marks;)   // one for each tile

    // NOTE else the compiler makes addresses again wherever they are used, from the block's number in its cluster
    __device__ __forceinline__ void keep_in_registers() {
        asm volatile("" : "+r"(ring));
        asm volatile("" : "+r"(full));
        empty = full + 8 * MAX_STAGES;
    }
};

// A place in the ring: a stage, and the parity by which its barrier is waited for. It changes with each turn around the
// ring. It starts at 0 for a full barrier, and at 1 for an empty one: all stages are empty before the first turn.
struct RingPlace {
    int stage;
    u32 parity;

    __device__ __forceinline__ void advance(int stages) {
        if (++stage == stages) {
            stage = 0;
            parity ^= 1;
        }
    }
    __device__ __forceinline__ void advance_by(int steps, int stages) {
        stage += steps;
        parity ^= stage / stages & 1;
        stage %= stages;
    }
};
