// A block's first tile, told without the table.
#pragma once
#include "ptx.cuh"

// a / b, of numbers up to 2^20. NOTE the exact division of integers would hold the first load up
__device__ __forceinline__ int quotient(int a, int b) { return (int)__fdividef(a + 0.5f, (float)b); }

// A block's first tile as the table has it, from its cluster's number.
struct Foreseen {
    int left_row, right_col;
    Quad depth;

    __device__ __forceinline__ Foreseen(const FirstGrid& g, u32 me) {
        int tile = blockIdx.x / CLUSTER, low = 0, high = g.steps, row = 0;
        if (g.parts > 1) {
            const int part = PARTS > 1 ? tile % PARTS : quotient(tile, g.rows * g.columns);
            tile = PARTS > 1 ? tile / PARTS : tile - part * g.rows * g.columns;
            low = quotient(g.steps * part, g.parts), high = quotient(g.steps * (part + 1), g.parts);
        }
        if (g.rows > 1) {
            const int first = quotient(tile, g.band * g.columns) * g.band, rows = min(g.band, g.rows - first);
            const int within = tile - first * g.columns;
            tile = quotient(within, rows);
            row = first + within - tile * rows;
        }
        if (LEFT_SHARED) tile = tile * CLUSTER + (int)me;
        else row = row * CLUSTER + (int)me;
        left_row = g.left_row + row * TILE_M, right_col = g.right_col + tile * TILE_N;
        depth = {g.left_k + low * TILE_K, g.right_k + low * TILE_K, high - low, TILE_K};
    }
};
