// Addends: matrices that are added to a tile's product. They come through the ring, in stages between the steps of K;
// PINGPONG: behind them. Without ADDENDS nothing here makes code.
#pragma once
#include "../half_floats.cuh"
#include "ptx.cuh"

// Where a tile's addends stand among its steps of K.
struct AddendSteps {
    int left, at, gap;   // stages to come; steps of K before the next of them, and from one to the next

    __device__ __forceinline__ void start(const Quad& added) {   // · count at gap, as in TileAddends
        left = added.y * ADDEND_STEPS;
        at = added.z;
        gap = added.w;
    }
    __device__ __forceinline__ bool due(int b) const { return left > 0 && at == b + 1; }   // behind step b of K
    __device__ __forceinline__ int part() const { return (left - 1) % ADDEND_STEPS; }      // of the addend, the last first
    __device__ __forceinline__ void advance() { --left, at += gap; }
};

// 64 rows of an addend, the m-th of those in a stage from `rows` on, to a group's sums: 16 rows a warp.
__device__ __forceinline__ void add_addend(float (&d)[ACC], u32 rows, int m) {
    const u32 lane = threadIdx.x & 31, r = lane & 15, warp = threadIdx.x >> 5 & 3;
#pragma unroll
    for (int j = 0; j < ACC / 4; j += 2) {   // as the epilogue stages them
        const u32 unit = j % 8 + (lane >> 4);
        const u32 at = rows + j / 8 * ADDEND_ROWS * 128 + (m * 64 + warp * 16 + r) * 128 + ((unit ^ (r & 7)) << 4);
        u32 v[4];
        load_matrices(v, at);
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (4 * j + 2 * i < ACC) add_packed(d[4 * j + 2 * i], d[4 * j + 2 * i + 1], v[i]);
    }
}
