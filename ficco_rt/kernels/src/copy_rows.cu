// Rows of bytes inside a device, copied by multiprocessors at the priority of the launch. A graph's own copies have no
// priority: they begin behind all blocks of other kernels.

#include "copy_rows.h"

#ifdef __HIP__
#define CONSTANT
#else
#define CONSTANT __grid_constant__
#endif

struct alignas(16) Sixteen {
    u64 halves[2];
};

// Each thread has several loads under way: a multiprocessor copies four times as fast so as by one. And it divides
// once: 64-bit divisions take longer than the copy.
template <typename Unit> __device__ void copy(const CopyRows &c) {
    const u64 columns = c.width / sizeof(Unit), step = (u64)gridDim.x * COPY_THREADS;
    const u64 rows_on = step / columns, columns_on = step % columns;
    const u64 first = (u64)blockIdx.x * COPY_THREADS + threadIdx.x;
    u64 row = first / columns, column = first % columns;
    while (row < c.rows) {
        Unit held[COPY_LOADS], *to[COPY_LOADS];
#pragma unroll
        for (int i = 0; i < COPY_LOADS; i++) {
            const u64 at = column * sizeof(Unit);
            to[i] = row < c.rows ? (Unit *)(c.to + row * c.to_pitch + at) : nullptr;
            if (to[i]) held[i] = *(const Unit *)(c.from + row * c.from_pitch + at);
            row += rows_on;
            column += columns_on;
            if (column >= columns) column -= columns, row++;
        }
#pragma unroll
        for (int i = 0; i < COPY_LOADS; i++)
            if (to[i]) *to[i] = held[i];
    }
}

extern "C" __global__ void __launch_bounds__(COPY_THREADS) copy_rows(const CONSTANT CopyRows c) {
    const u64 all = c.to | c.from | c.width | c.to_pitch | c.from_pitch;  // of which each is a multiple of the unit
    if (all % 16 == 0) copy<Sixteen>(c);
    else if (all % 4 == 0) copy<u32>(c);
    else if (all % 2 == 0) copy<u16>(c);
    else copy<u8>(c);
}
