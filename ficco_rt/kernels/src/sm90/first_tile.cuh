// A block's first tile, told without the table.
#pragma once
#include "ptx.cuh"

// a / b, of numbers up to 2^20. NOTE the exact division of integers would hold the first load up
__device__ __forceinline__ int quotient(int a, int b) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"((float)b));
    return (int)((a + 0.5f) * r);
}

// A block's first tile as the table has it, from its cluster's number. NOTE without branches: code that is jumped to comes
// from L2, 250 cycles each time
struct Foreseen {
    int left_row, right_col;
    Quad depth;

    __device__ __forceinline__ Foreseen(const FirstGrid& g, u32 me) {
        int tile = blockIdx.x / CLUSTER;
        const int within_cluster = g.parts > 1 ? tile % PARTS : 0;
        const int part = PARTS > 1 ? within_cluster : quotient(tile, g.rows * g.columns);
        tile = PARTS == 1 ? tile - part * g.rows * g.columns : g.parts > 1 ? tile / PARTS : tile;
        const int low = quotient(g.steps * part, g.parts), high = quotient(g.steps * (part + 1), g.parts);
        const int first = quotient(tile, g.band * g.columns) * g.band, rows = min(g.band, g.rows - first);
        const int within = tile - first * g.columns;
        tile = quotient(within, rows);
        int row = first + within - tile * rows;
        if (LEFT_SHARED) tile = tile * CLUSTER + (int)me;
        else row = row * CLUSTER + (int)me;
        left_row = g.left_row + min(row * TILE_M, g.last_row), right_col = g.right_col + min(tile * TILE_N, g.last_col);
        depth = {g.left_k + low * TILE_K, g.right_k + low * TILE_K, high - low, TILE_K};
    }
};
