// Marks: when the tiles of a traced launch waited, began and ended.
//
// Kernels write them when they are compiled with MARKS=1, which gives them one more argument, the address of a Mark for
// each tile; otherwise nothing of this is left in their code. C and C++ alike: the stand-in of the tests includes it, and
// tests/unit/test_kernel_structs.py compares Mark with its twin in kernels/marks.py.
#pragma once
#include "integers.h"

// In ticks of the device's clock: nanoseconds (NVIDIA), or what the driver says a tick is (AMD).
typedef struct Mark {
    u64 came;     // its block came to it: all loads of the block's tile before were asked for
    u64 began;    // what it waits for first was there
    u64 ended;    // the last of its warps had handed over its stores
    u64 waited;   // how long its block waited for flags, those of later pieces of K and of addends too
    u64 where;    // the multiprocessor, and above 32 bits the number of the block; all bits: not known
} Mark;

#if MARKS
#define IF_MARKS(...) __VA_ARGS__

#ifdef __HIP__
__device__ __forceinline__ u64 device_place() { return ~(u64)0; }
__device__ __forceinline__ u64 device_time() { return __builtin_amdgcn_s_memrealtime(); }
__device__ __forceinline__ void raise_to(u64* p, u64 v) {
    __hip_atomic_fetch_max(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
#else
// NOTE some GPUs move this clock on once a microsecond only
__device__ __forceinline__ u64 device_time() {
    u64 t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
    return t;
}
__device__ __forceinline__ void raise_to(u64* p, u64 v) { atomicMax(p, v); }
__device__ __forceinline__ u64 device_place() {
    u32 multiprocessor;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));
    return (u64)blockIdx.x << 32 | multiprocessor;
}
#endif

// One thread of a block, when the tile's wait is over. It came to the tile at `came`.
__device__ __forceinline__ void mark_begin(Mark* mark, u64 came) {
    const u64 began = device_time();
    mark->came = came, mark->began = began, mark->waited = began - came, mark->where = device_place();
}
// The same thread, behind a later wait of the tile, which began at `from`; `first`: the tile's work begins behind it.
__device__ __forceinline__ void mark_wait(Mark* mark, u64 from, bool first = false) {
    const u64 seen = device_time();
    mark->waited += seen - from;
    if (first) mark->began = seen;
}
// A thread of each warp. NOTE the largest counts: what an earlier run left is smaller
__device__ __forceinline__ void mark_end(Mark* mark) { raise_to(&mark->ended, device_time()); }
#else
#define IF_MARKS(...)
#endif
