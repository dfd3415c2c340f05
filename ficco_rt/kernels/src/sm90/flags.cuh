// Flags between launches and devices: waiting for them, raising them, resetting them.
#pragma once
#include "ptx.cuh"

// The value that an up flag holds.
__device__ __forceinline__ u32 epoch_of(const Parameters& p) {
    return p.table.epoch ? *(const volatile u32*)p.table.epoch : 1u;
}

// Wait until `count` flags are up. `lane` of `lanes` looks at every `lanes`-th of them: each look takes a microsecond. Copy
// engines and peers write both flags and data, hence acquire at system scope.
__device__ __forceinline__ void wait_flags(const Parameters& p, int first, int count, int lane, int lanes) {
    const u32 goal = epoch_of(p);
    for (int i = lane; i < count; i += lanes) {
        const u32* flag = (const u32*)p.table.flags[first + i];
        u32 looks = 0;
        while ((int)(load_acquire(flag) - goal) < 0)
            if (p.table.abort && (++looks & 255) == 0 && *(const volatile u32*)p.table.abort) return;
    }
}

// One lane of a warp whose part of a tile is stored: it counts the warp, and raises the work's flags if the warp is the
// last one.
__device__ __forceinline__ void signal_stored(const Parameters& p, int signal) {
    const Quad s = load_quad(p.table.signals + signal);   // target flag_first flag_count ·
    wait_stores_done();
    fence_async_proxy();
    if (count_up(p.table.signal_counts + signal) + 1 != (u32)s.x) return;
    p.table.signal_counts[signal] = 0;
    const u32 value = epoch_of(p);
    __threadfence_system();   // releases all the flags: a fence for each would take a microsecond more
    for (int i = 0; i < s.z; ++i) store_relaxed((u32*)p.table.flags[s.y + i], value);
}

// Called by one lane of a block that has no wait left: the last such block of the launch resets the flags.
__device__ __forceinline__ void reset_flags(const Parameters& p) {
    if (p.reset_count > 0 && atomicAdd(p.ended, 1u) == gridDim.x - 1) {
        *p.ended = 0;
        for (int i = 0; i < p.reset_count; ++i) *(u32*)p.table.flags[p.reset_first + i] = 0;
    }
}
