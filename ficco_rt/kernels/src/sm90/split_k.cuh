// Splits of K: each makes a partial of the tile, and stores a share of the sum.
//
// Of each warp's sums, split s adds up and stores a share: some of every eight rows, which are a lane's own; SWAPPED: some
// blocks of eight rows. The rest it leaves in memory as its part. Then it counts itself, and waits a while for the others. For each warp of a tile a word
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
constexpr int SHARES = !SWAPPED || ACC / 4 > 8 ? 8 : ACC / 4;   // of a tile, at most
constexpr int PART = WARPS * BLOCKS_M * ACC / 4 * 32;   // from a split's to the next one's
constexpr int PARTS_AT_ONCE = BLOCKS_M * ACC <= 32 ? 4 : 1;   // that are read
constexpr int PATIENCE = 128;      // looks at the word

__device__ __forceinline__ bool all_come(u32 state, u32 splits) { return (int)state < 0 || state % SEEN == splits; }

// PARTS: the blocks of a cluster have a part of K each. A block sends its sums of the others' shares, and adds what comes from
// the others to its own, in the order of `add_splits`. NOTE a block has one such tile in a launch, so that no place is still
// in use. The shares that are to be stored, a bit each.
__device__ __forceinline__ u32 add_parts(const SharedMemory& memory, float (&d)[BLOCKS_M][ACC], int warp) {
    const u32 me = block_in_cluster(), lane = threadIdx.x & 31;
    const u32 of_warp = memory.parts + warp * (BLOCKS_M * HELD_BYTES) + lane * 16;   // of the first other block
    constexpr u32 apart = WARPS * BLOCKS_M * HELD_BYTES;
#pragma unroll
    for (int m = 0; m < BLOCKS_M; ++m)
#pragma unroll
        for (int i = 0; i < EIGHTS; ++i) {
            const u32 owner = i * PART_SHARES / EIGHTS, first = (owner * EIGHTS + PART_SHARES - 1) / PART_SHARES;
            if (owner != me)
                store_there(of_warp + (me - (me > owner)) * apart + m * HELD_BYTES + (i - first) * 512, memory.come, owner,
                            d[m][4 * i], d[m][4 * i + 1], d[m][4 * i + 2], d[m][4 * i + 3]);
        }
    if (me >= PART_SHARES) return 0;
    barrier_wait(memory.come, 0);
#pragma unroll
    for (int n = 1; n < PARTS; ++n) {
        const u32 other = me + n < PARTS ? me + n : me + n - PARTS, from = of_warp + (other - (other > me)) * apart;
#pragma unroll
        for (int m = 0; m < BLOCKS_M; ++m)
#pragma unroll
            for (int i = 0; i < EIGHTS; ++i) {
                const u32 owner = i * PART_SHARES / EIGHTS, first = (owner * EIGHTS + PART_SHARES - 1) / PART_SHARES;
                if (owner == me) {
                    const float4 v = load_sums(from + m * HELD_BYTES + (i - first) * 512);
                    d[m][4 * i] += v.x, d[m][4 * i + 1] += v.y, d[m][4 * i + 2] += v.z, d[m][4 * i + 3] += v.w;
                }
            }
    }
    return 1 << me;
}

// The split that stores a lane's sums, i of each four of them. Not SWAPPED: all of a lane are alike.
__device__ __forceinline__ u32 owner_of(int i, u32 shares) {
    return SWAPPED ? i * shares / (ACC / 4) : (threadIdx.x >> 2 & 7) * shares / SHARES;
}

// Whether i of each four of this lane's sums lie in the tile. `high`: its rows from the warp's first on; SWAPPED: columns.
__device__ __forceinline__ bool inside(const Tile& t, int high, int m, int i) {
    return (int)(threadIdx.x >> 2 & 7) < high - 64 * m && (!SWAPPED || 8 * i < t.rows);
}

// Sum j of those that are left as the i-th four. NOTE these lie in four registers from a multiple of four on, and what wgmma
// makes of a step does, too. PROMOTED: fours that begin at the second sum keep the two in different banks. Promotion would
// read three registers of one bank otherwise, which takes it half as long again.
__device__ constexpr int of_four(int i, int j) { return PROMOTED && !SWAPPED ? (4 * i + j + 1) % ACC : 4 * i + j; }

// To memory, what is `split`'s or, if not `own`, what is not.
__device__ __forceinline__ void leave_part(const Tile& t, const float (&d)[BLOCKS_M][ACC], float4* to, int high, u32 shares,
                                           bool own) {
#pragma unroll
    for (int m = 0; m < BLOCKS_M; ++m)
#pragma unroll
        for (int i = 0; i < ACC / 4; ++i)
            if (inside(t, high, m, i) && (owner_of(i, shares) == (u32)t.split) == own)
                __stcg(to + (m * (ACC / 4) + i) * 32,
                       make_float4(d[m][of_four(i, 0)], d[m][of_four(i, 1)], d[m][of_four(i, 2)], d[m][of_four(i, 3)]));
}

