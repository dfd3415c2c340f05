// What the host writes for the GEMMs of tensor and matrix cores: the table of tiles, and the kernels' parameters.
//
// C and C++ alike: the kernels include it, and so does the stand-in of the tests. The host's half is
// kernels/tile_table.py and, for the parameters, kernels/by_address.py (sm80, mfma) and kernels/sm90/tables.py;
// tests/unit/test_kernel_structs.py compares the two.
#pragma once
#include "integers.h"
#include "marks.h"

#ifdef __cplusplus
#define ALIGNED(bytes) alignas(bytes)
#else
#define ALIGNED(bytes) _Alignas(bytes)
#endif

// ---------------------------------------------------------------- the table of tiles

typedef struct Tile {
    ALIGNED(64) int left_row;  // where its operands start
    int right_col;
    int out_row, out_col;
    int rows, cols;               // how much of it is stored
    int k_first, k_blocks;        // its pieces of K: Table.depths[k_first …], k_blocks steps of 64 in all
    int operands;                 // index into the parameters' operands
    int accumulate;               // 1: it is added to the output
    int wait_first, wait_count;   // Table.flags that must be up before it reads
    int signal;                   // index into Table.signals, or -1
    int splits, split;            // it makes partial `split` of `splits`
    int slot;                     // partial and counter of split 0
} Tile;

// A piece of K: where it starts in each operand, its steps of 64, its elements. sm90: size < 0 walks it backwards.
typedef struct Depth { int left, right, blocks, size; } Depth;

// Table.flags that must be up before a piece of K is read. sm90 only.
typedef struct DepthWait { int first, count; } DepthWait;

// Flags that the target-th warp raises when it has stored its part.
typedef struct Signal { u32 target, flag_first, flag_count, unused; } Signal;

// The addends of a tile: what is added to its product.
typedef struct TileAddends {
    int first, count;             // the parameters' addends
    int at, gap;                  // sm90: steps of K before the first of their steps, and from one of these to the next
    int wait_first, wait_count;   // Table.flags that must be up before they are read
    int unused[2];
} TileAddends;

// The matrix (or tensor map) of an addend, and where the tile's rows and columns start in it.
typedef struct Addend { int matrix, row, col, unused; } Addend;

// What all kernels' parameters hold of the table.
typedef struct Table {
    const Tile* tiles;
    const Depth* depths;
    const u64* flags;             // addresses of 32-bit words, in this GPU's memory or in a peer's
    const Signal* signals;
    u32* signal_counts;           // zero before the first launch; each launch leaves zeros
    u32* split_counts;            // likewise
    float* partials;
    const u32* epoch;             // a flag is up when it holds at least *epoch; null: at least 1
    const u32* abort;             // waiting ends when *abort is not zero (the host's watchdog); null: never
} Table;

// ---------------------------------------------------------------- sm80 and mfma: operands by address and pitch

typedef struct PitchedOperands {
    u64 left, right, out;                     // addresses
    i64 left_pitch, right_pitch, out_pitch;   // bytes from a stored row to the next
    int rows;                                 // of the output: what a tile has behind them is not there, nor in the left
    int unused[3];
} PitchedOperands;

typedef struct PitchedMatrix { u64 address; i64 pitch; u64 item, unused; } PitchedMatrix;   // bytes; item: an element's

typedef struct PitchedParameters {
    Table table;
    int tile_count, stages;                   // stages of the pipeline; mfma: unused
    const TileAddends* tile_addends;          // one for each tile
    const Addend* addends;
    PitchedOperands operands[40];
    PitchedMatrix addend_matrices[32];
} PitchedParameters;

// ---------------------------------------------------------------- sm90: operands by tensor map

typedef struct TensorMap { ALIGNED(64) u8 opaque[128]; } TensorMap;

typedef struct MappedOperands { TensorMap left, right, out; } MappedOperands;

// What the tensor maps do not tell of operands.
typedef struct OperandInfo {
    u8* out;
    i64 out_pitch;    // elements
    u32 stage_bytes;  // that loads bring into a stage: the box of the left operand may have fewer rows than the tile
    u32 scale_bytes;  // … and the box of its scales into a slot
    u32 read_only;    // bits, 1 right, 2 left: nothing in the plan writes the operand, so that it may be read at once
    int rows;         // of the output: what a tile has behind them is not stored
} OperandInfo;

// Where the clusters' first tiles read, from the cluster's number alone: tiles in bands of `band` rows of clusters' tiles, down
// each column of a band, as the table has them, all tiles for each part of K. Memory takes longer to tell than a launch of
// few rows has.
typedef struct FirstGrid {
    int left_row, right_col;           // of the first tile; the others' follow
    int left_k, right_k;
    int steps;                         // of K of a tile; 0: only the table tells
    int rows, columns, band;           // of clusters' tiles
    int parts;                         // of K
    int left_rows, right_rows;         // that the operands have, as they are stored
    int last_row, last_col;            // where the last tiles begin, from the first one on
} FirstGrid;

// Scales of fp8 operands, fp32. Pitches: elements from a row of scales to the next.
typedef struct OperandScales { const float *left, *right; i64 left_pitch, right_pitch; } OperandScales;

typedef struct MappedParameters {
    MappedOperands operands[8];
    OperandInfo infos[8];
    Table table;
    int tile_count, stages;
    const TileAddends* tile_addends;   // one for each tile
    const Addend* addends;
    u32* ended;                        // blocks that wait for nothing any more, and tiles that clusters have begun;
                                       // zero before the first launch and after each
    int reset_first, reset_count;      // Table.flags that are reset when all blocks have ended so
    const DepthWait* depth_waits;      // one for each of Table.depths; null: no piece of K waits
    int lockstep;                      // 1: each cluster waits at its tiles until all have begun as many
    TensorMap addend_maps[4];          // of fp8 operands 2, and the operands' OperandScales behind these
    FirstGrid first;
} MappedParameters;

#ifdef __cplusplus
// With scales of blocks. NOTE more than 4,096 bytes, which CUDA takes since 12.1
struct ScaledParameters : MappedParameters { TensorMap left_scales[8]; };
#endif
