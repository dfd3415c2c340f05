// Splits of K: each makes a partial of the tile, and stores a share of the sum.
//
// Of each warp's sums, split s adds up and stores a share: some of every eight rows, which are a lane's own. The rest it
// leaves in memory as its part. Then it counts itself, and waits a while for the others. For each warp of a tile a word
// tells which splits have come. The word ends at zero. Only the first of these additions needs an answer:
//
//   COME   each split, when its part is in memory
//   SEEN   each split that has waited, when it has seen that all have come
//   -(splits · COME + SEEN · waiting + GONE of those gone)   the last split to come; negative until the last has seen
//   GONE << s   split s, when it stops waiting before all have come: its own share is in memory too, for the last split
//
// No split waits for ever, so that a grid whose blocks are not all resident ends, too.
#pragma once
#include "ptx.cuh"

constexpr u32 COME = 1, SEEN = 1 << 5, GONE = 1 << 8;
constexpr int SHARES = 8;          // of a tile, at most
constexpr int PATIENCE = 128;      // looks at the word

__device__ __forceinline__ bool all_come(u32 state, u32 splits) { return (int)state < 0 || state % SEEN == splits; }

// This lane's sums to memory. `high`: rows of the tile from the warp's first on.
__device__ __forceinline__ void leave_part(const float (&d)[BLOCKS_M][ACC], float4* to, int high) {
#pragma unroll
    for (int m = 0; m < BLOCKS_M; ++m)
        if ((int)(threadIdx.x >> 2 & 7) < high - 64 * m)
#pragma unroll
            for (int i = 0; i < ACC / 4; ++i)
                __stcg(to + (m * (ACC / 4) + i) * 32,
                       make_float4(d[m][4 * i], d[m][4 * i + 1], d[m][4 * i + 2], d[m][4 * i + 3]));
}

// A part to this lane's sums; `first`: the sums start with it.
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

// The warp's share of the tile: the lanes, a bit each, whose sums are whole now and to be stored by this split.
__device__ __forceinline__ u32 add_splits(const Parameters& p, const Tile& t, float (&d)[BLOCKS_M][ACC], int warp,
                                          int high) {
    constexpr int part = WARPS * BLOCKS_M * ACC / 4 * 32;   // from a split's to the next one's
    const u32 lane = threadIdx.x & 31, splits = t.splits, split = t.split;
    const u32 shares = min(splits, SHARES), owner = (lane >> 2) * shares / SHARES;
    float4* const parts = (float4*)p.table.partials + (long long)t.slot * part + warp * (part / WARPS) + lane;
    u32* const word = p.table.split_counts + t.slot * WARPS + warp;
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
    if (whole) {   // always in the same order: the owner's part, then the next ones', the first behind the last
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