// The n-th part of the shares `mine`, a bit each, to this lane's sums; `first`: the sums start with it.
__device__ __forceinline__ void add_part(const Tile& t, float (&d)[BLOCKS_M][ACC], const float4* parts, u32 n, int high,
                                         u32 shares, u32 mine, bool first) {
    constexpr int AT_ONCE = SWAPPED ? 4 / BLOCKS_M : ACC / 4;   // loads: others would wait for registers
#pragma unroll
    for (int m = 0; m < BLOCKS_M; ++m)
#pragma unroll
        for (int from = 0; from < ACC / 4; from += AT_ONCE) {
            const int to = min(from + AT_ONCE, ACC / 4);
            const u32 within = (2u << owner_of(to - 1, shares)) - (1u << owner_of(from, shares));
            if ((mine & within) == 0 || !inside(t, high, m, from)) continue;
            if (!SWAPPED && first && owner_of(from, shares) == (u32)t.split) continue;
#pragma unroll
            for (int i = from; i < to; ++i) {
                const u32 owner = owner_of(i, shares), s = owner + n < (u32)t.splits ? owner + n : owner + n - t.splits;
                const bool adds = !SWAPPED || (mine >> owner & 1 && inside(t, high, m, i) && !(first && owner == (u32)t.split));
                const float4 v = load_partial(parts + s * PART + (m * (ACC / 4) + i) * 32, adds);   // or zeros
                const bool starts = first && adds;
                const float of[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    float& sum = d[m][of_four(i, j)];
                    sum = starts ? of[j] : sum + of[j];
                }
            }
        }
}

// The warp's share of the tile: the lanes, a bit each, whose sums are whole now and to be stored by this split. SWAPPED: the
// splits, a bit each, whose shares these are.
__device__ __forceinline__ u32 add_splits(const Parameters& p, const Tile& t, float (&d)[BLOCKS_M][ACC], int warp,
                                          int high) {
    const u32 lane = lane_again(), splits = uniform(t.splits), split = uniform(t.split), shares = min(splits, SHARES);
    float4* const parts = (float4*)p.table.partials + (long long)t.slot * PART + warp * (PART / WARPS) + lane;
    u32* const word = p.table.split_counts + t.slot * WARPS + warp;
    leave_part(t, d, parts + split * PART, high, shares, false);
    __syncwarp();
    u32 mine = 1 << split;   // shares that are this split's to store, a bit each
    u32 state = 0;
    bool waits = false;
    if (lane == 0) {
        state = count_up(word) + COME;
        if (state % SEEN == splits) {
            const u32 gone = state / GONE, waiting = shares - (split < shares) - __popc(gone);
            atomicAdd(word, -(splits * COME + SEEN * waiting + GONE * gone));
            mine |= gone;
        } else if (split >= shares) {
            mine = 0;
        } else {
            waits = true;
        }
    }
    if (__any_sync(~0u, waits)) {   // NOTE all lanes go through the loops: see `uniform`
        for (int i = 0; i < PATIENCE && !all_come(uniform(state), splits); ++i)
            if (lane == 0) state = load_acquire_gpu(word);
        state = uniform(state);
        if (!all_come(state, splits)) {   // tired
            leave_part(t, d, parts + split * PART, high, shares, true);
            __syncwarp();
            if (lane == 0) {
                __threadfence();
                state = load_acquire_gpu(word);
            }
            for (u32 before = 0; !all_come(state = uniform(state), splits); state = before) {
                if (lane == 0) before = atomicCAS(word, state, state | GONE << split);
                if (uniform(before) == state) break;
            }
            if (!all_come(state, splits)) mine = 0;
            else if (lane == 0) __threadfence();
        }
        if (lane == 0 && all_come(state, splits)) atomicAdd(word, SEEN);
    }
    __syncwarp();   // what lane 0 has seen, all have
    mine = __shfl_sync(~0u, mine, 0);
    // always in the same order: the owner's part, then the next ones', the first behind the last
    add_part(t, d, parts, 0, high, shares, mine, true);
#pragma unroll PARTS_AT_ONCE
    for (u32 n = 1; n < splits; ++n) add_part(t, d, parts, n, high, shares, mine, false);
    return SWAPPED ? mine : __ballot_sync(~0u, mine >> owner_of(0, shares) & 1);
}
