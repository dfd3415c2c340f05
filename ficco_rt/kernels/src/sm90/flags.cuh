// Flags between launches and devices: waiting for them, raising them, resetting them.
#pragma once
#include "ptx.cuh"

// The value that an up flag holds.
__device__ __forceinline__ u32 epoch_of(const Parameters& p) {
    return p.table.epoch ? *(const volatile u32*)p.table.epoch : 1u;
}

// All lanes of a warp wait until `count` flags are up. Each lane looks at every 32nd of them: each look takes a microsecond.
// Copy engines and peers write both flags and data, hence acquire at system scope.
// NOTE the warp votes: behind a loop that lanes leave one by one, the compiler uses no uniform registers in the main loop
__device__ __forceinline__ void wait_flags(const Parameters& p, int first, int count, int lane) {
    const u32 goal = epoch_of(p);
    for (int i = 0; i < count; i += 32) {
        const u32* flag = (const u32*)p.table.flags[first + min(i + lane, count - 1)];
        bool up = false;
        for (u32 looks = 1;; ++looks) {
            if (!up) up = (int)(load_acquire(flag) - goal) >= 0;
            if (!__any_sync(~0u, !up)) break;
            if ((looks & 255) == 0 && __any_sync(~0u, p.table.abort && *(const volatile u32*)p.table.abort)) return;
        }
    }
}

// All lanes of a warp whose part of a tile is stored; the first one counts the warp, and raises the work's flags if the warp
// is the last one.
__device__ __forceinline__ void signal_stored(const Parameters& p, int signal, int lane) {
    const Quad s = load_quad(p.table.signals + signal);   // target flag_first flag_count ·
    bool last = false;
    if (lane == 0) {
        wait_stores_done();
        fence_async_proxy();
        last = count_up(p.table.signal_counts + signal) + 1 == (u32)s.x;
        if (last) {
            p.table.signal_counts[signal] = 0;
            __threadfence_system();   // releases all the flags: a fence for each would take a microsecond more
        }
    }
    if (!__any_sync(~0u, last)) return;
    const u32 value = epoch_of(p);
#pragma unroll 1
    for (int i = 0, count = uniform(s.z); i < count; ++i)
        if (lane == 0) store_relaxed((u32*)p.table.flags[s.y + i], value);
}

// Before a tile of `blocks` steps. Clusters that walk along K together find in L2 what others have loaded; in a long
// launch they drift apart. So each counts its tiles, and waits until all have begun as many. NOTE not for long: some may
// not be running yet
__device__ __forceinline__ void keep_lockstep(const Parameters& p, int index, int blocks, int lane) {
    const u32 turn = (u32)index / gridDim.x, tiles = (u32)p.tile_count / CLUSTER;
    u32* count = p.ended + 1;
    u32 begun = 0;
    if (lane == 0) begun = atomicInc(count, tiles - 1);   // the last tile leaves zero
    begun = uniform(begun);
    if (turn == 0) return;
    const u32 goal = min((turn + 1) * (gridDim.x / CLUSTER), tiles);
    for (int looks = 1 + blocks / 8; looks > 0; --looks) {   // a look takes about as long as a step of a large tile
        const u32 seen = uniform(*(const volatile u32*)count);
        if (seen >= goal || seen <= begun) break;
    }
}

// Called by one lane of a block that has no wait left: the last such block of the launch resets the flags.
__device__ __forceinline__ void reset_flags(const Parameters& p) {
    if (p.reset_count > 0 && atomicAdd(p.ended, 1u) == gridDim.x - 1) {
        *p.ended = 0;
        for (int i = 0; i < p.reset_count; ++i) *(u32*)p.table.flags[p.reset_first + i] = 0;
    }
}
