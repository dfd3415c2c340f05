// What the host writes for the naive kernels: a table of works, and what the works point to.
//
// C and C++ alike: naive.cu includes it, and so does the stand-in of the tests. The host's half is
// kernels/naive; tests/unit/test_kernel_structs.py compares the two.
#pragma once
#include "integers.h"
#include "marks.h"

// A place in a tensor's memory: the number of one of Table.bases in the bits from PLACE_BITS on, and the bytes from there.
enum { PLACE_BITS = 40 };

// A logical axis as runs of a tensor's: logical index i < end lies at i + shift.
typedef struct Run { i64 end, shift; } Run;
typedef struct Map { int first, count; } Map;   // its runs

typedef struct Sync { int first_wait, waits, first_signal, signals; } Sync;   // of Table.flags

// out (+)= left · right, or out = left · right + addends; the operands may be scaled.
typedef struct Gemm {
    u64 out, left, right;                                   // places of element [0, 0]
    i64 out_m, out_n, left_m, left_k, right_k, right_n;     // strides, elements
    Map map_out_m, map_out_n, map_left_m, map_left_k, map_right_k, map_right_n;
    int m, n, k, accumulate;
    int first_tile, tiles, columns, counter;                // tiles: in all; columns: tiles in a row of tiles
    Sync sync;
    int first_addend, addends;
    int scaled, unused;                                     // scaled: 2 Scales stand behind the addends, else 0
} Gemm;

// A matrix that is added to a product, by the result's rows and columns.
typedef struct Addend {
    u64 place;                                              // of element [0, 0]
    i64 m, n;                                               // strides, elements
    Map map_m, map_n;
    int type, unused;                                       // the number of a type in naive.cu
} Addend;

// What the elements of an operand are multiplied by, fp32: one for 1 << by rows or columns of the result and 1 << by_k of K.
typedef struct Scales {
    u64 place;                                              // of element [0, 0]
    i64 mn, k;                                              // strides, elements
    Map map_mn, map_k;
    int by, by_k;
} Scales;

// out = the sum of terms.
typedef struct Reduce {
    u64 out;                                                // a place
    i64 out_pitch, rows, columns;                           // elements
    int first_term, terms, vector, counter;                 // vector: elements of an access, 1 if
                                                            // not of 16 bytes; < 0: terms are of several types
    int first_tile, tiles, work, work_tiles;                // jobs of one work share a counter
    Sync sync;
} Reduce;
typedef struct Term { u64 place; i64 pitch; int type, unused; } Term;   // type: as an addend's

// out · scales = the sum of terms, rows of one pitch on every side.
typedef struct Quantize {
    u64 out, scales, by;                                    // places; by: of the one scale that is given, where `given`
    i64 out_pitch, scale_pitch;                             // elements
    int rows, columns, across, scale_columns;               // across: elements with one scale, 0: a row; scale_columns:
                                                            // with the padding
    int first_term, terms, vector, pow2;                    // vector: as a sum's, of the result's accesses
    int first_tile, tiles, work, work_tiles;                // jobs of one work share a counter
    Sync sync;
    int given, unused;
} Quantize;

// One tile of a copy.
typedef struct Copy {
    u64 to, from;                                           // places
    i64 to_pitch, from_pitch;                               // bytes
    int rows, units, unit;                                  // units: accesses a row, of 16, 8, 4, 2 or 1 bytes
    int work, work_tiles, unused;                           // tiles of one work share a counter
    Sync sync;
} Copy;

// A kernel's only argument.
typedef struct Table {
    u64 works, terms, runs, flags, counters;                // counters: [0] tickets, [1] blocks that ended, then works'
    int count, tiles, ordered, waits;                       // waits: 1 if a work waits for flags
    int reset_first, reset_count;                           // flags that are reset when no block waits any more
    u64 bases[56];                                          // addresses
} Table;
